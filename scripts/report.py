"""`snakemake plots`, `report`, `tables` or `exports`: write what is made of the study: `python report.py WHAT STUDY`."""

import pickle
import sys
from pathlib import Path

from mtpbench.report import exports, page, plots

WRITERS = {
    "plots": [plots.write],
    "report": [page.write],
    "tables": [exports.write_cells, page.write_tables],
    "exports": [exports.write],
}

study = pickle.loads(Path(sys.argv[2]).read_bytes())
for write in WRITERS[sys.argv[1]]:
    write(study, Path("."))
