"""Read every result once for all that is made from them: `python study.py STATES STUDY [--partial]`.

STATES is what `Specs.states` says of every cell; `--partial`: nothing was measured since they were written.
"""

import json
import pickle
import sys
from pathlib import Path

import yaml

from mtpbench.report import cells

states, study, *partial = sys.argv[1:]
config = yaml.safe_load(Path("config/config.yaml").read_text())
found = cells.load(Path("."), json.loads(Path(states).read_text()), bool(partial), config)
Path(study).write_bytes(pickle.dumps(found))
