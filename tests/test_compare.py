"""Two results of one cell beside each other."""

from mtpbench import simulate
from mtpbench.analysis import compare


def _of(result: dict, sessions: list[dict]) -> dict:
    return {**result, "sessions": sessions}


def test_a_recording_that_both_results_hold_is_no_evidence_of_anything():
    """As where more sessions were asked for: the first is the old one again, and a comparison of it with itself says 1.000."""
    made = simulate.result("cpu_vllm_code_mtp", prompts=8, rounds=2, tokens=16, sessions=3)
    made["provenance"] = {"measuring_code": "0" * 64}
    one, two, three = made["sessions"]
    effects = lambda *sides: list(compare.effects(*(_of(made, side) for side in sides)))  # noqa: E731
    assert effects([one], [one, two]) == [(1, "control", None), (1, "test", None)]
    assert effects([one, two], [one, three]) == effects([two], [three])
    assert all(speedup["sessions"] == 1 and speedup["low"] < speedup["high"] for _, _, speedup in effects([one, two], [one, three]))
    said = compare.surroundings(_of(made, [one, two]), _of(made, [one, three]))
    assert said == ["sessions: 1 of 2 and 2 are the same recordings, and left out of the effect"]
