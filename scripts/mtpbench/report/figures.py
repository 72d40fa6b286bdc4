"""The one place where a number becomes text, and where the text is led back to its number.

A figure has a source: either a reference, `metrics/runs/<cell>/result.json#/summary/loads/0/speedup/ratio` (a file under
the repository root and a JSON pointer as its fragment, RFC 6901), or a formula over references, `quotient(ref, ref)`.
It goes out as a link to the (first) reference whose title carries format and formula, so that `shown` can walk what
people read and `recompute` can say what should stand there.
"""

import csv
import functools
import html
import io
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from urllib.parse import quote, unquote

import numpy as np
import yaml

from mtpbench.analysis import costmodel, effect
from mtpbench.analysis.records import grouped
from mtpbench.errors import UserError


def _decimal(value: float) -> str:
    """Three significant digits, more only before the point, never an exponent: 0.0123, 1.23, 12.3, 1,234."""
    rounded = float(f"{value:.3g}")  # first, since 9.999 has one digit fewer once it is 10.0
    if rounded == 0:
        return "0"
    digits = max(0, 2 - int(np.floor(np.log10(abs(rounded)))))
    return f"{value:,.{digits}f}"


FORMATS: dict[str, Callable] = {
    "ratio": lambda value: f"{value:.2f}×",
    "length": lambda value: f"{value:.2f}",
    "percent": lambda value: f"{100 * value:.1f} %",
    "decimal": _decimal,
    "count": lambda value: f"{value:,.0f}",
    "gigabytes": lambda value: _decimal(value / 1e9),
    "dollars": lambda value: f"${_decimal(value)}",
    "probability": lambda value: f"{value:.3f}" if value >= 0.001 else "< 0.001",
    "text": str,
    "short": lambda value: value[:12],
    "exact": repr,
}


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def step_quantiles(sessions: list[dict]) -> dict[tuple[str, int], dict[float, float]]:
    """By arm and concurrency: the QUANTILES of the step times in ms, over the records of all sessions."""
    requests = grouped((request for session in sessions for request in session["requests"]), itemgetter("arm", "concurrency"))
    steps = {key: 1e3 * np.concatenate([np.diff(request["times"]) for request in found]) for key, found in requests.items()}
    return {
        key: dict(zip(QUANTILES, np.quantile(found, QUANTILES).tolist())) for key, found in steps.items() if len(found)
    }


def outputs(sessions: list[dict]) -> dict[tuple, tuple[int, int]]:
    """Of each request of the first session's test arm: hashes of its ids, and of how the steps split them."""
    return {
        (request["concurrency"], request["prompt"], request["repeat"]): (hash(tuple(request["ids"])), hash(tuple(request["counts"])))
        for request in sessions[0]["requests"]
        if request["arm"] == "test"
    }


def agreement(one: dict, other: dict, which: int) -> float:
    """Share of the requests common to two `outputs` that are alike: in their ids (0) or in their steps (1)."""
    common = one.keys() & other.keys()
    return sum(one[key][which] == other[key][which] for key in common) / len(common)


FORMULAS: dict[str, Callable] = {
    "break_even": costmodel.break_even,
    # from the ids of a cell's own steps and the times of other cells' steps: base and test of the first, of the second, ...
    "predicted": lambda ids, *steps: costmodel.predict(costmodel.mean_ids(ids), fmean(steps[::2]), fmean(steps[1::2])),
    "spread_of_mean": lambda *half_widths: 1 + costmodel.half_width_of_mean(*half_widths),
    "implied": lambda length, break_even: length / break_even,
    "noise_floor": effect.noise_floor,
    "number": len,
    "total": lambda *values: sum(values),
    "share": lambda part, whole: part / whole,
    "step_quantile": lambda sessions, arm, concurrency, share: step_quantiles(sessions)[arm, concurrency][share],
    "same_ids": lambda one, other: agreement(outputs(one), outputs(other), 0),
    "same_steps": lambda one, other: agreement(outputs(one), outputs(other), 1),
    "sessions_seconds": lambda sessions: sum(session["seconds"]["total"] for session in sessions),
    "dollars_per_million": lambda hourly, per_second: hourly / 3600 / per_second * 1e6,
    "dollars_per_million_all_in": lambda hourly, seconds, tokens: hourly / 3600 * seconds / tokens * 1e6,
    # from a published rate in percent, at a draft length
    "length_of_rate": lambda percent, gamma: 1 + float(percent) / 100 * gamma,
}


@dataclass(frozen=True)
class Figure:
    """A number as people see it, and where it comes from."""

    value: object
    format: str
    source: str
    records: str = ""

    @property
    def text(self) -> str:
        return FORMATS[self.format](self.value)

    @property
    def reference(self) -> str:
        """The (first) file and pointer."""
        return re.search(r"[^\s(,]+#/[^\s,)]*", self.source).group()

    @property
    def title(self) -> str:
        """`format · formula · records`, without a formula where the link itself says all."""
        formula = [] if self.source == self.reference else [self.source]
        return " · ".join([self.format, *formula, *([f"records: {self.records}"] if self.records else [])])

    def markdown(self, up: str = "../") -> str:
        return f'[{self.text}]({up}{self.reference} "{self.title}")'

    def html(self, up: str = "../") -> str:
        href, title, text = (html.escape(part) for part in (up + self.reference, self.title, self.text))
        return f'<a class="f" href="{href}" title="{title}">{text}</a>'


@dataclass(frozen=True)
class Null:
    """A number that there is not, with the reason why; never a zero."""

    reason: str

    @property
    def text(self) -> str:
        return f"n/a: {self.reason}"

    def markdown(self, up: str = "../") -> str:
        return self.text.replace("|", "\\|")

    def html(self, up: str = "../") -> str:
        return f'<span class="null" title="{html.escape(self.text)}">{html.escape(self.text)}</span>'


def derived(formula: str, *parts, format: str) -> Figure | Null:
    """A figure computed from others (and plain constants) by a named formula; Null when one of them is Null."""
    if missing := next((part for part in parts if isinstance(part, Null)), None):
        return missing
    values = [part.value if isinstance(part, Figure) else part for part in parts]
    sources = [part.source if isinstance(part, Figure) else json.dumps(part) for part in parts]
    try:
        value = FORMULAS[formula](*values)
    except ZeroDivisionError:
        return Null(f"{formula} would divide by zero")
    records = next((part.records for part in parts if isinstance(part, Figure) and part.records), "")
    return Figure(value, format, f"{formula}({', '.join(sources)})", records)


def pointer_part(key: str) -> str:
    """A key as part of a JSON pointer in a link's fragment (RFC 6901, sections 3 and 6)."""
    return quote(key.replace("~", "~0").replace("/", "~1"), safe="~")


@functools.cache
def _keys(pointer: str) -> list[str]:
    """A pointer taken apart once for all the cells in which it is looked up."""
    return [unquote(part).replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def lookup(document, pointer: str):
    """The value at such a JSON pointer. Raises KeyError, naming the pointer, where there is none."""
    for part in _keys(pointer):
        try:
            document = document[int(part)] if isinstance(document, list) else document[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise KeyError(pointer) from None
    return document


_READERS: dict[str, Callable] = {".json": json.load, ".yaml": yaml.safe_load, ".csv": lambda file: list(csv.DictReader(file))}


class Files(dict):
    """Documents under a root by their path: JSON, YAML, or CSV as a list of rows. Each is read once."""

    def __init__(self, root: Path):
        self.root = Path(root)

    def __missing__(self, name: str):
        with open(self.root / name, encoding="utf-8", newline="") as file:
            self[name] = _READERS[Path(name).suffix](file)
        return self[name]


_TOKEN = re.compile(r"\s*(?:(?P<name>[a-z_]+)\(|(?P<reference>[^\s(,\"]+#/[^\s,)]*)|(?P<literal>\"[^\"]*\"|[-\d.e]+))")


def evaluate(source: str, files: Files):
    """The value of a source, read from the files again. Raises ValueError for a source that is none."""

    def parse(position: int):
        found = _TOKEN.match(source, position)
        if not found:
            raise ValueError(f"not a source: {source!r} at {position}")
        position = found.end()
        if found["reference"]:
            file, _, pointer = found["reference"].partition("#")
            return lookup(files[file], pointer), position
        if found["literal"]:
            return json.loads(found["literal"]), position
        arguments = []
        while source[position] != ")":
            value, position = parse(position)
            arguments.append(value)
            position += source[position] == ","
        return FORMULAS[found["name"]](*arguments), position + 1

    return parse(0)[0]


@dataclass(frozen=True)
class Shown:
    """A figure as it was found in something that people read."""

    where: str
    text: str
    source: str
    format: str


_LINKS = {
    ".md": re.compile(r'\[(?P<text>[^\]]*)\]\((?P<href>[^\s)]+#/[^\s)]*) "(?P<title>[^"]*)"\)'),
    ".html": re.compile(r'<a class="f" href="(?P<href>[^"]*)" title="(?P<title>[^"]*)">(?P<text>[^<]*)</a>'),
}


def shown_in(path: Path, root: Path) -> Iterator[Shown]:
    """Every figure of one page, Markdown file or plot's CSV."""
    where = str(path.relative_to(root))
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    if path.suffix == ".csv":
        for row in csv.DictReader(io.StringIO(content)):
            yield from (Shown(where, row[name], row[f"{name}_source"], "exact") for name in row if row.get(f"{name}_source"))
        return
    for found in _LINKS[path.suffix].finditer(content):
        text, href, title = (html.unescape(found[part]) for part in ("text", "href", "title"))
        format, *rest = title.split(" · ")
        formula = next((part for part in rest if not part.startswith("records: ")), None)
        yield Shown(where, text, formula or re.sub(r"^(\.\./)+", "", href), format)


def shown(root: Path) -> Iterator[Shown]:
    """Every figure that people are shown: in the report, the README, and the data of the plots."""
    root = Path(root)
    pages = [root / "report/results.md", root / "report/index.html", root / "README.md"]
    for path in [*pages, *sorted((root / "metrics/plots").glob("*.csv"))]:
        if path.exists():
            yield from shown_in(path, root)


def check(root: Path) -> int:
    """Compare every shown figure with its source; how many there are. Raises UserError naming the first that differs."""
    files, number = Files(root), 0
    for number, figure in enumerate(shown(root), start=1):
        try:
            expected = FORMATS[figure.format](evaluate(figure.source, files))
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{figure.where}: {figure.text!r} leads nowhere: {figure.source} ({error!r})") from None
        if expected != figure.text:
            raise UserError(f"{figure.where} shows {figure.text!r} where {figure.source} gives {expected!r}")
    return number
