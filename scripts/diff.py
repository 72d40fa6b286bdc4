"""`snakemake diff --config old=FILE new=FILE`: the effect between two results of a cell, and what differs around them."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from mtpbench import results
from mtpbench.analysis import compare
from mtpbench.errors import UserError

config = json.loads(Path(sys.argv[1]).read_text())
try:
    missing = [name for name in ("old", "new") if name not in config]
    if missing:
        raise UserError("name both results: snakemake diff --config old=metrics/archive/OLD.json new=metrics/runs/CELL/result.json")
    old, new = results.read(config["old"]), results.read(config["new"])
    if old["cell"] != new["cell"]:
        raise UserError(f"{config['old']} is of cell {old['cell']} and {config['new']} of {new['cell']}; compare two results of one cell")
except UserError as error:
    sys.exit(str(error))

console = Console(soft_wrap=True, highlight=False)
console.print(f"{old['cell']}: {old['created_at']} -> {new['created_at']}")
table = Table("concurrency", "arm", "new over old", "95 % interval", "prompts")
for found in compare.effects(old, new):
    speedup = found["speedup"]
    interval = "n/a" if speedup is None or speedup["low"] is None else f"{speedup['low']:.3f} to {speedup['high']:.3f}"
    ratio = "no common prompt" if speedup is None else f"{speedup['ratio']:.3f}x"
    table.add_row(str(found["concurrency"]), found["arm"], ratio, interval, str(speedup["prompts"] if speedup else 0))
console.print(table)
for line in compare.surroundings(old, new) or ["nothing else differs"]:
    console.print(line)
