"""A session on this machine, in the engine's own environment."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from mtpbench import cell, environment, locks, shapes, weights
from mtpbench.errors import UserError


def run(request: dict, how: dict, say) -> dict:
    """Measure one session here and return its reply.

    request: the request of docs/architecture.md, without `paths`. how: the plan's `how`. say: takes one line of progress.
    Raises UserError where the environment or the weights cannot be made.
    """
    python = _python(how, say)
    request = with_paths(request, how, python, say)
    with device_alone(request["spec"]["device"]["kind"], say):
        return json.loads(cell.run(json.dumps(request), str(python), log=say, site=how.get("site")))


def run_together(shares: list[list[tuple[dict, dict]]], say) -> Iterator[dict]:
    """Measure sessions of several cells on shared engines, a process for each share; yields the replies in order.

    shares: of (request, `how` of its plan); all in one environment. The caller holds the device.
    """
    how = shares[0][0][1]
    python = _python(how, say)
    requests = [[with_paths({**request, "processes": len(shares)}, own, python, say) for request, own in share] for share in shares]
    yield from cell.run_together(requests, str(python), log=say, site=how.get("site"))


def with_paths(request: dict, how: dict, python: Path, say) -> dict:
    """The request with the folders of its weights, which are made first where they are random."""
    used = [part for part in weights.PARTS if part in request["spec"]["model"]]
    return {**request, "paths": {part: str(_folder(how["model"][part], how, python, say)) for part in used}}


def _python(how: dict, say) -> Path:
    if "python" in how:
        if shutil.which(how["python"]) is None:
            raise UserError(f"{how['python']} is not on this machine: measure where it is, or correct `python` of this GPU in config/config.yaml")
        return Path(how["python"])
    return environment.ensure(how["engine"], [Path(file) for file in how["requirements"]], say=lambda line: say(f"[mtpbench] {line}"))


def _folder(entry: dict, how: dict, python: Path, say) -> Path:
    if "path" in entry:
        return Path(entry["path"]).resolve()
    if "repo" in entry:
        return weights.local_folder(entry["repo"], entry["revision"])
    return shapes.ensure(entry, python, cell.environment(how.get("site")), say)


def device_alone(kind: str, say):
    """The machine-wide lock of a device: two measurements side by side would measure each other, from whatever folder."""
    # Not the folder that TMPDIR names, which differs from shell to shell. The variable is for tests, which measure nothing.
    path = Path(os.environ.get("MTPBENCH_LOCKS", "/tmp")) / f"mtpbench-{kind}.lock"
    return locks.held(path, say, f"another measurement holds this machine's {kind}", mode=0o666)
