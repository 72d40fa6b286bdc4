"""`snakemake tables`: write metrics/cells.csv, .parquet and the tables for Snakemake's own report: `python tables.py STUDY`."""

import pickle
import sys
from pathlib import Path

from mtpbench.report import exports, page

study = pickle.loads(Path(sys.argv[1]).read_bytes())
exports.write_cells(study, Path("."))
page.write_tables(study, Path("."))
