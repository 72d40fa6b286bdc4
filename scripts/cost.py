"""`snakemake cost`: what the missing and stale cells of the matrix would take and cost; runs nothing, asks nobody."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mtpbench.cost import costs

config = json.loads(Path(sys.argv[1]).read_text())
console = Console(soft_wrap=True, highlight=False)


def between(pair: tuple[float, float] | None, form: str) -> str:
    """A range in words, or one number where both ends look the same."""
    low, high = (format(each, form) for each in pair) if pair else ("unknown", "unknown")
    return low if low == high else f"{low} to {high}"


def total(pairs) -> tuple[float, float]:
    """The sum of the known ranges."""
    known = [pair for pair in pairs if pair]
    return sum(low for low, _ in known), sum(high for _, high in known)


found = costs(config)
if not found:
    console.print("Every cell of the matrix is fresh: the next run measures nothing and costs nothing.")
else:
    right = {"justify": "right", "no_wrap": True}
    table = Table(Column("cell", no_wrap=True), "state", Column("minutes", **right), Column("USD", **right), "told from")
    for cost in found:
        table.add_row(cost.cell, cost.state, between(cost.minutes, ".0f"), between(cost.usd, ".2f"), cost.basis)
    minutes, usd = total(cost.minutes for cost in found), total(cost.usd for cost in found)
    table.add_section()
    table.add_row("total", "", between(minutes, ".0f"), between(usd, ".2f"), "")
    console.print(table)

    for warning in dict.fromkeys(cost.warning for cost in found if cost.warning):
        cells = ", ".join(cost.cell for cost in found if cost.warning == warning)
        console.print(f"[yellow]{cells}[/]: {escape(warning)}")
    unknown = sum(cost.usd is None for cost in found)
    if unknown:
        console.print(f"[yellow]{unknown} of {len(found)} cells have no known cost and are not in the total.[/]")

    for name in dict.fromkeys(cost.cell.split("_")[0] for cost in found):
        price = config["gpus"].get(name, {}).get("price")
        if price:
            console.print(f"{name}: {price['usd_per_hour']} USD an hour by the list of {price['date']}, {price['source']}")
    console.print("Both arms of every session; cores and memory beside a GPU included, waiting for one is not billed.")
