"""Acceptance from the records, and its agreement with the engine's counters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import gate, record, requests, result, speculative

from mtpbench.analysis.acceptance import acceptance, censored, disagreement, histogram, of_requests, window
from mtpbench.analysis.aggregate import recompute
from mtpbench.analysis.records import batch
from mtpbench.simulate import Truth


def counters_of(records, **changes):
    return of_requests(records) | changes


@st.composite
def runs(draw):
    """gamma and requests of a speculative arm, each perhaps cut in its last step or without a step."""
    gamma = draw(st.integers(1, 16))
    records = []
    for _ in range(draw(st.integers(1, 5))):
        accepted = draw(st.lists(st.integers(0, gamma), max_size=12))
        records.append(speculative(accepted, gamma, cut=draw(st.integers(0, accepted[-1])) if accepted else 0))
    return gamma, records


@given(runs())
def test_invariants_hold_for_any_run(run):
    gamma, records = run
    found = acceptance(records, None, gamma)
    assert disagreement(records, of_requests(records), "mtp", gamma) is None
    steps = [a for each in records for a in each["accepted"]]
    if not steps:
        assert found is None
        return
    total = sum(sum(each["counts"]) for each in records)
    assert total == len(records) + found["accepted"] + found["drafts"] - found["cut"]
    assert found["length"] == pytest.approx(1 + sum(found["joint"]))
    assert found["joint"] == sorted(found["joint"], reverse=True)
    assert 0 <= found["rate"] <= 1
    product = 1.0
    for joint, conditional in zip(found["joint"], found["conditional"]):
        assert (conditional is None) == (product == 0)
        product *= conditional or 0
        assert product == pytest.approx(joint)


@given(runs())
def test_an_engine_that_tells_sums_alone(run):
    """Its counters give the length; of some of the requests alone their steps do, of which the last may be cut."""
    gamma, records = run
    blind = [{**each, "accepted": None, "offered": None, "counters": None} for each in records]
    totals, whole = of_requests(records), acceptance(records, None, gamma)
    assert (acceptance(blind, totals, gamma) or {}).get("length") == (whole or {}).get("length")
    found = censored(blind, gamma)
    if found:
        assert found["drafts"] == whole["drafts"]
        assert found["joint"] == sorted(found["joint"], reverse=True) and 1 <= found["length"] <= gamma + 1


@pytest.mark.parametrize(("gamma", "tokens"), [(4, 64), (4, 16), (8, 32), (4, 6)])
def test_the_length_that_whole_and_cut_steps_show_is_the_one_that_all_had(gamma, tokens):
    """Leaving cut steps out was seen to take up to 39 % off, as a long step is cut more often than a short one."""
    made = result("h100_vllm_code_mtp", prompts=2000, rounds=1, tokens=tokens, truth=Truth(gamma=gamma))
    records = requests(made)
    expected, found = (made(records, *more) for made, more in ((acceptance, (None, gamma)), (censored, (gamma,))))
    assert found["length"] == pytest.approx(expected["length"], rel=0.02)
    assert found["joint"] == pytest.approx(expected["joint"], abs=0.03)


@pytest.mark.parametrize("counts", [[1], [1, 1], [1, 3], [1, 3, 3]])
def test_what_cuts_hide_is_not_told(counts):
    """Whether the next draft was accepted: no step shows it."""
    assert censored([record(counts)], 4) is None or counts == [1, 3, 3]
    if counts == [1, 3, 3]:
        assert censored([record(counts)], 4)["joint"] == [1, 1, 0, 0]


@given(runs(), st.integers(-5, 5))
def test_without_counters_of_single_requests_totals_may_differ_by_what_cut_steps_hide(run, off):
    gamma, records = run
    blind = [{**each, "accepted": None, "offered": None, "counters": None} for each in records]
    totals = of_requests(records)
    shown = sum(count - 1 for each in records for count in each["counts"][1:])
    hidden = sum(gamma + 1 - each["counts"][-1] for each in records if len(each["counts"]) > 1)
    wrong = disagreement(blind, totals | {"accepted": totals["accepted"] + off}, "mtp", gamma)
    assert (wrong is None) == (shown <= totals["accepted"] + off <= shown + hidden)


def test_case_2_counters_and_records_agree_from_any_offset():
    accepted = [3] * 50 + [0] * 50  # 100 steps, 150 accepted
    records = [speculative(accepted, 4)]
    session = {"windows": [{"arm": "test", "concurrency": 1, "open": {"t": 0, "counters": {"drafts": 1000, "drafted": 4000, "accepted": 900}},
                            "close": {"t": 1, "counters": {"drafts": 1100, "drafted": 4400, "accepted": 1050}}}]}  # fmt: skip
    counters = window([session], "test", 1)
    assert acceptance(records, None, 4)["length"] == 1 + counters["accepted"] / counters["drafts"] == 2.5
    assert disagreement(records, counters, "mtp", 4) is None
    fewer = [{**speculative([3] * 49 + [2] + [0] * 50, 4), "counters": None}]  # 149
    assert "149 accepted by the records, 150" in disagreement(fewer, counters, "mtp", 4)


def test_case_2_in_a_cell():
    cell = result()
    assert recompute(cell)["valid"]
    close = next(each for each in cell["sessions"][0]["windows"] if each["arm"] == "test")["close"]["counters"]
    close["accepted"] += 1
    summary = recompute(cell)
    assert not summary["valid"]
    assert summary["reasons"][0].startswith("token_sources: session 0, concurrency 1:")


def test_case_9_shares_by_position():
    per_mille = [1000, 844, 599, 385, 271]
    steps = [position for position in range(5) for _ in range(per_mille[position] - (per_mille + [0])[position + 1])]
    found = acceptance([speculative(steps, 4)], None, 4)
    assert found["joint"] == [0.844, 0.599, 0.385, 0.271]
    assert round(found["length"], 2) == 3.10
    assert round(found["rate"], 3) == 0.525
    assert [round(each, 3) for each in found["conditional"]] == [0.844, 0.710, 0.643, 0.704]


def test_steps_without_a_draft_are_no_drafts():
    steps = record([1, 1, 3, 1], accepted=[0, 2, 0], offered=[0, 4, 0], counters={"drafts": 1, "drafted": 4, "accepted": 2})
    assert acceptance([steps], None, 4)["length"] == 3
    assert disagreement([steps], steps["counters"], "ngram", 4) is None
    silent = {**steps, "offered": None}
    assert acceptance([silent], steps["counters"], 4)["length"] == 3
    assert disagreement([silent], steps["counters"], "ngram", 4) is None
    assert "3 steps with a draft" in disagreement([silent], steps["counters"], "mtp", 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accepted": [5, 0]}, "more than it was offered"),
        ({"accepted": [1]}, "accepted told of 1"),
        ({"counts": [1, 2, 1]}, "not its accepted drafts and one more"),  # a cut before the last step
        ({"counts": [1, 3, 2]}, "not its accepted drafts and one more"),  # more than was decided
        ({"counters": {"drafts": 2, "drafted": 8, "accepted": 3}}, "2 accepted by its steps, 3"),
        ({"counters": {"drafts": 3, "drafted": 8, "accepted": 2}}, "2 steps with a draft by the records, 3"),
        ({"counters": {"drafts": 2, "drafted": 9, "accepted": 2}}, "8 ids drafted by the records, 9"),
    ],
)
def test_contradictions_are_named(changes, said):
    records = [{**speculative([2, 0], 4), **changes}]
    found = disagreement(records, {"drafts": 2, "drafted": 8, "accepted": 2}, "mtp", 4)
    assert found.startswith("p-01, repeat 0: ") and said in found


def test_a_step_longer_than_gamma_allows_is_named():
    assert "a step of 6 ids" in disagreement([record([1, 6])], None, "mtp", 4)


def test_vllm_at_concurrency_4_in_a_cell():
    cell = result("h200_vllm_code_mtp", 3, concurrency=(4,))
    assert requests(cell)[0]["accepted"] is None
    found = recompute(cell)["loads"][0]["arms"]["test"]["acceptance"]
    counters = window(cell["sessions"], "test", 4)
    assert found["length"] == 1 + counters["accepted"] / counters["drafts"]
    assert found["cut"] >= 0
    assert gate(cell, "token_sources")["passed"]


def test_histogram_is_by_number_of_ids():
    rows = batch([{"requests": [record([1, 3, 10, 3])]}], "test", 1)
    assert histogram(rows.step_ids()) == {"3": 2, "10": 1}
    assert list(histogram(rows.step_ids())) == ["3", "10"]


def test_simulated_acceptance_has_the_shares_it_was_made_with():
    test = recompute(result(prompts=300, rounds=1))["loads"][0]["arms"]["test"]["acceptance"]
    assert test["conditional"] == pytest.approx([0.7] * 4, abs=0.02)
