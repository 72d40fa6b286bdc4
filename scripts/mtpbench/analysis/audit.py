"""Does everything that is shown follow from the raw records? The whole chain, checked link by link."""

import io
import math
from pathlib import Path

import pandas as pd

from mtpbench import results
from mtpbench.analysis.aggregate import recompute
from mtpbench.errors import UserError, one_line
from mtpbench.report import cells, figures

TOLERANCE = 1e-9  # relative: numpy's exp and log may differ in the last bits from one processor to another
KEYS, OF_THE_PLAN = ("cell", "concurrency", "arm"), ("in_matrix", "marks")  # of cells.csv; the latter speak of the configuration


def audit(root: Path) -> dict[str, int]:
    """Check every result, the table of cells and every figure under `root`; how many of each: {"results", "rows", "figures"}.

    Raises UserError naming the first thing that does not follow from the records, and where it stands.
    """
    paths = results.existing(root)
    for path in paths:
        check_result(path)
    if damaged := [path for path, content in results.anatomies(root).items() if content is None]:
        raise UserError(f"{damaged[0]}: damaged, edited, or of another cell; restore it with `git checkout -- '{damaged[0]}'`")
    try:
        return {"results": len(paths), "rows": check_cells(root), "figures": figures.check(root)}
    except UserError as error:
        raise UserError(f"{error}; `snakemake -c2 all readme -R study` writes all that is shown anew") from None


def check_result(path: Path) -> None:
    """Check a result's checksum, its place, its fingerprint, and that its summary follows from its records."""
    result = results.read(path)
    if result["cell"] != path.parent.name:
        raise UserError(f"{path}: holds cell {result['cell']}")
    if result["fingerprint"] != results.digest(result["spec"]):
        raise UserError(f"{path}: /fingerprint is not that of its spec")
    if found := difference(result.get("summary"), summary_of(path, result), "/summary"):
        raise UserError(f"{path}: {found}; the records changed, or `snakemake rederive` is due")


def summary_of(path: Path, result: dict) -> dict:
    """The summary that follows from the records of the result at `path`. Raises UserError where those are none."""
    try:
        return recompute(result)
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: its records are not in the format of docs/architecture.md ({error!r}); restore it with `git checkout -- '{path}'`") from None


def difference(recorded, expected, pointer: str = "") -> str | None:
    """The first place (a JSON pointer) where two JSON values differ by more than rounding, and how; None if none does."""
    if isinstance(recorded, dict) and isinstance(expected, dict) and recorded.keys() == expected.keys():
        inner = ((f"{pointer}/{key}", recorded[key], expected[key]) for key in recorded)
    elif isinstance(recorded, list) and isinstance(expected, list) and len(recorded) == len(expected):
        inner = ((f"{pointer}/{index}", *pair) for index, pair in enumerate(zip(recorded, expected)))
    else:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (recorded, expected))
        same = math.isclose(recorded, expected, rel_tol=TOLERANCE) if numbers else (type(recorded), recorded) == (type(expected), expected)
        return None if same else f"{pointer} is {one_line(repr(recorded), 80)} where the records give {one_line(repr(expected), 80)}"
    return next((found for where, *pair in inner if (found := difference(*pair, where))), None)


def check_cells(root: Path) -> int:
    """Check metrics/cells.csv, where there is one, against the results; how many rows it has."""
    path = root / "metrics/cells.csv"
    if not path.exists():
        return 0
    try:
        shown = pd.read_csv(path)
    except ValueError as error:
        raise UserError(f"{path}: no table ({one_line(str(error))})") from None
    fresh = pd.read_csv(io.StringIO(cells.frame(cells.load(root)).to_csv(index=False)))
    if gone := [*fresh.columns.difference(shown.columns), *shown.columns.difference(fresh.columns)]:
        raise UserError(f"{path}: column {gone[0]} is missing here or in the results")
    expected = fresh.set_index([*KEYS]).to_dict("index")
    for number, row in enumerate(shown.to_dict("records"), start=2):
        key = tuple(row.pop(name) for name in KEYS)
        if key not in expected:
            raise UserError(f"{path}:{number}: no result has {', '.join(map(str, key))}")
        given = expected[key]
        for column in (each for each in row if each not in OF_THE_PLAN):
            if not (pd.isna(row[column]) and pd.isna(given[column])) and (found := difference(row[column], given[column])):
                raise UserError(f"{path}:{number}, column {column}{found}")
    if lacks := expected.keys() - set(map(tuple, shown[[*KEYS]].to_numpy())):
        raise UserError(f"{path}: lacks the row of {', '.join(map(str, min(lacks)))}")
    return len(shown)
