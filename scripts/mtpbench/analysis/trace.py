"""Where a decode step's time goes, read from a torch trace (Chrome format) whose host ranges are named.

A step runs from the start of one "forward" range to the next. A kernel belongs to the range in which the host launched
it, wherever it ran in time.
"""

import bisect
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping

ON_GPU = {"kernel", "gpu_memcpy", "gpu_memset"}
PHASES = ("preprocess", "forward", "sample", "draft", "bookkeep")
LARGEST = 20
FORM = ("grid", "block", "registers per thread", "shared memory")  # what an autotuner chooses between
EDGES = 4  # steps left out at either end: prefill, first draft, the profiler's own start and stop


def anatomy(trace: Mapping) -> dict:
    """Medians over the steps of a trace, in ms and counts.

    {"steps", "wall_ms": with the profiler's own cost in it, "gpu_busy_ms": union of all kernels,
     "phases": {phase or "other": {"gpu_ms", "kernels", "host_ms"}}, "kernels": the LARGEST by their time in all steps, as
     [{"name", "a_step": how many, "us": mean, "as": the same of each form that the kernel was compiled into}]}. A phase is
    the part of a range's name after its colon; ranges of other names count to the range around them. Raises ValueError with too few steps.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], _phase(event["name"]))
        for event in events
        if event.get("cat") == "user_annotation" and _phase(event["name"]) in PHASES
    )
    starts = [start for start, _, phase in ranges if phase == "forward"]
    if len(starts) < 2 * EDGES + 2:
        raise ValueError(f"{len(starts)} steps in the trace, {2 * EDGES + 2} are needed")
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    inner = range(EDGES, len(starts) - EDGES)
    step_at = lambda time: bisect.bisect_right(starts, time) - 1  # noqa: E731
    totals = defaultdict(float)  # of (step, phase, what)
    busy, by_name = defaultdict(list), defaultdict(lambda: defaultdict(list))  # durations by kernel and form
    for start, end, phase in ranges:
        totals[step_at(start), phase, "host_ms"] += (end - start) / 1e3
    for event in events:
        if event.get("cat") in ON_GPU and event["args"].get("correlation") in launched:
            at = launched[event["args"]["correlation"]]
            step, phase = step_at(at), _around(ranges, at)
            totals[step, phase, "gpu_ms"] += event["dur"] / 1e3
            totals[step, phase, "kernels"] += 1
            busy[step].append((event["ts"], event["ts"] + event["dur"]))
            if step in inner:
                form = {key: event["args"][key] for key in FORM if key in event["args"]}
                by_name[event["name"]][json.dumps(form)].append(event["dur"])
    all_of = {name: list(itertools.chain(*forms.values())) for name, forms in by_name.items()}
    largest = sorted(all_of, key=lambda name: -sum(all_of[name]))[:LARGEST]
    of = lambda durations: {"a_step": round(len(durations) / len(inner), 2), "us": round(statistics.fmean(durations), 3)}  # noqa: E731
    return {
        "steps": len(inner),
        "wall_ms": _median((starts[i + 1] - starts[i]) / 1e3 for i in inner),
        "gpu_busy_ms": _median(_union(busy[i]) / 1e3 for i in inner),
        "phases": {
            phase: {what: _median(totals[i, phase, what] for i in inner) for what in ("gpu_ms", "kernels", "host_ms")}
            for phase in (*PHASES, "other")
        },
        "kernels": [
            {"name": name[:80], **of(all_of[name]), "as": [{**json.loads(form), **of(by_name[name][form])} for form in sorted(by_name[name])]}
            for name in largest
        ],
    }


def _phase(name: str) -> str:
    return name.rpartition(":")[2].strip()


def _around(ranges: list[tuple], at: float) -> str:
    """The phase of the last range that began before `at` and still ran."""
    begun = ranges[: bisect.bisect_right(ranges, (at, float("inf"), ""))]
    return next((phase for start, end, phase in reversed(begun) if end >= at), "other")


def _union(intervals: list[tuple[float, float]]) -> float:
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _median(values) -> float:
    return round(statistics.median(values), 4)
