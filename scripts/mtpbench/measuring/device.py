"""The device of a session: which one it is, how it fares while we measure, what it can do at most.

Standard library only at import: planning asks `cpu_name` without any engine installed.
"""

import functools
import os
import platform
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

from mtpbench.measuring import Refused

TELEMETRY_FIELDS = ["t", "sm_mhz", "temperature_c", "power_w", "throttle", "energy_j"]
SAMPLE_EVERY_S = 0.25


def physical_cores() -> int:
    """Physical cores that this process may use; the thread count of every measurement on a CPU."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = set()
    core = {}
    for line in _cpuinfo():
        key, _, value = (part.strip() for part in line.partition(":"))
        core[key] = value
        if not line.strip() and "core id" in core:
            cores.add((core.get("physical id"), core["core id"]))
            core = {}
    return min(len(cores) or usable, usable)


@functools.cache
def cpu_name() -> str:
    """Model and core count of this machine's CPU, e.g. "AMD EPYC (2 cores)"; the same after a session bound itself to some of them."""
    models = [line.partition(":")[2] for line in _cpuinfo() if line.startswith("model name")]
    if not models and sys.platform == "darwin":
        models = [subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True).stdout]
    model = " ".join((models or [platform.processor() or platform.machine()])[0].split())
    return f"{model} ({physical_cores()} cores)"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines() + [""]
    except OSError:
        return []


class Cpu:
    """This machine's processor."""

    kind = "cpu"

    def __init__(self) -> None:
        self.name = cpu_name()

    def facts(self) -> dict:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return {
            "kind": "cpu", "name": self.name, "memory_bytes": memory, "uuid": None, "driver": None,
            "cores": physical_cores(), "logical_cpus": os.cpu_count(), "architecture": platform.machine(),
        }  # fmt: skip

    def start_telemetry(self, clock) -> None:
        pass

    def telemetry(self) -> dict:
        return {"reason": "no NVML: the device is a CPU"}


class Gpu:
    """The first visible NVIDIA GPU, seen through NVML only, so that no CUDA context is made.

    Raises Refused("device") where there is none.
    """

    kind = "cuda"

    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
            by_index = first.isdecimal()
            self.handle = (pynvml.nvmlDeviceGetHandleByIndex if by_index else pynvml.nvmlDeviceGetHandleByUUID)(
                int(first) if by_index else first
            )
        except ImportError as error:
            raise Refused("device", "a GPU is asked for, and nvidia-ml-py, which names it, is not installed") from error
        except pynvml.NVMLError as error:
            raise Refused("device", f"a GPU is asked for, and NVML finds none: {error}") from error
        self.nvml = pynvml
        self.name = pynvml.nvmlDeviceGetName(self.handle)
        self.rows: list[list] = []

    def facts(self) -> dict:
        nvml, handle = self.nvml, self.handle
        return {
            "kind": "cuda", "name": self.name, "memory_bytes": nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "uuid": nvml.nvmlDeviceGetUUID(handle), "driver": nvml.nvmlSystemGetDriverVersion(),
            "cores": physical_cores(), "host_cpu": cpu_name(),
            "power_limit_w": self._read(nvml.nvmlDeviceGetEnforcedPowerLimit, 1e-3),
            "max_sm_mhz": self._read(lambda h: nvml.nvmlDeviceGetMaxClockInfo(h, nvml.NVML_CLOCK_SM)),
            "memory_mhz": self._read(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_MEM)),
        }  # fmt: skip

    def start_telemetry(self, clock) -> None:
        """Sample every 0.25 s, in a thread that waits in NVML without the interpreter's lock, until `telemetry`."""
        self.clock = clock
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._sample, daemon=True)
        self.thread.start()

    def telemetry(self) -> dict:
        """End the sampling and give its rows; fields that this GPU does not report are None."""
        self.done.set()
        self.thread.join()
        return {"fields": TELEMETRY_FIELDS, "rows": self.rows}

    def _sample(self) -> None:
        nvml = self.nvml
        while True:
            last = self.done.is_set()  # one more sample after the end, so that every request lies between two
            self.rows.append([
                self.clock(),
                self._read(lambda h: nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
                self._read(lambda h: nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
                self._read(nvml.nvmlDeviceGetPowerUsage, 1e-3),
                self._read(nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
                self._read(nvml.nvmlDeviceGetTotalEnergyConsumption, 1e-3),
            ])  # fmt: skip
            if last:
                return
            self.done.wait(SAMPLE_EVERY_S)

    def _read(self, query, scale: float | None = None):
        try:
            value = query(self.handle)
        except self.nvml.NVMLError:
            return None
        return round(value * scale, 3) if scale else value


def verified(asked: dict) -> Cpu | Gpu:
    """The device of this machine, if it is the one that the spec asks for: {"kind", "name"}; Refused("device") if not."""
    device = Gpu() if asked["kind"] == "cuda" else Cpu()
    if device.name != asked["name"]:
        raise Refused("device", f'asked for "{asked["name"]}" and found "{device.name}"')
    return device


def peak_resident_bytes() -> int:
    """Largest resident memory of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def peaks(kind: str, dtype: str) -> dict:
    """Copy rate (bytes read plus written, GB/s) and matrix product rate (TFLOP/s) of the device, best of a few runs."""
    import torch

    on_gpu = kind == "cuda"
    mebibytes, width, runs = (2048, 8192, 10) if on_gpu else (256, 1024, 5)
    source = torch.ones(mebibytes << 18, dtype=torch.float32, device=kind)
    target = torch.empty_like(source)
    factor = torch.randn(width, width, dtype=getattr(torch, dtype), device=kind)  # constants multiply faster than real data

    def best(work) -> float:
        seconds = []
        for _ in range(runs):
            start = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        return min(seconds)

    copy_s = best(lambda: target.copy_(source))
    product_s = best(lambda: factor @ factor)
    return {
        "copy_gb_s": round(2 * (mebibytes << 20) / copy_s / 1e9, 2),
        "matmul_tflops": round(2 * width**3 / product_s / 1e12, 4),
        "dtype": dtype,
    }
