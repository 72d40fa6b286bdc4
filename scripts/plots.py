"""`snakemake plots`: draw every plot as SVG, PNG and CSV: `python plots.py --states FILE [--partial]`."""

from pathlib import Path

from mtpbench.report import cells, plots

plots.write(cells.from_arguments(__doc__), Path("metrics/plots"))
