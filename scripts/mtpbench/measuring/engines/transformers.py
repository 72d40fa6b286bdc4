"""The transformers engine: `generate`, with an assistant model or prompt lookup in the speculative arm.

Written against 5.17.0 and 5.24.0. Ids are taken from a streamer. What was drafted and accepted is taken from the
candidate generator, which `generate` asks for drafts and tells how many it kept: a source apart from the ids.
"""

import itertools
import time

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from mtpbench.measuring import Refused
from mtpbench.measuring.device import peak_resident_bytes
from mtpbench.measuring.engines.base import COUNTERS, Engine

METHOD_KEYS = {
    "none": {"method"},
    "mtp": {"method", "num_speculative_tokens"},
    "ngram": {"method", "num_speculative_tokens", "prompt_lookup_min", "prompt_lookup_max"},
}


class Transformers(Engine):
    """One arm; both arms of a session share the loaded target."""

    version = transformers.__version__

    def __init__(self, request: dict, mode: dict, beside: "Transformers | None") -> None:
        super().__init__(request, mode)
        _refuse_unknown(mode, self.spec["protocol"]["concurrency"])
        transformers.utils.logging.disable_progress_bar()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        began = time.perf_counter()
        self.target = beside.target if beside else self._loaded("target")
        self.target_s = beside.target_s if beside else time.perf_counter() - began
        self.borrowed_s = self.target_s if beside else 0.0
        self.arguments, self.drafter = {}, None
        if mode["method"] == "mtp":
            self.drafter = self._loaded("drafter")
            # Constant gamma: 5.17.0 would adapt it and stop drafting at low confidence unless told otherwise.
            self.drafter.generation_config.num_assistant_tokens = mode["num_speculative_tokens"]
            self.drafter.generation_config.num_assistant_tokens_schedule = "constant"
            self.drafter.generation_config.assistant_confidence_threshold = 0.0
            self.arguments = {"assistant_model": self.drafter}
        elif mode["method"] == "ngram":
            self.arguments = {"prompt_lookup_num_tokens": mode["num_speculative_tokens"]}
            if "prompt_lookup_max" in mode:
                self.arguments["max_matching_ngram_size"] = mode["prompt_lookup_max"]
        self.totals = dict.fromkeys(COUNTERS, 0)
        self.peak = 0

    def _loaded(self, part: str):
        model = AutoModelForCausalLM.from_pretrained(
            self.paths[part], dtype=getattr(torch, self.spec["model"]["dtype"]), **self.options
        )
        # Nothing of a checkpoint's sampling settings may reach a greedy run: only the ids that mean something stay.
        kept = {name: getattr(model.generation_config, name) for name in ("bos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(**kept)
        return model.to(self.device).eval()

    def run(self, wave: list[list[int]], output_tokens: int, ignore_eos: bool) -> list[dict]:
        steps, draft = _Steps(), None

        def observed(*args, **kwargs):
            nonlocal draft
            draft = _ObservedDrafts(make_generator(*args, **kwargs))
            return draft

        make_generator = type(self.target)._get_candidate_generator.__get__(self.target)
        self.target._get_candidate_generator = observed
        stops = None if ignore_eos else self.stop_ids
        for model in filter(None, (self.target, self.drafter)):
            model.generation_config.eos_token_id = stops
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        submit = time.perf_counter()
        ids, mask = self._padded(wave)
        self.target.generate(
            ids, attention_mask=mask, max_new_tokens=output_tokens, do_sample=False, streamer=steps, **self.arguments
        )
        if self.on_gpu:
            self.peak = max(self.peak, torch.cuda.max_memory_allocated())
        outputs = torch.cat([value.view(len(wave), -1) for value in steps.values], dim=1).tolist()
        sizes = [value.numel() // len(wave) for value in steps.values]
        records = [self._record(submit, steps.times, sizes, row, stops or []) for row in outputs]
        if draft is not None:
            records[0] |= draft.accounted()
            for name in COUNTERS:
                self.totals[name] += records[0]["counters"][name]
        return records

    def _padded(self, wave: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and attention mask of a static batch, padded on the left."""
        width = max(map(len, wave))
        pad = self.target.generation_config.pad_token_id or 0
        ids = torch.tensor([[pad] * (width - len(prompt)) + prompt for prompt in wave], device=self.device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in wave], device=self.device)
        return ids, mask

    @staticmethod
    def _record(submit: float, times: list[float], sizes: list[int], ids: list[int], stops: list[int]) -> dict:
        """One row of a wave; a row that stopped before the others was padded from there on, which is cut off here."""
        end = next((i + 1 for i, token in enumerate(ids) if token in stops), len(ids))
        counts, left = [], end
        for size in sizes:
            counts.append(min(size, left))
            left -= counts[-1]
        counts = [count for count in counts if count]
        return {
            "submit": submit, "times": times[: len(counts)], "counts": counts, "ids": ids[:end],
            "finish": "stop" if ids[end - 1] in stops else "length", "cached_tokens": 0,
            "offered": None, "accepted": None, "counters": None,
        }  # fmt: skip

    def counters(self) -> dict[str, int]:
        return dict(self.totals)

    def margin(self, ids: list[int], choices: frozenset[int]) -> float | None:
        with torch.inference_mode():
            logits = self.target(torch.tensor([ids], device=self.device), logits_to_keep=1).logits[0, -1]
        likely = logits.float().log_softmax(-1)
        return float(likely.max() - likely[sorted(choices)].min())

    def memory(self) -> dict:
        if self.on_gpu:
            return {"peak_bytes": self.peak, "reason": "torch's allocator, this arm's waves; the weights of both arms are in it"}
        return {"peak_bytes": peak_resident_bytes(), "reason": "resident memory of the process that runs both arms"}

    def settings(self) -> dict:
        config = self.target.config.get_text_config()
        drafting = {} if self.drafter is None else {
            name: getattr(self.drafter.generation_config, name)
            for name in ("num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold")
        }  # fmt: skip
        return {
            "attention": config._attn_implementation, "dtype": str(self.target.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(), "interop_threads": torch.get_num_interop_threads(),
            "compiled": False, "cuda_graphs": False,
            **drafting, **{name: value for name, value in self.arguments.items() if name != "assistant_model"},
        }  # fmt: skip

    def close(self) -> None:
        self.target = self.drafter = None
        self.arguments = {}
        if self.on_gpu:
            torch.cuda.empty_cache()


class _Steps:
    """A streamer that keeps the ids of each step, shape (rows,) or (1, n), and the time at which they came."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[torch.Tensor] = []
        self.prompt_seen = False

    def put(self, value: torch.Tensor) -> None:
        if self.prompt_seen:
            self.times.append(time.perf_counter())
            self.values.append(value)
        self.prompt_seen = True

    def end(self) -> None:
        pass


class _ObservedDrafts:
    """A candidate generator in between: passes everything on and keeps what was offered and what was kept of it."""

    def __init__(self, generator) -> None:
        self.generator = generator
        self.offered: list[int] = []
        self.kept: list[int] = []

    def __getattr__(self, name: str):
        return getattr(self.generator, name)

    def get_candidates(self, input_ids: torch.Tensor, **kwargs):
        candidates, logits = self.generator.get_candidates(input_ids, **kwargs)
        self.offered.append(candidates.shape[1] - input_ids.shape[1])
        self.last_draft = candidates[0, input_ids.shape[1] :]
        return candidates, logits

    def update_candidate_strategy(self, input_ids: torch.Tensor, scores: torch.Tensor, num_matches: int) -> None:
        self.generator.update_candidate_strategy(input_ids, scores, num_matches)
        self.kept.append(int(num_matches))
        self.last_scores = scores

    def accounted(self) -> dict:
        """offered, accepted and counters of the request's steps after the prefill.

        Only the last step can be cut, by the length limit or by a stop id among its ids, and what `generate` then
        reports is the count after the cut. So its drafts are compared with the target's choices once more.
        """
        agrees = (self.last_draft.to(self.last_scores.device) == self.last_scores[0].argmax(-1)[: len(self.last_draft)]).tolist()
        self.kept[-1] = sum(itertools.takewhile(bool, agrees))
        offered, accepted = self.offered[1:], self.kept[1:]
        return {
            "offered": offered,
            "accepted": accepted,
            "counters": {"drafts": sum(map(bool, offered)), "drafted": sum(offered), "accepted": sum(accepted)},
        }


def _refuse_unknown(mode: dict, concurrency: list[int]) -> None:
    method = mode["method"]
    if method not in METHOD_KEYS:
        raise Refused("request", f'transformers has no method "{method}" here, only {", ".join(METHOD_KEYS)}')
    if unknown := sorted(set(mode) - METHOD_KEYS[method]):
        raise Refused("request", f"transformers cannot apply {', '.join(unknown)} of the mode")
    if mode.get("prompt_lookup_min", 1) != 1:
        raise Refused("request", "transformers looks prompts up with n-grams down to one id: prompt_lookup_min must be 1")
    if method != "none" and max(concurrency) > 1:
        raise Refused("request", f"transformers drafts for one request at a time: concurrency {max(concurrency)} needs method none")
