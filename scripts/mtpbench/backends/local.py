"""A session on this machine, in the engine's own environment."""

import json
import tempfile
from pathlib import Path

from filelock import FileLock, Timeout

from mtpbench import cell, environment
from mtpbench.errors import UserError

ENVIRONMENTS = Path(".envs")


def run(request: dict, how: dict, say) -> dict:
    """Measure one session here and return its reply.

    request: the request of docs/architecture.md, without `paths`. how: the plan's `how`. say: takes one line of progress.
    Raises UserError where the environment cannot be made or the weights are not here.
    """
    request = {**request, "paths": {part: _folder(how["model"], part, say) for part in _parts(request["spec"])}}
    python = Path(how["python"]) if "python" in how else _environment(how, say)
    with _alone(request["spec"]["device"]["kind"], say):
        return json.loads(cell.run(json.dumps(request), str(python), log=say, site=how.get("site")))


def _environment(how: dict, say) -> Path:
    return environment.ensure(how["engine"], [Path(file) for file in how["requirements"]], ENVIRONMENTS, say)


def _parts(spec: dict) -> list[str]:
    return [part for part in ("target", "drafter") if part in spec["model"]]


def _folder(model: dict, part: str, say) -> str:
    entry = model[part]
    if "path" in entry:
        return str(Path(entry["path"]).resolve())
    if "repo" in entry:
        from mtpbench import weights  # only hub models need huggingface_hub

        return str(weights.local_folder(entry["repo"], entry["revision"]))
    raise UserError(f"models.{model['name']}.{part}: random weights are made on the GPU machine; see docs/h200.md")


def _alone(kind: str, say):
    """The machine-wide lock of a device: two measurements side by side would measure each other, from whatever folder."""
    lock = FileLock(Path(tempfile.gettempdir()) / f"mtpbench-{kind}.lock", mode=0o666)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"[mtpbench] waiting | another measurement holds this machine's {kind}")
        return lock.acquire()
