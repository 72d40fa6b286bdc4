"""The report's plots: SVG and PNG, each with its data as CSV beside it.

Every plot can be read without colour (markers, line styles, hatches) and is made of `var()` colours, so that the same
SVG suits a light and a dark page. Nothing in a file depends on when or where it was made.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from operator import attrgetter
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatter, MaxNLocator, NullLocator, PercentFormatter

from mtpbench.report import PLOTS
from mtpbench.report.advice import label
from mtpbench.report.cells import ARMS, Comparison, Part, Study, arms
from mtpbench.report.figures import QUANTILES, Figure, Null
from mtpbench.report.tables import NO_COMPARISON, NO_PRICE

DARK = {  # by the colour on a light page
    "#1d2329": "#e6e9ec", "#5b6672": "#a3adb8", "#d5dae0": "#39424c", "#0067a8": "#62b6ef", "#b84a00": "#ff9a57",
    "#00745a": "#4fd1a7", "#96407a": "#e5a0cb", "#7a6200": "#e3cf57", "#4f5b66": "#c2cad3",
}  # fmt: skip
INK, FAINT, GRID, *SERIES = DARK
VARIABLES = {colour: f"--p{at}" for at, colour in enumerate(DARK)}
MARKERS = "osD^vPX<>"
LABELLED, MOST = 48, 200  # rows with a name each; rows at all
STYLE = {
    "font.family": "sans-serif", "font.size": 9, "axes.titlesize": 9, "axes.edgecolor": FAINT, "axes.labelcolor": INK,
    "text.color": INK, "xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none", "figure.dpi": 100,
}  # fmt: skip
ABOVE = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}  # a legend's place
HOLLOW = {"marker": "o", "markerfacecolor": "none"}
BOXES = dict(zip(ARMS, (
    {"facecolor": "none", "edgecolor": SERIES[0], "hatch": ""}, {"facecolor": GRID, "edgecolor": SERIES[1], "hatch": "////"},
)))  # fmt: skip


def _named(item: Comparison | Part) -> str:
    """A row's name, with what one must know of it; that it is outside the matrix only the tables say, for want of room."""
    marks = [mark.split(" · ")[0] for mark in item.cell.marks if mark != "outside the matrix"]
    return label(item) + (f" ({', '.join(marks)})" if marks else "")


PERCENTILES = {f"p{round(100 * share)}_ms": share for share in QUANTILES}
# Columns that are no property of a comparison; a function gets the comparison, or the part of its load, that a row is about.
VALUES: dict[str, Callable] = {
    "concurrency": attrgetter("at"),
    "gamma": lambda item: item.cell.figure("/spec/mode/num_speculative_tokens"),
    "share": lambda position: position.figure(position.what), "position": lambda position: position.what + 1,
    "mbu": lambda arm: arm.figure("mbu"), "mfu_executed": lambda arm: arm.figure("mfu_executed"), "arm": attrgetter("what"),
    **{name: lambda arm, share=share: arm.step(arm.what, share) for name, share in PERCENTILES.items()},
    **{f"{arm}_tok_s": lambda item, arm=arm: item.figure(f"arms/{arm}/mean_request_tok_s") for arm in ARMS},
    **{f"{arm}_dollars_per_million": lambda item, arm=arm: item.cost(arm) for arm in ARMS},
    "observed": attrgetter("ratio"), "holds": lambda item: getattr(item.holds, "reason", item.holds),
    "prompts": attrgetter("cell.prompts"), "engine": attrgetter("cell.engine"), "line": label, "named": _named,
}  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """Columns of the data, and how the rows that have all of `needs` are drawn; `empty` is said where there are none."""

    draw: Callable[..., None]
    columns: str
    needs: list[str]
    empty: str = NO_COMPARISON
    of: Callable[[Study], list] = attrgetter("current")  # what the rows are about
    group: Callable[[Comparison | Part], str] = lambda item: f"{item.cell.gpu} {item.cell.engine}"
    height: float = 4.2
    most: int = MOST
    panels: int = 1

    def data(self, study: Study) -> pd.DataFrame:
        """A row for each item: a figure's value (None where there is none) with its source; words as they are."""
        rows, values = [], {**VALUES, "group": self.group}
        for item in self.of(study):
            rows.append(row := {"item": item, "cell": item.cell.name})
            for name in ("concurrency", *self.columns.split()):
                value = values[name](item) if name in values else getattr(item, name)
                row[name] = value
                if isinstance(value, Figure | Null):
                    row |= {name: getattr(value, "value", None), f"{name}_source": getattr(value, "source", "")}
        return pd.DataFrame(rows, columns=None if rows else ["item", "cell", *self.needs])


def _looks(names) -> dict[str, dict]:
    """A colour and a marker for each name."""
    return {name: {"color": c, "marker": m} for name, c, m in zip(dict.fromkeys(names), cycle(SERIES), cycle(MARKERS))}


def _styles(names) -> dict[str, dict]:
    """A kind of line for each name."""
    return {name: {"linestyle": style} for name, style in zip(names, cycle(("-", "--", ":", "-.")))}


def _handles(looks: dict[str, dict]) -> list[Line2D]:
    return [Line2D([], [], **{"label": name, "color": FAINT, "linestyle": "", **look}) for name, look in looks.items()]


def _legend(axes, looks: dict[str, dict], *more: Artist) -> None:
    """A legend above the plot."""
    handles = [*_handles(looks), *more]
    fit = max(1, 100 // (max(len(handle.get_label()) for handle in handles) + 5))  # characters across a plot
    axes.legend(handles=handles, ncols=min(4, fit, len(handles)), handletextpad=0.4, columnspacing=1.2, **ABOVE)


def _points(axes, rows: pd.DataFrame, x: str, y: str, color: str, marker: str, hollow=False, size=30) -> None:
    """Markers that lead to their numbers; hollow ones stand for what is unresolved or diagnostic."""
    faces = ["none" if each else color for each in np.broadcast_to(hollow, len(rows))]
    points = axes.scatter(rows[x], rows[y], s=size, marker=marker, facecolors=faces, edgecolors=color, linewidths=1.3, zorder=3)
    sources = rows[f"{y}_source" if f"{y}_source" in rows else f"{x}_source"]
    points.set_urls([f"../../{Figure(0, 'text', source).reference}" for source in sources])  # from metrics/plots


def _intervals(lines: Callable, rows: pd.DataFrame, at: str, color: str, width: float = 1.2) -> None:
    """A line from each interval's low to its high end, where there is one; `lines` is an axes' hlines or vlines."""
    bounded = rows.dropna(subset="low")
    lines(bounded[at], bounded["low"], bounded["high"], color=color, linewidth=width)


def _top(axes, points: pd.Series, highs: pd.Series) -> float:
    """The end of an axis: all points are within, but an interval that is far wider than they are runs out of the frame, which is said."""
    top = 1.05 * min(max(points.max(), highs.max()), 1.6 * points.max())
    if highs.max() > top:
        said = "an interval that meets the frame goes on beyond it"
        axes.text(0.99, 0.01, said, transform=axes.transAxes, ha="right", va="bottom", fontsize=7, color=FAINT)
    return top


def _medians(axes, rows: pd.DataFrame, x: str, y: str, look: dict, style: dict) -> None:
    """Points, and a line through their medians at each x."""
    medians = rows.groupby(x)[y].median()
    axes.plot(medians.index, medians, color=look["color"], linewidth=1.1, **style)
    _points(axes, rows, x, y, **look, size=9)


def _plain_log_axis(axis) -> None:
    """A log axis with plain numbers, between the powers of ten too where there are few of them."""
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def _shortened(items, most: int, axes):
    if len(items) > most:
        said = f"first {most} of {len(items)}; all in the CSV"
        axes.text(1, 1.01, said, transform=axes.transAxes, ha="right", va="bottom", fontsize=7, color=FAINT)
    return items[:most]


def _name_rows(axes, names: list[str], groups: list[str]) -> None:
    """A name for each row, or for each group of rows where there are too many; the height follows."""
    if len(names) <= LABELLED:
        axes.set_yticks(range(len(names)), names)
    else:
        middles = pd.Series(range(len(names))).groupby(groups, sort=False).mean()
        axes.set_yticks(middles, middles.index)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.figure.set_figheight(1.1 + (0.24 * len(names) if len(names) <= LABELLED else max(0.03 * len(names), 6)))


def speedup(drawn: pd.DataFrame, axes) -> None:
    drawn = drawn.assign(row=range(len(drawn)), engine=[item.cell.engine for item in drawn["item"]])
    for at, floor in drawn.set_index("row")["noise_floor"].dropna().items():
        axes.fill_betweenx([at - 0.38, at + 0.38], 1 / (1 + floor), 1 + floor, color=GRID, linewidth=0)
    looks = _looks(drawn["engine"])
    for engine, mine in drawn.groupby("engine", sort=False):
        _intervals(axes.hlines, mine, "row", looks[engine]["color"], 0.8 if len(drawn) > LABELLED else 1.6)
        _points(axes, mine, "ratio", "row", **looks[engine], hollow=mine["verdict"] == "unresolved")
    axes.axvline(1, color=INK, linewidth=0.9)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    ticks = (0.5, 0.67, 0.8, 1, 1.25, 1.5, 2, 3) if high / low < 6 else (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("speed-up of time per output token, control / test (log scale), with 95 % interval")
    _name_rows(axes, [_named(item) for item in drawn["item"]], [item.cell.gpu for item in drawn["item"]])
    _legend(axes, {**looks, "hollow: unresolved": HOLLOW}, plt.Rectangle((0, 0), 1, 1, color=GRID, label="noise floor"))


def acceptance_speedup(drawn: pd.DataFrame, axes) -> None:
    looks = _looks(drawn["group"])
    few = len(looks) <= 6
    most = drawn["acceptance_length"].max() * 1.08
    for group, mine in drawn.groupby("group", sort=False):
        look = looks[group]
        _intervals(axes.vlines, mine, "acceptance_length", look["color"])
        _points(axes, mine, "acceptance_length", "ratio", **look, hollow=mine["verdict"] == "unresolved")
        if few and (even := mine["break_even"].median()) > 0:
            axes.plot([1, most], [1 / even, most * (1 / even)], color=look["color"], linewidth=0.9, linestyle="--")
    axes.axhline(1, color=INK, linewidth=0.9)
    axes.annotate("break-even", (1, 1), xytext=(2, 3), textcoords="offset points", fontsize=8, color=FAINT)
    axes.set(xlabel="acceptance length (ids per step, bonus in)", ylabel="speed-up, with 95 % interval", xlim=(0.95, most))
    axes.set_ylim(0, _top(axes, drawn["ratio"], drawn["high"]))
    axes.yaxis.set_major_formatter("{x:g}×")
    line = {"length / break-even length": {"linestyle": "--", "linewidth": 0.9}} if few else {}
    _legend(axes, {**looks, **line, "hollow: unresolved": HOLLOW})


def acceptance_position(drawn: pd.DataFrame, axes) -> None:
    looks, styles = _looks(drawn["prompts"]), _styles(drawn["engine"].unique())
    for line in _shortened(drawn["line"].unique(), 60, axes):
        mine = drawn[drawn["line"] == line]
        look, style = looks[mine["prompts"].iat[0]], styles[mine["engine"].iat[0]]
        axes.plot(mine["position"], mine["share"], color=look["color"], linewidth=1.2, **style)
        _points(axes, mine, "position", "share", **look)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    axes.set(ylim=(0, 1.02), xlabel="position in the draft", ylabel="share of steps accepted up to here")
    _legend(axes, looks | styles)


def step_times(drawn: pd.DataFrame, axes) -> None:
    parts = ("whislo", "q1", "med", "q3", "whishi")
    boxes = [dict(zip(parts, row), fliers=[], label="") for row in drawn[[*PERCENTILES]].itertuples(index=False)]
    made = axes.bxp(
        boxes, positions=range(len(boxes)), orientation="horizontal", widths=0.6, patch_artist=True, showfliers=False
    )
    for box, arm in zip(made["boxes"], drawn["arm"]):
        box.set(**BOXES[arm], linewidth=1.2)
    for part in (*made["whiskers"], *made["caps"], *made["medians"]):
        part.set(color=INK, linewidth=1)
    axes.set_xscale("log")
    _plain_log_axis(axes.xaxis)
    axes.set_xlabel("time of a step, ms (log scale): box 25 to 75 %, whiskers 5 to 95 %, line the median")
    _name_rows(axes, drawn["named"].where(drawn["arm"] == "control", ""), [])
    axes.legend(handles=[plt.Rectangle((0, 0), 1, 1, label=arm, **look) for arm, look in BOXES.items()], ncols=2, **ABOVE)


def roofline(drawn: pd.DataFrame, axes) -> None:
    """Normalised: both roofs are 1, so that every device fits one picture."""
    looks, drawn = _looks(drawn["group"]), drawn.assign(intensity=drawn["mfu_executed"] / drawn["mbu"])
    for group, mine in drawn.groupby("group", sort=False):
        _points(axes, mine, "intensity", "mfu_executed", **looks[group], hollow=mine["arm"] == "control")
    axes.set(xscale="log", yscale="log")
    low, high = axes.get_xlim()
    span = np.geomspace(min(low, 0.02), max(high, 3), 60)
    roof, half, tenth = ({"color": color, "linestyle": style} for color, style in ((INK, "-"), (FAINT, "--"), (FAINT, ":")))
    axes.plot(span, np.minimum(1, span), linewidth=1, **roof)
    axes.plot(span, span * 0.5, linewidth=1, **half)
    axes.plot(span, span * 0.1, linewidth=1, **tenth)
    axes.set_ylim(min(axes.get_ylim()[0], 0.5 * drawn["mfu_executed"].min()), 1.6)
    axes.set_xlabel("arithmetic intensity over the device's own balance (MFU / MBU)")
    axes.set_ylabel("share of peak arithmetic (MFU executed)")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
    _legend(axes, {**looks, "roof": roof, "MBU 50 %": half, "MBU 10 %": tenth, "hollow: control": HOLLOW})


def cost(drawn: pd.DataFrame, axes) -> None:
    looks, places = _looks(drawn["group"]), {arm: [f"{arm}_tok_s", f"{arm}_dollars_per_million"] for arm in ARMS}
    for group, mine in drawn.groupby("group", sort=False):
        arrow = {"arrowstyle": "->", "color": looks[group]["color"], "linewidth": 0.8}
        for start, end in zip(*(mine[place].to_numpy() for place in places.values())):
            axes.annotate("", end, start, arrowprops=arrow)
        for arm, place in places.items():
            _points(axes, mine, *place, **looks[group], hollow=arm == "control")
    axes.set(xscale="log", yscale="log")
    _plain_log_axis(axes.xaxis)
    _plain_log_axis(axes.yaxis)
    axes.set_xlabel("rate of a request, tokens/s (log scale)")
    axes.set_ylabel("US dollars per million output tokens (log scale)")
    _legend(axes, {**looks, "hollow: control": HOLLOW})


def curves(drawn: pd.DataFrame, left, right) -> None:
    """What a draft length costs in step time, and what it must win at each load."""
    looks, styles = _looks(drawn["group"]), _styles(sorted(set(drawn["gamma"])))
    loads = sorted(set(drawn["concurrency"]))
    first = drawn[drawn["concurrency"] == loads[0]]
    for group, mine in drawn.groupby("group", sort=False):
        _medians(left, first[first["group"] == group], "gamma", "step_ms", looks[group], {})
        for gamma, style in styles.items():
            _medians(right, mine[mine["gamma"] == gamma], "concurrency", "break_even", looks[group], style)
    left.set(xlabel="draft length γ", ylabel=f"mean step, ms (concurrency {loads[0]})", xticks=list(styles))
    left.set(xlim=(min(styles) - 0.5, max(styles) + 0.5), ylim=(0, 1.08 * first["step_ms"].max()))
    right.axhline(1, color=INK, linewidth=0.9)
    right.set_xscale("log", base=2)
    right.set(xlabel="concurrency (log scale)", ylabel="break-even acceptance length", xlim=(loads[0] / 1.5, loads[-1] * 1.5))
    right.set_xticks(loads, [f"{load:g}" for load in loads])
    handles = _handles(looks | {f"γ {gamma}": style for gamma, style in styles.items()})
    left.figure.legend(handles=handles, loc="outside upper left", ncols=5)


def predicted(drawn: pd.DataFrame, axes) -> None:
    looks = _looks(drawn["group"])
    for group, mine in drawn.groupby("group", sort=False):
        _intervals(axes.vlines, mine, "predicted", looks[group]["color"])
        _points(axes, mine, "predicted", "observed", **looks[group])
    ends = np.array([0, _top(axes, drawn[["predicted", "observed"]].max(axis=1), drawn["high"])])
    axes.plot(ends, ends, color=INK, linewidth=0.9)
    axes.fill_between(ends, 0.95 * ends, 1.05 * ends, color=GRID, linewidth=0, zorder=0)
    axes.set(xlim=ends, ylim=ends, xlabel="predicted speed-up (band: within 5 %)", ylabel="observed speed-up, with 95 % interval")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}×")
    _legend(axes, looks)


def _positions(study: Study) -> list[Part]:
    """Of each comparison at a cell's first load, the positions of a draft."""
    firsts = [item for item in study.comparisons if item.index == 0]
    return [item.part(at, "arms/test/acceptance/joint") for item in firsts for at in range(item.cell.gamma)]


DRAWN = {
    "speedup": Plot(
        speedup, "ratio low high noise_floor verdict", ["ratio"],
        of=lambda study: sorted(study.comparisons or study.current, key=attrgetter("cell.gpu")),
    ),
    "acceptance_speedup": Plot(
        acceptance_speedup, "acceptance_length ratio low high break_even verdict group", ["acceptance_length", "ratio"],
        group=lambda item: f"{item.cell.gpu} {item.cell.engine} {item.cell.mode} γ {item.cell.gamma}",
        of=lambda study: study.comparisons or study.current,
    ),
    "acceptance_position": Plot(
        acceptance_position, "share position prompts engine line", ["share"], of=_positions, height=3.8, most=10**9
    ),
    "step_times": Plot(
        step_times, " ".join(PERCENTILES) + " arm named", [*PERCENTILES], of=lambda study: arms(study.current), most=LABELLED
    ),
    "roofline": Plot(
        roofline, "mbu mfu_executed arm group", ["mbu", "mfu_executed"], "No cell has both MBU and MFU.",
        of=lambda study: arms(study.current),
    ),
    "cost": Plot(
        cost, "control_tok_s test_tok_s control_dollars_per_million test_dollars_per_million group",
        ["control_dollars_per_million", "test_dollars_per_million"], NO_PRICE,
    ),
    "curves": Plot(curves, "gamma base_ms step_ms break_even group", ["break_even"], height=3.6, panels=2),
    "predicted": Plot(
        predicted, "predicted observed low high group holds", ["predicted", "low"],
        "No comparison has another cell that drafts alike to be predicted from.", height=4.6,
    ),
}  # fmt: skip


def write(study: Study, root: Path) -> None:
    """Write metrics/plots/{name}.svg, .png and .csv of every plot."""
    folder = root / "metrics/plots"
    folder.mkdir(parents=True, exist_ok=True)
    for name, plot in DRAWN.items():
        data, text = plot.data(study), io.StringIO()
        data.drop(columns="item").to_csv(folder / f"{name}.csv", index=False)
        with plt.rc_context({**STYLE, "svg.hashsalt": name}):
            figure = _drawn(plot, data.dropna(subset=plot.needs))
            figure.savefig(text, format="svg", bbox_inches="tight", transparent=True, metadata={"Date": None, "Creator": None})
            figure.savefig(folder / f"{name}.png", dpi=150, bbox_inches="tight", metadata={"Software": None})
            plt.close(figure)
        (folder / f"{name}.svg").write_text(_adapted(text.getvalue(), PLOTS[name]), encoding="utf-8")


def _drawn(plot: Plot, data: pd.DataFrame) -> plt.Figure:
    layout = "constrained" if plot.panels > 1 else None
    figure, axes = plt.subplots(1, plot.panels, figsize=(7.2, plot.height), layout=layout, squeeze=False)
    if data.empty:
        figure.set_figheight(0.8)
        for each in axes.flat:
            each.axis("off")
        axes[0, 0].text(0.5, 0.5, plot.empty, ha="center", va="center", color=FAINT, transform=axes[0, 0].transAxes)
    else:
        plot.draw(_shortened(data, plot.most, axes[0, -1]), *axes.flat)
    return figure


def _adapted(svg: str, title: str) -> str:
    """Colours that follow the page, a title, and no ids that another plot on the page might have too."""
    colours = "|".join(DARK)
    svg = re.sub(f"({colours})", lambda found: f"var({VARIABLES[found[1].lower()]}, {found[1]})", svg, flags=re.IGNORECASE)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    # Hundredths of a point are enough, and halve a large page; what is written between the tags stays.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d\d)\d+", r"\1", tag[0]), svg)
    svg = re.sub(r"font-family: [^;\"]*", "font-family: system-ui, sans-serif", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    dark = "".join(f"{VARIABLES[light]}:{dark};" for light, dark in DARK.items())
    style = f"<title>{title}</title><style>@media (prefers-color-scheme: dark){{svg.plot{{{dark}}}}}</style>"
    head, _, body = svg[svg.index("<svg") :].partition(">")
    return f'{head} class="plot">{style}{body}'
