"""The report's plots: SVG and PNG, each with its data as CSV beside it.

Every plot can be read without colour (markers, line styles, hatches) and is made of `var()` colours, so that the same
SVG suits a light and a dark page. Nothing in a file depends on when or where it was made.
"""

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogFormatter, MaxNLocator

from mtpbench.report.advice import label
from mtpbench.report.cells import ARMS, Comparison, Study
from mtpbench.report.figures import QUANTILES, Figure
from mtpbench.report.tables import NO_COMPARISON, NO_PRICE, break_even, cost_of, prediction

INK, FAINT, GRID = "#1d2329", "#5b6672", "#d5dae0"
SERIES = ("#0067a8", "#b84a00", "#00745a", "#96407a", "#7a6200", "#4f5b66")
DARK = {INK: "#e6e9ec", FAINT: "#a3adb8", GRID: "#39424c"} | dict(zip(SERIES, ("#62b6ef", "#ff9a57", "#4fd1a7", "#e5a0cb", "#e3cf57", "#c2cad3")))
MARKERS, LINES = "osD^vPX<>", ("-", "--", ":", "-.")
LABELLED, MOST = 48, 200  # rows with a name each; rows at all
STYLE = {
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9, "axes.edgecolor": FAINT, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none", "figure.dpi": 100,
}  # fmt: skip
Rows = list[dict]


def _row(name: str, **figures) -> dict:
    """A row of a plot's data: each figure's value with its source beside it; None where there is no figure."""
    row = {"cell": name}
    for column, figure in figures.items():
        known = isinstance(figure, Figure)
        row |= {column: figure.value if known else None, f"{column}_source": figure.source if known else ""}
    return row


def _url(row: dict, column: str) -> str:
    """From a plot's place to the file and field behind a point."""
    return "../" + Figure(0, "text", row[f"{column}_source"]).reference.removeprefix("metrics/")


def _looks(names) -> dict[str, dict]:
    """A colour and a marker for each name."""
    return {name: {"color": SERIES[at % len(SERIES)], "marker": MARKERS[at % len(MARKERS)]} for at, name in enumerate(dict.fromkeys(names))}


def _keys(axes, looks: dict[str, dict], more: list[Artist] = ()) -> None:
    """A legend above the plot."""
    handles = [Line2D([], [], linestyle="", label=name, **look) for name, look in looks.items()]
    axes.legend(handles=[*handles, *more], loc="lower left", bbox_to_anchor=(0, 1), ncols=min(4, len(handles) + len(more)), borderaxespad=0.2, handletextpad=0.4, columnspacing=1.2)


def _points(axes, rows: Rows, x: str, y: str, color: str, marker: str, hollow=lambda row: False) -> None:
    """Markers that lead to their numbers; hollow ones stand for what is unresolved or diagnostic."""
    faces = ["none" if hollow(row) else color for row in rows]
    points = axes.scatter([row[x] for row in rows], [row[y] for row in rows], s=30, marker=marker, facecolors=faces, edgecolors=color, linewidths=1.3, zorder=3)
    points.set_urls([_url(row, y if f"{y}_source" in row else x) for row in rows])


def _nothing(axes, why: str) -> None:
    axes.figure.set_size_inches(7.2, 0.8)
    axes.axis("off")
    axes.text(0.5, 0.5, why, ha="center", va="center", color=FAINT, transform=axes.transAxes)


def _times(value, _=None) -> str:
    return f"{value:g}×"


def _log_ratio_axis(axis) -> None:
    """A log axis of ratios with a handful of plain ticks."""
    ticks = [0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 8]
    low, high = axis.get_view_interval()
    axis.set_ticks([tick for tick in ticks if low <= tick <= high])
    axis.set_major_formatter(FuncFormatter(_times))
    axis.set_minor_locator(matplotlib.ticker.NullLocator())


def _plain_log_axis(axis) -> None:
    """A log axis with plain numbers, between the powers of ten too where there are few of them."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def _shortened(items: list, most: int, axes) -> list:
    if len(items) > most:
        axes.text(1, 1.01, f"first {most} of {len(items)}; all in the CSV", transform=axes.transAxes, ha="right", va="bottom", fontsize=7, color=FAINT)
    return items[:most]


def _named(item: Comparison) -> str:
    marks = [mark.split(" · ")[0] for mark in item.cell.marks]
    return label(item) + (f" ({', '.join(marks)})" if marks else "")


def _row_names(axes, names: list[str], groups: list[str]) -> None:
    """A name for each row, or for each group of rows where there are too many."""
    if len(names) <= LABELLED:
        axes.set_yticks(range(len(names)), names)
    else:
        middles = {group: np.mean([at for at, other in enumerate(groups) if other == group]) for group in dict.fromkeys(groups)}
        axes.set_yticks(list(middles.values()), list(middles))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)


def _height(rows: int) -> float:
    return 1.1 + (0.24 * rows if rows <= LABELLED else max(0.03 * rows, 6))


def speedup(study: Study) -> tuple[plt.Figure, Rows]:
    items = sorted(study.current, key=lambda item: item.cell.gpu)
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), ratio=item.ratio, low=item.load.figure("speedup/low", "ratio"),
             high=item.load.figure("speedup/high", "ratio"), noise_floor=item.floor) | {"verdict": item.verdict}
        for item in items
    ]  # fmt: skip
    figure, axes = plt.subplots(figsize=(7.2, _height(min(len(rows), MOST))))
    drawn = _shortened([(at, item, row) for at, (item, row) in enumerate(zip(items, rows)) if row["ratio"] is not None], MOST, axes)
    if not drawn:
        _nothing(axes, NO_COMPARISON)
        return figure, rows
    thin = len(drawn) > LABELLED
    for at, (_, item, row) in enumerate(drawn):
        row["row"] = at
        if row["noise_floor"] is not None:
            axes.fill_betweenx([at - 0.38, at + 0.38], 1 / (1 + row["noise_floor"]), 1 + row["noise_floor"], color=GRID, linewidth=0)
    looks = _looks(item.cell.engine for _, item, _ in drawn)
    for engine, look in looks.items():
        mine = [row for _, item, row in drawn if item.cell.engine == engine]
        bounded = [row for row in mine if row["low"] is not None]
        axes.hlines([row["row"] for row in bounded], [row["low"] for row in bounded], [row["high"] for row in bounded], color=look["color"], linewidth=0.8 if thin else 1.6)
        _points(axes, mine, "ratio", "row", **look, hollow=lambda row: row["verdict"] == "unresolved")
    for row in rows:
        row.pop("row", None)
    axes.axvline(1, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    _log_ratio_axis(axes.xaxis)
    axes.set_xlabel("speed-up of time per output token, control / test (log scale), with 95 % interval")
    _row_names(axes, [_named(item) for _, item, _ in drawn], [item.cell.gpu for _, item, _ in drawn])
    extra = [
        Line2D([], [], linestyle="", marker="o", markerfacecolor="none", color=FAINT, label="hollow: unresolved"),
        plt.Rectangle((0, 0), 1, 1, color=GRID, label="noise floor"),
    ]
    _keys(axes, looks, extra)
    return figure, rows


def acceptance_speedup(study: Study) -> tuple[plt.Figure, Rows]:
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), acceptance_length=item.load.figure("arms/test/acceptance/length", "length"), ratio=item.ratio,
             low=item.load.figure("speedup/low", "ratio"), high=item.load.figure("speedup/high", "ratio"), break_even=break_even(item.load))
        | {"verdict": item.verdict, "group": f"{item.cell.gpu} {item.cell.engine} γ {item.cell.gamma}"}
        for item in study.current
    ]  # fmt: skip
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    drawn = _shortened([row for row in rows if row["acceptance_length"] is not None and row["ratio"] is not None], MOST, axes)
    if not drawn:
        _nothing(axes, NO_COMPARISON)
        return figure, rows
    looks = _looks(row["group"] for row in drawn)
    most = max(row["acceptance_length"] for row in drawn) * 1.08
    for group, look in looks.items():
        mine = [row for row in drawn if row["group"] == group]
        bounded = [row for row in mine if row["low"] is not None]
        axes.vlines([row["acceptance_length"] for row in bounded], [row["low"] for row in bounded], [row["high"] for row in bounded], color=look["color"], linewidth=1.2)
        _points(axes, mine, "acceptance_length", "ratio", **look, hollow=lambda row: row["verdict"] == "unresolved")
        if len(looks) <= 6 and mine[0]["break_even"]:
            slope = 1 / np.median([row["break_even"] for row in mine])
            axes.plot([1, most], [slope, most * slope], color=look["color"], linewidth=0.9, linestyle="--")
    axes.axhline(1, color=INK, linewidth=0.9)
    axes.annotate("break-even", (1, 1), xytext=(2, 3), textcoords="offset points", fontsize=8, color=FAINT)
    axes.set_xlabel("acceptance length (ids per step, bonus in)")
    axes.set_ylabel("speed-up, with 95 % interval")
    axes.yaxis.set_major_formatter(FuncFormatter(_times))
    axes.set_xlim(0.95, most)
    _keys(axes, looks, [Line2D([], [], color=FAINT, linestyle="--", linewidth=0.9, label="length / break-even length")] if len(looks) <= 6 else [])
    return figure, rows


def acceptance_position(study: Study) -> tuple[plt.Figure, Rows]:
    rows = []
    for item in (item for item in study.comparisons if item.load.index == 0):
        for at in range(item.cell.gamma):
            share = item.load.figure(f"arms/test/acceptance/joint/{at}", "percent")
            rows.append(_row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), share=share) | {"position": at + 1, "prompts": item.cell.prompts, "engine": item.cell.engine, "line": label(item)})
    figure, axes = plt.subplots(figsize=(7.2, 3.8))
    drawn = [row for row in rows if row["share"] is not None]
    if not drawn:
        _nothing(axes, NO_COMPARISON)
        return figure, rows
    looks = _looks(row["prompts"] for row in drawn)
    engines = {engine: LINES[at % len(LINES)] for at, engine in enumerate(dict.fromkeys(row["engine"] for row in drawn))}
    for line in _shortened(list(dict.fromkeys(row["line"] for row in drawn)), 60, axes):
        mine = [row for row in drawn if row["line"] == line]
        look = looks[mine[0]["prompts"]]
        axes.plot([row["position"] for row in mine], [row["share"] for row in mine], color=look["color"], linestyle=engines[mine[0]["engine"]], linewidth=1.2)
        _points(axes, mine, "position", "share", **look)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of steps accepted up to here")
    _keys(axes, looks, [Line2D([], [], color=FAINT, linestyle=style, label=engine) for engine, style in engines.items()])
    return figure, rows


def step_times(study: Study) -> tuple[plt.Figure, Rows]:
    names = [f"p{round(100 * share)}_ms" for share in QUANTILES]
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), **{name: item.load.step(arm, share) for name, share in zip(names, QUANTILES)})
        | {"arm": arm, "named": _named(item)}
        for item in study.current
        for arm in ARMS
    ]
    most = 2 * (LABELLED // 2)
    figure, axes = plt.subplots(figsize=(7.2, _height(min(len(rows), most))))
    drawn = _shortened([row for row in rows if row[names[0]] is not None], most, axes)
    if not drawn:
        _nothing(axes, NO_COMPARISON)
        return figure, rows
    boxes = [dict(zip(("whislo", "q1", "med", "q3", "whishi"), (row[name] for name in names)), fliers=[], label="") for row in drawn]
    made = axes.bxp(boxes, positions=range(len(drawn)), orientation="horizontal", widths=0.6, patch_artist=True, showfliers=False)
    for box, row in zip(made["boxes"], drawn):
        box.set(facecolor="none" if row["arm"] == "control" else GRID, edgecolor=SERIES[row["arm"] == "test"], hatch="" if row["arm"] == "control" else "////", linewidth=1.2)
    for part in (*made["whiskers"], *made["caps"], *made["medians"]):
        part.set(color=INK, linewidth=1)
    axes.set_xscale("log")
    _plain_log_axis(axes.xaxis)
    axes.set_xlabel("time of a step, ms (log scale): box 25 to 75 %, whiskers 5 to 95 %, line the median")
    _row_names(axes, [row["named"] if row["arm"] == "control" else "" for row in drawn], [])
    axes.legend(handles=[plt.Rectangle((0, 0), 1, 1, facecolor="none", edgecolor=SERIES[0], label="control"), plt.Rectangle((0, 0), 1, 1, facecolor=GRID, edgecolor=SERIES[1], hatch="////", label="test")], loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)  # fmt: skip
    return figure, rows


def roofline(study: Study) -> tuple[plt.Figure, Rows]:
    """Normalised: both roofs are 1, so that every device fits one picture."""
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), mbu=item.load.figure(f"arms/{arm}/mbu", "percent"), mfu_executed=item.load.figure(f"arms/{arm}/mfu_executed", "percent"))
        | {"arm": arm, "group": f"{item.cell.gpu} {item.cell.engine}"}
        for item in study.current
        for arm in ARMS
    ]
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    drawn = _shortened([row for row in rows if row["mbu"] and row["mfu_executed"]], MOST, axes)
    if not drawn:
        _nothing(axes, "No cell has both MBU and MFU.")
        return figure, rows
    looks = _looks(row["group"] for row in drawn)
    for group, look in looks.items():
        mine = [row | {"intensity": row["mfu_executed"] / row["mbu"]} for row in drawn if row["group"] == group]
        _points(axes, mine, "intensity", "mfu_executed", **look, hollow=lambda row: row["arm"] == "control")
    axes.set(xscale="log", yscale="log")
    low, high = axes.get_xlim()
    span = np.geomspace(min(low, 0.02), max(high, 3), 60)
    for share, style in ((1, "-"), (0.5, "--"), (0.1, ":")):
        axes.plot(span, np.minimum(1, span * share) if share == 1 else span * share, color=INK if share == 1 else FAINT, linewidth=1, linestyle=style)
    axes.set_ylim(min(axes.get_ylim()[0], 0.5 * min(row["mfu_executed"] for row in drawn)), 1.6)
    axes.set_xlabel("arithmetic intensity over the device's own balance (MFU / MBU)")
    axes.set_ylabel("share of peak arithmetic (MFU executed)")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    roofs = [Line2D([], [], color=INK if name == "roof" else FAINT, linestyle=style, label=name) for name, style in (("roof", "-"), ("MBU 50 %", "--"), ("MBU 10 %", ":"))]
    _keys(axes, looks, [*roofs, Line2D([], [], linestyle="", marker="o", markerfacecolor="none", color=FAINT, label="hollow: control")])
    return figure, rows


def cost(study: Study) -> tuple[plt.Figure, Rows]:
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), **{f"{arm}_tok_s": item.load.figure(f"arms/{arm}/mean_request_tok_s", "decimal") for arm in ARMS}, **{f"{arm}_dollars_per_million": cost_of(study, item.load, arm) for arm in ARMS})
        | {"group": f"{item.cell.gpu} {item.cell.engine}"}
        for item in study.current
    ]
    figure, axes = plt.subplots(figsize=(7.2, 4.2))
    priced = [row for row in rows if row["control_dollars_per_million"] is not None and row["test_dollars_per_million"] is not None]
    if not (drawn := _shortened(priced, MOST, axes)):
        _nothing(axes, NO_PRICE)
        return figure, rows
    looks = _looks(row["group"] for row in drawn)
    for group, look in looks.items():
        mine = [row for row in drawn if row["group"] == group]
        for row in mine:
            axes.annotate("", (row["test_tok_s"], row["test_dollars_per_million"]), (row["control_tok_s"], row["control_dollars_per_million"]), arrowprops={"arrowstyle": "->", "color": look["color"], "linewidth": 0.8})
        _points(axes, mine, "control_tok_s", "control_dollars_per_million", **look, hollow=lambda row: True)
        _points(axes, mine, "test_tok_s", "test_dollars_per_million", **look)
    axes.set(xscale="log", yscale="log")
    for axis in (axes.xaxis, axes.yaxis):
        _plain_log_axis(axis)
    axes.set_xlabel("rate of a request, tokens/s (log scale)")
    axes.set_ylabel("US dollars per million output tokens (log scale)")
    _keys(axes, looks, [Line2D([], [], linestyle="", marker="o", markerfacecolor="none", color=FAINT, label="hollow: control")])
    return figure, rows


def curves(study: Study) -> tuple[plt.Figure, Rows]:
    """What a draft length costs in step time, and what it must win at each load."""
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), gamma=item.cell.figure("/spec/mode/num_speculative_tokens", "count"), base_ms=item.load.figure("arms/control/step_ms/mean", "decimal"), step_ms=item.load.figure("arms/test/step_ms/mean", "decimal"), break_even=break_even(item.load))
        | {"group": f"{item.cell.gpu} {item.cell.engine}"}
        for item in study.current
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.6), layout="constrained")
    drawn = _shortened([row for row in rows if row["break_even"] is not None], MOST, right)
    if not drawn:
        _nothing(left, NO_COMPARISON)
        right.axis("off")
        return figure, rows
    looks = _looks(row["group"] for row in drawn)
    styles = {gamma: LINES[at % len(LINES)] for at, gamma in enumerate(sorted({row["gamma"] for row in drawn}))}
    lowest = min(row["concurrency"] for row in drawn)
    for group, look in looks.items():
        mine = [row for row in drawn if row["group"] == group]
        _line(left, [row for row in mine if row["concurrency"] == lowest], "gamma", "step_ms", look, "-")
        for gamma, style in styles.items():
            _line(right, [row for row in mine if row["gamma"] == gamma], "concurrency", "break_even", look, style)
    left.set(xlabel="draft length γ", ylabel=f"mean step, ms (concurrency {lowest})", ylim=(0, 1.08 * max(row["step_ms"] for row in drawn if row["concurrency"] == lowest)))
    left.set_xticks(list(styles))
    left.set_xlim(min(styles) - 0.5, max(styles) + 0.5)
    right.axhline(1, color=INK, linewidth=0.9)
    right.set_xscale("log", base=2)
    loads = sorted({row["concurrency"] for row in drawn})
    right.set_xlim(loads[0] / 1.5, loads[-1] * 1.5)
    right.set_xticks(loads, [f"{load:g}" for load in loads])
    right.set(xlabel="concurrency (log scale)", ylabel="break-even acceptance length")
    handles = [Line2D([], [], linestyle="", label=group, **look) for group, look in looks.items()]
    handles += [Line2D([], [], color=FAINT, linestyle=style, label=f"γ {gamma}") for gamma, style in styles.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=5)
    return figure, rows


def _line(axes, rows: Rows, x: str, y: str, look: dict, style: str) -> None:
    """Points, and a line through their medians at each x."""
    places = sorted({row[x] for row in rows})
    axes.plot(places, [np.median([row[y] for row in rows if row[x] == at]) for at in places], color=look["color"], linestyle=style, linewidth=1.1)
    _points(axes, rows, x, y, **look)


def predicted(study: Study) -> tuple[plt.Figure, Rows]:
    rows = [
        _row(item.cell.name, concurrency=item.load.figure("concurrency", "count"), predicted=prediction(study, item), observed=item.ratio, low=item.load.figure("speedup/low", "ratio"), high=item.load.figure("speedup/high", "ratio"))
        | {"group": f"{item.cell.gpu} {item.cell.engine}"}
        for item in study.current
    ]
    figure, axes = plt.subplots(figsize=(7.2, 4.6))
    drawn = _shortened([row for row in rows if row["predicted"] is not None and row["low"] is not None], MOST, axes)
    if not drawn:
        _nothing(axes, "No comparison has another cell that drafts alike to be predicted from.")
        return figure, rows
    looks = _looks(row["group"] for row in drawn)
    for group, look in looks.items():
        mine = [row for row in drawn if row["group"] == group]
        axes.vlines([row["predicted"] for row in mine], [row["low"] for row in mine], [row["high"] for row in mine], color=look["color"], linewidth=1.2)
        _points(axes, mine, "predicted", "observed", **look)
    ends = [min(min(row["predicted"], row["low"]) for row in drawn) * 0.95, max(max(row["predicted"], row["high"]) for row in drawn) * 1.05]
    axes.plot(ends, ends, color=INK, linewidth=0.9)
    axes.fill_between(ends, [0.95 * end for end in ends], [1.05 * end for end in ends], color=GRID, linewidth=0, zorder=0)
    axes.set(xlim=ends, ylim=ends, xlabel="predicted speed-up (band: within 5 %)", ylabel="observed speed-up, with 95 % interval")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_times))
    _keys(axes, looks)
    return figure, rows


PLOTS: dict[str, tuple[str, Callable]] = {
    "speedup": ("Speed-up of every comparison, with 95 % interval and noise floor", speedup),
    "acceptance_speedup": ("Speed-up against acceptance length, with the break-even line", acceptance_speedup),
    "acceptance_position": ("Share of steps whose draft was accepted up to each position, at each cell's first load", acceptance_position),
    "step_times": ("Step times of both arms", step_times),
    "roofline": ("Use of memory bandwidth and arithmetic, normalised to each device's peaks", roofline),
    "cost": ("Cost against speed; an arrow leads from control to test", cost),
    "curves": ("Step time by draft length, and break-even length by concurrency", curves),
    "predicted": ("Speed-up predicted from the step times of another cell that drafts alike, against the observed", predicted),
}


def write(study: Study, folder: Path) -> None:
    """Draw every plot into `folder` as SVG, PNG and CSV."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (title, make) in PLOTS.items():
        with plt.rc_context({**STYLE, "svg.hashsalt": name}):
            figure, rows = make(study)
            text = io.StringIO()
            figure.savefig(text, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None, "Creator": None})
            figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
        (folder / f"{name}.svg").write_text(_adapted(text.getvalue(), title), encoding="utf-8")
        _write_rows(rows, folder / f"{name}.csv")


def _adapted(svg: str, title: str) -> str:
    """Colours that follow the page, a title, and no ids that another plot on the page might have too."""
    colours = "|".join(DARK)
    svg = re.sub(f"({colours})", lambda found: f"var({_variable(found[1])}, {found[1]})", svg, flags=re.IGNORECASE)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r"(\d\.\d\d)\d+", r"\1", svg)  # hundredths of a point are enough, and halve a large page
    svg = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", svg)
    dark = "".join(f"{_variable(light)}:{dark};" for light, dark in DARK.items())
    style = f"<title>{title}</title><style>@media (prefers-color-scheme: dark){{svg.plot{{{dark}}}}}</style>"
    head, _, body = svg[svg.index("<svg") :].partition(">")
    return f'{head} class="plot">{style}{re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)}'


def _variable(colour: str) -> str:
    return f"--p{list(DARK).index(colour.lower())}"


def _write_rows(rows: Rows, path: Path) -> None:
    columns = list(dict.fromkeys(column for row in rows for column in row)) or ["cell"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
