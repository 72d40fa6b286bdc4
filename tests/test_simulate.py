"""The simulator gives what it was told to be true."""

import dataclasses
import json

import numpy as np
import pytest
from making import requests, result

from mtpbench import results, simulate, validity
from mtpbench.analysis.aggregate import recompute
from mtpbench.simulate import Truth

STILL = Truth(prompt=0, prompt_effect=0, session=0, noise=0)


def test_same_seed_same_result():
    assert simulate.result(seed=3) == simulate.result(seed=3)
    assert simulate.result(seed=3) != simulate.result(seed=4)


def test_a_simulated_result_is_written_and_read_like_a_measured_one(tmp_path):
    made = simulate.result("h200_vllm_code_mtp", sessions=2)
    results.write(tmp_path / "result.json", made)
    assert results.read(tmp_path / "result.json") == json.loads(json.dumps(made))


def test_without_noise_the_control_has_its_tpot_and_the_population_its_ratio():
    made = result(truth=dataclasses.replace(STILL, ratio=1.25), prompts=400, rounds=1)
    load = recompute(made)["loads"][0]
    assert load["arms"]["control"]["tpot_ms"]["p90"] == pytest.approx(10)
    assert load["speedup"]["low"] < 1.25 < load["speedup"]["high"]
    assert load["speedup"]["half_width"] < 0.03


def test_a_step_costs_the_same_whatever_it_accepts():
    steps = recompute(result(truth=STILL))["loads"][0]["arms"]["test"]["step_ms"]
    assert steps["p50"] == pytest.approx(steps["p90"])


def test_spreads_are_those_asked_for():
    truth = Truth(prompt=0.05, session=0.15, session_effect=0.04, noise=0.1, prompt_effect=0)
    tpots = np.log(simulate.experiment(truth, np.random.default_rng(1), prompts=60, rounds=20, sessions=400, speculative=False))
    assert tpots[:, 0].mean(axis=(1, 2)).std() == pytest.approx(0.15, rel=0.15)
    assert (tpots[:, 0] - tpots[:, 1]).mean(axis=(1, 2)).std() == pytest.approx(0.04, rel=0.15)
    assert (tpots[:, 0] - tpots[:, 1]).std(axis=2).mean() == pytest.approx(0.1 * np.sqrt(2), rel=0.05)
    heavy = simulate.experiment(dataclasses.replace(STILL, noise=0.1, tail=5), np.random.default_rng(1), prompts=60, rounds=300)
    assert np.log(heavy[0, 0]).std() == pytest.approx(0.1, rel=0.05)


def test_drift_slows_later_requests_and_cancels_between_the_arms():
    tpots = np.log(simulate.experiment(dataclasses.replace(STILL, drift=0.2), np.random.default_rng(1), speculative=False))
    assert tpots[0, 0, -1, -1] - tpots[0, 0, 0, 0] == pytest.approx(0.2, abs=0.02)
    assert abs((tpots[0, 0] - tpots[0, 1]).mean()) < 1e-9


def test_waves_of_a_session_do_not_overlap_and_the_arm_that_goes_first_alternates():
    made = result("h100_vllm_code_mtp", concurrency=(4,))
    order = [(each["wave"], each["arm"]) for session in made["sessions"] for each in session["requests"]][::4]
    assert order[:4] == [(0, "control"), (0, "test"), (1, "test"), (1, "control")]
    waves: dict = {}
    for each in made["sessions"][0]["requests"]:
        start, end = waves.get((each["wave"], each["arm"]), (np.inf, 0))
        waves[each["wave"], each["arm"]] = min(start, each["submit"]), max(end, each["times"][-1])
    spans = sorted(waves.values())
    assert all(after[0] > before[1] for before, after in zip(spans, spans[1:]))


def test_arms_do_not_share_their_lists():
    made = simulate.result()
    assert len({id(each["ids"]) for arm in ("control", "test") for each in requests(made, arm)}) == 48


def test_the_table_of_validity_has_a_row_for_each_scenario(monkeypatch):
    said = []
    table = validity.table(3, said.append)
    assert table.splitlines()[2:] == said
    assert len(said) == len(validity.SCENARIOS)


def test_the_stopping_rule_stops_quiet_cells_early():
    truth = dataclasses.replace(STILL, noise=0.1)
    rng = np.random.default_rng(1)
    tpots = simulate.experiment(truth, rng, prompts=32, rounds=8, speculative=False)
    stopped, floor = validity.stopping(tpots, tpots, half_width=0.05)
    assert stopped == validity.paired(tpots[..., :2], tpots[..., :2])[0]
    assert validity.stopping(tpots, tpots, half_width=0.0)[0] == validity.paired(tpots, tpots)[0]
