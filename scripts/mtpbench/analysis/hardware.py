"""How far the hardware is used: memory bandwidth, arithmetic, energy and clocks.

MBU and MFU are lower bounds of what the device does: attention's products, activations and the gathered rows of embedding
tables are left out, and so is whatever an engine computes in vain.
"""

import csv
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from mtpbench.analysis.records import Batch, batch, busy, seconds

PEAKS = Path(__file__).parents[3] / "config" / "gpu_peaks.csv"

ENERGY_KNOWN_TO = 0.1  # half of the 95 % interval, above which an arm's energy is not told
SHORTEST_TURN = 0.15  # s. NVML's counter moves every 0.1 s or so; simulated, that shifts 5 % of a turn of this length to the other arm


@functools.cache
def datasheet(product: str) -> dict | None:
    """The row of config/gpu_peaks.csv for the product that NVML names; None if there is none.

    The longest fitting name wins, and a name fits only as whole words: an A10G is no A10, an L40S no L4.
    """
    with open(PEAKS, encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if re.search(re.escape(row["product_name_contains"]) + r"(?!\w)", product)]
    return max(rows, key=lambda row: len(row["product_name_contains"]), default=None)


def peaks(sessions: Sequence[Mapping], dtype: str) -> dict:
    """Peaks that MBU and MFU are shares of, and which they are.

    {"memory_gb_s", "tflops", "source", "measured_memory_gb_s", "measured_tflops"}. The datasheet's where it has the device,
    for arithmetic only in a 16-bit type, else what a copy and a matrix product reached in the sessions.
    """
    measured = {
        name: float(np.mean(found)) if (found := [each["peaks"][key] for each in sessions if each["peaks"].get(key)]) else None
        for name, key in (("measured_memory_gb_s", "copy_gb_s"), ("measured_tflops", "matmul_tflops"))
    }
    row = datasheet(sessions[0]["device"]["name"])
    bandwidth = float(row["memory_gb_s"]) if row else measured["measured_memory_gb_s"]
    tflops = float(row["dense_bf16_tflops"]) if row and dtype != "float32" else measured["measured_tflops"]
    source = "measured in the session"
    if row:
        source = f"datasheet {row['gpu']}" + (", float32 arithmetic measured in the session" if dtype == "float32" else "")
    return {"memory_gb_s": bandwidth, "tflops": tflops, "source": source, **measured}


def usage(batch: Batch, model: Mapping, peak: Mapping, drafted: int | None) -> dict:
    """MBU and MFU of an arm at one load, as shares of the peak; None without a step or a peak.

    A step of the engine moves the streamed weights once, the KV cache of each request in it, and the drafter's weights once
    a draft. Emitted work is that of the ids that came out; executed work that of all positions verified and drafts made.
    drafted: draft ids offered over these requests (0 without speculation, None if not known).
    """
    running = seconds(busy(batch.first, batch.last, batch.session))  # time in which any request was decoding
    steps = int(batch.steps.sum())
    if not running or not steps or drafted is None:
        return dict.fromkeys(("mbu", "mfu_emitted", "mfu_executed"))
    together = float(batch.decode_s[batch.steps > 0].sum()) / running  # requests in a step, on average
    engine_steps = steps / together
    prompt = np.array([record["prompt_tokens"] for record in batch.records])
    context = float(((prompt + batch.tokens / 2) * batch.steps).sum())  # ids in the cache, summed over requests and steps
    moved = model["streamed_bytes"] * engine_steps + model["kv_bytes_per_token"] * context
    moved += (model["drafter_streamed_bytes"] or 0) * drafted / together
    emitted = model["flops_per_token"] * float(batch.decoded.sum())
    executed = model["flops_per_token"] * (steps + drafted) + (model["drafter_flops_per_token"] or 0) * drafted
    share = lambda amount, rate, unit: amount / running / (rate * unit) if rate else None  # noqa: E731
    return {
        "mbu": share(moved, peak["memory_gb_s"], 1e9),
        "mfu_emitted": share(emitted, peak["tflops"], 1e12),
        "mfu_executed": share(executed, peak["tflops"], 1e12),
    }


def energy(sessions: Sequence[Mapping]) -> dict[tuple[str, int], tuple[float | None, str | None]]:
    """Joules of each arm at each load while it had the device, prefill included, and the reason where there is no figure.

    The arms take turns that may be shorter than the time between two samples of NVML's energy counter, so no turn is read off
    by itself. Each interval between samples gives an equation: its joules are the power of each arm and load, and of the moments between
    them, by the seconds that each had of it. Least squares over all sessions gives the powers (numpy.linalg.lstsq); one that is
    not known to ENERGY_KNOWN_TO (95 %, from the residuals) is not told, nor where the counter itself blurs the turns.
    """
    keys = sorted({(record["arm"], record["concurrency"]) for session in sessions for record in session["requests"]})
    if not keys:
        return {}
    shares, joules, ran, turns = [], [], np.zeros(len(keys)), defaultdict(list)
    rows_of = (batch(sessions, *key) for key in keys)
    spans_of = [dict(busy(rows.submit, rows.last, rows.session)) for rows in rows_of]  # by session
    for index, session in enumerate(sessions):
        columns, reason = telemetry(session)
        if columns is None or np.isnan(columns["energy_j"]).any() or len(columns["t"]) < 2:
            return dict.fromkeys(keys, (None, reason or "this GPU reports no total energy"))
        spans = [by_session.get(index, np.zeros((0, 2))) for by_session in spans_of]
        had = np.column_stack([_within(rows, columns["t"]) for rows in spans])
        measuring = had.any(axis=1)
        shares.append(np.column_stack([had, np.diff(columns["t"]) - had.sum(axis=1)])[measuring])
        joules.append(np.diff(columns["energy_j"])[measuring])
        ran += [np.diff(rows, axis=1).sum() for rows in spans]
        for key, lengths in _turns(keys, spans).items():
            turns[key[1]].append(float(np.median(lengths)))
    share, joule = np.vstack(shares), np.concatenate(joules)
    power, residual, rank, _ = np.linalg.lstsq(share, joule, rcond=None)
    free = len(joule) - len(power)
    if rank < len(power) or free < 1:
        return dict.fromkeys(keys, (None, f"{len(joule)} samples of the energy counter do not tell the arms and loads apart"))
    error = stats.t.ppf(0.975, free) * np.sqrt(np.diag(np.linalg.inv(share.T @ share)) * residual[0] / free)
    found: dict = {}
    for key, watts, off, seconds in zip(keys, power.tolist(), error.tolist(), ran.tolist()):
        if (turn := min(turns[key[1]])) < SHORTEST_TURN:
            found[key] = None, f"turns of {turn:.2g} s are too short for the energy counter"
        elif watts <= 0 or off > ENERGY_KNOWN_TO * watts:
            found[key] = None, f"the samples of the energy counter leave {watts:.0f} ± {off:.0f} W"
        else:
            found[key] = watts * seconds, None
    return found


def _turns(keys: list, spans: list[np.ndarray]) -> dict[tuple, list[float]]:
    """By key the seconds of its turns: from its first span to its last until another key has its own."""
    found: dict[tuple, list[float]] = {}
    order = sorted((start, end, key) for key, rows in zip(keys, spans) for start, end in rows.tolist())
    for key, turn in itertools.groupby(order, key=lambda span: span[2]):
        turn = list(turn)
        found.setdefault(key, []).append(turn[-1][1] - turn[0][0])
    return found


def _within(spans: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Seconds of the spans between each time and the next."""
    ends = spans.ravel()
    had = np.r_[0.0, np.cumsum(np.diff(spans, axis=1).ravel())].repeat(2)[1:-1] if len(ends) else np.zeros(0)
    return np.diff(np.interp(times, ends, had)) if len(ends) else np.zeros(len(times) - 1)


def telemetry(session: Mapping) -> tuple[dict[str, np.ndarray] | None, str | None]:
    """The sampled columns (NaN where the GPU does not report one), or None and why there are none."""
    found = session["telemetry"]
    if not found.get("rows"):
        return None, found.get("reason", "no sample was taken")
    return dict(zip(found["fields"], np.array(found["rows"], dtype=float).T)), None


def busy_samples(session: Mapping) -> tuple[dict[str, np.ndarray] | None, str | None]:
    """The samples of `telemetry` taken while a request of either arm was running."""
    columns, reason = telemetry(session)
    if columns is None:
        return None, reason
    spans = np.array([(record["submit"], record["times"][-1]) for record in session["requests"] if record["times"]]).reshape(-1, 2)
    rows = np.vstack([np.zeros((0, 2)), *(rows for _, rows in busy(*spans.T, np.zeros(len(spans), int)))])
    inside = np.searchsorted(rows[:, 0], columns["t"], side="right") > np.searchsorted(rows[:, 1], columns["t"], side="left")
    if not inside.any():
        return None, "no sample fell into a request"
    return {name: column[inside] for name, column in columns.items()}, None


def conditions(sessions: Sequence[Mapping]) -> dict:
    """Clock, heat and power while requests ran: {"sm_mhz", "temperature_c", "power_w": {"mean", "min", "max"} or None, "reason"}."""
    parts = [busy_samples(session) for session in sessions]
    reason = next((why for columns, why in parts if columns is None), None)
    out: dict = {"reason": reason}
    for name in ("sm_mhz", "temperature_c", "power_w"):
        values = np.concatenate([columns[name] for columns, _ in parts]) if reason is None else np.zeros(0)
        values = values[~np.isnan(values)]
        out[name] = {kind: float(getattr(np, kind)(values)) for kind in ("mean", "min", "max")} if len(values) else None
    return out
