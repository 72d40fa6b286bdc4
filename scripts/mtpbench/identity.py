"""What tells locks and weights apart in a spec, and whether they are still those that a plan was made from.

With the standard library alone: plans are checked on lent machines too, which have no packages to plan with.
"""

import hashlib
from pathlib import Path

from mtpbench import results, weights
from mtpbench.errors import UserError


def of_lock(path: Path) -> str:
    """SHA-256 of the pins alone: a comment in a lock file moves no number. Raises UserError where there is no such file."""
    lines = [line.split(" #")[0].strip() for line in present(path, "engines").read_text().splitlines()]
    pins = [line for line in lines if line and not line.startswith("#")]
    return hashlib.sha256("\n".join(pins).encode()).hexdigest()


def of_weights(entry: dict, where: str, root: Path = Path(".")) -> dict:
    """What identifies a part of a configured model: the content of a folder, a hub revision, or a shape and its seed.

    where: its key in the configuration. Raises UserError that names it where the files are missing or nothing is pinned.
    """
    if "path" in entry:
        folder = root / entry["path"]
        files = sorted(file for file in folder.glob("*") if file.is_file()) if folder.is_dir() else []
        if not files:
            raise UserError(f"{where}: {folder}: no such model folder; correct config/config.yaml or restore it with git")
        if not (folder / "config.json").exists() or not any(file.suffix == ".safetensors" for file in files):
            raise UserError(f"{where}: {folder}: no config.json with *.safetensors beside it; restore it with git or correct config/config.yaml")
        return {"sha256": _digest_of(files)}
    if "repo" in entry:
        weights.check_pinned({where: entry})
        return {"repo": entry["repo"], "revision": entry["revision"]}
    shape = present(root / entry["shape"], where)
    return {"shape": shape.stem, "seed": entry["seed"], "sha256": _digest_of([shape])}


def check_planned(plan: dict, root: Path = Path(".")) -> None:
    """Raises UserError where prompts, locks or weights are not those of the plan's spec, so that it would be measured as another one."""
    how, spec = plan["how"], plan["spec"]
    model = f"models.{how['model']['name']}"
    now = {"the text of a prompt": ({prompt["id"]: results.digest(prompt) for prompt in plan["prompts"]}, spec["prompts"])}
    now |= {file: (of_lock(root / file), spec["engine"]["requirements"].get(Path(file).name)) for file in how["requirements"]}
    for part in (part for part in weights.PARTS if part in spec["model"]):
        now[f"{model}.{part}"] = (of_weights(how["model"][part], f"{model}.{part}", root), spec["model"][part])
    for what, (found, planned) in now.items():
        if found != planned:
            raise UserError(f"{plan['cell']}: {what} has changed since this cell was planned; plan it again: Snakemake does so by itself, run_plans.py by `plan`")


def present(path: Path, where: str) -> Path:
    """The path of a file that is there. Raises UserError that names the key `where` otherwise."""
    if not path.is_file():
        raise UserError(f"{where}: {path}: no such file; correct config/config.yaml or restore it")
    return path


def _digest_of(files: list[Path]) -> str:
    text = "".join(f"{path.name} {weights.sha256_of(path)}\n" for path in files)
    return hashlib.sha256(text.encode()).hexdigest()
