"""What stands between this checkout and a result: each check is ok or names the command that repairs it.

Nothing is changed, and nothing fails for want of a token or a network: what cannot be asked is said to be unknown.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mtpbench import config as configuration
from mtpbench import environment, weights
from mtpbench.errors import UserError
from mtpbench.measuring.device import cpu_name

ENVIRONMENTS = Path(".envs")
FREE_GB = 15.0  # the CPU environments take about 5 GB, their download as much again for a while
NETWORK_S = 20.0


@dataclass(frozen=True)
class Check:
    """One line of the answer. state: "ok", "repair" (then `say` ends in the remedy), "unknown" or "later" (made when needed)."""

    what: str
    state: str
    say: str


def checks(config: dict, root: Path = Path(".")) -> list[Check]:
    """Everything that the cells of the matrix need, and Modal in any case."""
    cells = configuration.cells(config)
    gpus = {name: config["gpus"][name] for name in dict.fromkeys(cell.split("_")[0] for cell in cells)}
    found = [_disk(root), *_devices(gpus), *_environments(cells, config, root), *_models(gpus, config, root)]
    return found + _modal(config, [gpu for gpu in gpus.values() if gpu["backend"] == "modal"])


def _disk(root: Path) -> Check:
    free = shutil.disk_usage(root).free / 1e9
    if free < FREE_GB:
        return Check("disk", "repair", f"{free:.1f} GB free, {FREE_GB:.0f} needed for the environments: make room, or delete .envs")
    return Check("disk", "ok", f"{free:.0f} GB free")


def _devices(gpus: dict) -> list[Check]:
    found = []
    for name, gpu in gpus.items():
        if gpu["backend"] == "modal":
            continue
        if gpu["device"] == "cpu":
            found.append(Check(f"device {name}", "ok", cpu_name()))
            continue
        seen = _nvidia()
        if gpu["name"] in seen:
            found.append(Check(f"device {name}", "ok", gpu["name"]))
        else:
            remedy = f"run on such a machine, or set gpus.{name}.name in config/config.yaml"
            found.append(Check(f"device {name}", "repair", f"'{gpu['name']}' is not here ({', '.join(seen) or 'no GPU'}): {remedy}"))
    return found


def _nvidia() -> list[str]:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []


def _environments(cells: list[str], config: dict, root: Path) -> list[Check]:
    """The engines' locks, and on this machine the environments made from them."""
    found = {}
    for cell in cells:
        names = configuration.parts(cell, config)
        gpu, engine = config["gpus"][names["gpu"]], names["engine"]
        files = config["engines"][engine]["requirements"].get(gpu["device"])
        what = f"environment {engine} ({gpu['device']})"
        absent = [file for file in files or [] if not (root / file).is_file()]
        if files is None:
            found[what] = Check(what, "repair", f"add engines.{engine}.requirements.{gpu['device']} to config/config.yaml")
        elif absent:
            found[what] = Check(what, "repair", f"{absent[0]} is missing: `git checkout -- {absent[0]}`, or correct config/config.yaml")
        elif gpu["backend"] == "modal":
            found[what] = Check(what, "later", "the image is built by the first cell and kept by Modal")
        elif "python" in gpu:
            usable = Path(gpu["python"]).is_file()
            remedy = f"{gpu['python']} is missing: correct gpus.{names['gpu']}.python"
            found[what] = Check(what, "ok" if usable else "repair", gpu["python"] if usable else remedy)
        else:
            folder = environment.folder(engine, [root / file for file in files], root / ENVIRONMENTS)
            built = (folder / environment.COMPLETE).is_file()
            found[what] = Check(what, "ok", str(folder)) if built else Check(what, "later", "built by the first cell, in minutes")
    return list(found.values())


def _models(gpus: dict, config: dict, root: Path) -> list[Check]:
    found = {}
    for gpu in gpus.values():
        model, what = config["models"][gpu["model"]], f"weights {gpu['model']} ({gpu['backend']})"
        try:
            weights.check_memory(what, {"name": gpu["model"], **model}, gpu.get("memory_gb"))
            parts = weights.hub_parts(model)
            weights.check_pinned(parts)
            record = root / weights.RECORDS / gpu["backend"] / f"{gpu['model']}.json"
            if parts and gpu["backend"] == "local":
                for entry in parts.values():
                    weights.local_folder(**entry)
            if parts and not record.is_file():
                found[what] = Check(what, "later", f"fetched before the first cell, or now: `snakemake -c1 {record}`")
                continue
            absent = [model[part]["path"] for part in weights.PARTS if "path" in model[part] and not (root / model[part]["path"]).is_dir()]
            if absent:
                raise UserError(f"{absent[0]} is missing: `git checkout -- {absent[0]}`")
            found[what] = Check(what, "ok", "in place" if gpu["backend"] == "local" else "in the volume, by the list of the last download")
        except UserError as error:
            found[what] = Check(what, "repair", str(error))
    return list(found.values())


def _modal(config: dict, used: list[dict]) -> list[Check]:
    from modal.config import config as client  # reads ~/.modal.toml and the environment, nothing else

    settings = config["modal"]
    named = ["token", f"volume {settings['volume']}", *([f"secret {settings['secret']}"] if settings["secret"] else [])]
    if client.get("token_id") and client.get("token_secret"):
        answers = _asked(settings)
    elif used:
        answers = {"token": ("repair", "none here: `modal token new`")}
    else:
        answers = {"token": ("later", "none here; `modal token new` before a GPU of Modal is put into the matrix")}
    return [Check(f"Modal {what}", *answers.get(what, ("unknown", "Modal could not be asked"))) for what in named]


def _asked(settings: dict) -> dict[str, tuple[str, str]]:
    """What Modal answered within NETWORK_S; the rest is not in it."""
    command = [sys.executable, "-m", "mtpbench.backends.questions", json.dumps(settings)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONPATH": path}
    ) as child:
        try:
            out, _ = child.communicate(timeout=NETWORK_S)
        except subprocess.TimeoutExpired:
            child.kill()
            out, _ = child.communicate()
    if not out:
        return {"token": ("unknown", f"no answer from Modal in {NETWORK_S:.0f} s: check the network")}
    return {what: (state, say) for what, state, say in map(json.loads, out.splitlines())}
