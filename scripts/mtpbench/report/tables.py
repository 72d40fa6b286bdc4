"""The report's tables, as data: cells are text, figures, reasons, badges, or a sequence of these."""

import html
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from mtpbench import results
from mtpbench.analysis.records import grouped
from mtpbench.report.advice import WORDS, joined, label
from mtpbench.report.cells import ARMS, Cell, Comparison, Study, arms
from mtpbench.report.figures import Figure, Files, Null, agreement, derived, lookup, pointer_part

TONES = {"faster": ("good", "▲"), "slower": ("bad", "▼"), "unresolved": ("plain", "○")}
PUBLISHED = "report/published.csv"
MOST_KEPT = 600
NO_COMPARISON = "No valid comparison to show."
NO_PRICE = "n/a: no GPU with a valid comparison has a price in the configuration."


@dataclass(frozen=True)
class Badge:
    """A word that stands out; its symbol tells it apart without colour."""

    text: str
    tone: str
    symbol: str

    def markdown(self, up: str) -> str:
        return f" {self.symbol} {self.text} "

    def html(self, up: str) -> str:
        return f' <span class="badge {self.tone}"><span aria-hidden="true">{self.symbol}</span> {html.escape(self.text)}</span> '


@dataclass
class Table:
    """Columns and rows; `empty` says why there is no row, `fold` keeps a long table shut at first."""

    name: str
    title: str
    columns: list[str]
    rows: list[list]
    empty: str = NO_COMPARISON
    note: tuple = ()
    fold: bool = False
    keep: bool = False  # shortened only where it would make the page useless: what people come for

    def shortened(self, most: int) -> tuple[list[list], int]:
        """The rows to show, and how many are left out."""
        rows = self.rows[: max(most, MOST_KEPT) if self.keep else most]
        return rows, len(self.rows) - len(rows)


def _table(name: str, title: str, items: Iterable, columns: dict[str, str | Callable], **more) -> Table:
    """A row for each item. A column is a pointer and a format (decimal if it has none) for its `figure`, or a function of it."""
    cells = [(lambda item, words=of.split(): item.figure(*words)) if isinstance(of, str) else of for of in columns.values()]
    return Table(name, title, list(columns), [[of(item) for of in cells] for item in items], **more)


def _marks(*cells: Cell) -> list[Badge]:
    """What must be known of any of these cells, each once."""
    return [Badge(mark, "warn", "!") for mark in dict.fromkeys(mark for cell in cells for mark in cell.marks)]


def _name(cell: Cell) -> tuple:
    """A cell's name as words, with what must be known of its numbers beside it."""
    return (cell.name.replace("_", " "), *_marks(cell))


def _at_load(item: Comparison) -> tuple:
    """A cell's name with the load, where the cell has several; beside it on a phone, where further columns are out of sight."""
    several = (" at concurrency ", item.at) if len(item.cell.loads) > 1 else ()
    return (*_name(item.cell), *several)


def _surprise(item: Comparison) -> int:
    """Where a comparison stands among predictions: those that miss come first, those without one last."""
    return 3 if isinstance(item.holds, Null) else {"no": 0, "within both uncertainties": 1}.get(item.holds, 2)


def _differences(cell: Cell) -> tuple | str:
    """The first outputs that differ between the arms."""
    clauses = []
    for at, found in enumerate(cell.summary["losslessness"]["differences"][:3]):
        place = f"/summary/losslessness/differences/{at}"
        where, margin = cell.figure(f"{place}/first_difference", "count"), cell.figure(f"{place}/margin")
        clauses.append((f"{found['prompt']} at id ", where, ", margin ", margin, f" ({found['outcome']})"))
    return joined(clauses) or "none"


def _versions(cell: Cell) -> tuple | str:
    found = {name: cell.figure(f"/sessions/0/software/{name}", "text") for name in ("torch", "transformers", "vllm", "cuda")}
    known = [(f"{name} ", version, " ") for name, version in found.items() if isinstance(version, Figure)]
    return tuple(itertools.chain(*known)) or "not recorded"


def _cost_all_in(item: Comparison) -> Figure | Null:
    """US dollars for a million tokens of everything that the sessions took and brought, loading and warm-up in."""
    seconds = derived("sessions_seconds", item.cell.figure("/sessions", "text"), format="decimal")
    tokens = [load.figure(f"arms/{arm}/output_tokens", "count") for load in item.cell.loads for arm in ARMS]
    return derived("dollars_per_million_all_in", item.price, seconds, derived("total", *tokens, format="count"), format="dollars")


CELL = {"Cell": _name}
NAMES = {"Cell": lambda item: _name(item.cell), "Concurrency": attrgetter("at")}
ARM = {**NAMES, "Arm": attrgetter("what")}
RATES = {"Decode rate": "decode_tok_s", "Mean request rate": "mean_request_tok_s", "Throughput": "throughput_tok_s"}
TIMES = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "End to end": "e2e_ms", "Step": "step_ms"}


def answer(study: Study) -> Table:
    """What the README shows too."""
    served = [(item.cell, study.null(item.cell)) for item in study.comparisons if not isinstance(item.noise_floor, Null)]
    shorter = {null.name: f"{null.name} ({null.output_tokens} ids)" for cell, null in served if null.output_tokens < cell.output_tokens}
    unlike = f" With shorter requests than the cells: {', '.join(shorter.values())}." if shorter else ""
    return _table("answer", "Is it faster?", study.comparisons, {
        "Cell": _at_load, "Answer": lambda item: Badge(WORDS[item.verdict], *TONES[item.verdict]), "Speed-up": attrgetter("ratio"),
        "95 % interval": attrgetter("interval"), "Noise floor": attrgetter("noise_floor"),
        "Why": lambda item: item.reason or "beyond interval and noise floor",
    }, keep=True, note=(
        f"Noise floor: what the same comparison shows between two equal arms.{unlike} "
        "An answer needs an interval that leaves 1 out and an effect beyond the floor.",
    ))  # fmt: skip


def _plain(study: Study) -> Iterable[Table]:
    """The tables whose columns are the same for every study."""
    compared, valid = study.speculative, study.valid
    yield _table("rates", "Rates", compared, {
        **NAMES, **{f"{title} {arm}, tok/s": f"arms/{arm}/{name}" for title, name in RATES.items() for arm in ARMS},
        "Speed-up": attrgetter("ratio"), "End-to-end speed-up": "e2e_speedup/ratio ratio",
        "Sign test p": "speedup/sign_test_p probability", "Prompts": "speedup/prompts count", "Sessions": "speedup/sessions count",
    })  # fmt: skip
    categories = (
        item.part(category, f"acceptance_by_category/{pointer_part(category)}")
        for item in compared
        for category in item.data["acceptance_by_category"] or {}
    )
    yield _table("categories", "Acceptance by prompt category", categories, {
        **NAMES, "Category": attrgetter("what"), "Length (bonus in)": "length length", "Rate": "rate percent", "Drafts": "drafts count",
    }, fold=True)  # fmt: skip
    yield _table("latency", "Latency", arms(compared), {
        **ARM, **{f"{title} {point}, ms": f"{name}/{point}" for title, name in TIMES.items() for point in ("p50", "p90")},
    }, note=("Percentiles over requests, for steps over steps. A speculative step brings one id or more.",))  # fmt: skip
    yield _table("hardware", "Use of the hardware", arms(compared), {
        **ARM, "Peak memory, GB": "peak_memory_bytes gigabytes", "MBU": "mbu percent", "MFU emitted": "mfu_emitted percent",
        "MFU executed": "mfu_executed percent", "Energy, J/token": "energy_j_per_token",
    }, note=(
        "MBU: bytes a step must move over what the memory could; MFU: arithmetic of the emitted ids, and of all executed.",
    ))  # fmt: skip
    # Peaks that MBU and MFU are shares of, and the state of the device while requests ran.
    hardware = "/summary/hardware"
    yield _table("conditions", "Peaks and conditions", valid, {
        **CELL, "Peak bandwidth, GB/s": f"{hardware}/peaks/memory_gb_s", "Peak arithmetic, TFLOP/s": f"{hardware}/peaks/tflops",
        "Peaks from": f"{hardware}/peaks/source text", "Copy reached, GB/s": f"{hardware}/peaks/measured_memory_gb_s",
        "Product reached, TFLOP/s": f"{hardware}/peaks/measured_tflops", "SM clock, MHz": f"{hardware}/conditions/sm_mhz/mean",
        "Hottest, °C": f"{hardware}/conditions/temperature_c/max", "Power, W": f"{hardware}/conditions/power_w/mean",
    }, empty="No valid cell.", fold=True)  # fmt: skip
    yield _table("curves", "Break-even, predicted and observed", sorted(compared, key=_surprise), {
        **NAMES, "γ": lambda item: item.cell.figure("/spec/mode/num_speculative_tokens", "count"),
        "T base, ms": attrgetter("base_ms"), "T step, ms": attrgetter("step_ms"), "Break-even length": attrgetter("break_even"),
        "Acceptance length": attrgetter("acceptance_length"), "Holds": attrgetter("holds"),
        "Predicted": attrgetter("predicted"), "give or take": attrgetter("predicted_spread"), "Observed": attrgetter("ratio"),
        "95 % interval": attrgetter("interval"),
    }, note=(
        "γ: draft length. Drafting pays where a step brings more ids than the break-even length T step / T base. "
        "Predicted: ids a step × T base / T step (ids that came out, a little fewer than the acceptance length where an output ends within a step), the step times being the means over up to two other cells that "
        "draft alike; give or take that factor, by which their own speed-ups are uncertain. It holds within 5 % of the "
        "observed, in the observed's interval, or within both uncertainties, where the two differ by no more than they may together: where that is wide, this says "
        "little. Those that do not, or only so, come first; all are in metrics/plots/predicted.csv.",
    ))  # fmt: skip
    yield _table("losslessness", "Losslessness", [cell for cell in valid if cell.speculative], {
        **CELL, "Prompts": "/summary/losslessness/prompts count", "Identical": "/summary/losslessness/identical count",
        "Numerical tie": "/summary/losslessness/tie count", "Mismatch": "/summary/losslessness/mismatch count",
        "First differences": _differences,
    })  # fmt: skip
    yield _table("cold_start", "Cold start", valid, {
        **CELL, **{f"Start {arm}, s": f"/summary/cold_start_s/{arm}" for arm in ARMS}, "Load, s": "/sessions/0/seconds/load",
        "Warm-up, s": "/sessions/0/seconds/warmup", "Measuring, s": "/sessions/0/seconds/measure",
        "Session, s": "/sessions/0/seconds/total",
    }, empty="No valid cell.", note=("The seconds are those of a cell's first session.",), fold=True)  # fmt: skip
    prompts = (item.part(prompt, f"prompts/{at}") for item in compared for at, prompt in enumerate(item.data["prompts"]))
    yield _table("prompts", "Prompt by prompt", prompts, {
        **NAMES, "Prompt": lambda part: part.what["prompt"], "Category": lambda part: part.what["category"],
        "TPOT control, ms": "control_tpot_ms", "TPOT test, ms": "test_tpot_ms", "Speed-up": "ratio ratio",
        "Acceptance length": "acceptance_length length", "Ids control": "control_tokens count", "Ids test": "test_tokens count",
    }, fold=True)  # fmt: skip
    yield _table("invalid", "Invalid cells", study.invalid, {
        **CELL, "Failed gates, and what they saw": lambda cell: "; ".join(cell.summary["reasons"]) or "no reason recorded",
    }, empty="None: every gate of every cell passed or does not apply.", keep=True)  # fmt: skip
    found = [(cell, warning) for cell in valid for warning in cell.summary.get("warnings", [])]
    yield _table("warnings", "Warnings of valid cells", found, {
        "Cell": lambda pair: _name(pair[0]), "Warning": lambda pair: pair[1],
    }, empty="None.")  # fmt: skip
    yield _table("gaps", "Cells without a current result", study.gaps, {
        "Cell": lambda gap: gap[0], "State": lambda gap: Badge(gap[1], "warn", "!"), "What is known": lambda gap: gap[2] or "–",
    }, empty="None: every cell of the matrix has a result that answers its current spec.", keep=True)  # fmt: skip
    yield _table("provenance", "Provenance", study.cells, {
        **CELL, "Device": "/sessions/0/device/name text", "Driver": "/sessions/0/device/driver text", "Versions": _versions,
        "Sessions": lambda cell: derived("number", cell.figure("/sessions", "text"), format="count"),
        "Made": "/created_at text", "Fingerprint": "/fingerprint short", "Commit": "/provenance/commit short",
    }, empty="No result.", fold=True)  # fmt: skip


def _side_by_side(
    name: str, title: str, items: list[Comparison], groups: Iterable, of: str, names: tuple, shown: dict, **more
) -> Table:
    """A row for each group of comparisons, which have `names` in common; for each value of `of`, columns of what is shown."""

    def column(value: str, show: Callable) -> Callable:
        return lambda group: next((show(item) for item in group if getattr(item.cell, of) == value), "not measured")

    columns = {
        ", ".join(names).replace("gpu", "GPU"): lambda group: (
            " ".join(getattr(group[0].cell, name) for name in names), *_marks(*(item.cell for item in group)),
        ),
        "Concurrency": lambda group: group[0].at,
    }  # fmt: skip
    for value in dict.fromkeys(getattr(item.cell, of) for item in items):
        columns |= {title.format(value): column(value, show) for title, show in shown.items()}
    return _table(name, title, groups, columns, **more)


def headline(study: Study) -> Table:
    """Prompt sets across, everything else down."""
    shown = {"{}": lambda item: (item.ratio, Badge("", *TONES[item.verdict]))}
    key = attrgetter("cell.gpu", "cell.engine", "cell.mode", "concurrency", "cell.marks")
    items, names = study.comparisons, ("gpu", "engine", "mode")
    note = ("Speed-up of time per output token, control over test. ▲ faster, ▼ slower, ○ unresolved.",)
    title, groups = "Speed-up by prompt set", grouped(items, key).values()
    return _side_by_side("headline", title, items, groups, "prompts", names, shown, note=note, keep=True)


def engines(study: Study) -> Table:
    """The same work on every engine."""
    shown = {f"{{}}: {arm} tok/s": lambda item, arm=arm: item.figure(f"arms/{arm}/decode_tok_s") for arm in ARMS}
    shown["{}: speed-up"] = attrgetter("ratio")
    groups = grouped(study.speculative, attrgetter("cell.gpu", "cell.prompts", "cell.mode", "concurrency")).values()
    title, several, names = "Engines side by side", [group for group in groups if len(group) > 1], ("gpu", "prompts", "mode")
    empty = "No comparison was measured on two engines."
    return _side_by_side("engines", title, study.speculative, several, "engine", names, shown, empty=empty)


def engines_agree(study: Study) -> Table:
    """Whether two engines write the same ids, and how often they draft alike on the way; they need not feed a drafter alike."""

    def asked(cell: Cell) -> tuple:
        limit = [cell.spec["protocol"].get(key) for key in ("output_tokens", "ignore_eos")]
        return cell.gpu, cell.prompts, cell.mode, *limit

    alike = grouped(study.valid, asked).values()
    pairs = itertools.chain.from_iterable(itertools.combinations(cells, 2) for cells in alike)
    rows = []
    for one, other in pairs:
        if one.outputs.keys() & other.outputs.keys():
            both = f"({one.path}#/sessions, {other.path}#/sessions)"
            shares = [
                Figure(agreement(one.outputs, other.outputs, which), "percent", formula + both)
                for which, formula in enumerate(("same_ids", "same_steps"))
            ]
            lengths = [cell.figure("/summary/loads/0/arms/test/acceptance/length", "length") for cell in (one, other)]
            what = (f"{one.gpu} {one.prompts} {one.mode}", *_marks(one, other))
            rows.append([what, f"{one.engine}, {other.engine}", *shares, *lengths])
    columns = [
        "GPU, prompts, mode", "Engines", "Same ids", "Same ids in every step", "Acceptance length, first",
        "Acceptance length, second",
    ]  # fmt: skip
    return Table("engines_agree", "Do the engines agree?", columns, rows, "No cell was measured on two engines.")


def _by_position(study: Study) -> Iterable[Table]:
    """The tables with a column for each id of the longest draft."""
    items = study.speculative
    most = max((item.cell.gamma or 0 for item in items), default=0)

    def joint(at: int) -> Callable:
        of = f"arms/test/acceptance/joint/{at}"
        return lambda item: item.figure(of, "percent") if at < item.cell.gamma else "–"

    def steps(ids: int) -> Callable:
        of = f"arms/test/ids_per_step/{ids}"
        return lambda item: item.figure(of, "count") if str(ids) in item.data["arms"]["test"]["ids_per_step"] else "–"

    yield _table("acceptance", "Acceptance by prompt set", items, {
        **NAMES, "Length (bonus in)": "arms/test/acceptance/length length", "Rate": "arms/test/acceptance/rate percent",
        "Drafts": "arms/test/acceptance/drafts count", "Ids cut": "arms/test/acceptance/cut count",
        **{f"Accepted to position {at + 1}": joint(at) for at in range(most)},
    }, note=("Acceptance length is ids per step; rates are never compared across draft lengths.",))  # fmt: skip
    columns = {**NAMES, **{f"{ids} ids": steps(ids) for ids in range(1, most + 2)}}
    yield _table("histogram", "Steps by ids they brought", items, columns, fold=True)


def cost(study: Study) -> Table:
    priced, unpriced = ([item for item in study.speculative if isinstance(item.price, kind)] for kind in (Figure, Null))
    note = (
        "Seconds of the GPU times its list price, per million output tokens; a host's processors and memory are not in it. "
        "Price, date and source stand in config/config.yaml.",
    )
    if unpriced:
        gpus = ", ".join(dict.fromkeys(item.cell.gpu for item in unpriced))
        note += (f"n/a, since the configuration has no price: {gpus}.",)
    return _table("cost", "Cost", priced, {
        **NAMES, "List price, $/h": attrgetter("price"), "Control, $/M tokens": lambda item: item.cost("control"),
        "Test, $/M tokens": lambda item: item.cost("test"), "Both arms with start-up, $/M tokens": _cost_all_in,
    }, empty=NO_PRICE, note=note)  # fmt: skip


def cheapest(study: Study) -> Table:
    """Per prompt set the load point that makes a million tokens for the least money, among real models only."""
    offers = [(item, arm, item.cost(arm)) for item in study.comparisons for arm in ARMS]
    priced = grouped((offer for offer in offers if isinstance(offer[2], Figure)), lambda offer: offer[0].cell.prompts)
    rows = []
    for prompts, found in priced.items():
        item, arm, price = min(found, key=lambda offer: offer[2].value)
        mode = item.cell.mode if arm == "test" else "baseline"
        rows.append([prompts, item.cell.gpu, item.cell.engine, mode, item.at, price])
    columns = ["Prompts", "GPU", "Engine", "Mode", "Concurrency", "$/M tokens"]
    return Table("cheapest", "Cheapest GPU per prompt set", columns, rows, NO_PRICE, keep=True)


def anatomy(study: Study, files: Files) -> Table:
    """What scripts/anatomy.py found of a cell's step on the GPU and on the host, beside the step as the cell measured it."""
    rows, damaged = [], []
    for path, content in results.anatomies(files.root).items():
        source, cell = path.relative_to(files.root).as_posix(), study.by_name.get(path.stem)
        if content is None:
            damaged.append(source)
            continue
        if cell not in study.valid or cell.spec["device"]["kind"] != "cuda" or "phases" not in content.get("trace", {}):
            continue

        def figure(pointer: str, format: str = "decimal"):
            return Figure(lookup(content, pointer), format, f"{source}#{pointer}")

        step, busy = cell.figure("/summary/loads/0/arms/test/step_ms/p50", "decimal"), figure("/trace/gpu_busy_ms")
        on_gpu = [figure(f"/trace/phases/{name}/gpu_ms") for name in ("forward", "draft")]
        kernels = derived("total", *(figure(f"/trace/phases/{phase}/kernels", "count") for phase in content["trace"]["phases"]), format="count")
        on_host = [figure(pointer) for pointer in ("/trace/wall_ms", "/trace/phases/forward/host_ms", "/trace/phases/draft/host_ms")]
        rows.append([path.stem, step, busy, derived("share", busy, step, format="percent"), *on_gpu, kernels, *on_host])
    columns = [
        "Cell", "Step, ms", "GPU busy, ms", "of the step", "Target's forward on the GPU, ms", "Drafting on the GPU, ms", "Kernels a step",
        "Step under the profiler, ms", "Forward on the host there, ms", "Drafting on the host there, ms",
    ]  # fmt: skip
    note = (
        "Medians: the step's over the cell's own steps, all else over the steps of a torch trace. The profiler leaves the GPU's "
        "times alone and lengthens the host's. What the GPU does not work, the step waits for the host.",
    )
    if damaged:
        note += (f" Damaged, edited or of another cell, and left out: {', '.join(damaged)}; restore with `git checkout`.",)
    empty = "No step of a valid cell on a GPU was traced (scripts/anatomy.py)."
    return Table("anatomy", "Where a step's time goes", columns, rows, empty, note, fold=True)


def gates(study: Study) -> Table:
    """Each gate over all cells; what it saw where it failed or did not apply."""
    pairs = [(cell.name, gate) for cell in study.cells for gate in cell.summary["gates"]]
    return _table("gates", "Gates", grouped(pairs, lambda pair: pair[1]["name"]).values(), {
        "Gate": lambda pairs: pairs[0][1]["name"],
        "Passed in some cell": lambda pairs: "passed" if any(gate["passed"] for _, gate in pairs) else "–",
        "Failed in": lambda pairs: ", ".join(name for name, gate in pairs if gate["passed"] is False) or "none",
        "Does not apply, because": lambda pairs: (
            "; ".join(dict.fromkeys(gate["seen"] for _, gate in pairs if gate["passed"] is None)) or "–"
        ),
    }, empty="No cell.")  # fmt: skip


def _quoted(files: Files, at: int, column: str) -> Figure:
    """A published figure as it was printed."""
    return Figure(files[PUBLISHED][at][column], "text", f"{PUBLISHED}#/{at}/{column}")


def _published_length(files: Files, at: int) -> Figure | Null:
    return derived("length_of_rate", _quoted(files, at, "acceptance_pct"), 4, format="length")


def _drafted_alike(items: list[Comparison]) -> dict[str, list[Comparison]]:
    """Those at the published draft length, by the engine's implementation."""
    alike = (item for item in items if item.cell.gamma == 4)
    return grouped(alike, lambda item: item.cell.spec["engine"]["implementation"])


def published(study: Study, files: Files) -> Table:
    """The earlier project's figures, with what was measured here for the same GPU, engine and prompts beside them."""
    rows, alike = [], _drafted_alike(study.comparisons)
    for at, row in enumerate(files[PUBLISHED]):
        wanted = (row["gpu"].lower(), row["prompts"])
        ours = [item for item in alike.get(row["engine"], []) if (item.cell.gpu, item.cell.prompts) == wanted]
        figures = [_quoted(files, at, column) for column in ("baseline_tok_s", "mtp_tok_s", "acceptance_pct")]
        beside = joined((f"{label(item)}: ", item.ratio) for item in ours) or "not measured here"
        what = [row["gpu"], row["engine"], row["prompts"]]
        rows.append([*what, *figures, _published_length(files, at), row["window"], row["date"], beside])
    columns = [
        "GPU", "Engine", "Prompts", "Baseline, tok/s", "MTP, tok/s", "Acceptance, %", "Length at γ = 4", "Window", "Date",
        "Measured here",
    ]  # fmt: skip
    return Table("published", "Figures that the earlier project published", columns, rows, "None.")


def implied(study: Study, files: Files) -> Table:
    """The published acceptance put on the break-even lines measured here on GPUs at the same draft length."""
    on_gpus = [item for item in study.speculative if item.cell.spec["device"]["kind"] == "cuda"]
    rows, alike = [], _drafted_alike([item for item in on_gpus if item.concurrency == 1])
    for at, row in enumerate(files[PUBLISHED]):
        length = _published_length(files, at)
        for items in grouped(alike.get(row["engine"], []), attrgetter("cell.gpu", "cell.engine")).values():
            item = min(items, key=lambda item: item.cell.prompts != row["prompts"])  # the same prompts, else any
            speedup = derived("implied", length, item.break_even, format="ratio")
            rows.append([f"{row['gpu']} {row['engine']} {row['prompts']}", length, _name(item.cell), item.break_even, speedup])
    columns = ["Published", "Length at γ = 4", "Break-even measured in", "Break-even length", "Implied speed-up"]
    note = (
        "Arithmetic, not a measurement: acceptance belongs to model and prompts, the break-even length to the GPU and engine "
        "measured here.",
    )
    title, empty = "What that acceptance would bring at a break-even measured here", "No GPU was measured at draft length 4."
    return Table("implied", title, columns, rows, empty, note, fold=True)


def build(study: Study, files: Files) -> dict[str, Table]:
    """Every table by its name."""
    made = [
        *_plain(study), *_by_position(study),
        *(make(study) for make in (answer, headline, engines, engines_agree, cost, cheapest, gates)),
        *(make(study, files) for make in (anatomy, published, implied)),
    ]  # fmt: skip
    if all(load.concurrency == 1 for cell in study.cells for load in cell.loads):
        for table in made:
            if "Concurrency" in table.columns:  # it says the same in every row
                at = table.columns.index("Concurrency")
                for row in (table.columns, *table.rows):
                    del row[at]
    return {table.name: table for table in made}
