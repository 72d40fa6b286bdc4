"""Read every result once for all that is made from them: `python study.py STATES STUDY`, STATES by get_report_inputs."""

import json
import pickle
import sys
from pathlib import Path

import yaml

from mtpbench.report import cells

states, study = map(Path, sys.argv[1:])
config = yaml.safe_load(Path("config/config.yaml").read_text())
study.write_bytes(pickle.dumps(cells.load(Path("."), json.loads(states.read_text()), config)))
