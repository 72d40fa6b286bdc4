"""`snakemake doctor`: what stands between this checkout and a result, each with ok or the command that repairs it."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mtpbench.doctor import checks

COLOURS = {"ok": "green", "repair": "red", "unknown": "yellow", "later": "cyan"}

table = Table(Column(), Column(no_wrap=True), Column(), box=None, show_header=False)
found = checks(json.loads(Path(sys.argv[1]).read_text()))
for check in found:
    table.add_row(f"[{COLOURS[check.state]}]{check.state}[/]", check.what, escape(check.say))
console = Console(soft_wrap=True, highlight=False)
console.print(table)
broken = sum(check.state == "repair" for check in found)
console.print(f"{broken} to repair" if broken else "nothing to repair")
