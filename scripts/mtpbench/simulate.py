"""Measurements with a known truth: complete results in the format of docs/architecture.md, made from a seed.

For tests, for the table of docs/validity.md, and for trying the report on cells that were never measured. Step times are
physical: a step of the test arm costs the same whatever it accepts, and a prompt is faster because more is accepted there.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mtpbench import results
from mtpbench.analysis import aggregate

DEVICES = {
    "cpu": ("cpu", "Simulated CPU (2 cores)", 24 << 30), "t4": ("cuda", "Tesla T4", 16 << 30),
    "l4": ("cuda", "NVIDIA L4", 24 << 30), "a10": ("cuda", "NVIDIA A10", 24 << 30), "l40s": ("cuda", "NVIDIA L40S", 48 << 30),
    "a100-80gb": ("cuda", "NVIDIA A100-SXM4-80GB", 80 << 30), "h100": ("cuda", "NVIDIA H100 80GB HBM3", 80 << 30),
    "h200": ("cuda", "NVIDIA H200", 141 << 30), "b200": ("cuda", "NVIDIA B200", 180 << 30),
}  # fmt: skip
# Gemma 4 E2B and its drafter; shared/reference/gemma4_e2b.md has where the figures come from.
MODEL = {
    "random": False, "synthetic_acceptance": False, "parameters": 5_123_178_051, "drafter_parameters": 77_993_476,
    "streamed_bytes": 4_558_946_304, "kv_bytes_per_token": 18_432, "drafter_streamed_bytes": 23_000_000,
    "flops_per_token": 4_558_946_304, "drafter_flops_per_token": 23_000_000,
}  # fmt: skip
SMALL = {
    "random": False, "synthetic_acceptance": False, "parameters": 2_100_000, "drafter_parameters": 450_000,
    "streamed_bytes": 8_400_000, "kv_bytes_per_token": 2_048, "drafter_streamed_bytes": 1_800_000,
    "flops_per_token": 4_200_000, "drafter_flops_per_token": 900_000,
}  # fmt: skip
PAUSE = 0.001  # seconds between two requests


@dataclass(frozen=True)
class Truth:
    """What is true of the simulated machine. Spreads are standard deviations of logarithms (0.15 is 15 %)."""

    ratio: float = 1.0  # TPOT of control over test: exp of the mean log over the population of prompts and sessions
    tpot_s: float = 0.01  # of the control arm
    alpha: float | Sequence[float] = 0.7  # chance that a draft is accepted if those before it were; one, or one a position
    gamma: int = 4
    prompt: float = 0.05  # of prompts, the same in both arms
    prompt_effect: float = 0.02  # of the ratio between prompts, beside what acceptance brings
    session: float = 0.15  # of sessions (containers), the same in both arms
    session_effect: float = 0.0  # of the ratio between sessions
    noise: float = 0.03  # of single requests
    tail: float | None = None  # degrees of freedom of that noise (Student's t, scaled to the same spread); None: normal
    drift: float = 0.0  # log change of the machine's speed through a session


def tpots(truth: Truth, lengths: np.ndarray, mean_log: float, rounds: int, sessions: int, rng) -> np.ndarray:
    """Seconds a token, shape (sessions, arm: control and test, prompts, rounds), in the order of an interleaved session.

    lengths: ids a step of the test arm, one a prompt; mean_log: the population's mean of their logarithm.
    """
    shape = (sessions, 2, len(lengths), rounds)
    noise = rng.standard_normal(shape) if truth.tail is None else rng.standard_t(truth.tail, shape) / np.sqrt(truth.tail / (truth.tail - 2))
    order = np.arange(shape[2] * rounds).reshape(rounds, shape[2]).T  # rounds go over all prompts in turn
    place = 2 * order + np.array([order % 2, 1 - order % 2])  # the arm that goes first alternates
    log = np.log(truth.tpot_s) + truth.noise * noise + truth.drift * (place / (2 * order.size) - 0.5)
    log = log + truth.session * rng.standard_normal((sessions, 1, 1, 1)) + truth.prompt * rng.standard_normal((1, 1, shape[2], 1))
    log[:, 1] -= np.log(truth.ratio) + truth.session_effect * rng.standard_normal((sessions, 1, 1))
    log[:, 1] -= (np.log(lengths) - mean_log + truth.prompt_effect * rng.standard_normal(shape[2]))[:, None]
    return np.exp(log)


def accepted(truth: Truth, prompts: int, tokens: int, rng) -> list[np.ndarray]:
    """Per prompt the drafts accepted in each step until `tokens` ids (two at least) are out; the last step may have decided more."""
    chance = np.broadcast_to(np.asarray(truth.alpha, dtype=float), truth.gamma)
    steps = np.cumprod(rng.random((prompts, tokens - 1, truth.gamma)) < chance, axis=2).sum(axis=2)
    needed = 1 + (np.cumsum(steps + 1, axis=1) < tokens - 1).sum(axis=1)
    return [row[:count] for row, count in zip(steps, needed)]


@functools.cache
def mean_log_length(truth: Truth, tokens: int) -> float:
    """Mean of log(ids a step) over the population of prompts, by 20,000 of them."""
    return float(np.mean([np.log((tokens - 1) / len(a)) for a in accepted(truth, 20_000, tokens, np.random.default_rng(0))]))


def experiment(truth: Truth, rng, *, prompts=12, rounds=2, sessions=1, tokens=64, speculative=True) -> np.ndarray:
    """The TPOTs of one measured cell, as `tpots` shapes them, without records; quick."""
    steps = [len(a) for a in accepted(truth, prompts, tokens, rng)] if speculative else [tokens - 1] * prompts
    mean_log = mean_log_length(truth, tokens) if speculative else 0.0
    return tpots(truth, (tokens - 1) / np.array(steps), mean_log, rounds, sessions, rng)


def result(
    cell: str = "cpu_transformers_code_mtp", seed: int = 0, *, truth: Truth = Truth(), prompts: int = 12, rounds: int = 2,
    sessions: int = 1, tokens: int = 64, concurrency: Sequence[int] = (1,), model: dict | None = None,
) -> dict:  # fmt: skip
    """A sealed result of `cell`; its `baseline` mode is a null cell, whose true ratio should be left at 1. model: facts of the weights like MODEL."""
    rng = np.random.default_rng(seed)
    gpu, engine, prompt_set, mode = cell.split("_")
    kind, name, memory = DEVICES[gpu]
    speculative = mode != "baseline"
    names = [f"{prompt_set}-{number + 1:02d}" for number in range(prompts)]
    steps = accepted(truth, prompts, tokens, rng) if speculative else [np.zeros(tokens - 1, int)] * prompts
    asked = [
        {"prompt": id_, "category": f"{prompt_set}-{index % 3}", "prompt_tokens": int(rng.integers(20, 200)),
         "prompt_sha256": results.digest(id_)[:16], "ids": rng.integers(5, 32_000, tokens).tolist(), "accepted": steps[index].tolist()}
        for index, id_ in enumerate(names)
    ]  # fmt: skip
    spec = {
        "measurement_version": 1, "device": {"kind": kind, "name": name},
        "engine": {"implementation": "vllm" if engine.startswith("vllm") else "transformers", "requirements": {}, "options": {}},
        "model": {"target": {"sha256": "0" * 64}, "drafter": {"sha256": "1" * 64}, "dtype": "float32" if kind == "cpu" else "bfloat16"},
        "mode": {"method": mode, "num_speculative_tokens": truth.gamma} if speculative else {"method": "none"},
        "prompts": {id_: results.digest(id_) for id_ in names},
        "protocol": {"output_tokens": tokens, "ignore_eos": True, "warmup": 2, "sessions": sessions, "concurrency": list(concurrency),
                     "rounds": {"min": rounds, "max": rounds, "half_width": None}, "order": "interleaved"},
    }  # fmt: skip
    lengths, mean_log = (tokens - 1) / np.array([len(a) for a in steps]), mean_log_length(truth, tokens) if speculative else 0.0
    by_load = [tpots(truth, lengths, mean_log, rounds, sessions, rng) for _ in concurrency]
    body = {
        "schema_version": results.SCHEMA_VERSION, "cell": cell, "fingerprint": results.digest(spec), "spec": spec,
        "created_at": "2026-11-30T12:00:00Z", "provenance": {"measuring_code": "0" * 64, "simulated": True, "seed": seed},
    }  # fmt: skip
    model = model or (SMALL if kind == "cpu" else MODEL)
    made = [_session(index, spec, asked, [load[index] for load in by_load], memory, model) for index in range(sessions)]
    return results.seal({**body, "summary": aggregate.recompute({**body, "sessions": made}), "sessions": made})


def _session(index: int, spec: dict, asked: list[dict], loads: list[np.ndarray], memory: int, model: dict) -> dict:
    """The record of one session; loads: per concurrency the TPOTs (arm, prompt, round)."""
    on_gpu, now, requests, windows = spec["device"]["kind"] == "cuda", 5.0, [], []
    speculative = spec["mode"]["method"] != "none"
    totals = {"control": None, "test": {"drafts": 40, "drafted": 160, "accepted": 90} if speculative else None}  # warm-up
    for concurrency, tpot in zip(spec["protocol"]["concurrency"], loads):
        opened = {arm: {"t": now, "counters": counters} for arm, counters in totals.items()}
        for wave in range(tpot.shape[2] * (per_round := -(-len(asked) // concurrency))):
            repeat, start = wave // per_round, wave % per_round * concurrency
            for arm in ("control", "test") if wave % 2 == 0 else ("test", "control"):
                made = [
                    _record(spec, arm, concurrency, wave, repeat, now, each, float(tpot[int(arm == "test"), start + place, repeat]))
                    for place, each in enumerate(asked[start : start + concurrency])
                ]
                if totals[arm]:
                    totals[arm] = {key: count + sum(record["counters"][key] for record in made) for key, count in totals[arm].items()}
                requests += made
                now = max(record["times"][-1] for record in made) + PAUSE
        windows += [{"arm": arm, "concurrency": concurrency, "open": opened[arm], "close": {"t": now, "counters": totals[arm]}} for arm in totals]
    for record in requests:
        if record["concurrency"] > 1:  # an engine's counters do not tell requests apart
            record["counters"] = None
    return {
        "index": index, "started_at": "2026-11-30T11:50:00Z",
        "seconds": {"load": 3.0, "warmup": 2.0, "measure": now - 5.0, "total": now + 1.0},
        "device": {**spec["device"], "memory_bytes": memory, "uuid": f"GPU-{index}" if on_gpu else None,
                   "driver": "580.0" if on_gpu else None, "cores": 2},
        "software": {"python": "3.12.0", "torch": "2.13.0", spec["engine"]["implementation"]: "1.0", "cuda": None, "packages": {}},
        "settings": {}, "model": dict(model), "categories": {each["prompt"]: each["category"] for each in asked},
        "arms": {arm: {"load_s": 1.5, "memory": {"peak_bytes": memory // 4, "reason": None}} for arm in ("control", "test")},
        "windows": windows, "requests": requests, "losslessness": [],
        "telemetry": {
            "fields": ["t", "sm_mhz", "temperature_c", "power_w", "throttle", "energy_j"],
            "rows": [[t, 1980, 55, 400.0, 0, 400.0 * t] for t in np.arange(0.0, now + 0.5, 0.25).tolist()],
        } if on_gpu else {"reason": "no NVML: the device is a CPU"},
        "peaks": {"copy_gb_s": 4000.0 if on_gpu else 20.0, "matmul_tflops": 600.0 if on_gpu else 0.1, "dtype": spec["model"]["dtype"]},
    }  # fmt: skip


def _record(spec, arm: str, concurrency: int, wave: int, repeat: int, submit: float, asked: dict, tpot: float) -> dict:
    tokens, gamma, drafts = len(asked["ids"]), spec["mode"].get("num_speculative_tokens", 0), arm == "test" and "num_speculative_tokens" in spec["mode"]
    decided = asked["accepted"] if drafts else [0] * (tokens - 1)
    counts = [1, *(a + 1 for a in decided)]
    counts[-1] -= sum(counts) - tokens
    step = tpot * (tokens - 1) / len(decided)
    tells = drafts and spec["engine"]["implementation"] == "transformers"
    return {
        "arm": arm, "concurrency": concurrency, "wave": wave, "repeat": repeat, "cached_tokens": 0, "submit": submit,
        **{key: asked[key] for key in ("prompt", "prompt_tokens", "prompt_sha256")}, "ids": list(asked["ids"]),
        "times": (submit + 2 * step + step * np.arange(len(counts))).tolist(), "counts": counts, "finish": "length",
        "offered": [gamma] * len(decided) if tells else None,
        "accepted": decided if tells or (drafts and concurrency == 1) else None,
        "counters": {"drafts": len(decided), "drafted": gamma * len(decided), "accepted": sum(decided)} if drafts else None,
    }  # fmt: skip
