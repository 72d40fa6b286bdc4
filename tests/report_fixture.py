"""Synthetic results in the shape of the contract, for the report's tests: many and cheap, summaries made directly."""

import itertools
import zlib
from pathlib import Path

import numpy as np

from mtpbench import results

CATEGORIES = ("rewrite", "explain", "generate")
DEVICES = {"cpu": "AMD EPYC (2 cores)", "h100": "NVIDIA H100 80GB HBM3", "h200": "NVIDIA H200"}
STEP_MS = {"transformers": 20.0, "vllm": 8.0}
ACCEPTED = {"code": 0.75, "structured": 0.62, "generic": 0.4}


def matrix(gpus=("cpu",), engines=("transformers", "vllm"), prompts=("generic", "code", "structured"), modes=("baseline", "mtp")):
    """Cell names of a matrix."""
    return ["_".join(parts) for parts in itertools.product(gpus, engines, prompts, modes)]


def write(root: Path, names, config: str = "gpus: {h100: {price: {usd_per_hour: 3.95, date: 2026-11-01, source: list}}}\n", **options):
    """Write the results of cells, and a configuration that knows one price."""
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config/config.yaml").write_text(config)
    for name in names:
        results.write(results.path_of(name, root), result(name, **options))


def result(name, loads=(1,), prompts=8, tokens=24, sessions=1, reason=None, random=False, synthetic=False, noise=0.03, cost=1.5):
    """One result; `reason` makes it invalid, `cost` is the price of a speculative step in baseline steps."""
    gpu, engine, kind, mode = name.split("_")
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    gamma = 0 if mode == "baseline" else int(mode.removeprefix("mtp") or 4)
    spec = {
        "measurement_version": 1,
        "device": {"kind": "cpu" if gpu == "cpu" else "cuda", "name": DEVICES.get(gpu, f"NVIDIA {gpu.upper()}")},
        "engine": {"implementation": engine.removesuffix("021"), "requirements": {}, "options": {}},
        "model": {"target": {"sha256": "a" * 64}, "drafter": {"sha256": "b" * 64}, "dtype": "float32"},
        "mode": {"method": "mtp", "num_speculative_tokens": gamma} if gamma else {"method": "none"},
        "prompts": {f"{kind}-{number:02}": "c" * 64 for number in range(prompts)},
        "protocol": {"output_tokens": tokens, "ignore_eos": False, "warmup": 2, "rounds": {"min": 2, "max": 2, "half_width": None},
                     "sessions": sessions, "concurrency": list(loads), "order": "interleaved"},
    }  # fmt: skip
    points, requests = [], []
    for load in loads:
        arms, times = {}, {}
        for arm in ("control", "test"):
            speculates = gamma if arm == "test" else 0
            base = STEP_MS.get(engine, 6.0) * (1 + 0.05 * load) * (1 + (cost - 1) * speculates / 4)
            alpha = 0.0 if random else ACCEPTED.get(kind, 0.5)
            per_prompt = [_records(rng, f"{kind}-{n:02}", arm, load, base, speculates, alpha, tokens, noise) for n in range(prompts)]
            requests += per_prompt
            arms[arm], times[arm] = _arm(per_prompt, gpu, load), [_tpot(record) for record in per_prompt]
        logs = np.log(np.array(times["control"]) / np.array(times["test"]))
        half = 2.36 * logs.std(ddof=1) / np.sqrt(prompts)
        points.append({
            "concurrency": load, "arms": arms,
            "speedup": {"ratio": float(np.exp(logs.mean())), "low": float(np.exp(logs.mean() - half)), "high": float(np.exp(logs.mean() + half)),
                        "half_width": float(np.expm1(half)), "prompts": prompts, "sessions": sessions, "sign_test_p": 0.0078},
            "e2e_speedup": None,
            "prompts": [{"prompt": f"{kind}-{n:02}", "category": CATEGORIES[n % 3], "control_tpot_ms": times["control"][n], "test_tpot_ms": times["test"][n],
                         "ratio": times["control"][n] / times["test"][n], "acceptance_length": (1 + 0.1 * n) if gamma else None,
                         "control_tokens": tokens, "test_tokens": tokens} for n in range(prompts)],
        })  # fmt: skip
    memory = {"peak_bytes": None, "reason": "no NVML on a CPU"} if gpu == "cpu" else {"peak_bytes": 20_000_000_000, "reason": None}
    session = {
        "started_at": "2026-11-30T22:00:00Z", "seconds": {"load": 3.0, "warmup": 1.0, "measure": 20.0, "total": 25.0},
        "device": {"kind": spec["device"]["kind"], "name": spec["device"]["name"], "memory_bytes": 8e10, "uuid": None, "driver": None, "cores": 2},
        "software": {"python": "3.11.7", "torch": "2.13.0", spec["engine"]["implementation"]: "0.32.0", "cuda": None, "packages": {}},
        "settings": {"attention": "TRITON"},
        "model": {"random": random, "synthetic_acceptance": synthetic, "parameters": 2_100_000, "drafter_parameters": 450_000},
        "arms": {arm: {"load_s": 2.5, "memory": memory} for arm in ("control", "test")},
        "windows": [], "losslessness": [], "telemetry": {"reason": "no NVML: the device is a CPU"},
        "peaks": {"copy_gb_s": 12.0, "matmul_tflops": 0.1, "dtype": "float32"},
    }  # fmt: skip
    gates = [{"name": "device", "passed": True, "seen": spec["device"]["name"]}, {"name": "throttling", "passed": None, "seen": "no NVML on a CPU"}]
    if reason:
        gates.append({"name": "speculation active", "passed": False, "seen": reason})
    return {
        "schema_version": 1, "cell": name, "fingerprint": f"{zlib.crc32(name.encode()):064x}", "spec": spec,
        "created_at": "2026-11-30T22:01:00Z", "provenance": {"commit": "d" * 40, "backend": "local"},
        "summary": {
            "valid": reason is None, "reasons": [reason] if reason else [], "gates": gates, "loads": points,
            "losslessness": {"prompts": prompts, "identical": prompts - 1, "tie": 1, "mismatch": 0,
                             "differences": [{"prompt": f"{kind}-00", "concurrency": 1, "first_difference": 12, "margin": 0.004}]},
            "cold_start_s": {"control": 2.5, "test": 2.9},
        },
        "sessions": [{"index": index, **session, "requests": requests} for index in range(sessions)],
    }  # fmt: skip


def _records(rng, prompt, arm, load, step_ms, gamma, alpha, tokens, noise):
    counts = [1]
    while sum(counts) < tokens:
        counts.append(min(1 + int(np.cumprod(rng.random(gamma) < alpha).sum()), tokens - sum(counts)))
    steps = step_ms / 1e3 * rng.lognormal(0, noise, len(counts))
    return {"arm": arm, "concurrency": load, "prompt": prompt, "repeat": 0, "counts": counts, "times": np.round(np.cumsum(steps), 6).tolist()}


def _tpot(record):
    return 1e3 * (record["times"][-1] - record["times"][0]) / sum(record["counts"][1:])


def _percentiles(values):
    return {"mean": float(np.mean(values)), "p50": float(np.quantile(values, 0.5)), "p90": float(np.quantile(values, 0.9))}


def _arm(records, gpu, load):
    steps = [count for record in records for count in record["counts"][1:]]
    tpot = [_tpot(record) for record in records]
    gamma = max(max(steps) - 1, 0)
    joint = [float(np.mean([count > position for count in steps])) for position in range(1, gamma + 1)]
    cpu = {"peak_memory_bytes", "energy_j_per_token"} if gpu == "cpu" else set()
    arm = {
        "requests": len(records), "prompt_tokens": 40 * len(records), "output_tokens": sum(steps) + len(records),
        "ttft_ms": _percentiles([1e3 * record["times"][0] for record in records]), "tpot_ms": _percentiles(tpot),
        "e2e_ms": _percentiles([1e3 * record["times"][-1] for record in records]),
        "step_ms": _percentiles(np.concatenate([1e3 * np.diff(record["times"]) for record in records])),
        "decode_tok_s": 1e3 / float(np.mean(tpot)), "mean_request_tok_s": float(np.mean(1e3 / np.array(tpot))), "throughput_tok_s": load * 900 / float(np.mean(tpot)),
        "ids_per_step": {str(value): steps.count(value) for value in sorted(set(steps))},
        "acceptance": {"length": 1 + sum(joint), "rate": sum(joint) / gamma, "drafts": len(steps), "drafted": gamma * len(steps), "accepted": sum(steps) - len(steps),
                       "cut": 0, "joint": joint, "conditional": [b / a for a, b in zip([1.0, *joint], joint)]} if gamma else None,
        "peak_memory_bytes": 20_000_000_000, "mbu": 0.41, "mfu_emitted": 0.012, "mfu_executed": 0.031, "energy_j_per_token": 1.9,
    }  # fmt: skip
    arm |= dict.fromkeys(cpu)
    return arm | {"reasons_null": dict.fromkeys(cpu, "no NVML on a CPU")}
