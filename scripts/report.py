"""`snakemake report`: write report/results.md and report/index.html: `python report.py --states FILE [--partial]`."""

from pathlib import Path

from mtpbench.report import cells, page

page.write(cells.from_arguments(__doc__), Path("."))
