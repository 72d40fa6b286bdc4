"""Whether a prediction from other cells holds: how near it must be, and what it may itself be off by."""

import pytest
from report_studies import matrix, write

from mtpbench.report import cells
from mtpbench.report.figures import Null

NAMES = matrix(engines=("vllm",), modes=("mtp",))


def study(root, step_ms: float, half_widths: float, own: float) -> cells.Comparison:
    """The comparison of one cell that observes 1, where the two others take so many times its step and are so uncertain."""

    def change(result):
        (load,), mine = result["summary"]["loads"], result["cell"] == NAMES[0]
        load["speedup"] |= {"ratio": 1.0, "low": 1 / (1 + own), "high": 1 + own, "half_width": own if mine else half_widths}
        load["arms"]["test"]["ids_per_step"] = {"1": 5, "3": 5}
        load["arms"]["control"]["step_ms"]["mean"] = 1.0
        load["arms"]["test"]["step_ms"]["mean"] = 2.0 if mine else 2.0 * step_ms

    found = cells.load(write(root, NAMES, change, prompts=4, rounds=1, tokens=8)).comparisons
    return next(item for item in found if item.cell.name == NAMES[0])


@pytest.mark.parametrize(
    ("step_ms", "half_widths", "own", "word"),
    [
        (1.04, 0.01, 0.01, "within 5 %"),
        (1.10, 0.01, 0.12, "in the interval"),
        (1.10, 0.15, 0.05, "within both uncertainties"),  # the mean of two is known to 10.4 %
        (1.10, 0.10, 0.05, "no"),
        (0.85, 0.50, 0.05, "within both uncertainties"),
    ],
)
def test_how_near_a_prediction_is(tmp_path, step_ms, half_widths, own, word):
    item = study(tmp_path, step_ms, half_widths, own)
    assert item.predicted.value == pytest.approx(1 / step_ms)
    assert item.holds == word


def test_a_cell_without_another_that_drafts_alike_is_not_predicted(tmp_path):
    (item,) = cells.load(write(tmp_path, NAMES[:1], prompts=4, rounds=1, tokens=8)).comparisons
    assert all(isinstance(found, Null) and found.reason == "none alike" for found in (item.predicted, item.predicted_spread, item.holds))
