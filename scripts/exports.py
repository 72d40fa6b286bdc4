"""`snakemake exports`: write metrics/exports and the RO-Crate metadata: `python exports.py --states FILE [--partial]`."""

from pathlib import Path

from mtpbench.report import cells, exports

exports.write(cells.from_arguments(__doc__), Path("."))
