"""`snakemake exports`: write metrics/exports and the RO-Crate metadata: `python exports.py STUDY`."""

import pickle
import sys
from pathlib import Path

from mtpbench.report import exports

exports.write(pickle.loads(Path(sys.argv[1]).read_bytes()), Path("."))
