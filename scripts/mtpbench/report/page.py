"""The report as pages: one list of sections, its templates, and how a table's cell is written in each."""

import html
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markupsafe import Markup

from mtpbench.errors import UserError
from mtpbench.report import PLOTS, STANDALONE, advice, tables
from mtpbench.report.cells import Study
from mtpbench.report.figures import Figure, Files

README_MARKERS = ("<!-- results: begin (written by `snakemake readme`; do not edit) -->", "<!-- results: end -->")
TEMPLATES = Path(__file__).parents[3] / "report/templates"
MOST_ROWS = {"html": 55, "markdown": 30}  # of a long table: the page must open on a phone; all rows are in metrics/cells.csv


@dataclass(frozen=True)
class Section:
    """A heading with tables and plots under it, each by its name."""

    id: str
    title: str
    tables: tuple[str, ...]
    plots: tuple[str, ...] = ()


SECTIONS = (
    Section("speedup", "Speed-up", ("headline", "engines", "engines_agree", "rates"), ("speedup",)),
    Section("break-even", "Break-even: what a longer step must win", ("curves",), ("acceptance_speedup", "curves", "predicted")),
    Section("acceptance", "Acceptance", ("acceptance", "categories", "histogram"), ("acceptance_position",)),
    Section("latency", "Latency", ("latency", "cold_start"), ("step_times",)),
    Section("hardware", "Hardware", ("hardware", "conditions", "anatomy"), ("roofline",)),
    Section("cost", "Cost", ("cheapest", "cost"), ("cost",)),
    Section("prompts", "Prompt by prompt", ("prompts",)),
    Section("losslessness", "Same output?", ("losslessness",)),
    Section("gates", "Gates", ("gates", "warnings")),
    Section("provenance", "Provenance", ("provenance",)),
    Section("published", "Published before", ("published", "implied")),
)


def as_html(value, up: str = "../") -> Markup:
    """A table's cell or a sentence's part for the page; `up` leads from the page's folder to the root."""
    if isinstance(value, tuple | list):
        return Markup("").join(as_html(part, up) for part in value)
    return Markup(html.escape(value) if isinstance(value, str) else value.html(up))


def as_markdown(value, up: str = "../") -> str:
    """The same for Markdown. A pipe would end the table's cell, a line break its row."""
    if isinstance(value, tuple | list):
        return "".join(as_markdown(part, up) for part in value)
    return " ".join(value.replace("|", "\\|").splitlines()) if isinstance(value, str) else value.markdown(up)


def _kind(value) -> str:
    """How a column of such cells is set: numbers to the right, words with line breaks."""
    parts = value if isinstance(value, tuple | list) else (value,)
    if any(isinstance(part, Figure) for part in parts):
        return "number" if not isinstance(parts[0], str) and len(parts) <= 3 else "words"
    return "words" if isinstance(value, str) and len(value) > 16 else ""


def _render(template: str, up: str = "../", **values) -> str:
    kind = "html" if ".html" in template else "markdown"
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=kind == "html", undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )  # fmt: skip
    made.filters["kind"] = _kind
    made.filters["show"] = lambda value: as_html(value, up) if kind == "html" else as_markdown(value, up).strip()
    return made.get_template(template).render(**{"most": MOST_ROWS[kind], "up": up, **values})


def write(study: Study, root: Path) -> None:
    """Write report/results.md and report/index.html; the plots must lie in metrics/plots."""
    values = {
        "study": study,
        "tables": tables.build(study, Files(root)),
        "sections": SECTIONS,
        "plots": PLOTS,
        "svgs": {name: _inlined(root / f"metrics/plots/{name}.svg") for name in PLOTS},
        "advice": {scope: advice.advice(study.comparisons, scope) for scope in advice.SCOPES},
        "load_changes": advice.load_changes(study.comparisons),
        "diagnostic": any(cell.diagnostic for cell in study.valid),
    }
    few = {"most": 10} if len(study.cells) > 100 else {}  # GitHub renders no Markdown of more than half a megabyte
    for name, more in (("results.md", few), ("index.html", {})):
        (root / "report" / name).write_text(_render(f"{name}.jinja", **values, **more), encoding="utf-8")


def _inlined(svg: Path) -> Markup:
    """A plot as part of the page, which lies one folder higher than the plot itself."""
    return Markup(svg.read_text(encoding="utf-8").replace('href="../../', 'href="../'))


def write_tables(study: Study, root: Path) -> None:
    """Write metrics/tables/{name}.html for Snakemake's own report, which shows HTML and only offers the rest for download."""
    made = tables.build(study, Files(root))
    (root / "metrics/tables").mkdir(parents=True, exist_ok=True)
    for name in STANDALONE:
        text = _render("table.html.jinja", up="../../", tables=made, name=name)
        (root / f"metrics/tables/{name}.html").write_text(text, encoding="utf-8")


def readme(study: Study, text: str) -> str:
    """README's text with its results section written anew. Raises UserError where the markers are not there."""
    begin, end = README_MARKERS
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise UserError(f"README.md: no results section; put the lines '{begin}' and '{end}' where it belongs")
    answer = tables.answer(study)
    scenarios = advice.advice(study.comparisons, "scenario")
    return head + begin + "\n" + _render("readme.md.jinja", up="", study=study, answer=answer, advice=scenarios) + end + tail
