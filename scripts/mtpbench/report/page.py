"""The report as pages: one list of sections, two templates, and how a table's cell is written in each."""

import html
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from mtpbench.report import advice, tables
from mtpbench.report.cells import Study
from mtpbench.report.figures import Figure, Files, Null
from mtpbench.report.plots import PLOTS

TEMPLATES = Path(__file__).parents[3] / "report/templates"
MOST_ROWS = {"html": 60, "markdown": 30}  # of a long table: the page must open on a phone; all rows are in metrics/cells.csv


@dataclass(frozen=True)
class Section:
    """A heading with tables and plots under it, each by its name."""

    id: str
    title: str
    tables: tuple[str, ...]
    plots: tuple[str, ...] = ()


SECTIONS = (
    Section("speedup", "Speed-up", ("headline", "engines", "rates"), ("speedup",)),
    Section("break-even", "Break-even: what a longer step must win", ("curves",), ("acceptance_speedup", "curves", "predicted")),
    Section("acceptance", "Acceptance", ("acceptance", "categories", "histogram"), ("acceptance_position",)),
    Section("latency", "Latency", ("latency", "cold_start"), ("step_times",)),
    Section("hardware", "Hardware", ("hardware",), ("roofline",)),
    Section("cost", "Cost", ("cheapest", "cost"), ("cost",)),
    Section("prompts", "Prompt by prompt", ("prompts",)),
    Section("losslessness", "Same output?", ("losslessness",)),
    Section("gates", "Gates", ("gates",)),
    Section("provenance", "Provenance", ("provenance",)),
    Section("published", "Published before", ("published",)),
)


def as_html(value) -> Markup:
    """A table's cell or a sentence's part for the page."""
    if isinstance(value, tuple | list):
        return Markup("").join(map(as_html, value))
    if isinstance(value, Figure | Null):
        return Markup(value.html())
    if isinstance(value, tables.Badge):
        return Markup(f' <span class="badge {value.tone}"><span aria-hidden="true">{value.symbol}</span> {html.escape(value.text)}</span> ')
    return Markup(html.escape(str(value)))


def as_markdown(value, up: str = "../") -> str:
    """The same for Markdown. A pipe would end the table's cell, a line break its row."""
    if isinstance(value, tuple | list):
        return "".join(as_markdown(part, up) for part in value)
    if isinstance(value, Figure | Null):
        return value.markdown(up)
    if isinstance(value, tables.Badge):
        return f" {value.symbol} {value.text} ".rstrip()
    return " ".join(str(value).replace("|", "\\|").splitlines())


def _environment(kind: str) -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=kind == "html", undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    show: Callable = as_html if kind == "html" else as_markdown
    made.filters["show"] = show
    return made


def context(study: Study, files: Files) -> dict:
    """What both templates are rendered from."""
    return {
        "study": study,
        "tables": tables.build(study, files),
        "sections": SECTIONS,
        "plots": {name: title for name, (title, _) in PLOTS.items()},
        "advice": {scope: advice.advice(study.comparisons, scope) for scope in advice.SCOPES},
        "load_changes": advice.load_changes(study.comparisons),
        "diagnostic": any(cell.diagnostic for cell in study.valid),
    }


def write(study: Study, root: Path) -> None:
    """Write report/results.md and report/index.html; the plots must lie in metrics/plots."""
    made = context(study, Files(root))
    svgs = {name: Markup((root / f"metrics/plots/{name}.svg").read_text(encoding="utf-8")) for name in PLOTS}
    for kind, name in (("markdown", "results.md"), ("html", "index.html")):
        template = _environment(kind).get_template(f"{name}.jinja")
        text = template.render(**made, svgs=svgs, most=MOST_ROWS[kind])
        (root / "report").mkdir(exist_ok=True)
        (root / "report" / name).write_text(text, encoding="utf-8")
