"""A cell's spec: all that can change its numbers, and no label; its fingerprint; what differs between two specs.

The planned request of a cell carries the spec and, outside the fingerprint, how and where to run it.
"""

import functools
import json
import time
from collections import Counter
from pathlib import Path

from jsonschema import Draft202012Validator

from mtpbench import config as configuration
from mtpbench import identity, ledger, results, weights
from mtpbench.errors import UserError
from mtpbench.measuring.device import cpu_name

PLANS = Path("metrics/specs")
PROMPT = Draft202012Validator({"properties": {
    "id": {"type": "string"}, "category": {"type": "string"},
    "messages": {"type": "array", "minItems": 1, "items": {"type": "object", "required": ["role", "content"], "properties": {
        "role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string", "pattern": r"\S"},
    }}},
}})  # fmt: skip
_cpu = functools.cache(cpu_name)


class Specs:
    """The cells of one configuration, resolved for one plan: a file that several of them share is read once.

    Make a new one after a change: each file counts as it was when it was first asked for.
    """

    def __init__(self, config: dict, root: Path = Path(".")):
        self.config, self.root = config, root

    def resolve(self, cell: str) -> dict:
        """The spec of a cell. Raises UserError for an unknown cell, a missing model folder or a malformed prompt file."""
        names = configuration.parts(cell, self.config)
        gpu, engine = self.config["gpus"][names["gpu"]], self._engine(names)
        mode, model = self.config["modes"][names["mode"]], self.config["models"][gpu["model"]]
        used = weights.PARTS if mode["method"] == "mtp" else ("target",)
        if engine["implementation"] == "transformers" and mode["method"] != "none" and max(engine["protocol"]["concurrency"]) > 1:
            raise UserError(
                f"{cell}: transformers drafts for one request at a time, and its protocol.concurrency is {engine['protocol']['concurrency']}; "
                "set [1] for it, or leave the cell out"
            )
        return {
            "measurement_version": ledger.measurement_version(),
            "device": {"kind": gpu["device"], "name": gpu["name"] if gpu["device"] == "cuda" else _cpu()},
            "engine": {
                "implementation": engine["implementation"],
                "requirements": {Path(file).name: self._lock(file) for file in self.requirement_files(names)},
                "options": engine["options"],
            },
            "model": {**{part: self._weights(gpu["model"], part) for part in used}, "dtype": model["dtype"]},
            "mode": {key: value for key, value in mode.items() if key != "protocol"},
            "prompts": {prompt["id"]: digest for prompt, digest in self._prompts(names)},
            "protocol": {key: value for key, value in engine["protocol"].items() if key != "prompts"},
        }

    @functools.cache
    def fingerprint(self, cell: str) -> str:
        """What a result of the cell must carry to answer its spec."""
        return results.digest(self.resolve(cell))

    def plan(self, cell: str) -> dict:
        """The planned request of a cell: its spec and fingerprint, the prompts' content, and how to run it (no part of the spec)."""
        names = configuration.parts(cell, self.config)
        gpu = self.config["gpus"][names["gpu"]]
        settings = gpu | self._engine(names)
        return {
            "fingerprint": self.fingerprint(cell),
            "cell": cell,
            "spec": self.resolve(cell),
            "prompts": [prompt for prompt, _ in self._prompts(names)],
            "how": {
                **{key: settings[key] for key in ("backend", "request", "python", "site", "memory_gb") if key in settings},
                "engine": names["engine"],
                "requirements": self.requirement_files(names),
                "model": {"name": gpu["model"], **self.config["models"][gpu["model"]]},
                **({"modal": self.config["modal"]} if gpu["backend"] == "modal" else {}),
            },
        }

    def planned_path(self, cell: str) -> tuple[Path, bool]:
        """The cell's plan file, and whether the committed result answers it already.

        Called while Snakemake plans, and with a side effect on purpose: over a result that does not answer it the plan is
        written anew, newer and different each time, which is what makes Snakemake run a cell again after a failure. Where
        there is no result it stays as it is, since replacing files waits for the disk. It is derived and git-ignored.
        """
        path = self.root / PLANS / cell / "plan.json"  # a folder each: Snakemake lists a folder once, before the next plan is in it
        state = self.state(cell)
        plan = self.plan(cell) | ({"planned": time.time()} if state == "stale" else {})
        results.update_text(path, json.dumps(plan, ensure_ascii=False, allow_nan=False))
        return path, state == "fresh"

    def state(self, cell: str) -> str:
        """'fresh', 'missing' or 'stale': whether the committed result answers the current spec."""
        path = results.path_of(cell, self.root)
        if not path.exists():
            return "missing"
        return "fresh" if results.recorded(path) == self.fingerprint(cell) else "stale"

    @functools.cache
    def states(self) -> dict[str, dict]:
        """Every configured or measured cell: {cell: {"state", "in_matrix", "differences"}}.

        state is 'fresh', 'missing', 'stale' (`differences` says from what) or 'foreign' (a result of a cell that the
        configuration does not know). Nothing is run and nothing is written.
        """
        matrix, found = dict.fromkeys(configuration.cells(self.config)), {}
        for cell in matrix | dict.fromkeys(path.parent.name for path in results.existing(self.root)):
            entry = found[cell] = {"state": "foreign", "in_matrix": cell in matrix, "differences": []}
            try:
                configuration.parts(cell, self.config)
            except UserError:
                continue
            entry["state"] = self.state(cell)
            if entry["state"] == "stale":
                try:
                    entry["differences"] = differences(results.read(results.path_of(cell, self.root))["spec"], self.resolve(cell))
                except UserError as error:  # the result cannot be read
                    entry["differences"] = [str(error)]
        return found

    def _engine(self, names: dict) -> dict:
        return configuration.engine_on(names, self.config)

    def _prompts(self, names: dict) -> list[tuple[dict, str]]:
        """The prompts of a cell, each with its digest: the first `protocol.prompts` of its set."""
        wanted, found = self._engine(names)["protocol"]["prompts"], self._prompt_set(names["prompts"])
        if len(found) < wanted:
            file = self.root / self.config["prompts"][names["prompts"]]
            raise UserError(f"{file}: holds {len(found)} prompts and protocol.prompts asks for {wanted}; add some or ask for fewer")
        return found[:wanted]

    @functools.cache
    def _prompt_set(self, name: str) -> list[tuple[dict, str]]:
        path = identity.present(self.root / self.config["prompts"][name], f"prompts.{name}")
        try:
            lines = path.read_text(encoding="utf-8-sig").split("\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
        found = [_prompt(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
        if not found:
            raise UserError(f"{path}: an empty prompt file; it needs one JSON object a line with id, category and messages")
        first, count = Counter(prompt["id"] for prompt, _ in found).most_common(1)[0]
        if count > 1:
            raise UserError(f"{path}: the id '{first}' stands twice; ids must be unique in a set")
        return found

    def requirement_files(self, names: dict) -> list[str]:
        """The locks of a cell's environment. Raises UserError where none is configured for its device."""
        kind = self.config["gpus"][names["gpu"]]["device"]
        requirements = self._engine(names)["requirements"]
        if kind not in requirements:
            needed = f"no entry '{kind}', which gpus.{names['gpu']} needs; it has: {', '.join(requirements)}"
            raise UserError(f"engines.{names['engine']}.requirements: {needed}")
        return requirements[kind]

    @functools.cache
    def _lock(self, file: str) -> str:
        return identity.of_lock(self.root / file)

    @functools.cache
    def _weights(self, model: str, part: str) -> dict:
        return identity.of_weights(self.config["models"][model][part], f"models.{model}.{part}", self.root)


def check_fits(where: str, names: dict, config: dict) -> None:
    """`weights.check_memory` of a configured cell. names: {"gpu", "engine", "mode"} of config.parts."""
    gpu, engine = config["gpus"][names["gpu"]], configuration.engine_on(names, config)
    copies = weights.copies(engine["implementation"], engine["protocol"]["order"])
    weights.check_memory(where, {"name": gpu["model"], **config["models"][gpu["model"]]}, gpu.get("memory_gb"), copies)


def differences(old: dict, new: dict) -> list[str]:
    """What changed between two specs, one line each: `mode.num_speculative_tokens 4 -> 3`, `prompts: 2 changed`."""
    lines, (before, after) = [], (spec.get("prompts", {}) for spec in (old, new))
    if before != after:
        changed = sum(before[name] != after[name] for name in before.keys() & after.keys())
        counts = {"changed": changed, "added": len(after.keys() - before.keys()), "removed": len(before.keys() - after.keys())}
        said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        lines.append(f"prompts: {said or 'order changed'}")
    return lines + _tree_differences({**old, "prompts": None}, {**new, "prompts": None})


def _prompt(line: str, place: str) -> tuple[dict, str]:
    try:
        prompt = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not valid JSON ({error}); each line is one object with id, category and messages") from None
    if not isinstance(prompt, dict) or set(prompt) != {"id", "category", "messages"}:
        raise UserError(f"{place}: a prompt has exactly the keys id, category and messages")
    try:
        digest = results.digest(prompt)
    except (ValueError, UnicodeEncodeError):
        raise UserError(f"{place}: text that is no valid Unicode, or a number that is no JSON; correct the line") from None
    if not PROMPT.is_valid(prompt):
        raise UserError(f"{place}: messages must be a list of {{role: system, user or assistant, content: some text}}")
    return prompt, digest


def _tree_differences(old, new, place: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        inner = ((f"{place}.{key}" if place else key, old.get(key), new.get(key)) for key in keys)
        return [line for key, before, after in inner for line in _tree_differences(before, after, key)]
    return [] if old == new else [f"{place} {_short(old)} -> {_short(new)}"]


def _short(value) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 else text
