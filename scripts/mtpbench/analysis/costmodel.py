"""What a speed-up should be, from what acceptance and a step cost.

A step under speculation costs T_step and brings tau ids; without it T_base brings one. So the speed-up is
tau * T_base / T_step, and speculation pays from tau* = T_step / T_base on. tau belongs to model, drafter and prompts, the step
times to the GPU and engine: measured apart, they predict cells that nobody measured.

tau is what steps delivered, over all of them. The acceptance length is more than that where an output ends within a step
(by some 2 % at 64 ids and gamma 4), and where steps have no draft, as with prompt lookup.
"""

from collections.abc import Mapping

import numpy as np
from scipy import stats

from mtpbench.analysis.records import Batch


def break_even(base_step: float, test_step: float) -> float:
    """The acceptance length at which speculation neither gains nor loses; step times in any one unit."""
    return test_step / base_step


def mean_ids(ids_per_step: Mapping[str, int]) -> float:
    """Ids that a step delivered on average, from how many steps brought so many: {"1": n, ...}."""
    return sum(int(ids) * steps for ids, steps in ids_per_step.items()) / sum(ids_per_step.values())


def predict(ids: float, base_step: float, test_step: float) -> float:
    """The speed-up where a step delivers so many ids, from step times in any one unit."""
    return ids * base_step / test_step


def half_width_of_mean(*half_widths: float) -> float:
    """The half-width h (ratio / (1 + h) to ratio * (1 + h)) of the mean of independent ratios with these half-widths."""
    return float(np.expm1(np.linalg.norm(np.log1p(half_widths)) / len(half_widths)))


def beside(load: Mapping, test: Batch) -> dict | None:
    """The model beside what was observed at one load point of a summary; None without acceptance or a speed-up.

    {"break_even", "predicted", "observed", "error", "step_dependence"}: predicted from the load's own ids a step and step
    times, so the error (predicted / observed - 1) is that of the model; step_dependence says whether its premise holds.
    """
    arms = load["arms"]
    if arms["test"]["acceptance"] is None or load["speedup"] is None:
        return None
    steps = arms["control"]["step_ms"]["mean"], arms["test"]["step_ms"]["mean"]
    predicted, observed = predict(mean_ids(arms["test"]["ids_per_step"]), *steps), load["speedup"]["ratio"]
    return {
        "break_even": break_even(*steps), "predicted": predicted, "observed": observed,
        "error": predicted / observed - 1, "step_dependence": step_dependence(test),
    }  # fmt: skip


def step_dependence(test: Batch) -> dict | None:
    """Whether a step costs more the more ids it brings, which the model denies.

    Least squares of step time on ids, over single steps: {"share_per_id", "low", "high"}: the change of step time an id, as
    a share of its mean, with its 95 % interval. None with fewer than three steps or ids that never vary.
    """
    ids, time = test.step_ids(), test.step_seconds()
    if len(ids) < 3 or np.ptp(ids) == 0 or time.mean() == 0:
        return None
    fit = stats.linregress(ids, time)
    half = stats.t.ppf(0.975, len(ids) - 2) * fit.stderr
    found = {"share_per_id": fit.slope, "low": fit.slope - half, "high": fit.slope + half}
    return {name: float(value / time.mean()) for name, value in found.items()}
