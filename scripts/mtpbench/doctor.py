"""What stands between this checkout and a result: each check is ok or names the command that repairs it.

Nothing is changed, and nothing fails for want of a token or a network: what cannot be asked is said to be unknown.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from mtpbench import config as configuration
from mtpbench import environment, spec, weights
from mtpbench.errors import UserError
from mtpbench.measuring.device import cpu_name

FREE_GB = 15.0  # the CPU environments take about 5 GB, their download as much again for a while
NETWORK_S = 20.0

Answer = tuple[str, str]  # what stands in Check behind `what`


class Check(NamedTuple):
    """One line of the answer. state: "ok", "repair" (then `say` ends in the remedy), "unknown" or "later" (made when needed)."""

    what: str
    state: str
    say: str


def checks(config: dict, root: Path = Path(".")) -> list[Check]:
    """Everything that the cells of the matrix need, and Modal in any case."""
    cells = [configuration.parts(cell, config) for cell in configuration.cells(config)]
    gpus = {names["gpu"]: config["gpus"][names["gpu"]] for names in cells}
    asked = {"disk": (_disk, root)}
    asked |= {f"device {name}": (_device, name, gpu) for name, gpu in gpus.items() if gpu["backend"] == "local"}
    for names in cells:
        asked[f"environment {names['engine']} ({gpus[names['gpu']]['device']})"] = _environment, names, config, root
        if "memory_gb" in gpus[names["gpu"]]:
            asked[f"memory {names['gpu']}, {names['engine']}"] = _memory, names, config
    for gpu in gpus.values():
        asked[f"weights {gpu['model']} ({gpu['backend']})"] = _weights, gpu, config["models"][gpu["model"]], root
    found = []
    for what, (question, *about) in asked.items():
        try:
            found.append(Check(what, *question(*about)))
        except UserError as error:
            found.append(Check(what, "repair", str(error)))
    return found + _modal(config["modal"], any(gpu["backend"] == "modal" for gpu in gpus.values()))


def _disk(root: Path) -> Answer:
    free = shutil.disk_usage(root).free / 1e9
    if free < FREE_GB:
        raise UserError(f"{free:.1f} GB free, {FREE_GB:.0f} needed for the environments: make room, or delete .envs")
    return "ok", f"{free:.0f} GB free"


def _device(name: str, gpu: dict) -> Answer:
    if gpu["device"] == "cpu":
        return "ok", cpu_name()
    seen = _nvidia()
    if gpu["name"] not in seen:
        remedy = f"run on such a machine, or set gpus.{name}.name in config/config.yaml"
        raise UserError(f"'{gpu['name']}' is not here ({', '.join(seen) or 'no GPU'}): {remedy}")
    return "ok", gpu["name"]


def _nvidia() -> list[str]:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []


def _environment(names: dict, config: dict, root: Path) -> Answer:
    """An engine's locks, and on this machine the environment made from them."""
    gpu, engine = config["gpus"][names["gpu"]], names["engine"]
    files = spec.Specs(config, root).requirement_files(names)
    for file in files:
        if not (root / file).is_file():
            raise UserError(f"{file} is missing: `git checkout -- {file}`, or correct config/config.yaml")
    if gpu["backend"] == "modal":
        return "later", "the image is built by the first cell and kept by Modal"
    if "python" in gpu:
        if not Path(gpu["python"]).is_file():
            raise UserError(f"{gpu['python']} is missing: correct gpus.{names['gpu']}.python")
        return "ok", gpu["python"]
    folder = environment.folder(engine, [root / file for file in files], root / environment.ENVIRONMENTS)
    return ("ok", str(folder)) if (folder / environment.COMPLETE).is_file() else ("later", "built by the first cell, in minutes")


def _memory(names: dict, config: dict) -> Answer:
    spec.check_fits(f"gpus.{names['gpu']}", names, config)
    return "ok", f"{config['gpus'][names['gpu']]['memory_gb']:g} GB"


def _weights(gpu: dict, model: dict, root: Path) -> Answer:
    parts, record = weights.hub_parts(model), root / weights.RECORDS / gpu["backend"] / f"{gpu['model']}.json"
    weights.check_pinned(parts)
    if gpu["backend"] == "local":
        for entry in parts.values():
            weights.local_folder(**entry)
    if parts and not record.is_file():
        return "later", f"fetched before the first cell, or now: `snakemake -c1 {record}`"
    for path in (model[part]["path"] for part in weights.PARTS if "path" in model[part]):
        if not (root / path).is_dir():
            raise UserError(f"{path} is missing: `git checkout -- {path}`")
    return "ok", "in place" if gpu["backend"] == "local" else "in the volume, by the list of the last download"


def _modal(settings: dict, used: bool) -> list[Check]:
    from modal.config import config as client  # reads ~/.modal.toml and the environment, nothing else

    named = ["token", f"volume {settings['volume']}", *([f"secret {settings['secret']}"] if settings["secret"] else [])]
    if client.get("token_id") and client.get("token_secret"):
        answers = _asked(settings)
    elif used:
        answers = {"token": ("repair", "none here: `modal token new`")}
    else:
        answers = {"token": ("later", "none here; `modal token new` before a GPU of Modal is put into the matrix")}
    rest = ("later", "asked for with the token") if answers["token"][0] == "later" else ("unknown", "Modal could not be asked")
    return [Check(f"Modal {what}", *answers.get(what, rest)) for what in named]


def _asked(settings: dict) -> dict[str, Answer]:
    """What Modal answered within NETWORK_S; the rest is not in it."""
    command = [sys.executable, "-m", "mtpbench.backends.questions", json.dumps(settings)]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, timeout=NETWORK_S
        )
        out = done.stdout
    except subprocess.TimeoutExpired as late:
        out = late.stdout
    if not out:
        return {"token": ("unknown", f"no answer from Modal in {NETWORK_S:.0f} s: check the network")}
    return {what: (state, say) for what, state, say in map(json.loads, out.splitlines())}
