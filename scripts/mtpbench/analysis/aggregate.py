"""The summary of a result: every figure that is shown, as a pure function of the raw records."""

from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np

from mtpbench.analysis import acceptance, costmodel, effect, gates, hardware, losslessness
from mtpbench.analysis.records import Batch, batch, busy, grouped, pairs, seconds, unequal

ARMS = ("control", "test")


def recompute(result: Mapping) -> dict:
    """The summary of docs/architecture.md from `spec` and `sessions` of a result; whatever else it holds is ignored.

    Malformed records give an invalid summary without loads, not an exception; KeyError where the format is another.
    """
    spec, sessions = result["spec"], result["sessions"]
    judged = gates.judge(result)
    summary = {
        "valid": all(gate["passed"] is not False for gate in judged),
        "reasons": [f"{gate['name']}: {gate['seen']}" for gate in judged if gate["passed"] is False],
        "warnings": [f"{gate['name']}: {gate['seen']}" for gate in judged if gate.pop("warning")],
        "gates": judged, "loads": [], "losslessness": None, "hardware": None, "cold_start_s": None,
    }  # fmt: skip
    if not gates.computable(judged):
        return summary
    dtype = spec["model"]["dtype"]
    peak, energy = hardware.peaks(sessions, dtype), hardware.energy(sessions)
    return summary | {
        "loads": [_load(spec, sessions, concurrency, peak, energy) for concurrency in spec["protocol"]["concurrency"]],
        "losslessness": losslessness.compare(sessions, dtype),
        "hardware": {"peaks": peak, "conditions": hardware.conditions(sessions)},
        "cold_start_s": {arm: float(np.mean([session["arms"][arm]["load_s"] for session in sessions])) for arm in ARMS},
    }


def percentiles(values: np.ndarray, scale: float = 1.0) -> dict | None:
    """{"mean", "p50", "p90"} of the values that are numbers, times `scale`; None without one."""
    values = scale * values[~np.isnan(values)]
    if not len(values):
        return None
    return {"mean": float(values.mean()), "p50": float(np.quantile(values, 0.5)), "p90": float(np.quantile(values, 0.9))}


def _load(spec: Mapping, sessions: Sequence[Mapping], concurrency: int, peak: Mapping, energy: Mapping) -> dict:
    mode, gamma = spec["mode"], spec["mode"].get("num_speculative_tokens")
    batches = {arm: batch(sessions, arm, concurrency) for arm in ARMS}
    ratios = [effect.log_ratios(session["requests"], concurrency) for session in sessions]
    e2e = lambda record: record["times"][-1] - record["submit"] if record["times"] else None  # noqa: E731
    equal = [[record for pair in pairs(session["requests"]).values() if not unequal(pair) for record in pair] for session in sessions]
    load = {
        "concurrency": concurrency,
        "arms": {arm: _arm(batches[arm], arm, sessions, concurrency, gamma if arm == "test" else None, peak, energy) for arm in ARMS},
        "speedup": effect.speedup(*ratios, together=effect.waves(sessions[0]["requests"], concurrency)),
        "e2e_speedup": effect.at_load(equal, concurrency, e2e),
        "prompts": _prompts(spec, sessions, batches, ratios),
        "acceptance_by_category": None,
    }
    if gamma:
        categories = sessions[0].get("categories", {})
        by_category = grouped(batches["test"].records, lambda record: categories.get(record["prompt"]))
        load["acceptance_by_category"] = {name: _accepted(by_category[name], mode) for name in sorted(by_category.keys() - {None})}
    return load | {"cost_model": costmodel.beside(load, batches["test"])}


def _arm(rows: Batch, arm: str, sessions: Sequence[Mapping], concurrency: int, gamma: int | None, peak: Mapping, energy: Mapping) -> dict:
    """One arm at one load. Rates in ids a second, latencies in milliseconds: of requests, save step_ms, which is of steps."""
    decode_s, whole_s = float(np.nansum(rows.decode_s)), seconds(busy(rows.submit, rows.last, rows.session))
    tpot_s = np.divide(rows.decode_s, rows.decoded, out=np.full(len(rows.records), np.nan), where=rows.decoded > 0)
    counters = acceptance.window(sessions, arm, concurrency)
    accepted = acceptance.acceptance(rows.records, counters, gamma) if gamma else None
    joules, no_energy = energy.get((arm, concurrency), (None, "no request"))
    memory = [session["arms"][arm]["memory"] for session in sessions]
    peaks_seen = [each["peak_bytes"] for each in memory if each["peak_bytes"] is not None]
    figures = {
        "requests": len(rows.records), "prompt_tokens": sum(record["prompt_tokens"] for record in rows.records),
        "output_tokens": int(rows.tokens.sum()),
        "ttft_ms": percentiles(rows.first - rows.submit, 1e3), "tpot_ms": percentiles(tpot_s, 1e3),
        "e2e_ms": percentiles(rows.last - rows.submit, 1e3), "step_ms": percentiles(rows.step_seconds(), 1e3),
        "decode_tok_s": int(rows.decoded.sum()) / decode_s if decode_s else None,
        "mean_request_tok_s": float(np.mean(1 / tpot_s[~np.isnan(tpot_s)])) if decode_s else None,
        "throughput_tok_s": int(rows.tokens.sum()) / whole_s if whole_s else None,
        "ids_per_step": acceptance.histogram(rows.step_ids()), "acceptance": accepted,
        "peak_memory_bytes": max(peaks_seen, default=None),
        **hardware.usage(rows, sessions[0]["model"], peak, accepted["drafted"] if accepted else 0),
        "energy_j_per_token": joules / int(rows.tokens.sum()) if joules else None,
    }  # fmt: skip
    known = {
        "acceptance": "no step of this arm had a draft" if gamma else "no speculation in this arm",
        "peak_memory_bytes": next((each["reason"] for each in memory if each["reason"]), None),
        "energy_j_per_token": no_energy,
        **dict.fromkeys(("mbu", "mfu_emitted", "mfu_executed"), "no decode step, no peak, or drafts that the engine does not count"),
    }
    missing = [name for name, value in figures.items() if value is None]
    return figures | {"reasons_null": {name: known.get(name) or "no decode step" for name in missing}}


def _prompts(spec: Mapping, sessions: Sequence[Mapping], batches: Mapping[str, Batch], ratios: Sequence[Mapping]) -> list[dict]:
    """One row a prompt, over its repeats and sessions: means, and exp of the mean log ratio, in which each session has one voice."""
    categories = sessions[0].get("categories", {})
    by_prompt = {arm: grouped(batches[arm].records, lambda record: record["prompt"]) for arm in ARMS}
    rows = []
    for prompt in spec["prompts"]:
        of = {arm: by_prompt[arm][prompt] for arm in ARMS}
        logs = [fmean(session[prompt]) for session in ratios if prompt in session]
        tpots = {arm: [found for record in of[arm] if (found := effect.tpot(record)) is not None] for arm in ARMS}
        accepted = _accepted(of["test"], spec["mode"]) if spec["mode"]["method"] != "none" else None
        rows.append({
            "prompt": prompt, "category": categories.get(prompt),
            **{f"{arm}_tpot_ms": 1e3 * float(np.mean(tpots[arm])) if tpots[arm] else None for arm in ARMS},
            "ratio": float(np.exp(np.mean(logs))) if logs else None,
            "acceptance_length": accepted["length"] if accepted else None,
            **{f"{arm}_tokens": float(np.mean([len(record["ids"]) for record in of[arm]])) if of[arm] else None for arm in ARMS},
        })  # fmt: skip
    return rows


def _accepted(records: Sequence[Mapping], mode: Mapping) -> dict | None:
    """Acceptance over some of an arm's requests; None where neither engine nor steps tell it: prompt lookup has steps without a draft."""
    counters, gamma = acceptance.of_requests(records), mode["num_speculative_tokens"]
    if counters is None:
        return acceptance.censored(records, gamma) if mode["method"] == "mtp" else None
    return acceptance.acceptance(records, counters, gamma)
