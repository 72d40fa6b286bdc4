"""Where a step's time goes, and what makes it noisy: `python anatomy.py PLANS.json TRACES CELL...`, in the engine's interpreter.

For each cell's test arm, metrics/anatomy/{cell}.json: a torch trace of one request as `mtpbench.analysis.trace` reads it
(the trace itself goes into the folder TRACES), and step times without the profiler under several conditions, in turns, with
what the machine did meanwhile; for vLLM the same of further starts, if asked for; for transformers step times at lengths that
the process has not met yet. For vLLM's baseline also the checks of the harness itself: a plain `LLM.generate` loop beside it, and
the share of time that it spends outside of the engine's step.
"""

import argparse
import contextlib
import gzip
import itertools
import json
import os
import statistics
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path

from mtpbench import results
from mtpbench.analysis import trace
from mtpbench.backends import local
from mtpbench.errors import UserError
from mtpbench.measuring import device, engines
from mtpbench.measuring.session import Session
from run_plans import planned

try:
    import psutil
    import torch
except ImportError as error:
    sys.exit(f"error: {error}; this script runs in an engine's interpreter, see docs/h200.md or scripts/in_environment.py")

FOLDER = Path("metrics/anatomy")
NAMED = "VLLM_CUSTOM_SCOPES_FOR_PROFILING"
TURNS = 3
TRACED = 40  # output tokens under the profiler, twice as many where a step brings several
# Further starts of vLLM's engine, each alone on the GPU: what differs between starts, and what differs with a setting. In
# this process comes last, since it initializes CUDA here.
STARTS = {
    "started again": {},
    # Inductor tunes these anew in every process, and near ties fall differently: https://github.com/pytorch/pytorch/issues/189121
    "reductions not rescaled": {"compilation_config": {"inductor_compile_config": {"dynamic_scale_rblock": False}}},
    "synchronous scheduling": {"async_scheduling": False},
    "engine in this process": {"environment": {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}},
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("plans", type=Path)
    arguments.add_argument("traces", type=Path)
    arguments.add_argument("cells", nargs="+")
    arguments.add_argument("--starts", nargs="*", choices=STARTS, default=[], help="further starts of vLLM, in this order")
    arguments = arguments.parse_args()
    try:
        plans = planned(arguments.plans, arguments.cells)
        arguments.traces.mkdir(parents=True, exist_ok=True)
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    for plan in plans:
        began, cell = time.monotonic(), plan["cell"]
        request = local.with_paths({**plan, "session": 0}, plan["how"], Path(sys.executable), print)
        traces, part = (arguments.traces / cell).resolve(), FOLDER / f"{cell}.json.part"
        if plan["spec"]["engine"]["implementation"] == "vllm":
            stages = of_vllm(request, traces, arguments.starts)
        else:
            stages = of_transformers(request, traces)
        try:
            with local.device_alone(plan["spec"]["device"]["kind"], print):
                for found in stages:  # each is kept: the time on the machine may end before the next
                    found = {"cell": cell, "fingerprint": plan["fingerprint"], **found}
                    results.write_text(part, results.text_of(results.seal(found)))
            if failed := [each["trace"]["error"] for each in (found, *found.get("starts", [])) if "error" in each["trace"]]:
                raise UserError(f"{failed[0]}; what was seen is in {part}, the trace in {traces}")
            part.replace(part.with_suffix(""))  # complete: only now may it take the place of an earlier one
        except UserError as error:
            sys.exit(f"error: {cell}: {error}")
        print(f"[mtpbench] anatomy | {cell} | {time.monotonic() - began:.0f} s | {json.dumps(_short(found))}", flush=True)


def of_vllm(request: dict, traces: Path, starts: list[str]) -> Iterator[dict]:
    from vllm import envs
    from vllm.config import ProfilerConfig

    # The named ranges lie outside of what is compiled, and yet their variable is part of the compiled code's key.
    factors, unnamed = envs.compile_factors, {NAMED: envs.compile_factors()[NAMED]}
    envs.compile_factors = lambda: factors() | unnamed
    os.environ[NAMED] = "1"

    def profiled(folder: str) -> dict:
        return {"profiler_config": ProfilerConfig(profiler="torch", torch_profiler_dir=str(traces / folder), torch_profiler_with_stack=False)}

    def traced(engine, folder: str) -> dict:
        engine.engine.start_profile()
        engine.run(prompts[:1], TRACED if baseline else 2 * TRACED, True)
        engine.engine.stop_profile()
        engine.close()  # the profiler may leave something behind in the engine
        written = sorted((traces / folder).glob("*.json.gz"), key=lambda path: path.stat().st_size)
        return _read(written[-1]) if written else {"error": f"the profiler left no trace in {traces / folder}"}

    baseline = request["spec"]["mode"]["method"] == "none"
    engine, prompts = loaded(request, profiled("first"))
    tokens = request["spec"]["protocol"]["output_tokens"]
    found = {"settings": engine.settings(), "steps": _conditions(engine, prompts[:3], tokens)}
    if baseline:
        found["harness"], plain = _beside_generate(engine, prompts, tokens)
    yield found
    found["trace"] = traced(engine, "first")
    if baseline:
        plain.llm_engine.engine_core.shutdown()
    yield found
    found["starts"] = []
    for number, name in enumerate(starts):
        with unittest.mock.patch.dict(os.environ):  # one start's variables are not the next one's
            engine, prompts = loaded(request, STARTS[name] | profiled(str(number)))
            steps = [_steps(engine, prompts[:3], tokens) for _ in range(TURNS)]
            found["starts"].append({"start": name, "steps": steps, "trace": traced(engine, str(number))})
        yield found


def of_transformers(request: dict, traces: Path) -> Iterator[dict]:
    from mtpbench.measuring.engines.transformers import _ObservedDrafts

    engine, prompts = loaded(request)
    found = {"settings": engine.settings(), "steps": _conditions(engine, prompts[:1], request["spec"]["protocol"]["output_tokens"])}
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + engine.on_gpu]
    with _named(engine.target, "forward", "forward"), _named(_ObservedDrafts, "get_candidates", "draft"):
        with torch.profiler.profile(activities=activities) as profiler:
            engine.run(prompts[:1], TRACED // 2 if engine.mode["method"] == "none" else TRACED, True)
    yield found
    traces.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(traces / "trace.json.gz"))
    found["trace"] = _read(traces / "trace.json.gz")
    yield found
    yield {**found, "lengths": _lengths(engine, prompts[0], request["spec"]["protocol"]["output_tokens"])}
    engine.close()


def _named(owner, method: str, label: str):
    """Let the trace show the calls of a method under a label."""
    plain = getattr(owner, method)

    def named(*args, **kwargs):
        with torch.profiler.record_function(label):
            return plain(*args, **kwargs)

    return unittest.mock.patch.object(owner, method, named)


def _read(path: Path) -> dict:
    try:
        return trace.anatomy(json.loads(gzip.decompress(path.read_bytes())))
    except (ValueError, KeyError) as error:  # the trace is kept, so that it can be read again
        return {"error": str(error)}


def loaded(request: dict, options: dict | None = None):
    """The engine of a request's mode, run once, with further options; and the prompts' ids."""
    options = options or {}
    spec = request["spec"]
    of_engine = spec["engine"]["options"]
    environment = {**of_engine.get("environment", {}), **options.get("environment", {})}
    request = {**request, "spec": {**spec, "engine": {**spec["engine"], "options": {**of_engine, **options, "environment": environment}}}}
    Session(request)._set_environment()
    try:
        implementation = engines.implementation(spec["engine"]["implementation"])
    except ImportError as error:
        raise UserError(f"{error}: {sys.executable} is not the interpreter of this cell's engine") from None
    engine = implementation(request, spec["mode"], None)
    prompts = [engine.encode(prompt["messages"]) for prompt in request["prompts"]]
    engine.run(prompts[:1], spec["protocol"]["output_tokens"], True)
    return engine, prompts


def _steps(engine, prompts: list[list[int]], tokens: int) -> dict:
    """Step times in ms of one request after another, and what the machine did meanwhile."""
    requests, before = [], _machine()
    for prompt in prompts:
        requests.append(_ms(engine.run([prompt], tokens, True)[0]["times"]))
    return {"mean_ms": round(statistics.fmean(itertools.chain(*requests)), 4), "machine": _since(before), "steps_ms": requests}


def _ms(times: list[float]) -> list[float]:
    """What lies between moments that are given in seconds."""
    return [round(1e3 * (later - sooner), 3) for sooner, later in itertools.pairwise(times)]


def _machine() -> dict:
    """Counters of this machine; `stolen`: processor seconds that the machine under this one gave to others."""
    used = {}
    for process in psutil.process_iter(["name", "cpu_times"]):
        if process.info["cpu_times"]:
            used[process.pid, process.info["name"]] = sum(process.info["cpu_times"][:2])
    memory = {line.split(":")[0]: int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines()}
    return {
        "t": time.perf_counter(), "stolen": psutil.cpu_times()._asdict().get("steal", 0.0), "used": used,
        "switches": psutil.Process().num_ctx_switches(), "memory_gib": memory["MemTotal"] / 2**20,
        "unwritten_mib": (memory["Dirty"] + memory["Writeback"]) / 2**10,
    }  # fmt: skip


def _since(before: dict) -> dict:
    now = _machine()
    busy = {f"{name} {pid}": round(seconds - before["used"].get((pid, name), 0.0), 2) for (pid, name), seconds in now["used"].items()}
    return {
        "seconds": round(now["t"] - before["t"], 2), "stolen_cpu_s": round(now["stolen"] - before["stolen"], 2),
        "involuntary_switches": now["switches"].involuntary - before["switches"].involuntary,
        "memory_grew_gib": round(now["memory_gib"] - before["memory_gib"], 2), "unwritten_mib": round(now["unwritten_mib"]),
        "busiest": dict(sorted(busy.items(), key=lambda item: -item[1])[:4]),
    }  # fmt: skip


def _conditions(engine, prompts: list[list[int]], tokens: int) -> dict[str, list[dict]]:
    """Step times with everything left free, and under each of some conditions, in turns."""
    me, cores = psutil.Process(), sorted(os.sched_getaffinity(0))
    # vLLM's engine is the one large child; only its main thread and this one's matter to a step's latency.
    apart = next((child for child in me.children() if child.memory_info().rss > 1 << 30), None)
    both = [process for process in (me, apart) if process]

    @contextlib.contextmanager
    def placed(mains: dict[int, list[int]], others: list[int]):
        def place(mains, others):
            for process in both:
                for thread in process.threads():
                    with contextlib.suppress(OSError):  # a thread that has ended
                        os.sched_setaffinity(thread.id, mains.get(thread.id, others))

        place(mains, others)
        yield
        place({}, cores)

    @contextlib.contextmanager
    def preferred():
        for process in both:
            process.nice(-20)
        yield
        for process in both:
            process.nice(0)

    @contextlib.contextmanager
    def watched():
        found = device.verified(engine.spec["device"])
        found.start_telemetry(time.perf_counter)
        yield
        found.telemetry()

    conditions: dict[str, Callable] = {
        "free": contextlib.nullcontext,
        "with telemetry": watched,
        "priority": preferred,
    }
    if len(cores) >= 8:
        conditions["six cores"] = lambda: placed({}, cores[:6])
        conditions["main threads alone"] = lambda: placed({process.pid: [cores[2 * at]] for at, process in enumerate(both)}, cores[4:8])
    found: dict[str, list[dict]] = {name: [] for name in conditions}
    names = [*conditions]
    for turn in range(TURNS):  # each begins with another condition, as a host that slows down would be taken for the later ones' cost
        for name in names[turn:] + names[:turn]:
            with conditions[name]():
                found[name].append(_steps(engine, prompts, tokens))
    return found


def _lengths(engine, prompt: list[int], tokens: int) -> dict[str, list[dict]]:
    """Times in ms of a prefill and the steps after it, at lengths new to this process and then at the same, by what may compute
    attention, in turns."""

    @contextlib.contextmanager
    def without_cudnn():
        allowed = torch.backends.cuda.cudnn_sdp_enabled()
        torch.backends.cuda.enable_cudnn_sdp(False)
        try:
            yield
        finally:
            torch.backends.cuda.enable_cudnn_sdp(allowed)

    def times(prompt: list[int]) -> list[float]:
        record = engine.run([prompt], tokens, True)[0]
        return _ms([record["submit"], *record["times"]])

    conditions: dict[str, Callable] = {"free": contextlib.nullcontext, "without cuDNN's attention": without_cudnn}
    found: dict[str, list[dict]] = {name: [] for name in conditions}
    length = len(prompt) + max(tokens, TRACED)  # as far as came before
    for name in [*conditions] * TURNS:
        length += tokens + engine.mode.get("num_speculative_tokens", 0)
        longer = (prompt * (length // len(prompt) + 1))[:length]
        with conditions[name]():
            found[name].append({"prompt_tokens": length, "new_ms": times(longer), "again_ms": times(longer)})
    return found


def _beside_generate(engine, prompts: list[list[int]], tokens: int) -> tuple:
    """A loop of LLM.generate beside the harness, turn by turn in this process, and the harness's time outside `step`; and the LLM.

    The harness drives the LLM's own engine: two starts of one engine differ by more than the two ways of asking. What
    the harness measures on the engine that it started itself stands beside it.
    """
    from vllm import LLM, SamplingParams

    # LLM's own default for the batch is another one than LLMEngine's, and would be compiled for.
    batch = engine.engine.vllm_config.scheduler_config.max_num_batched_tokens
    options = {"max_num_batched_tokens": batch} | engine.options
    plain = LLM(engine.paths["target"], dtype=engine.spec["model"]["dtype"], enable_prefix_caching=False, disable_log_stats=False, **options)
    parameters = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    own, shared = engine.engine, plain.llm_engine
    inside, step, statistics_of = 0.0, shared.step, shared.logger_manager

    def timed_step():
        nonlocal inside
        began = time.perf_counter()
        outputs = step()
        inside += time.perf_counter() - began
        return outputs

    def generate(prompt):
        plain.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False)

    def harness(prompt):
        engine.engine, shared.step, shared.logger_manager = shared, timed_step, engine.stats
        engine.run([prompt], tokens, True)
        engine.engine, shared.step, shared.logger_manager = own, step, statistics_of

    ways = {"generate": generate, "harness": harness, "another_start": lambda prompt: engine.run([prompt], tokens, True)}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for way in ways.values():
        way(prompts[0])
    inside = 0.0
    for turn, prompt in enumerate([*prompts, *prompts]):
        for way in sorted(ways, reverse=bool(turn % 2)):
            began = time.perf_counter()
            ways[way](prompt)
            seconds[way].append(round(time.perf_counter() - began, 5))
    total = sum(seconds["harness"])
    return {
        "tokens_per_s": {way: tokens / statistics.fmean(values) for way, values in seconds.items()},
        "harness_over_generate": total / sum(seconds["generate"]),
        "outside_step_share": 1 - inside / total,
        "seconds": seconds,
    }, plain


def _short(found: dict) -> dict:
    """What one wants to see at once: means by condition and turn, of the starts also what the GPU did."""
    starts = [(each["start"], _means(each["steps"]), _of_gpu(each["trace"])) for each in found.get("starts", [])]
    means = {name: _means(runs) for name, runs in found["steps"].items()}
    medians = lambda turns: [[statistics.median(turn[when]) for when in ("new_ms", "again_ms")] for turn in turns]  # noqa: E731
    lengths = {name: medians(turns) for name, turns in found.get("lengths", {}).items()}
    harness = {**found.get("harness", {}), "seconds": None}
    return {"steps": means, "trace": _of_gpu(found["trace"]), "starts": starts, "harness": harness, "lengths": lengths}


def _means(turns: list[dict]) -> list[float]:
    return [turn["mean_ms"] for turn in turns]


def _of_gpu(found: dict) -> dict:
    return {key: value for key, value in found.items() if key != "kernels"}


if __name__ == "__main__":
    main()
