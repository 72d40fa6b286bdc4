"""Synthetic projects for the report's tests: a folder with results, a configuration and the published figures."""

import itertools
import shutil
import zlib
from pathlib import Path

import yaml

from mtpbench import results, simulate
from mtpbench.report import cells, exports, page, plots

ROOT = Path(__file__).resolve().parent.parent
PROMPTS = ("generic", "code", "structured")
CONFIG = {"gpus": {"h100": {"price": {"usd_per_hour": 3.95, "date": "2026-11-01", "source": "list"}}}}
# What MTP brings by prompt set, so that every verdict occurs: the same, more, less.
RATIO = {"generic": 1.0, "code": 1.6, "structured": 0.7}


def matrix(gpus=("cpu",), engines=("transformers", "vllm"), prompts=PROMPTS, modes=("baseline", "mtp")) -> list[str]:
    """The cell names of a matrix."""
    return ["_".join(parts) for parts in itertools.product(gpus, engines, prompts, modes)]


def write(root: Path, names, change=lambda result: None, **options) -> Path:
    """A project of simulated results, each changed by `change` and sealed again."""
    for folder in ("config", "report"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "config/config.yaml").write_text(yaml.safe_dump(CONFIG))
    shutil.copy(ROOT / "report/published.csv", root / "report")
    for name in names:
        prompts, mode = name.split("_")[2:]
        truth = simulate.Truth(ratio=1.0 if mode == "baseline" else RATIO.get(prompts, 1.3), session=0.02, noise=0.01)
        result = simulate.result(name, seed=zlib.crc32(name.encode()), truth=truth, **options)
        change(result)
        results.write(results.path_of(name, root), result)
    return root


def invalidate(result: dict) -> None:
    """As if the test arm had not speculated."""
    gate = {"name": "speculation", "passed": False, "seen": "speculation not active: no draft in the test arm"}
    result["summary"] |= {"valid": False, "reasons": [f"{gate['name']}: {gate['seen']}"]}
    result["summary"]["gates"].append(gate)


def diagnostic(result: dict) -> None:
    """As if the weights were random."""
    for session in result["sessions"]:
        session["model"]["random"] = True


def build(root: Path, states: dict | None = None) -> cells.Study:
    """Everything that the rules make of a project, all but the README."""
    study = cells.load(root, states, yaml.safe_load((root / "config/config.yaml").read_text()))
    plots.write(study, root)
    exports.write(study, root)
    page.write(study, root)
    return study
