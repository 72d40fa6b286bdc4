"""A cell's spec: all that can change its numbers, and no label; its fingerprint; what differs between two specs.

The planned request of a cell carries the spec and, outside the fingerprint, how and where to run it.
"""

import functools
import hashlib
import json
import time
from pathlib import Path

from mtpbench import config as configuration
from mtpbench import ledger, results
from mtpbench.errors import UserError
from mtpbench.measuring.device import cpu_name

PLANS = Path("metrics/specs")


class Specs:
    """The cells of one configuration, resolved for one plan: a file that several of them share is read once.

    Make a new one after a change: each file counts as it was when it was first asked for.
    """

    def __init__(self, config: dict, root: Path = Path(".")):
        self.config, self.root = config, root

    def resolve(self, cell: str) -> dict:
        """The spec of a cell. Raises UserError for an unknown cell, a missing model folder or a malformed prompt file."""
        names = configuration.parts(cell, self.config)
        gpu, engine = self.config["gpus"][names["gpu"]], self._engine(names["gpu"], names["engine"])
        mode, model = self.config["modes"][names["mode"]], self.config["models"][gpu["model"]]
        weights = {part: self._weights(gpu["model"], part) for part in (("target", "drafter") if mode["method"] == "mtp" else ("target",))}
        return {
            "measurement_version": ledger.measurement_version(),
            "device": {"kind": gpu["device"], "name": gpu["name"] if gpu["device"] == "cuda" else _cpu()},
            "engine": {
                "implementation": engine["implementation"],
                "requirements": {Path(file).name: self._requirements(file) for file in self._requirement_files(names)},
                "options": engine["options"],
            },
            "model": {**weights, "dtype": model["dtype"]},
            "mode": mode,
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
        settings = {**gpu, **self._engine(names["gpu"], names["engine"])}
        return {
            "fingerprint": self.fingerprint(cell),
            "cell": cell,
            "spec": self.resolve(cell),
            "prompts": [prompt for prompt, _ in self._prompts(names)],
            "how": {
                **{key: settings[key] for key in ("backend", "request", "python", "site", "memory_gb") if key in settings},
                "engine": names["engine"],
                "requirements": self._requirement_files(names),
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
        if state != "fresh" or _planned(path) != self.fingerprint(cell):
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
        matrix = dict.fromkeys(configuration.cells(self.config))
        measured = [path.parent.name for path in results.existing(self.root)]
        found = {}
        for cell in {**matrix, **dict.fromkeys(measured)}:
            entry = found[cell] = {"state": "foreign", "in_matrix": cell in matrix, "differences": []}
            try:
                configuration.parts(cell, self.config)
            except UserError:
                continue
            entry["state"] = self.state(cell)
            if entry["state"] == "stale":
                entry["differences"] = self._since(cell)
        return found

    def _since(self, cell: str) -> list[str]:
        """What changed since the cell's result; the reason instead where that result cannot be read."""
        try:
            return differences(results.read(results.path_of(cell, self.root))["spec"], self.resolve(cell))
        except UserError as error:
            return [str(error)]

    @functools.cache
    def _engine(self, gpu: str, engine: str) -> dict:
        return engine_on({"gpu": gpu, "engine": engine}, self.config)

    def _prompts(self, names: dict) -> list[tuple[dict, str]]:
        """The prompts of a cell, each with its digest: the first `protocol.prompts` of its set."""
        wanted, found = self._engine(names["gpu"], names["engine"])["protocol"]["prompts"], self._prompt_set(names["prompts"])
        if len(found) < wanted:
            file = self.root / self.config["prompts"][names["prompts"]]
            raise UserError(f"{file}: holds {len(found)} prompts and protocol.prompts asks for {wanted}; add some or ask for fewer")
        return found[:wanted]

    @functools.cache
    def _prompt_set(self, name: str) -> list[tuple[dict, str]]:
        return _read_prompts(_present(self.root / self.config["prompts"][name], f"prompts.{name}"))

    def _requirement_files(self, names: dict) -> list[str]:
        kind = self.config["gpus"][names["gpu"]]["device"]
        requirements = self._engine(names["gpu"], names["engine"])["requirements"]
        if kind not in requirements:
            raise UserError(
                f"engines.{names['engine']}.requirements: no entry '{kind}', which gpus.{names['gpu']} needs; "
                f"it has: {', '.join(requirements)}"
            )
        return requirements[kind]

    @functools.cache
    def _requirements(self, file: str) -> str:
        """SHA-256 of the pins alone: a comment in a lock file moves no number."""
        lines = [line.split(" #")[0].strip() for line in _present(self.root / file, "engines").read_text().splitlines()]
        pins = [line for line in lines if line and not line.startswith("#")]
        return hashlib.sha256("\n".join(pins).encode()).hexdigest()

    @functools.cache
    def _weights(self, model: str, part: str) -> dict:
        """What identifies weights: the content of a folder, a hub revision, or a shape and its seed."""
        entry, where = self.config["models"][model][part], f"models.{model}.{part}"
        if "path" in entry:
            folder = self.root / entry["path"]
            files = sorted(file for file in folder.glob("*") if file.is_file()) if folder.is_dir() else []
            if not files:
                raise UserError(f"{where}: {folder}: no such model folder; correct config/config.yaml or restore it with git")
            if not (folder / "config.json").exists() or not any(file.suffix == ".safetensors" for file in files):
                raise UserError(f"{where}: {folder}: no config.json with *.safetensors beside it; restore it with git or correct config/config.yaml")
            return {"sha256": _digest_of(files)}
        if "repo" in entry:
            if entry["revision"] is None:
                raise UserError(
                    f"{where}: no revision of {entry['repo']} is pinned; put the full 40 hex digits of the commit you want "
                    f"(https://huggingface.co/{entry['repo']}/commits/main) into config/config.yaml"
                )
            return {"repo": entry["repo"], "revision": entry["revision"]}
        shape = _present(self.root / entry["shape"], where)
        return {"shape": shape.stem, "seed": entry["seed"], "sha256": _digest_of([shape])}


def differences(old: dict, new: dict) -> list[str]:
    """What changed between two specs, one line each: `mode.num_speculative_tokens 4 -> 3`, `prompts: 2 changed`."""
    lines = []
    if old.get("prompts") != new.get("prompts"):
        lines.append(_prompt_difference(old.get("prompts", {}), new.get("prompts", {})))
    without = [{key: value for key, value in spec.items() if key != "prompts"} for spec in (old, new)]
    return lines + _tree_differences(*without)


def merged(*layers: dict) -> dict:
    """Mappings laid over each other, nested ones key by key; the last layer wins."""
    out: dict = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, dict) and isinstance(out.get(key), dict)
            out[key] = merged(out[key], value) if both else value
    return out


def engine_on(names: dict, config: dict) -> dict:
    """The engine's entry with what the GPU's entry changes in it; its `protocol` is the whole one of the cell."""
    gpu, engine = config["gpus"][names["gpu"]], config["engines"][names["engine"]]
    here = gpu["engines"].get(names["engine"], {})
    protocol = merged(config["protocol"], engine["protocol"], gpu["protocol"], here.get("protocol", {}))
    return merged(engine, here, {"protocol": protocol})


@functools.cache
def _cpu() -> str:
    return cpu_name()


def _present(path: Path, where: str) -> Path:
    if not path.is_file():
        raise UserError(f"{where}: {path}: no such file; correct config/config.yaml or restore it")
    return path


def _digest_of(files: list[Path]) -> str:
    total = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


def _read_prompts(path: Path) -> list[tuple[dict, str]]:
    found = []
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            found.append(_prompt(line, f"{path}:{number}"))
    if not found:
        raise UserError(f"{path}: an empty prompt file; it needs one JSON object a line with id, category and messages")
    identifiers = [prompt["id"] for prompt in found]
    twice = next((name for name in identifiers if identifiers.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: the id '{twice}' stands twice; ids must be unique in a set")
    return [(prompt, results.digest(prompt)) for prompt in found]


def _prompt(line: str, place: str) -> dict:
    try:
        prompt = json.loads(line)
    except ValueError as error:
        raise UserError(f"{place}: not valid JSON ({error}); each line is one object with id, category and messages") from None
    if not isinstance(prompt, dict) or set(prompt) != {"id", "category", "messages"}:
        raise UserError(f"{place}: a prompt has exactly the keys id, category and messages")
    try:
        results.digest(prompt)
    except (ValueError, UnicodeEncodeError):
        raise UserError(f"{place}: text that is no valid Unicode, or a number that is no JSON; correct the line") from None
    messages = prompt["messages"]
    good = isinstance(messages, list) and messages and all(
        isinstance(message, dict)
        and message.get("role") in ("system", "user", "assistant")
        and isinstance(message.get("content"), str)
        and message["content"].strip()
        for message in messages
    )
    if not (good and isinstance(prompt["id"], str) and isinstance(prompt["category"], str)):
        raise UserError(f"{place}: messages must be a list of {{role: system, user or assistant, content: some text}}")
    return prompt


def _planned(path: Path) -> str | None:
    """The fingerprint at the head of a plan file, or None."""
    try:
        head = path.open().read(100)
    except FileNotFoundError:
        return None
    return head.split('"')[3] if head.startswith('{"fingerprint": "') else None


def _prompt_difference(old: dict, new: dict) -> str:
    changed = sum(old[name] != new[name] for name in old.keys() & new.keys())
    counts = {"changed": changed, "added": len(new.keys() - old.keys()), "removed": len(old.keys() - new.keys())}
    said = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"prompts: {said or 'order changed'}"


def _tree_differences(old, new, place: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        inner = ((f"{place}.{key}" if place else key, old.get(key), new.get(key)) for key in keys)
        return [line for key, before, after in inner for line in _tree_differences(before, after, key)]
    return [] if old == new else [f"{place} {_short(old)} -> {_short(new)}"]


def _short(value) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] if len(text) == 64 else text
