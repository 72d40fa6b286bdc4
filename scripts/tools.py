"""Questions about the results, answered on the terminal: `python tools.py QUESTION [CONFIG]`. What `snakemake QUESTION` calls.

Nothing is measured and nobody is asked (but by `doctor`, which asks Modal). Only `rederive` and `validity` write anything:
the summaries of results, and the table of docs/validity.md.
"""

import json
import re
import sys
from pathlib import Path

import measure
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from mtpbench import cost as costing
from mtpbench import doctor as repair
from mtpbench import results, spec
from mtpbench import validity as simulated
from mtpbench.analysis import compare
from mtpbench.analysis import audit as chain
from mtpbench.errors import UserError

SHOWN = ("report/results.md", "report/index.html", "metrics/cells.csv")
COLOURS = {
    "fresh": "green", "missing": "yellow", "stale": "red", "foreign": "cyan",
    "ok": "green", "unknown": "yellow", "repair": "red", "later": "cyan",
}  # fmt: skip
console = Console(soft_wrap=True, highlight=False)


def stale(config: dict) -> None:
    """One line a cell: fresh, missing or stale with what changed."""
    for cell, found in spec.Specs(config).states().items():
        outside = "" if found["in_matrix"] else "  (outside the matrix)"
        said = "  " + escape("; ".join(found["differences"])) if found["differences"] else ""
        console.print(f"[{COLOURS[found['state']]}]{found['state']:8}[/] {cell}{outside}{said}")


def diff(config: dict) -> None:
    """`snakemake diff --config old=FILE new=FILE`: the effect between two results of a cell, and what differs around them."""
    if not {"old", "new"} <= config.keys():
        raise UserError("name both results: snakemake diff --config old=metrics/archive/OLD.json new=metrics/runs/CELL/result.json")
    old, new = results.read(config["old"]), results.read(config["new"])
    if old["cell"] != new["cell"]:
        raise UserError(f"{config['old']} is of cell {old['cell']} and {config['new']} of {new['cell']}; compare two results of one cell")
    console.print(f"{old['cell']}: {old['created_at']} -> {new['created_at']}")
    console.print("TPOT of the old result over that of the new: above 1 the new one is faster; the machine's drift between them is in it")
    table = Table("concurrency", "arm", "old over new", "95 % interval", "prompts")
    for load, arm, speedup in compare.effects(old, new):
        interval = f"{speedup['low']:.3f} to {speedup['high']:.3f}" if speedup and speedup["low"] is not None else "n/a"
        ratio, prompts = (f"{speedup['ratio']:.3f}x", speedup["prompts"]) if speedup else ("nothing to pair", 0)
        table.add_row(str(load), arm, ratio, interval, str(prompts))
    console.print(table)
    for line in compare.surroundings(old, new) or ["nothing else differs"]:
        console.print(line)


def rederive(_=None) -> None:
    """Bring the summary of every result up to this code; the records stay, so nothing is measured."""
    failed, changed, paths = False, 0, results.existing()
    for path in paths:
        try:
            result = results.read(path)
            summary = chain.summary_of(path, result)
        except UserError as error:
            failed = True
            print(error, file=sys.stderr)
            continue
        if chain.difference(result.get("summary"), summary):  # last bits, which differ from one processor to another, change nothing
            with measure.alone(result, lambda line: print(f"{path}: {line}", file=sys.stderr)):
                if results.ends(path)[1] != result["checksum"]:
                    failed = True
                    print(f"{path}: was written anew meanwhile; run `snakemake rederive` again", file=sys.stderr)
                    continue
                results.write(path, {**result, "summary": summary})
            changed += 1
            print(f"{path}: summary brought up to date")
    print(f"{changed} of {len(paths)} summaries changed")
    sys.exit(failed)


def cost(config: dict) -> None:
    """What the missing and stale cells of the matrix would take and cost."""
    found = costing.costs(config)
    if not found:
        return console.print("Every cell of the matrix is fresh: the next run measures nothing and costs nothing.")

    def between(pair: tuple[float, float] | None, form: str) -> str:
        """A range in words, or one number where both ends look the same."""
        return " to ".join(dict.fromkeys(format(each, form) for each in pair)) if pair else "unknown"

    def total(pairs, form: str) -> str:
        known = [pair for pair in pairs if pair]
        return between((sum(low for low, _ in known), sum(high for _, high in known)), form)

    right = {"justify": "right", "no_wrap": True}
    table = Table(Column("cell", no_wrap=True), "state", Column("minutes", **right), Column("USD", **right), "told from")
    for each in found:
        table.add_row(each.cell, each.state, between(each.minutes, ".0f"), between(each.usd, ".2f"), each.basis)
    table.add_section()
    table.add_row("total", "", total((each.minutes for each in found), ".0f"), total((each.usd for each in found), ".2f"), "")
    console.print(table)
    for warning in dict.fromkeys(each.warning for each in found if each.warning):
        cells = ", ".join(each.cell for each in found if each.warning == warning)
        console.print(f"[yellow]{cells}[/]: {escape(warning)}")
    if unknown := sum(each.usd is None for each in found):
        console.print(f"[yellow]{unknown} of {len(found)} cells have no known cost and are not in the total.[/]")
    for name in dict.fromkeys(each.cell.split("_")[0] for each in found):
        if price := config["gpus"].get(name, {}).get("price"):
            console.print(f"{name}: {price['usd_per_hour']} USD an hour by the list of {price['date']}, {price['source']}")
    console.print("Both arms of every session; cores and memory beside a GPU included, waiting for one is not billed.")


def doctor(config: dict) -> None:
    """What stands between this checkout and a result, each with ok or the command that repairs it."""
    table = Table(Column(), Column(no_wrap=True), Column(), box=None, show_header=False)
    found = repair.checks(config)
    for check in found:
        table.add_row(f"[{COLOURS[check.state]}]{check.state}[/]", check.what, escape(check.say))
    console.print(table)
    broken = sum(check.state == "repair" for check in found)
    console.print(f"{broken} to repair" if broken else "nothing to repair")


def audit(_=None) -> None:
    """Recompute everything that is shown from the raw records; status 1 and one line at the first difference."""
    try:
        counts = chain.audit(Path("."))
    except UserError as error:
        sys.exit(f"audit: {error}")
    print("audit: " + ", ".join(f"{count} {what}" for what, count in counts.items()) + " follow from the records")
    for missing in (path for path in SHOWN if not Path(path).exists()):
        print(f"audit: {missing} is not there and was not looked at; `snakemake all` writes it")


def validity(_=None) -> None:
    """Simulate, and put the table between the markers of docs/validity.md."""
    path, experiments = Path("docs/validity.md"), 5000
    marked, text = re.compile(r"(<!-- simulated: start -->\n).*(<!-- simulated: end -->)", re.DOTALL), path.read_text(encoding="utf-8")
    if not marked.search(text):
        raise UserError(f"{path}: lost its markers <!-- simulated: start --> and <!-- simulated: end -->; put them back")
    table = simulated.table(experiments, lambda line: print(line, file=sys.stderr, flush=True))
    note = f"{experiments:,} experiments a row; sampling error (95 %) up to 0.6 points near 5 % and 1.4 near 50 %."
    results.write_text(path, marked.sub(lambda found: f"{found[1]}{table}\n\n{note}\n{found[2]}", text))


if __name__ == "__main__":
    answer = {each.__name__: each for each in (stale, diff, rederive, cost, doctor, audit, validity)}[sys.argv[1]]
    try:
        answer(*(json.loads(Path(path).read_text()) for path in sys.argv[2:]))
    except (UserError, OSError) as error:
        sys.exit(f"mtpbench: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
