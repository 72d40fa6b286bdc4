"""What the committed results of the CPU must show, whoever measured them: exact tokens, no loss, engines that agree."""

import itertools
from pathlib import Path

import pytest

from mtpbench import results

ROOT = Path(__file__).parents[1]
RESULTS = [results.read(path) for path in results.existing(ROOT) if path.parent.name.startswith("cpu_")]


def named(result) -> str:
    return result["cell"]


def outputs(result, arm: str) -> dict:
    records = [record for session in result["sessions"] for record in session["requests"] if record["arm"] == arm]
    return {(record["prompt"], record["repeat"]): record["ids"] for record in records}


@pytest.mark.parametrize("result", RESULTS, ids=named)
def test_every_token_is_counted_and_every_step_accounted_for(result):
    for session in result["sessions"]:
        for record in session["requests"]:
            assert sum(record["counts"]) == len(record["ids"])
            if record["accepted"] is not None:
                cut = sum(accepted + 1 for accepted in record["accepted"]) + record["counts"][0] - len(record["ids"])
                assert 0 <= cut <= result["spec"]["mode"]["num_speculative_tokens"]
                assert sum(record["accepted"]) == record["counters"]["accepted"]
                assert sum(record["offered"]) == record["counters"]["drafted"]


@pytest.mark.parametrize("result", RESULTS, ids=named)
def test_greedy_output_is_the_same_in_both_arms(result):
    assert outputs(result, "control") == outputs(result, "test")


PAIRS = [
    pytest.param(a, b, id=f"{a['cell']}-{b['cell']}")
    for a, b in itertools.combinations(RESULTS, 2)
    if a["cell"].split("_")[2:] == b["cell"].split("_")[2:]
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_both_engines_write_the_same_ids(one, other):
    assert outputs(one, "test") == outputs(other, "test")


@pytest.mark.parametrize(("one", "other"), [pair for pair in PAIRS if pair.values[0]["spec"]["mode"]["method"] == "mtp"])
def test_both_engines_accept_alike(one, other):
    """They ask the drafter in different ways, and the shipped one has learned both."""
    lengths = [result["summary"]["loads"][0]["arms"]["test"]["acceptance"]["length"] for result in (one, other)]
    assert lengths[0] == pytest.approx(lengths[1], abs=0.1)
