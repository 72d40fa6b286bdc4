"""Use of the hardware: peaks, MBU, MFU, energy, conditions."""

import numpy as np
import pytest
from making import record, result

from mtpbench.analysis import hardware
from mtpbench.analysis.aggregate import recompute
from mtpbench.analysis.records import batch
from mtpbench.simulate import DEVICES

MODEL = {"streamed_bytes": 1e9, "kv_bytes_per_token": 1e6, "drafter_streamed_bytes": 5e7, "flops_per_token": 1e9, "drafter_flops_per_token": 1e8}
PEAK = {"memory_gb_s": 1000.0, "tflops": 10.0}


@pytest.mark.parametrize(
    ("product", "gpu"),
    [
        ("NVIDIA A10", "A10"), ("NVIDIA A10G", None), ("NVIDIA A100-SXM4-80GB", "A100-80GB SXM"), ("NVIDIA A100 80GB PCIe", "A100-80GB PCIe"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB SXM"), ("NVIDIA L4", "L4"), ("NVIDIA L40S", "L40S"), ("NVIDIA L40", None), ("Tesla T4", "T4"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("NVIDIA H200", "H200 SXM"), ("NVIDIA B200", "B200"), ("NVIDIA GeForce RTX 4090", None), ("AMD EPYC", None),
    ],
)  # fmt: skip
def test_datasheet_by_product_name(product, gpu):
    row = hardware.datasheet(product)
    assert (row and row["gpu"]) == gpu


def test_every_simulated_gpu_has_a_datasheet():
    assert all(hardware.datasheet(name) for kind, name, _ in DEVICES.values() if kind == "cuda")


def test_peaks_say_which_they_are():
    sessions = result("h100_vllm_code_mtp", sessions=2)["sessions"]
    assert hardware.peaks(sessions, "bfloat16") == {
        "memory_gb_s": 3350, "tflops": 989, "source": "datasheet H100 SXM", "measured_memory_gb_s": 4000, "measured_tflops": 600,
    }  # fmt: skip
    single = hardware.peaks(sessions, "float32")
    assert (single["tflops"], single["source"]) == (600, "datasheet H100 SXM, float32 arithmetic measured in the session")
    cpu = hardware.peaks(result()["sessions"], "float32")
    assert (cpu["memory_gb_s"], cpu["tflops"], cpu["source"]) == (20, 0.1, "measured in the session")


def rows_of(*records):
    return batch([{"requests": list(records)}], "test", 1)


def test_mbu_and_mfu_without_speculation():
    request = record([1] * 101, [0.01 * index for index in range(101)], prompt_tokens=50)
    found = hardware.usage(rows_of(request), MODEL, PEAK, 0)
    assert found["mbu"] == pytest.approx((1e9 + 1e6 * (50 + 50.5)) / 0.01 / 1e12)
    assert found["mfu_emitted"] == found["mfu_executed"] == pytest.approx(1e9 / 0.01 / 1e13)


def test_rejected_drafts_are_the_gap_between_emitted_and_executed():
    request = record([1] + [2] * 50, [0.02 * index for index in range(51)])
    found = hardware.usage(rows_of(request), MODEL, PEAK, 4 * 50)
    assert found["mfu_emitted"] == pytest.approx(2 * 1e9 / 0.02 / 1e13)
    assert found["mfu_executed"] == pytest.approx((5 * 1e9 + 4 * 1e8) / 0.02 / 1e13)
    assert found["mbu"] == pytest.approx((1e9 + 1e6 * (10 + 101 / 2) + 4 * 5e7) / 0.02 / 1e12)


def test_requests_that_share_steps_stream_the_weights_once():
    one = record([1] * 101, [0.01 * index for index in range(101)])
    alone, together = hardware.usage(rows_of(one), MODEL, PEAK, 0), hardware.usage(rows_of(one, {**one, "prompt": "q"}), MODEL, PEAK, 0)
    assert together["mfu_emitted"] == pytest.approx(2 * alone["mfu_emitted"])
    assert together["mbu"] - alone["mbu"] == pytest.approx(1e6 * 60.5 / 0.01 / 1e12)


@pytest.mark.parametrize(("request_", "peak", "drafted"), [(record([1]), PEAK, 0), (record([1, 1]), {"memory_gb_s": None, "tflops": None}, 0), (record([1, 1]), PEAK, None)])
def test_no_figure_without_a_step_a_peak_or_the_drafts(request_, peak, drafted):
    assert set(hardware.usage(rows_of(request_), MODEL, peak, drafted).values()) == {None}


def energies(turn: float, turns: int, watts: dict, apart=0.25, updated=0.1, noise=0.0, between=50.0) -> dict:
    """What `energy` says of two arms that take turns of so many seconds, with a tenth of that between them, from a counter that is
    updated and read so often. noise: of a turn's power."""
    rng, requests, fine = np.random.default_rng(0), [], np.arange(0, turns * turn * 1.1 + 1, 1e-3)
    power, ran = np.full(len(fine), between), dict.fromkeys(watts, 0.0)
    for number in range(turns):
        arm, start = ("control", "test")[number % 2], number * turn * 1.1
        end = start + turn * rng.uniform(0.9, 1.05)  # requests differ a little in length
        requests.append(record([1] * 10, np.linspace(start + turn / 2, end, 10).tolist(), submit=start, arm=arm, repeat=number))
        power[(fine >= start) & (fine < end)] = watts[arm] * (1 + noise * rng.standard_normal())
        ran[arm] += watts[arm] * (end - start)
    times = np.arange(0, fine[-1], apart)
    joules = np.interp(np.floor(times / updated) * updated if updated else times, fine, np.cumsum(power) * 1e-3)
    telemetry = {"fields": ["t", "energy_j"], "rows": np.column_stack([times, joules]).tolist()}
    found = hardware.energy([{"requests": requests, "telemetry": telemetry}])
    return {arm: (found[arm, 1][0] and found[arm, 1][0] / ran[arm], found[arm, 1][1]) for arm in watts}


@pytest.mark.parametrize(("turn", "noise"), [(1.0, 0.1), (0.5, 0.0), (0.19, 0.1), (0.19, 0.0)])
def test_energy_of_arms_whose_turns_are_shorter_than_the_time_between_samples(turn, noise):
    """Seen before: interpolation between the samples took 23 % too much for the arm that needs less."""
    for share, reason in energies(turn, round(600 / turn), {"control": 200.0, "test": 600.0}, noise=noise).values():
        assert reason is None and share == pytest.approx(1, abs=0.1)


def test_energy_of_turns_that_the_counter_itself_blurs_is_not_told():
    for share, reason in energies(0.104, 400, {"control": 200.0, "test": 600.0}).values():
        assert share is None and reason == "turns of 0.1 s are too short for the energy counter"


def test_short_requests_of_one_arm_after_another_are_one_turn():
    """In blocks: what blurs the border between two arms blurs none within one."""
    requests = [
        record([1] * 10, np.linspace(start + 0.05, start + 0.097, 10).tolist(), submit=start, arm=arm, repeat=number)
        for arm, begin in (("control", 0.0), ("test", 41.0)) for number, start in enumerate(np.arange(begin, begin + 40, 0.1).tolist())
    ]  # fmt: skip
    times = np.arange(0, 82, 0.25)
    joules = np.where(times < 40.5, 200 * times, 200 * 40.5 + 400 * (times - 40.5))
    found = hardware.energy([{"requests": requests, "telemetry": {"fields": ["t", "energy_j"], "rows": np.column_stack([times, joules]).tolist()}}])
    for arm, watts in (("control", 200), ("test", 400)):
        assert found[arm, 1][0] is not None or "leave" in found[arm, 1][1], found[arm, 1]


def test_energy_of_an_arm_that_ran_for_less_than_a_few_samples_is_not_told():
    """Seen on an H200: two equal arms of 0.3 s said 0.026 and 0.012 J a token."""
    assert all(share is None and "samples of the energy counter" in reason for share, reason in energies(0.3, 2, {"control": 200, "test": 200}).values())


def test_energy_that_the_samples_do_not_settle_is_not_told():
    assert all(reason is None for _, reason in energies(0.3, 200, {"control": 200, "test": 220}).values())
    for share, reason in energies(0.3, 24, {"control": 200, "test": 220}, noise=0.6).values():
        assert share is None and reason.startswith("the samples of the energy counter leave") and reason.endswith(" W")


def test_the_pauses_between_turns_have_a_power_of_their_own():
    shares = [share for share, _ in energies(0.5, 200, {"control": 300.0, "test": 300.0}, between=1000.0).values()]
    assert shares == pytest.approx([1, 1], abs=0.1)


def test_no_request_no_energy():
    assert hardware.energy([{"requests": [], "telemetry": {"fields": ["t", "energy_j"], "rows": [[0, 0], [1, 9], [2, 18]]}}]) == {}


def test_no_energy_counter():
    made = result("t4_transformers_code_mtp")
    for row in made["sessions"][0]["telemetry"]["rows"]:
        row[5] = None
    arm = recompute(made)["loads"][0]["arms"]["test"]
    assert arm["energy_j_per_token"] is None
    assert arm["reasons_null"]["energy_j_per_token"] == "this GPU reports no total energy"


def test_conditions_while_requests_ran():
    made = result("h100_vllm_code_mtp")
    for row in made["sessions"][0]["telemetry"]["rows"]:
        if row[0] < 4.9:
            row[2] = 20  # before the first request
    found = recompute(made)["hardware"]["conditions"]
    assert found["temperature_c"] == {"mean": 55, "min": 55, "max": 55}
    assert found["power_w"]["max"] == 400
    cpu = recompute(result())["hardware"]["conditions"]
    assert cpu == {"reason": "no NVML: the device is a CPU", "sm_mhz": None, "temperature_c": None, "power_w": None}


def test_gemma_4_e2b_as_measured_on_an_h200():
    """shared/h200: 314 ids a second without speculation, of a model that streams 4.559 GB a step: 1.43 TB/s of 4.8."""
    request = record([1] * 129, [index / 314 for index in range(129)], prompt_tokens=24)
    model = {"streamed_bytes": 4_558_946_304, "kv_bytes_per_token": 18_432, "drafter_streamed_bytes": None, "flops_per_token": 2 * 2_279_473_152, "drafter_flops_per_token": None}
    assert hardware.usage(rows_of(request), model, {"memory_gb_s": 4800.0, "tflops": 989.0}, 0)["mbu"] == pytest.approx(0.298, abs=0.002)
