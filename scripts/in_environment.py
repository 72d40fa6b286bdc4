"""Run a script with an engine's interpreter on this CPU: `python in_environment.py ENGINE SCRIPT [ARGUMENT ...]`."""

import os
import sys
from pathlib import Path

from mtpbench import config as configuration
from mtpbench import environment
from mtpbench.errors import UserError

try:
    engines = configuration.load()["engines"]
    usable = {name: entry["requirements"]["cpu"] for name, entry in engines.items() if "cpu" in entry["requirements"]}
    engine, *command = sys.argv[1:] or [""]
    if engine not in usable or not command:
        raise UserError(f"usage: in_environment.py ENGINE SCRIPT [ARGUMENT ...], where ENGINE is one that runs on a CPU: {', '.join(usable)}")
    python = environment.ensure(engine, [Path(file) for file in usable[engine]])
except UserError as error:
    sys.exit(f"mtpbench: {error}")
os.execv(python, [str(python), *command])
