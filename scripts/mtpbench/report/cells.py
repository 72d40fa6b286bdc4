"""From result files to what the report is about: cells, their load points, comparisons with verdicts, and gaps."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from pathlib import Path

import pandas as pd

from mtpbench import results, sessions
from mtpbench.analysis import effect
from mtpbench.analysis.records import grouped
from mtpbench.config import short_of_floor
from mtpbench.errors import UserError
from mtpbench.report.figures import Figure, Null, derived, lookup, outputs, step_quantiles

ARMS = ("control", "test")
BULKY = ("requests", "windows", "losslessness")  # of a session; only step times and how outputs agree are shown of them
OTHERS = 2  # cells that a prediction is made from, at most: each is named where the prediction is shown
PARALLEL_FROM = 64  # results; below that, starting processes costs more than they save


def _read(path: Path) -> tuple[dict, dict, dict] | str:
    """A result without its bulk, the quantiles of its step times, hashes of its outputs; or what is wrong with the file."""
    try:
        document = results.read(path)
    except UserError as error:
        return str(error)
    steps, written = step_quantiles(document["sessions"]), outputs(document["sessions"])
    for session in document["sessions"]:
        for key in BULKY:
            session.pop(key, None)
        session.get("telemetry", {}).pop("rows", None)
    return document, steps, written


@dataclass
class Cell:
    """One result as the report sees it."""

    name: str
    document: dict
    steps: dict = field(default_factory=dict)
    outputs: dict = field(default_factory=dict)
    in_matrix: bool = True
    stale: bool = False

    def __post_init__(self):
        self.gpu, self.engine, self.prompts, self.mode = self.name.split("_")
        self.spec, self.sessions, self.summary = (self.document[key] for key in ("spec", "sessions", "summary"))
        self.path = results.path_of(self.name).as_posix()
        self.speculative = self.spec["mode"]["method"] != "none"
        self.gamma: int | None = self.spec["mode"].get("num_speculative_tokens")

    @property
    def output_tokens(self) -> int:
        return self.spec["protocol"]["output_tokens"]

    @property
    def surroundings(self) -> dict:
        """All of the spec that a cell shares with its null cell, which may have more sessions and rounds, and shorter requests."""
        alike = sessions.alike(self.spec)
        protocol = {**alike["protocol"], "rounds": None, "output_tokens": None}
        return {**alike, "protocol": protocol, "mode": None, "model": {**self.spec["model"], "drafter": None}}

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know before believing a number of this cell."""
        known = {
            "random weights": self._any_model("random"),
            "synthetic acceptance · diagnostic": self._any_model("synthetic_acceptance"),
            "stale": self.stale,
            "outside the matrix": not self.in_matrix,
        }
        return tuple(mark for mark, holds in known.items() if holds)

    @property
    def diagnostic(self) -> bool:
        """Whether the speed-up stands for no model: it shows what drafting costs, and is no ground for advice."""
        return self._any_model("random") or self._any_model("synthetic_acceptance")

    def _any_model(self, key: str) -> bool:
        return any(session["model"].get(key) for session in self.sessions)

    @cached_property
    def loads(self) -> list["Load"]:
        return [Load(self, index, load["concurrency"]) for index, load in enumerate(self.summary["loads"])]

    def figure(self, pointer: str, format: str = "decimal") -> Figure | Null:
        """The figure at a pointer of the result, or the recorded reason why there is none."""
        try:
            value = lookup(self.document, pointer)
        except KeyError:
            value = None
        if value is None:
            return Null(self._reason(pointer))
        return Figure(value, format, f"{self.path}#{pointer}", self._records(pointer))

    def _reason(self, pointer: str) -> str:
        parts = pointer.split("/")
        if "arms" in parts and parts[1] == "summary":
            arm, name = lookup(self.document, "/".join(parts[:6])), parts[6]
            default = "no speculation in this arm" if name == "acceptance" else "not recorded"
            return arm.get("reasons_null", {}).get(name) or default
        if "acceptance_by_category" in parts or parts[-1] == "acceptance_length":
            return "no step had a draft, or none is told of these requests alone"
        if "e2e_speedup" in parts:
            return "no pair of equal length"
        if "speedup" in parts:
            return effect.NO_INTERVAL
        if "conditions" in parts:
            return self.summary["hardware"]["conditions"]["reason"] or "this GPU does not report it"
        if parts[-1] == "margin":
            return "the engine gave no log-probabilities"
        return "not recorded"

    def _records(self, pointer: str) -> str:
        """Which records a summary's number was computed from, in words short enough for a tooltip."""
        parts = pointer.split("/")
        if parts[1:3] == ["summary", "loads"]:
            load = f"concurrency {self.summary['loads'][int(parts[3])]['concurrency']}"
            whose = f"arm {parts[5]}" if parts[4] == "arms" else "both arms"
            if parts[4] == "prompts":
                whose += f", prompt {lookup(self.document, '/'.join([*parts[:6], 'prompt']))}"
            return f"/sessions/*/requests, {whose}, {load}"
        if parts[1:3] == ["summary", "losslessness"]:
            return "/sessions/*/losslessness"
        return "/sessions/*/arms" if parts[1:3] == ["summary", "cold_start_s"] else ""


@dataclass(frozen=True)
class Load:
    """One load point of a cell: what a row of most tables is about."""

    cell: Cell
    index: int
    concurrency: int

    @property
    def data(self) -> dict:
        return self.cell.summary["loads"][self.index]

    @property
    def at(self) -> Figure:
        """The concurrency as a figure."""
        return self.cell.figure(f"/summary/loads/{self.index}/concurrency", "count")

    def figure(self, name: str, format: str = "decimal") -> Figure | Null:
        return self.cell.figure(f"/summary/loads/{self.index}/{name}", format)

    def step(self, arm: str, share: float) -> Figure | Null:
        """A quantile of this load's step times; it is in no summary, so it leads to the records."""
        quantiles = self.cell.steps.get((arm, self.concurrency))
        if not quantiles:
            return Null("no step after the prefill")
        source = f"step_quantile({self.cell.path}#/sessions, {json.dumps(arm)}, {self.concurrency}, {share})"
        return Figure(quantiles[share], "decimal", source)

    def part(self, what: str | dict | int, place: str) -> "Part":
        return Part(self.cell, self.index, self.concurrency, what, place)


@dataclass(frozen=True)
class Part(Load):
    """What lies at a place below a load point: an arm, a prompt category, a prompt, a position in the draft."""

    what: str | dict | int
    place: str

    def figure(self, name: str | int, format: str = "decimal") -> Figure | Null:
        return super().figure(f"{self.place}/{name}", format)


def arms(loads: Iterable[Load]) -> list[Part]:
    return [load.part(arm, f"arms/{arm}") for load in loads for arm in ARMS]


def _at(name: str, format: str = "decimal") -> property:
    return property(lambda self: self.figure(name, format))


@dataclass(frozen=True)
class Comparison(Load):
    """A speculative load point with the noise floor of its null cell and the verdict."""

    study: "Study"
    noise_floor: Figure | Null
    verdict: str
    reason: str

    ratio = _at("speedup/ratio", "ratio")
    low = _at("speedup/low", "ratio")
    high = _at("speedup/high", "ratio")
    half_width = _at("speedup/half_width", "percent")
    acceptance_length = _at("arms/test/acceptance/length", "length")
    base_ms = _at("arms/control/step_ms/mean")
    step_ms = _at("arms/test/step_ms/mean")

    @property
    def interval(self) -> tuple:
        return (self.low,) if isinstance(self.low, Null) else (self.low, " to ", self.high)

    @property
    def drafting(self) -> tuple:
        """What a step time depends on; the synthetic sampler may have a cost of its own."""
        mode = sorted(self.cell.spec["mode"].items())
        kept = tuple((key, str(value)) for key, value in mode if not key.startswith("synthetic_"))
        return self.cell.gpu, self.cell.engine, self.concurrency, kept

    @property
    def break_even(self) -> Figure | Null:
        """The acceptance length at which drafting pays for itself: T_step / T_base."""
        return derived("break_even", self.base_ms, self.step_ms, format="length")

    @cached_property
    def predicted(self) -> Figure | Null:
        """What the cost model expects: the ids that the cell's own steps brought, with the mean step times of other cells that draft alike."""
        ids = self.figure("arms/test/ids_per_step", "text")
        steps = [step for other in self.others for step in (other.base_ms, other.step_ms)]
        return derived("predicted", ids, *steps, format="ratio") if steps else Null("none alike")

    @cached_property
    def predicted_spread(self) -> Figure | Null:
        """The factor by which the prediction may be off itself: the cells that it is made from are as uncertain as their speed-ups."""
        widths = [other.half_width for other in self.others]
        return derived("spread_of_mean", *widths, format="ratio") if widths else Null("none alike")

    @cached_property
    def others(self) -> list["Comparison"]:
        """Cells that draft alike, with other prompts or, where the sampler is told what to accept, another acceptance."""
        return [other for other in self.study.by_drafting.get(self.drafting, []) if other.cell is not self.cell][:OTHERS]

    @property
    def holds(self) -> str | Null:
        """How near the prediction is to the observed speed-up: within 5 %, else inside its interval, which may be wide, else no
        farther off than both may be together, or not even that."""
        figures = self.predicted, self.ratio, self.low, self.high, self.half_width, self.predicted_spread
        if missing := next((figure for figure in figures if isinstance(figure, Null)), None):
            return missing
        predicted, observed, low, high, width, spread = (figure.value for figure in figures)
        if abs(predicted / observed - 1) <= 0.05:
            return "within 5 %"
        if low <= predicted <= high:
            return "in the interval"
        apart, allowed = abs(math.log(predicted / observed)), math.hypot(math.log1p(width), math.log(spread))
        return "within both uncertainties" if apart <= allowed else "no"

    @property
    def price(self) -> Figure | Null:
        """The list price of an hour of the GPU."""
        gpu = self.cell.gpu
        value = (self.study.config.get("gpus", {}).get(gpu, {}).get("price") or {}).get("usd_per_hour")
        if value is None:
            return Null(f"no price for {gpu} in the configuration")
        return Figure(value, "dollars", f"config/config.yaml#/gpus/{gpu}/price/usd_per_hour")

    def cost(self, arm: str) -> Figure | Null:
        """US dollars for a million output tokens, start-up left out."""
        return derived("dollars_per_million", self.price, self.figure(f"arms/{arm}/throughput_tok_s"), format="dollars")


@dataclass
class Study:
    """Everything that the report is made from."""

    cells: list[Cell]
    gaps: list[tuple[str, str, str]]  # cell, state (missing, stale, unreadable), what is known about it
    config: dict

    @cached_property
    def by_name(self) -> dict[str, Cell]:
        return {cell.name: cell for cell in self.cells}

    @cached_property
    def valid(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.summary["valid"]]

    @cached_property
    def invalid(self) -> list[Cell]:
        return [cell for cell in self.cells if not cell.summary["valid"]]

    @cached_property
    def speculative(self) -> list[Comparison]:
        """Every load point of every valid speculative cell."""
        return [self._compare(load) for cell in self.valid if cell.speculative for load in cell.loads]

    @cached_property
    def current(self) -> list[Comparison]:
        """Those that answer the current spec; what plots show, which have no room for a mark."""
        return [comparison for comparison in self.speculative if not comparison.cell.stale]

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Those that speak of a real model under the current spec, so that an answer may rest on them."""
        return [comparison for comparison in self.current if not comparison.cell.diagnostic]

    @cached_property
    def by_drafting(self) -> dict[tuple, list[Comparison]]:
        """The comparisons that share what a step time depends on, of current cells alone: predictions are made from them."""
        return grouped(self.current, attrgetter("drafting"))

    @cached_property
    def single_session(self) -> bool:
        return any(len(cell.sessions) == 1 for cell in self.valid)

    def null(self, cell: Cell) -> Cell | None:
        return self.by_name.get(f"{cell.gpu}_{cell.engine}_{cell.prompts}_baseline")

    def floor(self, load: Load) -> Figure | Null:
        """The noise floor at a load: what the null cell of the same GPU, engine and prompt set shows there."""
        cell, null = load.cell, self.null(load.cell)
        if null is None:
            return Null("no null cell measured")
        if not null.summary["valid"]:
            return Null("the null cell is invalid")
        if null.surroundings != cell.surroundings:
            return Null("the null cell was measured under another spec")
        if short := short_of_floor(null.spec["protocol"], cell.spec["protocol"]):
            return Null(f"the null cell has {'longer requests' if [*short] == ['output_tokens'] else 'fewer sessions or rounds'}")
        same = next((other for other in null.loads if other.concurrency == load.concurrency), None)
        if same is None:
            return Null("the null cell has no such load")
        if effect.noise_floor(same.data["speedup"]) is None:
            return Null("the null cell has no interval")
        return derived("noise_floor", same.figure("speedup", "text"), format="percent")

    def _compare(self, load: Load) -> Comparison:
        floor = self.floor(load)
        found = effect.verdict(load.data["speedup"], None if isinstance(floor, Null) else floor.value)
        reason = floor.reason if isinstance(floor, Null) and load.data["speedup"] else found["reason"] or ""
        return Comparison(load.cell, load.index, load.concurrency, self, floor, found["verdict"], reason)


def load(root: Path, states: dict | None = None, config: dict | None = None) -> Study:
    """The study of all results under `root`.

    `states` is what `Specs.states` says of every cell; without it every result counts as fresh and in the matrix.
    """
    root = Path(root)
    existing = dict.fromkeys(path.parent.name for path in results.existing(root))
    unknown = {"state": "fresh", "in_matrix": states is None, "differences": []}
    found = {name: (states or {}).get(name, unknown) for name in {**(states or {}), **existing}}
    measured = [name for name in found if name in existing]
    gaps = [(name, "missing", "; ".join(state["differences"])) for name, state in found.items() if name not in existing]
    paths, cells = [results.path_of(name, root) for name in measured], []
    if len(paths) < PARALLEL_FROM:
        reads = [_read(path) for path in paths]
    else:
        with ProcessPoolExecutor(os.cpu_count()) as pool:
            reads = list(pool.map(_read, paths, chunksize=8))
    for name, read in zip(measured, reads):
        if isinstance(read, str):
            gaps.append((name, "unreadable", read))
            continue
        stale = found[name]["state"] == "stale"
        cells.append(Cell(name, *read, found[name]["in_matrix"], stale))
        if stale:
            gaps.append((name, "stale", "; ".join(found[name]["differences"])))
    return Study(cells, gaps, config or {})


COLUMNS = ("cell", "gpu", "engine", "prompts", "mode", "concurrency", "arm", "valid")  # of a table without a row


def frame(study: Study) -> pd.DataFrame:
    """Tidy: one row a cell, load point and arm."""
    rows = list(tidy(study))
    return pd.DataFrame(rows, columns=None if rows else list(COLUMNS))


def tidy(study: Study) -> Iterator[dict]:
    """The rows of `frame`, in the order of the cells; the comparison's columns stand in the rows of its test arm."""
    compared = {(item.cell.name, item.index): item for item in study.speculative}
    for cell in study.cells:
        for point in cell.loads:
            for arm in ARMS:
                row = {
                    "cell": cell.name, "gpu": cell.gpu, "engine": cell.engine, "prompts": cell.prompts, "mode": cell.mode,
                    "concurrency": point.concurrency, "arm": arm, "valid": cell.summary["valid"],
                    "in_matrix": cell.in_matrix, "marks": "; ".join(cell.marks) or None, "device": cell.spec["device"]["name"],
                    "gamma": cell.gamma, "sessions": len(cell.sessions), "created_at": cell.document["created_at"],
                    "fingerprint": cell.document["fingerprint"], **_flat(point.data["arms"][arm]),
                }  # fmt: skip
                if arm == "test" and point.data["speedup"]:
                    row |= {f"speedup_{key}": value for key, value in point.data["speedup"].items()}
                if arm == "test" and (item := compared.get((cell.name, point.index))):
                    row |= {"verdict": item.verdict, "noise_floor": getattr(item.noise_floor, "value", None)}
                yield row


def _flat(tree: dict, prefix: str = "") -> dict:
    """Nested numbers as flat columns; histograms and reasons as JSON text."""
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if key in ("ids_per_step", "reasons_null"):
            flat[name] = json.dumps(value)
        elif key == "acceptance" and value is None:
            continue  # of an arm that drafts nothing; its columns are those of the other arm
        elif isinstance(value, dict):
            flat |= _flat(value, f"{name}_")
        elif isinstance(value, list):
            flat |= {f"{name}_{position}": item for position, item in enumerate(value, start=1)}
        else:
            flat[name] = value
    return flat
