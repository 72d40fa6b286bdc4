"""`snakemake stale`: one line a cell, fresh, missing or stale with what changed; runs nothing."""

from rich.console import Console
from rich.markup import escape

from mtpbench import spec

console = Console(soft_wrap=True, highlight=False)
for cell, found in spec.states(snakemake.config).items():  # noqa: F821 (Snakemake hands the script this object)
    colour = {"fresh": "green", "missing": "yellow", "stale": "red", "foreign": "cyan"}[found["state"]]
    outside = "" if found["in_matrix"] else "  (outside the matrix)"
    said = "; ".join(found["differences"])
    console.print(f"[{colour}]{found['state']:8}[/] {cell}{outside}{'  ' + escape(said) if said else ''}")
