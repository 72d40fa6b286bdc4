"""Where a step's time goes on a GPU: `python anatomy.py PLANS.json OUT CELL...`, in the engine's interpreter.

For each cell's engine, in OUT/{cell}/: a torch trace of one request (`mtpbench.analysis.trace` reads it), and in
steps.json the step times without the profiler, with the processes left free and bound to cores, and what the machine under
this one took of its processors meanwhile. For vLLM's baseline also the checks of the harness itself: a plain
`LLM.generate` loop beside it, and the share of time that it spends outside of the engine's step.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path

import psutil
import torch

from mtpbench.backends import local
from mtpbench.measuring import engines
from mtpbench.measuring.session import Session

SHORT = 48  # output tokens under the profiler


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("plans", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("cells", nargs="+")
    arguments = arguments.parse_args()
    plans = {plan["cell"]: plan for plan in json.loads(arguments.plans.read_text())}
    for cell in arguments.cells:
        folder = (arguments.out / cell).resolve()
        folder.mkdir(parents=True)
        plan = plans[cell]
        request = local.with_paths({**plan, "session": 0}, plan["how"], Path(sys.executable), print)
        examine = of_vllm if plan["spec"]["engine"]["implementation"] == "vllm" else of_transformers
        (folder / "steps.json").write_text(json.dumps(examine(request, folder), indent=1))


def of_vllm(request: dict, folder: Path) -> dict:
    os.environ["VLLM_CUSTOM_SCOPES_FOR_PROFILING"] = "1"
    from vllm.config import ProfilerConfig

    request["spec"]["engine"]["options"]["profiler_config"] = ProfilerConfig(
        profiler="torch", torch_profiler_dir=str(folder), torch_profiler_with_stack=False
    )
    engine, prompts = _loaded(request)
    tokens, mode = request["spec"]["protocol"]["output_tokens"], request["spec"]["mode"]
    engine.run(prompts[:1], tokens, True)
    found = {"cell": request["cell"], "settings": engine.settings(), "steps": _bound(engine, prompts[:3], tokens)}
    if mode["method"] == "none":
        found["harness"] = _beside_generate(engine, prompts, tokens)
    engine.engine.start_profile()
    engine.run(prompts[:1], SHORT, True)
    engine.engine.stop_profile()
    engine.close()
    return found


def of_transformers(request: dict, folder: Path) -> dict:
    from mtpbench.measuring.engines.transformers import _ObservedDrafts

    engine, prompts = _loaded(request)
    engine.run(prompts[:1], 8, True)
    found = {"cell": request["cell"], "settings": engine.settings(), "steps": _bound(engine, prompts[:1], SHORT)}
    _name(engine.target, "forward", "forward")
    _name(_ObservedDrafts, "get_candidates", "draft")
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + engine.on_gpu]
    with torch.profiler.profile(activities=activities) as profiler:
        engine.run(prompts[:1], 24, True)
    profiler.export_chrome_trace(str(folder / "trace.json.gz"))
    return found


def _name(owner, method: str, label: str) -> None:
    """Let the trace show the calls of a method under a label."""
    plain = getattr(owner, method)

    def named(*args, **kwargs):
        with torch.profiler.record_function(label):
            return plain(*args, **kwargs)

    setattr(owner, method, named)


def _loaded(request: dict):
    session = Session(request)
    session._set_environment()
    engine = engines.implementation(request["spec"]["engine"]["implementation"])(request, request["spec"]["mode"], None)
    return engine, [engine.encode(prompt["messages"]) for prompt in request["prompts"]]


def _steps(engine, prompts: list[list[int]], tokens: int) -> dict:
    """Step times in ms of one request after another: of each request the median, of all steps the quantiles."""
    requests, before = [], _stolen()
    for prompt in prompts:
        times = engine.run([prompt], tokens, True)[0]["times"]
        requests.append([1e3 * (later - sooner) for sooner, later in itertools.pairwise(times)])
    every = sorted(itertools.chain.from_iterable(requests))
    return {
        "request_medians_ms": [round(statistics.median(steps), 4) for steps in requests],
        "request_means_ms": [round(statistics.fmean(steps), 4) for steps in requests],
        "stolen_cpu_s": round(_stolen() - before, 2),
        "quantiles_ms": {share: round(every[int(share * (len(every) - 1))], 4) for share in (0.0, 0.1, 0.5, 0.9, 0.99, 1.0)},
    }


def _stolen() -> float:
    """Processor seconds that the machine under this one gave to others since the start; 0 where it does not tell."""
    return psutil.cpu_times()._asdict().get("steal", 0.0)


def _beside_generate(engine, prompts: list[list[int]], tokens: int) -> dict:
    """A loop of LLM.generate beside the harness, turn by turn in this process, and the harness's time outside `step`."""
    from vllm import LLM, SamplingParams

    spec = engine.spec
    plain = LLM(engine.paths["target"], dtype=spec["model"]["dtype"], enable_prefix_caching=False, **{
        key: value for key, value in engine.options.items() if key != "profiler_config"
    })  # fmt: skip
    parameters = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    inside, step = 0.0, engine.engine.step

    def timed_step():
        nonlocal inside
        began = time.perf_counter()
        outputs = step()
        inside += time.perf_counter() - began
        return outputs

    engine.engine.step = timed_step
    seconds: dict[str, list[float]] = {"generate": [], "harness": []}
    ways = {
        "generate": lambda prompt: plain.generate([{"prompt_token_ids": prompt}], parameters, use_tqdm=False),
        "harness": lambda prompt: engine.run([prompt], tokens, True),
    }
    ways["generate"](prompts[0])
    inside = 0.0
    for turn, prompt in enumerate([*prompts, *prompts]):
        for way in sorted(ways, reverse=bool(turn % 2)):
            began = time.perf_counter()
            ways[way](prompt)
            seconds[way].append(time.perf_counter() - began)
    engine.engine.step = step
    plain.llm_engine.engine_core.shutdown()
    total = sum(seconds["harness"])
    return {
        "tokens_per_s": {way: round(tokens / statistics.fmean(values), 2) for way, values in seconds.items()},
        "harness_over_generate": round(total / sum(seconds["generate"]), 5),
        "outside_step_share": round(1 - inside / total, 5),
        "seconds": seconds,
    }


def _bound(engine, prompts: list[list[int]], tokens: int) -> dict:
    """Step times with this process, and the engine's where that is another, bound to cores in three ways, in turns."""
    me, cores = psutil.Process(), sorted(os.sched_getaffinity(0))
    apart = max(me.children(), key=lambda child: child.memory_info().rss, default=None)
    main = {me.pid: cores[:1]} | ({apart.pid: cores[2:3]} if apart else {})

    def bind(places: dict[int, list[int]], others: list[int]) -> None:
        for process in filter(None, (me, apart)):
            for thread in process.threads():
                os.sched_setaffinity(thread.id, places.get(thread.id, others))

    ways = {
        "free": lambda: bind({}, cores),
        "six cores": lambda: bind({}, cores[:6]),
        "main threads alone": lambda: bind(main, cores[4:8]),
    }
    found: dict[str, list[dict]] = {name: [] for name in ways}
    for _ in range(3):
        for name, apply in ways.items():
            apply()
            found[name].append(_steps(engine, prompts, tokens))
    ways["free"]()
    return found


if __name__ == "__main__":
    main()
