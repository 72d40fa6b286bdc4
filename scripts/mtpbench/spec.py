"""A cell's spec: all that can change its numbers, and no label; its fingerprint; what differs between two specs.

`plan` writes the planned request, which carries the spec and, outside the fingerprint, how and where to run it.
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


def resolve(cell: str, config: dict, root: Path = Path(".")) -> dict:
    """The spec of a cell. Raises UserError for an unknown cell, a missing model folder or a malformed prompt file."""
    names = configuration.parts(cell, config)
    gpu, engine = config["gpus"][names["gpu"]], engine_on(names, config)
    mode, model = config["modes"][names["mode"]], config["models"][gpu["model"]]
    weights = {"target": _weights(model["target"], root, f"models.{gpu['model']}.target")}
    if mode["method"] == "mtp":
        weights["drafter"] = _weights(model["drafter"], root, f"models.{gpu['model']}.drafter")
    return {
        "measurement_version": ledger.measurement_version(),
        "device": {"kind": gpu["device"], "name": gpu["name"] if gpu["device"] == "cuda" else _cpu()},
        "engine": {
            "implementation": engine["implementation"],
            "requirements": {Path(file).name: _requirements(root / file) for file in _requirement_files(names, config)},
            "options": engine["options"],
        },
        "model": {**weights, "dtype": model["dtype"]},
        "mode": mode,
        "prompts": {prompt["id"]: digest for prompt, digest in _prompts(names, config, root)},
        "protocol": {key: value for key, value in engine["protocol"].items() if key != "prompts"},
    }


def plan(cell: str, config: dict, root: Path = Path("."), spec: dict | None = None) -> dict:
    """The planned request of a cell: its spec and fingerprint, the prompts' content, and how to run it (no part of the spec)."""
    names = configuration.parts(cell, config)
    gpu = config["gpus"][names["gpu"]]
    settings = {**gpu, **engine_on(names, config)}
    spec = spec or resolve(cell, config, root)
    return {
        "fingerprint": results.digest(spec),
        "cell": cell,
        "planned": time.time(),
        "spec": spec,
        "prompts": prompts_of(cell, config, root),
        "how": {
            **{key: settings[key] for key in ("backend", "request", "python", "site", "memory_gb") if key in settings},
            "engine": names["engine"],
            "requirements": [str(file) for file in _requirement_files(names, config)],
            "model": {"name": gpu["model"], **config["models"][gpu["model"]]},
            **({"modal": config["modal"]} if gpu["backend"] == "modal" else {}),
        },
    }


def planned_path(cell: str, config: dict, root: Path = Path(".")) -> tuple[Path, bool]:
    """The cell's plan file, and whether the committed result answers it already.

    Called while Snakemake plans, and with a side effect on purpose: the plan is written anew until a result answers it,
    newer and different each time, which is what makes Snakemake run a cell again after a failure. The file is derived and git-ignored.
    """
    path = root / PLANS / cell / "plan.json"  # a folder each: Snakemake lists a folder once, before the next plan is in it
    spec = resolve(cell, config, root)
    fingerprint = results.digest(spec)
    answered = results.recorded(results.path_of(cell, root)) == fingerprint
    if not answered or _planned(path) != fingerprint:
        text = json.dumps(plan(cell, config, root, spec), ensure_ascii=False, allow_nan=False)
        results.write_text(path, text, durable=False)
    return path, answered


def state(cell: str, config: dict, root: Path = Path(".")) -> str:
    """'fresh', 'missing' or 'stale': whether the committed result answers the current spec."""
    path = results.path_of(cell, root)
    if not path.exists():
        return "missing"
    return "fresh" if results.recorded(path) == results.digest(resolve(cell, config, root)) else "stale"


def states(config: dict, root: Path = Path(".")) -> dict[str, dict]:
    """Every configured or measured cell: {cell: {"state", "in_matrix", "differences"}}.

    state is 'fresh', 'missing', 'stale' (`differences` says from what) or 'foreign' (a result of a cell that the
    configuration does not know). Nothing is run and nothing is written.
    """
    matrix = configuration.cells(config)
    measured = [path.parent.name for path in results.existing(root)]
    found = {}
    for cell in dict.fromkeys([*matrix, *measured]):
        entry = found[cell] = {"state": "foreign", "in_matrix": cell in matrix, "differences": []}
        try:
            configuration.parts(cell, config)
        except UserError:
            continue
        entry["state"] = state(cell, config, root)
        if entry["state"] == "stale":
            entry["differences"] = _since(cell, config, root)
    return found


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


def prompts_of(cell: str, config: dict, root: Path = Path(".")) -> list[dict]:
    """The prompts of a cell: the first `protocol.prompts` of its set. Raises UserError naming file and line."""
    return [prompt for prompt, _ in _prompts(configuration.parts(cell, config), config, root)]


def engine_on(names: dict, config: dict) -> dict:
    """The engine's entry with what the GPU's entry changes in it; its `protocol` is the whole one of the cell."""
    gpu, engine = config["gpus"][names["gpu"]], config["engines"][names["engine"]]
    here = gpu["engines"].get(names["engine"], {})
    protocol = merged(config["protocol"], engine["protocol"], gpu["protocol"], here.get("protocol", {}))
    return merged(engine, here, {"protocol": protocol})


def _prompts(names: dict, config: dict, root: Path) -> list[tuple[dict, str]]:
    """The prompts of a cell, each with its digest."""
    file, wanted = root / config["prompts"][names["prompts"]], engine_on(names, config)["protocol"]["prompts"]
    found = _read_prompts(_stamp(file, f"prompts.{names['prompts']}"))
    if len(found) < wanted:
        raise UserError(f"{file}: holds {len(found)} prompts and protocol.prompts asks for {wanted}; add some or ask for fewer")
    return found[:wanted]


def _since(cell: str, config: dict, root: Path) -> list[str]:
    """What changed since the cell's result; the reason instead where that result cannot be read."""
    try:
        return differences(results.read(results.path_of(cell, root))["spec"], resolve(cell, config, root))
    except UserError as error:
        return [str(error)]


def _requirement_files(names: dict, config: dict) -> list[Path]:
    kind = config["gpus"][names["gpu"]]["device"]
    requirements = engine_on(names, config)["requirements"]
    if kind not in requirements:
        raise UserError(
            f"engines.{names['engine']}.requirements: no entry '{kind}', which gpus.{names['gpu']} needs; "
            f"it has: {', '.join(requirements)}"
        )
    return [Path(file) for file in requirements[kind]]


def _stamp(path: Path, what: str = "") -> tuple[Path, int, int]:
    """A file with its size and time, as a key under which its content may be cached during one plan."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UserError(f"{what + ': ' if what else ''}{path}: no such file; correct config/config.yaml or restore it") from None
    return path, found.st_size, found.st_mtime_ns


def _requirements(path: Path) -> str:
    return _requirements_digest(_stamp(path, "engines"))


@functools.cache
def _cpu() -> str:
    return cpu_name()


@functools.cache
def _requirements_digest(stamp) -> str:
    """SHA-256 of the pins alone: a comment in a lock file moves no number."""
    lines = [line.split(" #")[0].strip() for line in stamp[0].read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()


def _weights(entry: dict, root: Path, where: str) -> dict:
    """What identifies weights: the content of a folder, a hub revision, or a shape and its seed."""
    if "path" in entry:
        folder = root / entry["path"]
        files = sorted(file for file in folder.glob("*") if file.is_file()) if folder.is_dir() else []
        if not files:
            raise UserError(f"{where}: {folder}: no such model folder; correct config/config.yaml or restore it with git")
        if not (folder / "config.json").exists() or not any(file.suffix == ".safetensors" for file in files):
            raise UserError(f"{where}: {folder}: no config.json with *.safetensors beside it; restore it with git or correct config/config.yaml")
        return {"sha256": _folder_digest(tuple(_stamp(file) for file in files))}
    if "repo" in entry:
        if entry["revision"] is None:
            raise UserError(
                f"{where}: no revision of {entry['repo']} is pinned; put the full 40 hex digits of the commit you want "
                f"(https://huggingface.co/{entry['repo']}/commits/main) into config/config.yaml"
            )
        return {"repo": entry["repo"], "revision": entry["revision"]}
    shape = _stamp(root / entry["shape"], where)
    return {"shape": Path(entry["shape"]).stem, "seed": entry["seed"], "sha256": _folder_digest((shape,))}


@functools.cache
def _folder_digest(stamps) -> str:
    total = hashlib.sha256()
    for path, _, _ in stamps:
        with open(path, "rb") as file:
            total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


@functools.cache
def _read_prompts(stamp) -> list[tuple[dict, str]]:
    path, found = stamp[0], []
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
