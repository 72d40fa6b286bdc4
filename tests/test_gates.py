"""Each gate, tripped by what it is for and by nothing else."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import gate, requests, result

from mtpbench.analysis import gates
from mtpbench.analysis.aggregate import recompute
from mtpbench.simulate import Truth


def fails(made, name) -> str:
    """What the gate `name` saw, having failed alone and made the cell invalid."""
    summary = recompute(made)
    assert not summary["valid"]
    assert [each["name"] for each in summary["gates"] if each["passed"] is False] == [name]
    seen = next(each["seen"] for each in summary["gates"] if each["name"] == name)
    assert summary["reasons"] == [f"{name}: {seen}"]
    return seen


@pytest.mark.parametrize("cell", ["cpu_transformers_code_mtp", "cpu_vllm_code_baseline", "h200_vllm_generic_mtp", "l4_transformers_code_ngram"])
def test_a_good_cell_passes_every_gate_that_applies(cell):
    found = gates.judge(result(cell))
    assert [each["name"] for each in found] == list(gates.GATES)
    assert all(each["passed"] is not False and each["seen"] for each in found)
    not_applied = {each["name"] for each in found if each["passed"] is None}
    expected = {"no_throttling": cell.startswith("cpu"), "token_sources": "baseline" in cell, "concurrency": True}
    assert not_applied == {name for name, holds in expected.items() if holds}


@pytest.mark.parametrize(
    "spoil",
    [
        lambda each: each["times"].__setitem__(-1, each["times"][0] - 1),
        lambda each: each["times"].__setitem__(1, math.inf),
        lambda each: each["times"].pop(),
        lambda each: each["ids"].pop(),
        lambda each: (each["counts"].append(0), each["times"].append(each["times"][-1])),
        lambda each: each.update(times=[each["times"][0]] * len(each["times"])),
        lambda each: each.update(submit=math.nan),
    ],
)
def test_finite(spoil):
    made = result()
    spoil(requests(made)[0])
    assert "code-01" in fails(made, "finite")


def test_case_7_another_device_than_asked():
    made = result("h100_vllm_code_mtp")
    made["sessions"][0]["device"]["name"] = "NVIDIA H200"
    assert fails(made, "device") == "asked for NVIDIA H100 80GB HBM3, measured on NVIDIA H200"


def test_a_session_is_missing():
    made = result(sessions=2)
    made["sessions"].pop()
    assert fails(made, "complete") == "1 sessions of 2"


def test_a_request_without_its_pair():
    made = result("cpu_vllm_code_baseline")
    made["sessions"][0]["requests"].pop()
    assert "make no pairs" in fails(made, "complete")


def test_a_prompt_that_ran_too_seldom():
    made = result("cpu_vllm_code_baseline")
    made["spec"]["protocol"]["rounds"]["min"] = 3
    assert "a prompt ran 2 times of 3" in fails(made, "complete")


def test_a_prompt_that_filled_up_a_wave_may_run_more_often():
    made = result("cpu_vllm_code_baseline")
    session = made["sessions"][0]
    session["requests"] += [{**each, "repeat": 2} for each in session["requests"] if each["prompt"] == "code-01" and each["repeat"] == 1]
    assert recompute(made)["valid"]


def test_case_3_no_draft_at_all():
    made = result("cpu_vllm_code_baseline")
    made["spec"]["mode"] = {"method": "mtp", "num_speculative_tokens": 4}
    for each in made["sessions"][0]["windows"]:
        each["open"]["counters"] = each["close"]["counters"] = {"drafts": 7, "drafted": 28, "accepted": 9}
    summary = recompute(made)
    assert "speculation: session 0, concurrency 1: speculation not active in the test arm" in summary["reasons"]
    assert summary["loads"][0]["arms"]["test"]["acceptance"] is None


def test_case_3_drafts_and_none_accepted():
    made = result(truth=Truth(alpha=0.0))
    summary = recompute(made)
    assert summary["valid"]
    assert summary["warnings"] == ["speculation: session 0, concurrency 1: 1512 drafts and none accepted"]
    accepted = summary["loads"][0]["arms"]["test"]["acceptance"]
    assert (accepted["length"], accepted["rate"], accepted["accepted"]) == (1, 0, 0)


@pytest.mark.parametrize("arm", ["control", "test"])
def test_speculation_where_there_should_be_none(arm):
    made = result("cpu_vllm_code_baseline")
    opened, closed = ({"t": t, "counters": {"drafts": n, "drafted": n, "accepted": 0}} for t, n in ((0, 3), (1, 4)))
    for each in made["sessions"][0]["windows"]:
        if each["arm"] == arm:
            each.update(open=opened, close=closed)
    assert fails(made, "speculation") == f"session 0, concurrency 1: speculation active in the {arm} arm"


@pytest.mark.parametrize("session", [0, 1])
@pytest.mark.parametrize("load", [1, 4])
def test_speculation_that_one_session_or_load_lacks(session, load):
    made = result("h100_vllm_code_mtp", sessions=2, concurrency=(1, 4))
    for each in made["sessions"][session]["windows"]:
        if (each["arm"], each["concurrency"]) == ("test", load):
            each["close"]["counters"] = each["open"]["counters"]
    assert f"session {session}, concurrency {load}: speculation not active in the test arm" in gate(made, "speculation")["seen"]
    assert gate(made, "speculation")["passed"] is False


def test_a_load_without_an_accepted_draft_hides_no_speculation_of_the_control():
    made = result("h100_vllm_code_mtp", concurrency=(1, 4), truth=Truth(alpha=0.0))
    for each in made["sessions"][0]["windows"]:
        if (each["arm"], each["concurrency"]) == ("control", 4):
            each["open"]["counters"], each["close"]["counters"] = ({"drafts": n, "drafted": n, "accepted": 0} for n in (0, 99))
    assert fails(made, "speculation") == "session 0, concurrency 4: speculation active in the control arm"


def test_requests_that_waited_for_others_to_end():
    """Seen with vLLM, whose cache held three prompts of eight: the cell said a load that it never ran."""
    made = result("h100_vllm_code_mtp", concurrency=(1, 4))
    assert gate(made, "concurrency")["passed"]
    wave = [each for each in requests(made) if each["concurrency"] == 4 and each["wave"] == 1]
    wait = wave[0]["times"][-1] - wave[3]["times"][0] + 0.001
    wave[3]["times"] = [t + wait for t in wave[3]["times"]]
    assert fails(made, "concurrency") == "session 0, test, concurrency 4: 1 of 4 requests began after another had ended, so they never ran together"
    for each in wave[:3]:
        each["finish"] = "stop"
    seen = gate(made, "concurrency")
    assert seen["passed"] and seen["warning"] and "1 of 4 requests began after another had ended by itself" in seen["seen"]


@pytest.mark.parametrize("arm", ["control", "test"])
def test_a_request_without_an_output_breaks_no_gate(arm):
    made = result("h100_vllm_code_mtp", concurrency=(4,))
    requests(made, arm)[0].update(times=[], counts=[], ids=[], accepted=None)
    assert recompute(made)["loads"]


def test_requests_that_the_engine_began_again():
    made = result("h100_vllm_code_mtp", concurrency=(1, 4))
    for each in made["sessions"][0]["windows"]:
        if (each["arm"], each["concurrency"]) == ("test", 4):
            each["open"]["counters"]["preempted"], each["close"]["counters"]["preempted"] = 1, 3
    assert "the engine stopped 2 request(s) for want of cache" in fails(made, "concurrency")


def test_a_control_step_of_two_ids_is_speculation():
    made = result("cpu_vllm_code_baseline")
    each = requests(made, "control")[0]
    each["counts"] = [1, 2, *each["counts"][3:]]
    each["times"].pop()
    assert "control arm" in fails(made, "speculation")


def test_token_sources():
    made = result()
    requests(made)[0]["counters"]["accepted"] += 1
    assert "session 0, concurrency 1: code-01, repeat 0:" in fails(made, "token_sources")


def test_token_sources_without_counters_over_the_window():
    made = result()
    for each in made["sessions"][0]["windows"]:
        each["open"]["counters"] = None
    summary = recompute(made)
    assert {each["name"] for each in summary["gates"] if each["passed"] is False} == {"speculation", "token_sources"}


@pytest.mark.parametrize(("key", "value"), [("prompt_sha256", "f" * 16), ("prompt_tokens", 5)])
def test_same_prompts(key, value):
    made = result()
    requests(made)[5][key] = value
    assert "other prompt ids" in fails(made, "same_prompts")


def test_no_cache():
    made = result()
    requests(made)[5]["cached_tokens"] = 16
    assert fails(made, "no_cache") == "1 requests with prompt tokens from a cache"


def test_no_cache_not_told():
    made = result()
    for each in requests(made):
        each["cached_tokens"] = None
    assert gate(made, "no_cache")["passed"] is None


def loop(made, prompts, ids):
    for arm in ("control", "test"):
        for each in requests(made, arm):
            if each["prompt"] in prompts:
                each["ids"] = (ids * 128)[: len(each["ids"])]
    return made


@pytest.mark.parametrize("ids", [[7], [1, 2, 3, 4]])
def test_case_4_one_id_or_a_cycle_of_four(ids):
    assert gates.degenerate((ids * 128)[:128])
    seen = fails(loop(result(tokens=128), ["code-01", "code-02"], ids), "not_degenerate")
    assert seen == "2 of 12 prompts with an output that loops: code-01, code-02"


def test_one_looping_prompt_of_twelve_is_a_warning():
    summary = recompute(loop(result(), ["code-01"], [7]))
    assert summary["valid"] and "1 of 12" in summary["warnings"][0]


@given(st.integers(1, 8), st.integers(16, 200), st.data())
def test_any_cycle_through_most_of_an_output_is_degenerate(period, length, data):
    cycle = data.draw(st.lists(st.integers(0, 9), min_size=period, max_size=period))
    looping = max(length // 2 + 1, 3 * period)
    before = data.draw(st.integers(0, max(length - looping, 0)))
    text = list(range(1000, 1000 + before)) + (cycle * length)[:looping]
    text += range(2000, 2000 + max(length - len(text), 0))
    assert gates.degenerate(text)


@given(st.lists(st.integers(0, 50_000), max_size=200, unique=True), st.integers(0, 7))
def test_varied_and_short_outputs_are_not(ids, repeats):
    assert not gates.degenerate(ids)
    assert not gates.degenerate(ids[:15])
    assert not gates.degenerate([5] * min(repeats, 15))


def test_a_loop_in_less_than_half_is_none():
    assert not gates.degenerate([*range(70), *[7] * 58])
    assert gates.degenerate([*range(60), *[7] * 68])


def test_lengths_are_marked_and_do_not_make_a_cell_invalid():
    made = result("cpu_vllm_code_baseline")
    each = requests(made)[0]
    each["counts"], each["times"], each["ids"] = each["counts"][:9], each["times"][:9], each["ids"][:9]
    seen = gate(made, "lengths")
    assert seen["passed"] and seen["warning"]
    assert seen["seen"] == "1 of 24 pairs differ in length and are left out of e2e"


@pytest.mark.parametrize(("what", "delay"), [("TTFT", lambda index: 1.0), ("step time", lambda index: 0.05 * index)])
def test_warmed_up(what, delay):
    made = result()
    each = requests(made)[0]
    each["times"] = [t + delay(index) for index, t in enumerate(each["times"])]
    assert f"session 0, test, concurrency 1: the first {what} is" in fails(made, "warmed_up")


@pytest.mark.parametrize(("what", "delay"), [("TTFT", lambda index: 1.0), ("step time", lambda index: 0.05 * index)])
def test_the_first_run_of_every_prompt_is_cold(what, delay):
    made = result()
    for each in requests(made):
        if each["repeat"] == 0:
            each["times"] = [t + delay(index) for index, t in enumerate(each["times"])]
    assert f"session 0, test, concurrency 1: the first {what} of each prompt is" in fails(made, "warmed_up")


def test_a_slow_prefill_of_the_only_prompt_that_ran_twice_is_no_cold_start():
    """Eight prompts at a load of three: the last wave is filled up with the first prompt."""
    made = result("h100_vllm_code_mtp", prompts=8, rounds=1, concurrency=(3,))
    session = made["sessions"][0]
    for arm in ("control", "test"):
        mine = [each for each in requests(made, arm)]
        first, last = mine[0], mine[-1]
        late = last["submit"] - first["submit"]
        session["requests"].append({**first, "wave": 2, "repeat": 1, "submit": last["submit"], "times": [t + late for t in first["times"]]})
    first = requests(made)[0]
    first["times"] = [t + 2.2 * (first["times"][0] - first["submit"]) for t in first["times"]]
    assert gate(made, "warmed_up")["passed"]


@pytest.mark.parametrize(("factor", "passed"), [(2.0, True), (100.0, False)])
@pytest.mark.parametrize("arm", ["control", "test"])
def test_of_two_waves_only_a_gross_difference_is_a_cold_start(factor, passed, arm):
    made = result("h100_vllm_code_mtp", rounds=2, concurrency=(12,))
    for each in requests(made, arm):
        if each["wave"] == 0:
            each["times"] = [each["times"][0] + factor * (t - each["times"][0]) for t in each["times"]]
    assert gate(made, "warmed_up")["passed"] is passed


def test_a_load_of_one_wave_says_that_nothing_came_later():
    """With repeats within the wave, too: they are no later runs."""
    made = result("h100_vllm_code_mtp", concurrency=(1, 24), rounds=1)
    seen = gate(made, "warmed_up")
    assert seen["passed"] and "concurrency 24: too few waves to tell a cold first one from a hiccup" in seen["seen"]
    alone = result("h100_vllm_code_mtp", concurrency=(24,), rounds=1)
    assert gate(alone, "warmed_up")["passed"] is None


@pytest.mark.parametrize(("share", "factor", "warns"), [(4, 1.0, False), (2, 1.9, True), (4, 1.6, True), (4, 1.05, False)])
def test_first_runs_that_pay_for_new_shapes_are_warned_of(share, factor, warns):
    """As seen on an H200: half of the prompts of one arm paid in their first run, which no limit on outliers noticed."""
    made = result(rounds=6)
    for each in requests(made):
        if each["repeat"] == 0 and int(each["prompt"][-2:]) % 4 < share:
            each["times"] = [each["times"][0] + factor * (t - each["times"][0]) for t in each["times"]]
    seen = gate(made, "warmed_up")
    assert seen["passed"] and seen["warning"] is warns
    assert ("test: first runs have" in seen["seen"]) is warns and "control" not in seen["seen"]
    made["spec"]["protocol"]["warmup"] = "all"
    assert gate(made, "warmed_up")["seen"] == "the first requests are no outliers"


def test_a_long_first_prompt_is_no_outlier():
    made = result()
    for each in requests(made):
        if each["prompt"] == "code-01":
            each["times"] = [t + 1.0 for t in each["times"]]
    assert gate(made, "warmed_up")["passed"]


def test_nothing_was_warmed_up():
    made = result()
    made["spec"]["protocol"]["warmup"] = 0
    assert fails(made, "warmed_up") == "no warm-up was asked for"


@pytest.mark.parametrize(("share", "down", "passed"), [(0.2, 0.1, False), (0.05, 0.1, True), (0.5, 0.03, True)])
def test_no_throttling(share, down, passed):
    made = result("h100_vllm_code_mtp")
    rows = made["sessions"][0]["telemetry"]["rows"]
    for row in rows[: round(share * (len(rows) - 20)) + 20]:  # the first 20 lie before the first request
        row[1], row[4] = 1980 * (1 - down), 0x40
    if passed:
        assert gate(made, "no_throttling")["passed"]
    else:
        assert "thermal (hardware)" in fails(made, "no_throttling")


@pytest.mark.parametrize(("reasons", "share", "warns"), [
    (0x40, 1.0, True), (0x20, 1.0, True), (0x8, 1.0, True), (0x80, 1.0, True), (0x4, 1.0, False), (0x1, 1.0, False), (0x40, 0.05, False),
])  # fmt: skip
@pytest.mark.parametrize("session", [0, 1])
def test_a_clock_that_is_held_low_all_the_while(reasons, share, warns, session):
    made = result("h100_vllm_code_mtp", sessions=2)
    rows = made["sessions"][session]["telemetry"]["rows"]
    for row in rows:
        row[1] = 600
    for row in rows[20 : 20 + round(share * len(rows))]:
        row[4] = reasons
    seen = gate(made, "no_throttling")
    assert seen["passed"] and seen["warning"] is warns


def test_a_session_without_samples_hides_no_throttling_of_another():
    made = result("h100_vllm_code_mtp", sessions=2)
    made["sessions"][0]["telemetry"] = {"reason": "no sample was taken"}
    assert gate(made, "no_throttling")["passed"] is None
    rows = made["sessions"][1]["telemetry"]["rows"]
    for row in rows[: len(rows) // 2]:
        row[1] = 1000
    assert "session 1: SM clock down" in fails(made, "no_throttling")


def test_clocks_between_requests_do_not_count():
    made = result("h100_vllm_code_mtp")
    for row in made["sessions"][0]["telemetry"]["rows"]:
        if row[0] < 4.9:
            row[1] = 300
    assert gate(made, "no_throttling")["seen"].startswith("session 0: SM clock down in 0% of samples")


def test_no_clock_to_look_at():
    assert gate(result(), "no_throttling")["seen"] == "no NVML: the device is a CPU"
