"""Where a step's time goes: a made-up trace whose every part is known."""

import pytest

from mtpbench.analysis import trace

STEPS = 12


def made(steps: int) -> dict:
    """Steps of 10 ms: 2 ms of host in `forward`, which launches 4 ms of kernels, then 3 ms in `draft`, two kernels of 1 ms each."""
    events = []

    def add(category, name, start, milliseconds, correlation=None, **args):
        args |= {} if correlation is None else {"correlation": correlation}
        events.append({"ph": "X", "cat": category, "name": name, "ts": 1e3 * start, "dur": 1e3 * milliseconds, "args": args})

    for step in range(steps):
        at = 10.0 * step
        add("user_annotation", "gpu_model_runner: forward", at, 2)
        add("cuda_runtime", "cudaGraphLaunch", at + 1, 0.1, 4 * step)
        add("kernel", "target", at + 1.5, 4, 4 * step)
        add("user_annotation", "gpu_model_runner: draft", at + 4, 3)
        for number in (1, 2):
            add("cuda_runtime", "cudaLaunchKernel", at + 4 + number, 0.1, 4 * step + number)
            add("kernel", "drafter", at + 5 + number, 1, 4 * step + number, block=[128 * number])
        add("cuda_runtime", "cudaMemcpyAsync", at + 9, 0.1, 4 * step + 3)
        add("gpu_memcpy", "copy", at + 6.5, 1, 4 * step + 3)  # on another stream, beside the drafter's
    return {"traceEvents": events}


def test_the_parts_of_a_step():
    found = trace.anatomy(made(STEPS))
    assert found["steps"] == STEPS - 2 * trace.EDGES
    assert found["wall_ms"] == pytest.approx(10)
    assert found["gpu_busy_ms"] == pytest.approx(4 + 2), "what runs side by side counts once"
    assert found["phases"]["forward"] == {"gpu_ms": 4.0, "kernels": 1, "host_ms": 2.0}
    assert found["phases"]["draft"] == {"gpu_ms": 2.0, "kernels": 2, "host_ms": 3.0}
    kernels = {kernel["name"]: kernel for kernel in found["kernels"]}
    assert kernels["target"]["a_step"] == 1 and kernels["target"]["us"] == 4000 and len(kernels) == 3
    assert kernels["drafter"]["as"] == [{"block": [128 * number], "a_step": 1, "us": 1000} for number in (1, 2)]
    assert found["phases"]["other"]["gpu_ms"] == 1.0 and found["phases"]["sample"]["kernels"] == 0


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="9 steps"):
        trace.anatomy(made(9))
