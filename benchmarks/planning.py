"""How long Snakemake plans for 10,000 cells, all present and all missing, and what memory it takes.

    .venv/bin/python benchmarks/planning.py [--cells 10000] [--repeats 3] [--report]

Works in a temporary copy of the checkout; the results there are one simulated result under 10,000 names. Prints the
median of the repeats; --report also builds the report over them, once.
"""

import argparse
import math
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from mtpbench import config as configuration
from mtpbench import results, simulate, spec


def checkout(folder: Path, cells: int) -> dict:
    """A copy of the checkout without results, with a matrix of `cells` cells; its validated configuration."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "metrics", "tests", "logs", "build"))
    config = yaml.safe_load((folder / "config/config.yaml").read_text())
    gpus = [f"cpu{number}" for number in range(math.ceil(cells / 12))]
    config["gpus"] = {name: config["gpus"]["cpu"] for name in gpus}
    config["matrix"]["gpus"] = gpus
    (folder / "config/config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return configuration.validate(config)


def fill(folder: Path, config: dict) -> None:
    """A result for every cell: one simulated result a mode, under the cell's own name, spec and fingerprint."""
    made = {mode: simulate.result(f"cpu_vllm_code_{mode}", prompts=2, rounds=1, tokens=16) for mode in ("baseline", "mtp")}
    specs = spec.Specs(config, folder)
    for cell in configuration.cells(config):
        own = specs.resolve(cell)
        result = {**made[cell.split("_")[3]], "cell": cell, "spec": own, "fingerprint": results.digest(own)}
        results.write_text(results.path_of(cell, folder), results.text_of(results.seal(result)), durable=False)


def timed(folder: Path, *words: str) -> float:
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "snakemake", *words], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-2000:])
    return time.perf_counter() - started


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--cells", type=int, default=10_000)
    arguments.add_argument("--repeats", type=int, default=3)
    arguments.add_argument("--report", action="store_true")
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "checkout"
        config = checkout(folder, arguments.cells)
        for state in ("missing", "present"):
            if state == "present":
                fill(folder, config)
            seconds = [timed(folder, "report", "-n", "-q", "all") for _ in range(arguments.repeats)]
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(f"{arguments.cells} cells {state}: {statistics.median(seconds):.1f} s, at most {memory:.0f} MiB", flush=True)
        if arguments.report:
            print(f"report over them: {timed(folder, 'report', '--config', 'partial=true', '-q', 'all'):.1f} s")


if __name__ == "__main__":
    main()
