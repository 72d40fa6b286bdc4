"""The speed-up, its interval, the noise floor and the verdict."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import record
from scipy import stats

from mtpbench import validity
from mtpbench.analysis import effect
from mtpbench.simulate import Truth
from mtpbench.validity import FULL, NOISY, QUIET, Scenario

logs = st.floats(-2, 2)
session = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.lists(logs, min_size=1, max_size=4), max_size=8)


def drawn(seed, sessions=1, prompts=12, mean=0.0, spread=0.05):
    rng = np.random.default_rng(seed)
    return [{str(p): rng.normal(mean, spread, 2).tolist() for p in range(prompts)} for _ in range(sessions)]


def test_one_session_is_students_t_on_the_means_of_prompts():
    (ratios,) = drawn(1, mean=0.1)
    found = effect.speedup(ratios)
    expected = stats.ttest_1samp([np.mean(each) for each in ratios.values()], 0).confidence_interval()
    assert [found["low"], found["high"]] == pytest.approx(np.exp([expected.low, expected.high]))
    assert found["ratio"] * (1 + found["half_width"]) == pytest.approx(found["high"])
    assert found["ratio"] / (1 + found["half_width"]) == pytest.approx(found["low"])
    assert (found["prompts"], found["sessions"]) == (12, 1)


def test_variance_between_sessions_is_inside_the_interval():
    alike, apart = drawn(2, sessions=3), drawn(2, sessions=3)
    for shift, table in zip((-0.1, 0.0, 0.1), apart):
        for prompt in table:
            table[prompt] = [value + shift for value in table[prompt]]
    found, wide = effect.speedup(*alike), effect.speedup(*apart)
    assert wide["ratio"] == pytest.approx(found["ratio"])
    assert wide["half_width"] > 3 * found["half_width"]


def test_prompts_that_a_session_lacks_are_left_out():
    one, other = drawn(3, sessions=2)
    del other["4"]
    assert effect.speedup(one, other)["prompts"] == 11


def test_without_a_common_prompt_there_is_no_speedup():
    assert effect.speedup({}) is None
    assert effect.speedup({"a": [0.1]}, {"b": [0.1]}) is None


def test_one_prompt_has_a_ratio_and_no_interval():
    found = effect.speedup({"a": [0.0, np.log(4)]})
    assert found["ratio"] == pytest.approx(2)
    assert (found["low"], found["high"], found["half_width"]) == (None, None, None)
    assert effect.verdict(found, 0.01)["verdict"] == "unresolved"
    assert effect.noise_floor(found) is None


@given(st.lists(session, min_size=1, max_size=4))
def test_any_ratios_give_finite_numbers_and_the_inverse_when_the_arms_are_swapped(sessions):
    found = effect.speedup(*sessions)
    swapped = effect.speedup(*[{prompt: [-value for value in values] for prompt, values in each.items()} for each in sessions])
    if found is None:
        assert swapped is None
        return
    assert all(value is None or np.isfinite(value) for value in found.values())
    assert swapped["ratio"] == pytest.approx(1 / found["ratio"])
    assert swapped["sign_test_p"] == found["sign_test_p"]
    if found["half_width"] is not None:
        assert swapped["half_width"] == pytest.approx(found["half_width"])
        assert found["low"] <= found["ratio"] <= found["high"]


def test_sign_test_counts_prompts_and_drops_zeros():
    found = effect.speedup({"a": [0.1], "b": [0.2], "c": [0.3], "d": [0.0]})
    assert found["sign_test_p"] == pytest.approx(stats.binomtest(3, 3).pvalue)


def at(load, waves, sessions=1, seed=5):
    """Requests of both arms: in each wave the prompts share a disturbance and differ by nothing else."""
    rng, made = np.random.default_rng(seed), []
    for _ in range(sessions):
        requests = []
        for number, prompts in enumerate(waves):
            shared = {arm: float(rng.lognormal(0, 0.2)) for arm in ("control", "test")}
            for prompt in prompts:
                for arm, slowness in shared.items():
                    requests.append(record(prompt=prompt, arm=arm, concurrency=load, wave=number, repeat=0, times=[0.0, slowness], counts=[1, 1], ids=[1, 2]))
        made.append(requests)
    return made


def test_prompts_that_ran_together_are_one_observation_where_no_other_session_sees_what_they_shared():
    one_wave = effect.at_load(at(8, ["abcdefgh"]), 8)
    assert one_wave["half_width"] is None and one_wave["ratio"] != 1 and one_wave["sign_test_p"] == 1
    assert effect.verdict(one_wave, 0.01) == {"verdict": "unresolved", "resolvable": None, "reason": effect.NO_INTERVAL}
    waves = ["abcd", "efgh", "ijkl"]
    found, means = effect.at_load(at(4, waves), 4), effect.log_ratios(at(4, waves)[0], 4)
    expected = stats.ttest_1samp([means[wave[0]][0] for wave in waves], 0).confidence_interval()
    assert [found["low"], found["high"]] == pytest.approx(np.exp([expected.low, expected.high]))
    assert effect.at_load(at(8, ["abcdefgh"], sessions=3), 8)["half_width"] > 0.05, "three sessions see it"


def test_with_one_request_at_a_time_each_prompt_counts():
    requests = at(1, list("abcdefgh"))
    assert effect.at_load(requests, 1) == effect.speedup(effect.log_ratios(requests[0], 1))


def test_log_ratios_pair_prompt_and_repeat_at_one_load():
    records = [
        record([1, 1], [0.0, 0.2], arm="control"), record([1, 1], [0.0, 0.1]),
        record([1, 1], [0.0, 0.3], arm="control", repeat=1), record([1, 1], [0.0, 0.3], repeat=1),
        record([1, 1], [0.0, 9.0], repeat=2),  # without a control
        record([1], [0.0], arm="control", prompt="q"), record([1], [0.0], prompt="q"),  # one token: no TPOT
        record([1, 1], [0.0, 9.0], concurrency=8), record([1, 1], [0.0, 1.0], arm="control", concurrency=8),
    ]  # fmt: skip
    assert effect.log_ratios(records, 1) == {"p-01": pytest.approx([np.log(2), 0.0])}


def test_noise_floor_is_the_half_width_or_a_larger_effect_of_the_null():
    assert effect.noise_floor({"ratio": 1.001, "half_width": 0.01}) == 0.01
    assert effect.noise_floor({"ratio": 1 / 1.05, "half_width": 0.01}) == pytest.approx(0.05)
    assert effect.noise_floor(None) is None


@pytest.mark.parametrize(
    ("ratio", "half_width", "floor", "verdict", "resolvable", "reason"),
    [
        (1.10, 0.02, 0.01, "faster", 0.02, None),
        (1 / 1.10, 0.02, 0.01, "slower", 0.02, None),
        (1.10, 0.12, 0.01, "unresolved", 0.12, "the interval includes 1"),
        (1.03, 0.02, 0.04, "unresolved", 0.04, "the effect is within the noise floor"),
        (1.10, 0.02, None, "unresolved", None, "no null cell to give the noise floor"),
    ],
)
def test_verdict(ratio, half_width, floor, verdict, resolvable, reason):
    found = effect.verdict({"ratio": ratio, "half_width": half_width}, floor)
    assert found == {"verdict": verdict, "resolvable": resolvable, "reason": reason}


def test_a_null_cell_is_never_faster_or_slower_than_its_own_floor():
    for seed in range(200):
        null = effect.speedup(*drawn(seed, prompts=4))
        assert effect.verdict(null, effect.noise_floor(null))["verdict"] == "unresolved"


def test_case_8_false_alarms_coverage_and_power():
    """15 % noise between runs, per-prompt effects: 1,000 experiments of the paired method, as many of an unpaired one."""
    paired = validity.run(Scenario("", NOISY, FULL), 1000, seed=8)
    assert paired.called[1.0] <= 0.065
    assert 0.93 <= paired.coverage <= 0.97
    unpaired = validity.run(Scenario("", QUIET, {**FULL, "sessions": 6}, validity.welch), 300, seed=8)
    assert unpaired.called[1.0] <= 0.065
    assert paired.called[1.10] >= 2 * unpaired.called[1.10]
    naive = validity.run(Scenario("", QUIET, {**FULL, "sessions": 2}, validity.unpaired), 300, seed=8)
    assert paired.called[1.10] >= 2 * naive.called[1.10]
    assert naive.called[1.0] > 0.3  # and it is wrong about many nulls besides


def test_case_8_null_cells_of_two_baselines():
    assert validity.run(Scenario("", NOISY, {**FULL, "speculative": False}), 1000, seed=9).called[1.0] <= 0.065


@pytest.mark.parametrize("sessions", [2, 3, 5])
def test_the_interval_never_covers_less_than_it_claims_with_sessions_as_clusters(sessions):
    for truth in (Truth(noise=0.05, session_effect=0.03), Truth(noise=0.05, session_effect=0.2)):
        row = validity.run(Scenario("", truth, {"prompts": 12, "tokens": 32, "rounds": 2, "sessions": sessions}), 400, seed=sessions)
        assert row.coverage >= 0.93
        assert row.called[1.0] <= 0.065
