"""Break-even and prediction."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import result

from mtpbench.analysis import costmodel
from mtpbench.analysis.aggregate import recompute
from mtpbench.analysis.records import batch
from mtpbench.simulate import Truth


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_at_break_even_the_predicted_speedup_is_one(base, step):
    assert costmodel.predict(costmodel.break_even(base, step), base, step) == pytest.approx(1)


def test_the_h200_of_the_notes():
    """Nothing accepted: 314 ids a second become 181, so a step costs 1.73 of a plain one; at length 3.08 that would give 1.78x,
    and 1.40x was seen, since the synthetic sampler made a step cost 7.0 ms."""
    assert costmodel.break_even(1 / 314, 1 / 181) == pytest.approx(1.735, abs=0.001)
    assert costmodel.predict(3.08, 1 / 314, 1 / 181) == pytest.approx(1.775, abs=0.001)
    assert costmodel.predict(3.08, 1 / 314, 0.0070) == pytest.approx(1.40, abs=0.01)


def test_prediction_beside_observation():
    found = recompute(result(truth=Truth(ratio=1.4, noise=0.01), prompts=64, tokens=128))["loads"][0]["cost_model"]
    assert found["predicted"] == pytest.approx(found["observed"], rel=0.03)
    assert found["error"] == pytest.approx(found["predicted"] / found["observed"] - 1)
    length = (1 - 0.7**5) / (1 - 0.7)  # Leviathan, Kalman, Matias 2023, equation 1
    assert found["break_even"] == pytest.approx(length / 1.4, rel=0.05)
    assert found["step_dependence"]["low"] < 0.01 and found["step_dependence"]["high"] > -0.01


def test_acceptance_measured_elsewhere_predicts_another_machine():
    """tau from a CPU, step times from a GPU with a fraction of the prompts' acceptance: the observed speed-up within noise."""
    elsewhere = recompute(result(prompts=200, rounds=1))["loads"][0]["arms"]["test"]["acceptance"]["length"]
    there = recompute(result("h100_vllm_code_mtp", 5, truth=Truth(ratio=1.3, noise=0.01), prompts=200, rounds=1))["loads"][0]
    steps = [there["arms"][arm]["step_ms"]["mean"] for arm in ("control", "test")]
    assert costmodel.predict(elsewhere, *steps) == pytest.approx(1.3, rel=0.05)


@pytest.mark.parametrize("tokens", [24, 48, 128])
@pytest.mark.parametrize("drafting", [1, 5])
def test_outputs_that_end_within_a_step_and_steps_without_a_draft(tokens, drafting):
    """Equal step times, so a cell must predict itself: the acceptance length would say up to 5 % more at 24 ids, and twice as much
    and more where one step in five drafts, as with prompt lookup."""
    made = result("cpu_transformers_code_ngram", prompts=40, tokens=tokens, truth=Truth(ratio=1.0, noise=1e-9))
    for each in (each for each in made["sessions"][0]["requests"] if each["arm"] == "test"):
        step, accepted, left = each["times"][1] - each["times"][0], [], tokens - 1
        while left:
            offered = 4 if len(accepted) % drafting == 0 else 0
            accepted.append(min(3, offered))
            left -= min(accepted[-1] + 1, left)
        each["accepted"], each["offered"] = accepted, [4 if a else 0 for a in accepted]
        each["counts"] = [1, *(a + 1 for a in accepted)]
        each["counts"][-1] -= sum(each["counts"]) - tokens
        each["times"] = (each["times"][0] + step * np.arange(len(each["counts"]))).tolist()
        each["counters"] = {"drafts": sum(map(bool, accepted)), "drafted": sum(each["offered"]), "accepted": sum(accepted)}
    found = recompute(made)["loads"][0]
    assert found["cost_model"]["predicted"] == pytest.approx(found["cost_model"]["observed"], rel=1e-3)
    assert found["arms"]["test"]["acceptance"]["length"] == 4


def test_a_null_cell_has_no_cost_model():
    assert recompute(result("cpu_vllm_code_baseline"))["loads"][0]["cost_model"] is None


def rows_with(cost):
    """One request whose steps take 10 ms and `cost` ms more for each id."""
    ids = np.tile([1, 2, 3, 4, 5], 20)
    times = np.r_[0, np.cumsum((10 + cost * ids) / 1e3)]
    one = {"arm": "test", "concurrency": 1, "submit": 0.0, "times": times.tolist(), "counts": [1, *ids.tolist()]}
    return batch([{"requests": [one]}], "test", 1)


def test_a_step_that_costs_more_the_more_it_brings_is_seen():
    found = costmodel.step_dependence(rows_with(1.0))
    assert found["share_per_id"] == pytest.approx(1 / 13)
    assert found["low"] > 0
    assert costmodel.step_dependence(rows_with(0.0))["share_per_id"] == pytest.approx(0, abs=1e-9)


def test_steps_that_never_vary_tell_nothing():
    one = {"arm": "test", "concurrency": 1, "submit": 0.0, "times": [0.0, 0.1, 0.2, 0.3], "counts": [1, 1, 1, 1]}
    assert costmodel.step_dependence(batch([{"requests": [one]}], "test", 1)) is None


@given(st.lists(st.floats(0.001, 3), min_size=1, max_size=5))
def test_a_mean_is_known_better_than_its_parts_and_no_better_than_all_of_them_allow(widths):
    found = costmodel.half_width_of_mean(*widths)
    assert found <= max(widths) * (1 + 1e-9)
    assert costmodel.half_width_of_mean(widths[0]) == pytest.approx(widths[0])
    assert np.log1p(found) == pytest.approx(np.sqrt(sum(np.log1p(width) ** 2 for width in widths)) / len(widths))
