"""`snakemake plots`: draw every plot as SVG, PNG and CSV: `python plots.py STUDY`."""

import pickle
import sys
from pathlib import Path

from mtpbench.report import plots

plots.write(pickle.loads(Path(sys.argv[1]).read_bytes()), Path("metrics/plots"))
