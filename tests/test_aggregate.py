"""The summary as a function of the records."""

import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import record, requests, result

from mtpbench import results
from mtpbench.analysis import records as rows
from mtpbench.analysis.aggregate import percentiles, recompute


def arm_of(result, arm="test", load=0):
    return recompute(result)["loads"][load]["arms"][arm]


def only(result, **by_arm):
    """The result with one session of just these records, for prompts that they name."""
    session = result["sessions"][0]
    session["requests"] = [{**each, "arm": arm} for arm, made in by_arm.items() for each in made]
    result["spec"]["prompts"] = {each["prompt"]: "0" * 64 for each in session["requests"]}
    return result


def null(**by_arm):
    return only(result("cpu_transformers_code_baseline"), **by_arm)


def test_case_1_forty_ids_in_eight_outputs_of_five():
    request = record([5] * 8, [0.100 + 0.050 * index for index in range(8)])
    made = null(control=[request], test=[request])
    arm = recompute(made)["loads"][0]["arms"]["test"]
    assert arm["output_tokens"] == 40
    assert arm["ttft_ms"]["p50"] == pytest.approx(100)
    assert arm["e2e_ms"]["p50"] == pytest.approx(450)
    assert arm["tpot_ms"]["p50"] == pytest.approx(10)
    assert arm["step_ms"]["p50"] == pytest.approx(50)
    assert arm["ids_per_step"] == {"5": 7}
    assert arm["decode_tok_s"] == pytest.approx(35 / 0.350)
    assert arm["throughput_tok_s"] == pytest.approx(40 / 0.450)


@given(st.lists(st.integers(1, 17), min_size=2, max_size=20), st.floats(0.001, 10), st.floats(0.0001, 1))
def test_any_split_of_ids_into_outputs_keeps_the_token_counts_and_times(counts, first, step):
    request = record(counts, [first + step * index for index in range(len(counts))])
    arm = arm_of(null(control=[request], test=[request]))
    decoded, decode_s = sum(counts[1:]), step * (len(counts) - 1)
    assert arm["output_tokens"] == sum(counts)
    assert arm["tpot_ms"]["mean"] == pytest.approx(1e3 * decode_s / decoded)
    assert arm["decode_tok_s"] == pytest.approx(arm["mean_request_tok_s"]) == pytest.approx(decoded / decode_s)
    assert sum(int(ids) * n for ids, n in arm["ids_per_step"].items()) == decoded


@pytest.mark.parametrize(("counts", "there"), [([], []), ([1], ["ttft_ms", "e2e_ms"])])
def test_zero_and_one_output_tokens(counts, there):
    made = null(control=[record(counts)], test=[record(counts)])
    summary = recompute(made)
    arm = summary["loads"][0]["arms"]["test"]
    for name in ("ttft_ms", "e2e_ms", "tpot_ms", "step_ms", "decode_tok_s", "mbu"):
        assert (arm[name] is not None) == (name in there)
        assert (name in arm["reasons_null"]) == (name not in there)
    assert summary["loads"][0]["speedup"] is None
    json.dumps(summary, allow_nan=False)


def test_one_prompt_has_a_ratio_without_an_interval():
    summary = recompute(result(prompts=1))
    assert summary["loads"][0]["speedup"]["half_width"] is None
    assert summary["loads"][0]["speedup"]["ratio"] > 0


def test_decode_rate_weighs_requests_by_time_and_their_mean_rate_does_not():
    fast, slow = record([1, 10], [0, 0.1]), record([1, 10], [0, 0.9], prompt="q")
    arm = arm_of(null(control=[fast, slow], test=[fast, slow]))
    assert arm["decode_tok_s"] == pytest.approx(20)
    assert arm["mean_request_tok_s"] == pytest.approx((100 + 10 / 0.9) / 2)


def test_throughput_counts_overlapping_requests_once_and_the_other_arms_turns_not_at_all():
    wave = [record([1, 9], [0.5, 1.0]), record([1, 9], [0.5, 2.0], prompt="q")]
    later = [record([1, 9], [10.5, 11.0], submit=10.0, repeat=1), record([1, 9], [10.5, 12.0], submit=10.0, repeat=1, prompt="q")]
    arm = arm_of(null(control=wave + later, test=wave + later))
    assert arm["throughput_tok_s"] == pytest.approx(40 / 4)


def test_case_5_unequal_lengths_leave_e2e_but_keep_tpot():
    made = result(tokens=128)
    control = [each for each in requests(made, "control") if each["prompt"] == "code-01"]
    for each in control:
        each["times"], each["counts"], each["ids"], each["finish"] = each["times"][:57], each["counts"][:57], each["ids"][:57], "stop"
    summary = recompute(made)
    load = summary["loads"][0]
    assert load["speedup"]["prompts"] == 12
    assert load["e2e_speedup"]["prompts"] == 11
    assert (load["prompts"][0]["control_tokens"], load["prompts"][0]["test_tokens"]) == (57, 128)
    assert load["prompts"][0]["control_tpot_ms"] > 0
    assert "lengths: 2 of 24 pairs differ in length and are left out of e2e" in summary["warnings"]


def test_percentiles_leave_out_what_is_no_number():
    assert percentiles(np.array([1.0, np.nan, 3.0]), 10) == {"mean": 20, "p50": 20, "p90": 28}
    assert percentiles(np.array([np.nan])) is None


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 5), st.integers(0, 2)), max_size=20))
def test_busy_time_is_the_union_of_intervals(spans):
    start, length, session = np.array(spans).reshape(-1, 3).T
    found = rows.busy(start, start + length, session.astype(int))
    for index, intervals in found:
        assert (intervals[1:, 0] > intervals[:-1, 1]).all()
        mine = session == index
        for moment in np.r_[start[mine], (start + length)[mine]]:
            assert ((intervals[:, 0] <= moment) & (moment <= intervals[:, 1])).any()
    assert rows.seconds(found) <= length.sum() + 1e-9


@pytest.mark.parametrize(
    ("cell", "named"),
    [("cpu_transformers_code_mtp", {}), ("h200_vllm_code_baseline", {}), ("h100_vllm_code_ngram", {"concurrency": (1, 4), "sessions": 2})],
)
def test_recompute_gives_the_stored_summary_after_a_journey_through_json(cell, named):
    made = json.loads(results.text_of(result(cell, **named)))
    assert recompute(made) == made["summary"]
    assert made["summary"]["valid"], made["summary"]["reasons"]
    assert [load["concurrency"] for load in made["summary"]["loads"]] == list(named.get("concurrency", (1,)))


def test_null_figures_have_a_reason():
    arm = arm_of(result(), "control")
    assert arm["reasons_null"] == {"acceptance": "no speculation in this arm", "energy_j_per_token": "no NVML: the device is a CPU"}


def test_categories_pool_acceptance():
    load = recompute(result())["loads"][0]
    pooled = load["acceptance_by_category"]
    assert list(pooled) == ["code-0", "code-1", "code-2"]
    assert sum(each["accepted"] for each in pooled.values()) == load["arms"]["test"]["acceptance"]["accepted"]


@pytest.mark.parametrize("mode", ["mtp", "ngram"])
def test_acceptance_of_some_requests_where_the_engine_tells_sums_alone(mode):
    """Of several requests at a time: whole steps show it where each has a draft, and nothing does where some have none."""
    made = result(f"h100_vllm_code_{mode}", prompts=24, tokens=200, rounds=1, concurrency=(1, 8))
    alone, together = recompute(made)["loads"]
    assert together["arms"]["test"]["acceptance"]["length"] == alone["arms"]["test"]["acceptance"]["length"]
    for category, found in together["acceptance_by_category"].items():
        expected = alone["acceptance_by_category"][category]
        assert found is None if mode == "ngram" else found["length"] == pytest.approx(expected["length"], rel=0.02)
    assert {prompt["acceptance_length"] is None for prompt in together["prompts"]} == {mode == "ngram"}


def test_a_session_with_more_rounds_has_one_voice_in_the_ratio_of_a_prompt():
    made = result("cpu_vllm_code_baseline", sessions=2, rounds=1)
    for session, (slower, repeats) in zip(made["sessions"], ((1.0, 1), (2.0, 3))):
        session["requests"] = [
            {**each, "repeat": repeat, "times": [each["submit"] + (t - each["submit"]) * (slower if each["arm"] == "control" else 1.0) for t in each["times"]]}
            for each in session["requests"] for repeat in range(repeats)
        ]  # fmt: skip
    load = recompute(made)["loads"][0]
    assert np.exp(np.mean(np.log([prompt["ratio"] for prompt in load["prompts"]]))) == pytest.approx(load["speedup"]["ratio"])


def test_malformed_records_make_an_invalid_summary_and_no_numbers():
    made = result()
    requests(made)[3]["counts"][0] += 1
    summary = recompute(made)
    assert not summary["valid"] and summary["loads"] == []
    assert summary["reasons"][0].startswith("finite: session 0, test")
    assert summary["gates"][-1]["passed"] is None


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 16), st.integers(2, 40), st.integers(1, 4), st.integers(0, 1000))
def test_any_gamma_length_and_load_gives_a_valid_cell(gamma, tokens, load, seed):
    from mtpbench import simulate

    made = simulate.result("cpu_vllm_code_mtp", seed, truth=simulate.Truth(gamma=gamma), tokens=tokens, concurrency=(load,), prompts=4)
    assert made["summary"]["valid"], made["summary"]["reasons"]


def test_ten_thousand_requests():
    made = result(prompts=1250, rounds=4, tokens=32)
    start = time.perf_counter()
    summary = recompute(made)
    assert time.perf_counter() - start < 30
    assert summary["loads"][0]["arms"]["test"]["requests"] == 5000
