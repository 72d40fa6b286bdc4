"""What a session needs of an engine."""

import json
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path

OF_SESSION = ("environment", "cores")  # engine.options that the session applies; all others go to the engine
COUNTERS = ("drafts", "drafted", "accepted")  # steps that had drafts, ids drafted, ids accepted


class Engine(ABC):
    """One loaded engine, set up for one arm. Greedy decoding; times are time.perf_counter() seconds."""

    version: str
    borrowed_s = 0.0  # seconds that the other arm's engine spent on loading what this one shares

    def __init__(self, request: dict, mode: dict) -> None:
        """request: the session's. mode: {"method": "none"|"mtp"|"ngram", "num_speculative_tokens", ...}."""
        self.spec, self.paths, self.mode = request["spec"], request["paths"], mode
        self.on_gpu = self.spec["device"]["kind"] == "cuda"
        self.options = {key: value for key, value in self.spec["engine"]["options"].items() if key not in OF_SESSION}
        self.stop_ids = stop_ids(Path(self.paths["target"]))

    @cached_property
    def tokenizer(self):
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.paths["target"])

    @staticmethod
    def family(mode: dict) -> dict:
        """What of a mode an engine is built for; between modes that agree in it, `adopt` changes a loaded one."""
        return mode

    def adopt(self, mode: dict) -> None:
        """Go on with another mode of the same family."""

    def encode(self, messages: list[dict]) -> list[int]:
        """Token ids of a conversation, with the target's chat template and the opening of the answer."""
        return self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)

    @abstractmethod
    def run(self, wave: list[list[int]], output_tokens: int, ignore_eos: bool) -> list[dict]:
        """Decode the prompts of a wave together; one record each, in order.

        A record holds submit, times, counts, ids, finish, cached_tokens, offered, accepted and counters as
        docs/architecture.md defines them. The id that stops a request is among its ids.
        """

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """The engine's own totals since it was loaded, by COUNTERS, of the steps after prefills; and, where it tells, how
        often it had to stop a request and begin it again ("preempted")."""

    @abstractmethod
    def margin(self, ids: list[int], choices: frozenset[int]) -> float | None:
        """Gap between the log-probabilities of the likeliest id after these and of the less likely choice; None if that is not told."""

    @abstractmethod
    def memory(self) -> dict:
        """{"peak_bytes", "reason"}: the most memory in use so far, and what that figure covers."""

    @abstractmethod
    def settings(self) -> dict:
        """What the engine resolved and really uses."""

    def close(self) -> None:
        """Give back memory and processes."""


def stop_ids(target: Path) -> list[int]:
    """The ids that end an answer: those of the target's generation config, or of its config where that has none."""
    for name in ("generation_config.json", "config.json"):
        path = target / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.exists() else None
        if ids is not None:
            return sorted(ids) if isinstance(ids, list) else [ids]
    return []
