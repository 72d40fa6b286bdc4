"""The report's tables, as data: cells are text, figures, reasons, badges, or a sequence of these."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from mtpbench.report.advice import WORDS, label
from mtpbench.report.cells import ARMS, Cell, Comparison, Load, Study
from mtpbench.report.figures import Figure, Files, Null, agreement, derived, lookup, pointer_part

TONES = {"faster": ("▲", "good"), "slower": ("▼", "bad"), "unresolved": ("○", "plain")}
PUBLISHED = "report/published.csv"
MOST_KEPT = 600


@dataclass(frozen=True)
class Badge:
    """A word that stands out; its symbol tells it apart without colour."""

    text: str
    tone: str = "plain"
    symbol: str = ""


@dataclass
class Table:
    """Columns and rows; `empty` says why there is no row, `fold` keeps a long table shut at first."""

    name: str
    title: str
    columns: list[str]
    rows: list[list]
    empty: str
    note: tuple = ()
    fold: bool = False
    keep: bool = False  # shortened only where it would make the page useless: what people come for

    def shortened(self, most: int) -> tuple[list[list], int]:
        """The rows to show, and how many are left out."""
        rows = self.rows[: max(most, MOST_KEPT) if self.keep else most]
        return rows, len(self.rows) - len(rows)


NO_COMPARISON = "No valid comparison to show."
NO_PRICE = "n/a: no GPU with a valid comparison has a price in the configuration."


def _marks(cell: Cell) -> list[Badge]:
    return [Badge(mark, "warn", "!") for mark in cell.marks]


def _name(cell: Cell) -> tuple:
    """A cell's name as words, with what must be known of its numbers beside it."""
    return (cell.name.replace("_", " "), *_marks(cell))


def _names(load: Load) -> list:
    return [_name(load.cell), load.figure("concurrency", "count")]


NAMES = ["Cell", "Concurrency"]


def _verdict(item: Comparison) -> Badge:
    symbol, tone = TONES[item.verdict]
    return Badge(WORDS[item.verdict], tone, symbol)


def answer(study: Study) -> Table:
    rows = [
        [_at_load(item.load), _verdict(item), item.ratio, item.interval, item.floor, item.reason or "beyond interval and noise floor"]
        for item in study.comparisons
    ]
    columns = ["Cell", "Answer", "Speed-up", "95 % interval", "Noise floor", "Why"]
    note = ("Noise floor: what the same comparison shows between two equal arms. An answer needs an interval that leaves 1 out and an effect beyond the floor.",)
    return Table("answer", "Is it faster?", columns, rows, NO_COMPARISON, note, keep=True)


def _at_load(load: Load) -> tuple:
    """A cell's name with the load, where the cell has several; beside it on a phone, where further columns are out of sight."""
    several = (" at concurrency ", load.figure("concurrency", "count")) if len(load.cell.loads) > 1 else ()
    return (*_name(load.cell), *several)


def headline(study: Study) -> Table:
    """Prompt sets across, everything else down."""
    sets = list(dict.fromkeys(item.cell.prompts for item in study.comparisons))
    found: dict[tuple, dict[str, Comparison]] = {}
    for item in study.comparisons:
        cell = item.cell
        key = (cell.gpu, cell.engine, cell.mode, item.load.concurrency, cell.marks)
        found.setdefault(key, {})[cell.prompts] = item
    rows = []
    for (gpu, engine, mode, _, _), items in found.items():
        first = next(iter(items.values()))
        names = [(f"{gpu} {engine} {mode}", *_marks(first.cell)), first.load.figure("concurrency", "count")]
        rows.append([*names, *((items[kind].ratio, Badge("", TONES[items[kind].verdict][1], TONES[items[kind].verdict][0])) if kind in items else "not measured" for kind in sets)])
    note = ("Speed-up of time per output token, control over test. ▲ faster, ▼ slower, ○ unresolved.",)
    return Table("headline", "Speed-up by prompt set", ["GPU, engine, mode", "Concurrency", *sets], rows, NO_COMPARISON, note, keep=True)


def rates(study: Study) -> Table:
    rows = []
    for item in study.speculative:
        arms = [item.load.figure(f"arms/{arm}/{name}", "decimal") for name in ("decode_tok_s", "mean_request_tok_s", "throughput_tok_s") for arm in ARMS]
        effect = [item.ratio, item.load.figure("e2e_speedup/ratio", "ratio"), item.load.figure("speedup/sign_test_p", "probability")]
        counts = [item.load.figure(f"speedup/{name}", "count") for name in ("prompts", "sessions")]
        rows.append([*_names(item.load), *arms, *effect, *counts])
    columns = [f"{name} {arm}, tok/s" for name in ("Decode rate", "Mean request rate", "Throughput") for arm in ARMS]
    columns = [*NAMES, *columns, "Speed-up", "End-to-end speed-up", "Sign test p", "Prompts", "Sessions"]
    return Table("rates", "Rates", columns, rows, NO_COMPARISON)


def engines(study: Study) -> Table:
    """The same work on every engine, side by side."""
    names = list(dict.fromkeys(item.cell.engine for item in study.speculative))
    found: dict[tuple, dict[str, Comparison]] = {}
    for item in study.speculative:
        cell = item.cell
        found.setdefault((cell.gpu, cell.prompts, cell.mode, item.load.concurrency), {})[cell.engine] = item
    rows = []
    for (gpu, prompts, mode, _), items in found.items():
        if len(items) > 1:
            first = next(iter(items.values()))
            row = [(f"{gpu} {prompts} {mode}", *_marks(first.cell)), first.load.figure("concurrency", "count")]
            for name in names:
                rates = [items[name].load.figure(f"arms/{arm}/decode_tok_s", "decimal") if name in items else "not measured" for arm in ARMS]
                row += [*rates, items[name].ratio if name in items else "not measured"]
            rows.append(row)
    columns = [f"{name}: {what}" for name in names for what in ("control tok/s", "test tok/s", "speed-up")]
    return Table("engines", "Engines side by side", ["GPU, prompts, mode", "Concurrency", *columns], rows, "No comparison was measured on two engines.")


def engines_agree(study: Study) -> Table:
    """Whether two engines write the same ids, and how often they draft alike on the way; they need not feed a drafter alike."""
    rows, alike = [], {}
    for cell in study.valid:
        alike.setdefault((cell.gpu, cell.prompts, cell.mode), []).append(cell)
    for one, other in (pair for cells in alike.values() for pair in itertools.combinations(cells, 2)):
        if one.outputs.keys() & other.outputs.keys():
            shares = [
                Figure(agreement(one.outputs, other.outputs, which), "percent", f"{formula}({one.path}#/sessions, {other.path}#/sessions)")
                for which, formula in enumerate(("same_ids", "same_steps"))
            ]
            lengths = [cell.figure("/summary/loads/0/arms/test/acceptance/length", "length") for cell in (one, other)]
            rows.append([(f"{one.gpu} {one.prompts} {one.mode}", *_marks(one)), f"{one.engine}, {other.engine}", *shares, *lengths])
    columns = ["GPU, prompts, mode", "Engines", "Same ids", "Same ids in every step", "Acceptance length, first", "Acceptance length, second"]
    return Table("engines_agree", "Do the engines agree?", columns, rows, "No cell was measured on two engines.")


def acceptance(study: Study) -> Table:
    most = max((item.cell.gamma or 0 for item in study.speculative), default=0)
    rows = []
    for item in study.speculative:
        of = [item.load.figure(f"arms/test/acceptance/{name}", kind) for name, kind in (("length", "length"), ("rate", "percent"), ("drafts", "count"), ("cut", "count"))]
        joint = [item.load.figure(f"arms/test/acceptance/joint/{at}", "percent") if at < item.cell.gamma else "–" for at in range(most)]
        rows.append([*_names(item.load), *of, *joint])
    columns = [*NAMES, "Length (bonus in)", "Rate", "Drafts", "Ids cut", *(f"Accepted to position {at}" for at in range(1, most + 1))]
    note = ("Acceptance length is ids per step; rates are never compared across draft lengths.",)
    return Table("acceptance", "Acceptance by prompt set", columns, rows, NO_COMPARISON, note)


def categories(study: Study) -> Table:
    fields = {"length": "length", "rate": "percent", "drafts": "count"}
    rows = [
        [*_names(item.load), category, *(item.load.figure(f"acceptance_by_category/{pointer_part(category)}/{name}", kind) for name, kind in fields.items())]
        for item in study.speculative
        for category in item.load.data["acceptance_by_category"] or {}
    ]
    columns = [*NAMES, "Category", "Length (bonus in)", "Rate", "Drafts"]
    return Table("categories", "Acceptance by prompt category", columns, rows, NO_COMPARISON, fold=True)


def histogram(study: Study) -> Table:
    most = max((item.cell.gamma or 0 for item in study.speculative), default=0) + 1
    rows = []
    for item in study.speculative:
        counts = item.load.data["arms"]["test"]["ids_per_step"]
        row = [item.load.figure(f"arms/test/ids_per_step/{ids}", "count") if str(ids) in counts else "–" for ids in range(1, most + 1)]
        rows.append([*_names(item.load), *row])
    return Table("histogram", "Steps by ids they brought", [*NAMES, *(f"{ids} ids" for ids in range(1, most + 1))], rows, NO_COMPARISON, fold=True)


def _by_arm(study: Study, of: Callable[[Load, str], list]) -> list[list]:
    return [[*_names(item.load), arm, *of(item.load, arm)] for item in study.speculative for arm in ARMS]


def latency(study: Study) -> Table:
    names = {"TTFT": "ttft_ms", "TPOT": "tpot_ms", "End to end": "e2e_ms", "Step": "step_ms"}
    rows = _by_arm(study, lambda load, arm: [load.figure(f"arms/{arm}/{name}/{point}", "decimal") for name in names.values() for point in ("p50", "p90")])
    columns = [f"{title} {point}, ms" for title in names for point in ("p50", "p90")]
    note = ("Percentiles over requests, for steps over steps. A speculative step brings one id or more.",)
    return Table("latency", "Latency", [*NAMES, "Arm", *columns], rows, NO_COMPARISON, note)


def hardware(study: Study) -> Table:
    fields = {"peak_memory_bytes": "gigabytes", "mbu": "percent", "mfu_emitted": "percent", "mfu_executed": "percent", "energy_j_per_token": "decimal"}
    rows = _by_arm(study, lambda load, arm: [load.figure(f"arms/{arm}/{name}", kind) for name, kind in fields.items()])
    columns = ["Peak memory, GB", "MBU", "MFU emitted", "MFU executed", "Energy, J/token"]
    note = ("MBU: bytes a step must move over what the memory could; MFU: arithmetic of the emitted ids, and of all executed.",)
    return Table("hardware", "Use of the hardware", [*NAMES, "Arm", *columns], rows, NO_COMPARISON, note)


def conditions(study: Study) -> Table:
    """Peaks that MBU and MFU are shares of, and the state of the device while requests ran."""
    peaks = ("memory_gb_s", "tflops", "source", "measured_memory_gb_s", "measured_tflops")
    states = ("sm_mhz/mean", "temperature_c/max", "power_w/mean")
    rows = [
        [_name(cell), *(cell.figure(f"/summary/hardware/peaks/{name}", "text" if name == "source" else "decimal") for name in peaks), *(cell.figure(f"/summary/hardware/conditions/{name}", "decimal") for name in states)]
        for cell in study.valid
    ]
    columns = [NAMES[0], "Peak bandwidth, GB/s", "Peak arithmetic, TFLOP/s", "Peaks from", "Copy reached, GB/s", "Product reached, TFLOP/s", "SM clock, MHz", "Hottest, °C", "Power, W"]
    return Table("conditions", "Peaks and conditions", columns, rows, "No valid cell.", fold=True)


def cost_of(study: Study, load: Load, arm: str) -> Figure | Null:
    """US dollars for a million output tokens, start-up left out."""
    rate = load.figure(f"arms/{arm}/throughput_tok_s", "decimal")
    return derived("dollars_per_million", study.price(load.cell.gpu), rate, format="dollars")


def _cost_all_in(study: Study, cell: Cell) -> Figure | Null:
    """The same for everything that the sessions took and brought, loading and warm-up in."""
    seconds = derived("sessions_seconds", cell.figure("/sessions", "text"), format="decimal")
    tokens = [load.figure(f"arms/{arm}/output_tokens", "count") for load in cell.loads for arm in ARMS]
    return derived("dollars_per_million_all_in", study.price(cell.gpu), seconds, derived("total", *tokens, format="count"), format="dollars")


def cost(study: Study) -> Table:
    rows = [
        [*_names(item.load), study.price(item.cell.gpu), *(cost_of(study, item.load, arm) for arm in ARMS), _cost_all_in(study, item.cell)]
        for item in study.speculative
        if isinstance(study.price(item.cell.gpu), Figure)
    ]
    columns = [*NAMES, "List price, $/h", "Control, $/M tokens", "Test, $/M tokens", "Both arms with start-up, $/M tokens"]
    note = ("Seconds of the GPU times its list price, per million output tokens; a host's processors and memory are not in it. Price, date and source stand in config/config.yaml.",)
    without = dict.fromkeys(item.cell.gpu for item in study.speculative if isinstance(study.price(item.cell.gpu), Null))
    if rows and without:
        note += (f"n/a, since the configuration has no price: {', '.join(without)}.",)
    return Table("cost", "Cost", columns, rows, NO_PRICE, note)


def cheapest(study: Study) -> Table:
    """Per prompt set the load point that makes a million tokens for the least money, among real models only."""
    best: dict[str, tuple] = {}
    for item in study.comparisons:
        for arm in ARMS:
            price = cost_of(study, item.load, arm)
            kind = item.cell.prompts
            if isinstance(price, Figure) and (kind not in best or price.value < best[kind][0].value):
                best[kind] = (price, item, arm)
    rows = [[kind, item.cell.gpu, item.cell.engine, item.cell.mode if arm == "test" else "baseline", item.load.figure("concurrency", "count"), price] for kind, (price, item, arm) in best.items()]
    return Table("cheapest", "Cheapest GPU per prompt set", ["Prompts", "GPU", "Engine", "Mode", "Concurrency", "$/M tokens"], rows, NO_PRICE, keep=True)


def break_even(load: Load) -> Figure | Null:
    """The acceptance length at which drafting pays for itself: T_step / T_base."""
    step, base = (load.figure(f"arms/{arm}/step_ms/mean", "decimal") for arm in ("test", "control"))
    return derived("break_even", base, step, format="length")


def prediction(study: Study, item: Comparison) -> Figure | Null:
    """What the cost model expects: the cell's own acceptance length, with step times of another cell that drafts alike.

    The other one has other prompts or, where the sampler is told what to accept, another acceptance.
    """
    for other in study.by_drafting[item.drafting]:
        if other.cell is not item.cell:
            base, step = (other.load.figure(f"arms/{arm}/step_ms/mean", "decimal") for arm in ARMS)
            return derived("predicted", item.load.figure("arms/test/acceptance/length", "length"), base, step, format="ratio")
    return Null("no other cell that drafts alike")


def curves(study: Study) -> Table:
    rows = []
    for item in study.speculative:
        steps = [item.load.figure(f"arms/{arm}/step_ms/mean", "decimal") for arm in ARMS]
        length = item.load.figure("arms/test/acceptance/length", "length")
        gamma = item.cell.figure("/spec/mode/num_speculative_tokens", "count")
        rows.append([*_names(item.load), gamma, *steps, break_even(item.load), length, prediction(study, item), item.ratio, item.interval])
    columns = [*NAMES, "Draft length γ", "T base, ms", "T step, ms", "Break-even length", "Acceptance length", "Predicted", "Observed", "95 % interval"]
    note = ("Drafting pays where the acceptance length exceeds the break-even length T step / T base. Predicted: acceptance length × T base / T step, the step times taken from another cell that drafts alike.",)
    return Table("curves", "Break-even, predicted and observed", columns, rows, NO_COMPARISON, note)


def anatomy(study: Study, files: Files) -> Table:
    """What scripts/anatomy.py found of a step: its time undisturbed, and what of it the GPU works, from a trace."""
    rows = []
    for path in sorted((files.root / "metrics/anatomy").glob("*.json")):
        source = path.relative_to(files.root).as_posix()

        def figure(pointer: str, format: str = "decimal"):
            return Figure(lookup(files[source], pointer), format, f"{source}#{pointer}")

        free = sorted((figure(f"/steps/free/{at}/mean_ms") for at in range(len(files[source]["steps"]["free"]))), key=lambda found: found.value)
        busy, phases = figure("/trace/gpu_busy_ms"), [figure(f"/trace/phases/{phase}/gpu_ms") for phase in ("forward", "draft")]
        kernels = derived("total", *(figure(f"/trace/phases/{phase}/kernels", "count") for phase in files[source]["trace"]["phases"]), format="count")
        rows.append([path.stem, (free[0], " to ", free[-1]), busy, derived("share", busy, free[0], format="percent"), *phases, kernels])
    columns = ["Cell", "Step, ms: means of turns", "GPU busy, ms", "of the fastest turn", "Target's forward on the GPU, ms", "Drafting on the GPU, ms", "Kernels a step"]
    note = ("GPU times and kernels are medians over the steps of a torch trace; the step's own time was taken without it. What the GPU does not work, the step waits for the host.",)
    return Table("anatomy", "Where a step's time goes", columns, rows, "No step was traced (scripts/anatomy.py).", note, fold=True)


def losslessness(study: Study) -> Table:
    rows = []
    for cell in study.valid:
        if cell.speculative:
            counts = [cell.figure(f"/summary/losslessness/{name}", "count") for name in ("prompts", "identical", "tie", "mismatch")]
            first = [
                part
                for at, found in enumerate(cell.summary["losslessness"]["differences"][:3])
                for part in (f"{found['prompt']} at id ", *_difference(cell, at), f" ({found['outcome']})", "; ")
            ]
            rows.append([_name(cell), *counts, tuple(first[:-1]) or "none"])
    columns = [NAMES[0], "Prompts", "Identical", "Numerical tie", "Mismatch", "First differences"]
    return Table("losslessness", "Losslessness", columns, rows, NO_COMPARISON)


def _difference(cell: Cell, at: int) -> tuple:
    where, margin = (cell.figure(f"/summary/losslessness/differences/{at}/{name}", kind) for name, kind in (("first_difference", "count"), ("margin", "decimal")))
    return where, ", margin ", margin


def cold_start(study: Study) -> Table:
    rows = []
    for cell in study.valid:
        starts = [cell.figure(f"/summary/cold_start_s/{arm}", "decimal") for arm in ARMS]
        seconds = [cell.figure(f"/sessions/0/seconds/{name}", "decimal") for name in ("load", "warmup", "measure", "total")]
        rows.append([_name(cell), *starts, *seconds])
    columns = [NAMES[0], "Start control, s", "Start test, s", "Load, s", "Warm-up, s", "Measuring, s", "Session, s"]
    return Table("cold_start", "Cold start", columns, rows, "No valid cell.", ("The seconds are those of a cell's first session.",), fold=True)


def per_prompt(study: Study) -> Table:
    rows = []
    for item in study.speculative:
        for at, prompt in enumerate(item.load.data["prompts"]):
            fields = {"control_tpot_ms": "decimal", "test_tpot_ms": "decimal", "ratio": "ratio", "acceptance_length": "length", "control_tokens": "count", "test_tokens": "count"}
            rows.append([*_names(item.load), prompt["prompt"], prompt["category"], *(item.load.figure(f"prompts/{at}/{name}", kind) for name, kind in fields.items())])
    columns = [*NAMES, "Prompt", "Category", "TPOT control, ms", "TPOT test, ms", "Speed-up", "Acceptance length", "Ids control", "Ids test"]
    return Table("prompts", "Prompt by prompt", columns, rows, NO_COMPARISON, fold=True)


def invalid(study: Study) -> Table:
    rows = [
        [_name(cell), "; ".join(cell.summary["reasons"]) or "no reason recorded"]
        for cell in study.invalid
    ]
    return Table("invalid", "Invalid cells", ["Cell", "Failed gates, and what they saw"], rows, "None: every gate of every cell passed or does not apply.", keep=True)


def warnings(study: Study) -> Table:
    rows = [[_name(cell), warning] for cell in study.valid for warning in cell.summary.get("warnings", [])]
    return Table("warnings", "Warnings of valid cells", ["Cell", "Warning"], rows, "None.")


def gates(study: Study) -> Table:
    """Each gate over all cells; what it saw where it failed or did not apply."""
    found: dict[str, dict] = {}
    for cell in study.cells:
        for gate in cell.summary["gates"]:
            kinds = found.setdefault(gate["name"], {True: [], False: [], None: {}})
            kinds[None].setdefault(gate["seen"], cell.name) if gate["passed"] is None else kinds[gate["passed"]].append(cell.name)
    rows = [
        [name, "passed" if kinds[True] else "–", ", ".join(kinds[False]) or "none", "; ".join(kinds[None]) or "–"]
        for name, kinds in found.items()
    ]
    return Table("gates", "Gates", ["Gate", "Passed in some cell", "Failed in", "Does not apply, because"], rows, "No cell.")


def gaps(study: Study) -> Table:
    rows = [[name, Badge(state, "warn", "!"), known or "–"] for name, state, known in study.gaps]
    return Table("gaps", "Cells without a current result", ["Cell", "State", "What is known"], rows, "None: every cell of the matrix has a result that answers its current spec.", keep=True)


def provenance(study: Study) -> Table:
    rows = []
    for cell in study.cells:
        session = cell.sessions[0] if cell.sessions else {"software": {}, "device": {}}
        versions = [(f"{name} ", cell.figure(f"/sessions/0/software/{name}", "text"), " ") for name in ("torch", "transformers", "vllm", "cuda") if session["software"].get(name)]
        device = [cell.figure(f"/sessions/0/device/{name}", "text") for name in ("name", "driver")]
        made = [cell.figure("/created_at", "text"), cell.figure("/fingerprint", "short"), cell.figure("/provenance/commit", "short")]
        rows.append([_name(cell), *device, tuple(part for version in versions for part in version) or "not recorded", derived("number", cell.figure("/sessions", "text"), format="count"), *made])
    columns = ["Cell", "Device", "Driver", "Versions", "Sessions", "Made", "Fingerprint", "Commit"]
    return Table("provenance", "Provenance", columns, rows, "No result.", fold=True)


def published(study: Study, files: Files) -> Table:
    """The earlier project's figures, with what was measured here for the same GPU, engine and prompts beside them."""
    rows = []
    for at, row in enumerate(files[PUBLISHED]):
        ours = [item for item in study.comparisons if _matches(item, row)]
        beside = [part for item in ours for part in (f"{label(item)}: ", item.ratio, "; ")]
        figures = [_quoted(files, at, column) for column in ("baseline_tok_s", "mtp_tok_s", "acceptance_pct")]
        rows.append([row["gpu"], row["engine"], row["prompts"], *figures, _published_length(files, at), row["window"], row["date"], tuple(beside[:-1]) or "not measured here"])
    columns = ["GPU", "Engine", "Prompts", "Baseline, tok/s", "MTP, tok/s", "Acceptance, %", "Length at γ = 4", "Window", "Date", "Measured here"]
    return Table("published", "Figures that the earlier project published", columns, rows, "None.")


def implied(study: Study, files: Files) -> Table:
    """The published acceptance put on the break-even lines measured here on GPUs at the same draft length."""
    measured = [item for item in study.speculative if item.cell.document["spec"]["device"]["kind"] == "cuda" and item.cell.gamma == 4 and item.load.concurrency == 1]
    rows = []
    for at, row in enumerate(files[PUBLISHED]):
        alike = [item for item in measured if item.cell.document["spec"]["engine"]["implementation"] == row["engine"]]
        alike.sort(key=lambda item: item.cell.prompts != row["prompts"])  # the same prompts first, else any
        for item in {(item.cell.gpu, item.cell.engine): item for item in reversed(alike)}.values():
            length, even = _published_length(files, at), break_even(item.load)
            rows.append([f"{row['gpu']} {row['engine']} {row['prompts']}", length, _name(item.cell), even, derived("implied", length, even, format="ratio")])
    columns = ["Published", "Length at γ = 4", "Break-even measured in", "Break-even length", "Implied speed-up"]
    note = ("Arithmetic, not a measurement: acceptance belongs to model and prompts, the break-even length to the GPU and engine measured here.",)
    return Table("implied", "What that acceptance would bring at a break-even measured here", columns, rows, "No GPU was measured at draft length 4.", note, fold=True)


def _quoted(files: Files, at: int, column: str) -> Figure:
    """A published figure as it was printed."""
    return Figure(files[PUBLISHED][at][column], "text", f"{PUBLISHED}#/{at}/{column}")


def _published_length(files: Files, at: int) -> Figure | Null:
    return derived("length_of_rate", _quoted(files, at, "acceptance_pct"), 4, format="length")


def _matches(item: Comparison, row: dict) -> bool:
    cell = item.cell
    implementation = cell.document["spec"]["engine"]["implementation"]
    return (cell.gpu, implementation, cell.prompts) == (row["gpu"].lower(), row["engine"], row["prompts"]) and cell.gamma == 4


def build(study: Study, files: Files) -> dict[str, Table]:
    """Every table by its name."""
    made: list[Table] = [
        *(make(study) for make in (answer, headline, rates, engines, engines_agree, acceptance, categories, histogram, latency, hardware, conditions, cost, cheapest, curves, losslessness, cold_start, per_prompt, invalid, warnings, gates, gaps, provenance)),
        anatomy(study, files),
        published(study, files),
        implied(study, files),
    ]  # fmt: skip
    if all(load.concurrency == 1 for cell in study.cells for load in cell.loads):
        for table in made:
            _drop(table, "Concurrency")
    return {table.name: table for table in made}


def _drop(table: Table, column: str) -> None:
    """Take a column that says the same in every row out of a table."""
    if column in table.columns:
        at = table.columns.index(column)
        for row in (table.columns, *table.rows):
            del row[at]
