"""Run a script with an engine's interpreter on this CPU: `python in_environment.py ENGINE SCRIPT [ARGUMENT ...]`."""

import os
import sys
from pathlib import Path

from mtpbench import config as configuration
from mtpbench import environment
from mtpbench.errors import UserError

try:
    engine, *command = sys.argv[1:]
    requirements = [Path(file) for file in configuration.load()["engines"][engine]["requirements"]["cpu"]]
    python = environment.ensure(engine, requirements)
except UserError as error:
    sys.exit(f"mtpbench: {error}")
os.execv(python, [str(python), *command])
