"""Read every result once for all that is made from them: `python study.py STATES STUDY [--partial]`."""

import argparse
import json
import pickle
from pathlib import Path

import yaml

from mtpbench.report import cells

parser = argparse.ArgumentParser(description="Read every result once for all that is made from them.")
parser.add_argument("states", type=Path, help="what `Specs.states` says of every cell")
parser.add_argument("study", type=Path, help="file to write")
parser.add_argument("--partial", action="store_true", help="nothing was measured since the states were written")
arguments = parser.parse_args()
config = yaml.safe_load(Path("config/config.yaml").read_text())
study = cells.load(Path("."), json.loads(arguments.states.read_text()), arguments.partial, config)
arguments.study.write_bytes(pickle.dumps(study))
