"""Which device a session is on, and what NVML tells of it; NVML itself is a stand-in here."""

import re
import sys
import time
import types

import pytest

from mtpbench.measuring import Refused, device


def test_the_cpu_is_named_by_model_and_cores():
    assert re.fullmatch(r"\S.* \(\d+ cores\)", device.cpu_name())
    assert device.verified({"kind": "cpu", "name": device.cpu_name()}).facts()["memory_bytes"] > 1 << 30


def test_cores_are_physical_and_at_most_those_that_the_process_may_use(monkeypatch):
    threads = [(0, 0), (0, 1), (0, 0), (0, 1)]  # two sockets' worth of hyperthreads would differ in physical id
    text = "\n".join(f"model name\t: Some CPU   @ 2 GHz\nphysical id\t: {p}\ncore id\t: {c}\n" for p, c in threads)
    monkeypatch.setattr(device, "_cpuinfo", lambda: [*text.splitlines(), ""])
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    device.cpu_name.cache_clear()
    assert device.cpu_name() == "Some CPU @ 2 GHz (2 cores)"
    monkeypatch.setattr(device.os, "sched_getaffinity", lambda _: {0})
    assert device.physical_cores() == 1 and device.cpu_name() == "Some CPU @ 2 GHz (2 cores)", "bound or not, it is the same CPU"
    device.cpu_name.cache_clear()


def test_another_cpu_is_refused():
    with pytest.raises(Refused, match=r'asked for "AMD Other \(96 cores\)" and found ".* cores\)"') as refused:
        device.verified({"kind": "cpu", "name": "AMD Other (96 cores)"})
    assert refused.value.kind == "device"


class NVMLError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """A pynvml with one H200 that reports no energy."""

    def none(*_):
        raise NVMLError("Not Supported")

    module = types.ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, asked=[],
        nvmlInit=lambda: None, nvmlDeviceGetName=lambda h: "NVIDIA H200",
        nvmlDeviceGetHandleByIndex=lambda i: module.asked.append(i) or i, nvmlDeviceGetHandleByUUID=lambda u: module.asked.append(u) or u,
        nvmlDeviceGetMemoryInfo=lambda h: types.SimpleNamespace(total=150 << 30), nvmlDeviceGetUUID=lambda h: "GPU-1",
        nvmlSystemGetDriverVersion=lambda: "580.1", nvmlDeviceGetEnforcedPowerLimit=lambda h: 700_000,
        nvmlDeviceGetMaxClockInfo=lambda h, c: 1980, nvmlDeviceGetClockInfo=lambda h, c: 1755, nvmlDeviceGetTemperature=lambda h, s: 31,
        nvmlDeviceGetPowerUsage=lambda h: 123_456, nvmlDeviceGetCurrentClocksThrottleReasons=lambda h: 4,
        nvmlDeviceGetTotalEnergyConsumption=none,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return module


def test_an_h100_that_turns_out_to_be_an_h200_is_refused(nvml):
    with pytest.raises(Refused, match='asked for "NVIDIA H100 80GB HBM3" and found "NVIDIA H200"'):
        device.verified({"kind": "cuda", "name": "NVIDIA H100 80GB HBM3"})


@pytest.mark.parametrize(("visible", "asked"), [(None, 0), ("3,1", 3), ("GPU-abc", "GPU-abc")])
def test_the_first_visible_gpu_is_the_one_that_is_asked(nvml, monkeypatch, visible, asked):
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    device.verified({"kind": "cuda", "name": "NVIDIA H200"})
    assert nvml.asked == [asked]


def test_facts_and_telemetry(nvml):
    gpu = device.verified({"kind": "cuda", "name": "NVIDIA H200"})
    assert gpu.facts()["power_limit_w"] == 700 and gpu.facts()["driver"] == "580.1"
    start = time.perf_counter()
    gpu.start_telemetry(lambda: time.perf_counter() - start)
    time.sleep(device.SAMPLE_EVERY_S * 1.5)
    found = gpu.telemetry()
    assert found["fields"] == device.TELEMETRY_FIELDS and len(found["rows"]) >= 2
    assert found["rows"][0][1:] == [1755, 31, 123.456, 4, None]  # what a GPU does not report is None, never zero


def test_no_nvml_is_a_refusal(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Refused, match="nvidia-ml-py"):
        device.verified({"kind": "cuda", "name": "NVIDIA H200"})


def test_no_gpu_is_a_refusal(nvml):
    def no_driver():
        raise NVMLError("NVML Shared Library Not Found")

    nvml.nvmlInit = no_driver
    with pytest.raises(Refused, match="NVML finds none"):
        device.verified({"kind": "cuda", "name": "NVIDIA H200"})
