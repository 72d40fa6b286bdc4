"""Outputs of the two arms compared by ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import gate, requests, result

from mtpbench.analysis.aggregate import recompute
from mtpbench.analysis.losslessness import compare, first_difference, outcome

ids = st.lists(st.integers(0, 3), max_size=20)


def differing(cell, index, margin, prompts=("code-01",), report=True):
    """A cell whose test arm has another id at `index` in every repeat of these prompts."""
    made = result(cell)
    for each in requests(made):
        if each["prompt"] in prompts:
            each["ids"][index] += 100_000
    if report:
        made["sessions"][0]["losslessness"] = [
            {"prompt": prompt, "concurrency": 1, "first_difference": index, "margin": margin} for prompt in prompts
        ]
    return made


@given(ids, ids)
def test_first_difference(one, other):
    index = first_difference(one, other)
    if index is None:
        assert one == other
    else:
        assert one[:index] == other[:index] and one[index : index + 1] != other[index : index + 1]
    assert first_difference(other, one) == index


def test_identical():
    found = compare(result()["sessions"], "float32")
    assert found == {"prompts": 12, "identical": 12, "tie": 0, "mismatch": 0, "differences": []}


@pytest.mark.parametrize(("index", "margin", "kind"), [(37, 0.004, "tie"), (2, 3.1, "mismatch"), (5, None, "mismatch")])
def test_case_6_tie_or_mismatch(index, margin, kind):
    summary = recompute(differing("h100_vllm_code_mtp", index, margin))
    found = summary["losslessness"]
    assert (found["identical"], found[kind]) == (11, 1)
    assert found["differences"][0] == {"prompt": "code-01", "session": 0, "concurrency": 1, "first_difference": index, "margin": margin, "outcome": kind}
    assert summary["valid"] == (kind == "tie")
    assert any("code-01 differs at" in line for line in summary["reasons" if kind == "mismatch" else "warnings"])


def test_float32_on_a_cpu_must_be_identical_even_at_a_tie():
    seen = gate(differing("cpu_transformers_code_mtp", 37, 0.0001), "lossless")
    assert seen["passed"] is False and "1 tie(s)" in seen["seen"]


def test_a_margin_for_another_place_does_not_count():
    made = differing("h100_vllm_code_mtp", 5, 0.004)
    made["sessions"][0]["losslessness"][0]["first_difference"] = 9
    assert compare(made["sessions"], "bfloat16")["mismatch"] == 1


@pytest.mark.parametrize("margin", [None, 3.1])
def test_a_tie_hides_no_mismatch_of_another_repeat(margin):
    made = differing("h100_vllm_code_mtp", 37, 0.004)
    other = next(each for each in requests(made) if each["prompt"] == "code-01" and each["repeat"] == 1)
    other["ids"][2] += 100_000
    if margin:
        made["sessions"][0]["losslessness"].append({"prompt": "code-01", "concurrency": 1, "first_difference": 2, "margin": margin})
    found = compare(made["sessions"], "bfloat16")
    assert (found["tie"], found["mismatch"], found["differences"][0]["first_difference"]) == (0, 1, 2)


@pytest.mark.parametrize("second", [None, 8.3])
def test_a_tie_hides_no_mismatch_at_the_same_place(second):
    made = differing("h100_vllm_code_mtp", 3, 1e-4)
    made["sessions"][0]["losslessness"].append({"prompt": "code-01", "concurrency": 1, "first_difference": 3, "margin": second})
    found = compare(made["sessions"], "bfloat16")
    assert (found["tie"], found["mismatch"], found["differences"][0]["margin"]) == (0, 1, second)


def test_an_output_that_goes_on_differs_where_the_other_ended():
    made = result("h100_vllm_code_mtp")
    each = requests(made, "control")[0]
    each["counts"], each["times"], each["ids"] = each["counts"][:50], each["times"][:50], each["ids"][:50]
    assert compare(made["sessions"], "bfloat16")["differences"][0]["first_difference"] == 50


def test_every_difference_counts_and_a_hundred_are_listed():
    found = compare(result(prompts=150, rounds=1, tokens=4)["sessions"], "float32")
    assert found["prompts"] == 150
    made = result(prompts=150, rounds=1, tokens=4)
    for each in requests(made):
        each["ids"][0] += 100_000
    found = compare(made["sessions"], "float32")
    assert (found["mismatch"], len(found["differences"])) == (150, 100)


@pytest.mark.parametrize("mark", ["random", "synthetic_acceptance"])
def test_without_a_text_losslessness_does_not_apply(mark):
    made = differing("h100_vllm_code_mtp", 2, 3.1)
    made["sessions"][0]["model"][mark] = True
    assert gate(made, "lossless")["passed"] is None
    assert gate(made, "not_degenerate")["passed"] is None
    assert recompute(made)["valid"]


def test_half_types_round_more_coarsely():
    assert [outcome(0.1, dtype) for dtype in ("float32", "float16", "bfloat16")] == ["mismatch", "mismatch", "tie"]
