"""`snakemake tables`: write metrics/cells.csv, .parquet and the tables for Snakemake's own report: `python tables.py --states FILE [--partial]`."""

from pathlib import Path

from mtpbench.report import cells, exports, page

study = cells.from_arguments(__doc__)
exports.write_cells(study, Path("."))
page.write_tables(study, Path("."))
