"""`snakemake report`: write report/results.md and report/index.html: `python report.py STUDY`."""

import pickle
import sys
from pathlib import Path

from mtpbench.report import page

page.write(pickle.loads(Path(sys.argv[1]).read_bytes()), Path("."))
