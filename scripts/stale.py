"""`snakemake stale`: one line a cell, fresh, missing or stale with what changed; runs nothing."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from mtpbench import spec
from mtpbench.errors import UserError

console = Console(soft_wrap=True, highlight=False)
try:
    states = spec.Specs(json.loads(Path(sys.argv[1]).read_text())).states()
except UserError as error:
    sys.exit(f"mtpbench: {error}")
for cell, found in states.items():
    colour = {"fresh": "green", "missing": "yellow", "stale": "red", "foreign": "cyan"}[found["state"]]
    outside = "" if found["in_matrix"] else "  (outside the matrix)"
    said = "; ".join(found["differences"])
    console.print(f"[{colour}]{found['state']:8}[/] {cell}{outside}{'  ' + escape(said) if said else ''}")
