"""The rules that make words of verdicts, one by one."""

import pytest
import report_studies

from mtpbench.report import advice, cells, tables
from mtpbench.report.cells import Cell, Comparison, Study
from mtpbench.report.figures import Figure, Null


def comparison(name="cpu_vllm_code_mtp", verdict="faster", ratio=1.5, sessions=2, prompts=12, loads=(1,), at=0, floor=0.02, half_width=0.05):
    """A comparison as the rules see one; its cell has as many loads as asked for."""
    speedup = {"ratio": ratio, "low": ratio / 1.05, "high": ratio * 1.05, "half_width": half_width, "prompts": prompts, "sessions": sessions}
    document = {
        "spec": {"mode": {"method": "ngram" if name.endswith("ngram") else "mtp", "num_speculative_tokens": 4}},
        "sessions": [{"model": {}}] * sessions,
        "summary": {"valid": True, "loads": [{"concurrency": load, "speedup": speedup} for load in loads]},
    }
    cell = Cell(name, document)
    figure = Null("no null cell measured") if floor is None else Figure(floor, "percent", "metrics/runs/null/result.json#/summary/loads/0/speedup")
    return Comparison(cell, at, loads[at], Study([cell], [], {}), figure, verdict, "" if floor else "no null cell measured")


def said(parts) -> str:
    return "".join(part if isinstance(part, str) else part.text for part in parts)


@pytest.mark.parametrize(
    ("verdicts", "word"),
    [
        (["faster"], "enable"),
        (["slower", "slower"], "do not enable"),
        (["unresolved"], "unresolved"),
        (["faster", "unresolved"], "enable where shown"),
        (["slower", "unresolved"], "do not enable"),
        (["faster", "slower"], "depends"),
        (["faster", "slower", "unresolved"], "depends"),
    ],
)
def test_the_word_of_a_group(verdicts, word):
    assert advice.word(verdicts) == word


def test_scenarios_hardware_and_engines_are_grouped_each_for_itself():
    items = [comparison("cpu_vllm_code_mtp"), comparison("h100_vllm_generic_mtp", "slower", 0.8)]
    found = {scope: {item.subject: item.word for item in advice.advice(items, scope)} for scope in advice.SCOPES}
    assert found == {
        "scenario": {"code": "enable", "open text": "do not enable"},
        "hardware": {"cpu": "enable", "h100": "do not enable"},
        "engine": {"vllm": "depends"},
    }


def test_methods_are_never_thrown_together():
    items = [comparison(), comparison("cpu_vllm_code_ngram", "slower", 0.9)]
    assert [(item.subject, item.word) for item in advice.advice(items, "engine")] == [("vllm, MTP", "enable"), ("vllm, NGRAM", "do not enable")]


def test_a_sentence_gives_the_range_of_what_agrees():
    items = [comparison(ratio=1.2), comparison("h100_vllm_code_mtp", ratio=1.9), comparison("b200_vllm_code_mtp", ratio=1.5)]
    assert said(advice.advice(items, "engine")[0].parts) == "Every comparison: faster, 1.20× to 1.90×."


def test_a_sentence_names_what_differs_and_how_much_could_hide():
    items = [comparison(), comparison("h100_vllm_code_mtp", "unresolved", 1.01, floor=0.08)]
    assert said(advice.advice(items, "engine")[0].parts) == (
        "cpu vllm code mtp: faster, 1.50×; h100 vllm code mtp: unresolved (anything from 0.96× to 1.06× is possible within a noise floor of up to 8.0 %)."
    )


def test_what_one_comparison_lacks_is_not_said_of_the_others():
    items = [comparison(verdict="unresolved", ratio=1.01), comparison("h100_vllm_code_mtp", "unresolved", floor=None)]
    assert said(advice.advice(items, "engine")[0].parts) == (
        "Every comparison: unresolved (anything from 0.96× to 1.06× is possible; h100 vllm code mtp: no null cell measured)."
    )


def test_without_a_null_cell_the_sentence_says_so_and_guesses_nothing():
    items = [comparison(verdict="unresolved", floor=None)]
    assert said(advice.advice(items, "engine")[0].parts) == "cpu vllm code mtp: unresolved (no null cell measured)."


def test_many_names_are_cut():
    items = [comparison(f"{gpu}_vllm_code_mtp") for gpu in "abcdefgh"] + [comparison(verdict="slower", ratio=0.9)]
    assert "and others: faster" in said(advice.advice(items, "engine")[0].parts)


@pytest.mark.parametrize(
    ("items", "scope", "reason"),
    [
        ([comparison()], "engine", "a single comparison"),
        ([comparison(), comparison("cpu_vllm_generic_mtp")], "engine", "one GPU"),
        ([comparison(sessions=1), comparison("h100_vllm_code_mtp")], "engine", "one session a cell, so noise between sessions was not seen"),
        ([comparison(prompts=4), comparison("h100_vllm_code_mtp")], "engine", "few prompts"),
    ],
)
def test_thin_evidence_is_called_so(items, scope, reason):
    assert advice.thin(items, scope) == (reason,)


def test_good_evidence_is_not_called_thin():
    assert advice.thin([comparison(), comparison("h100_vllm_code_mtp")], "engine") == ()
    assert advice.thin([comparison(), comparison("cpu_vllm_generic_mtp")], "hardware") == ()


def test_a_verdict_that_turns_under_load_is_told():
    loads = (1, 4, 16)
    items = [comparison(verdict=verdict, loads=loads, at=at) for at, verdict in enumerate(("faster", "faster", "slower"))]
    assert [said(sentence) for sentence in advice.load_changes(items)] == [
        "cpu vllm code mtp: enable at concurrency 1, but do not enable at 16."
    ]
    assert advice.load_changes(items[:2]) == []


@pytest.mark.parametrize(
    ("of_null", "said"),
    [
        ({}, None), ({"sessions": 4}, None), ({"rounds": 3}, None), ({"tokens": 16}, None),
        ({"sessions": 2}, "the null cell has fewer sessions or rounds"), ({"rounds": 1}, "the null cell has fewer sessions or rounds"),
        ({"tokens": 65}, "the null cell has longer requests"), ({"prompts": 11}, "the null cell was measured under another spec"),
        ({"concurrency": (1, 2)}, "the null cell was measured under another spec"),
    ],
)  # fmt: skip
def test_a_null_cell_gives_a_floor_where_it_says_no_less_of_equal_arms(tmp_path, of_null, said):
    given = {"sessions": 3, "rounds": 2, "tokens": 64}
    for name, options in {"h100_vllm_code_baseline": given | of_null, "h100_vllm_code_mtp": given}.items():
        report_studies.write(tmp_path, [name], **options)
    study = cells.load(tmp_path)
    (found,) = study.comparisons
    assert getattr(found.noise_floor, "reason", None) == said
    (note,) = tables.answer(study).note
    assert ("With shorter requests than the cells: h100_vllm_code_baseline (16 ids)." in note) is ("tokens" in of_null and said is None)
