"""The speed-up of one arm over the other, its uncertainty, and what may be said about it.

Needs numpy and scipy only: the measuring program imports it for its stopping rule.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np
from scipy import stats

LEVEL = 0.95
NO_INTERVAL = "no interval: fewer than two prompts, or one session whose prompts all ran in one wave"


def tpot(record: Mapping) -> float | None:
    """Seconds per output token after the first output; None where no token followed it."""
    tokens = sum(record["counts"][1:])
    return (record["times"][-1] - record["times"][0]) / tokens if tokens else None


def log_ratios(requests: Iterable[Mapping], concurrency: int, value=tpot) -> dict[str, list[float]]:
    """Per prompt the log of control over test, one a repeat, from the pairs of one session where both have a value."""
    arms: dict[str, dict] = {"control": {}, "test": {}}
    for record in requests:
        if record["concurrency"] == concurrency:
            arms[record["arm"]][record["prompt"], record["repeat"]] = value(record)
    ratios: dict[str, list[float]] = {}
    for pair, control in arms["control"].items():
        if control and (test := arms["test"].get(pair)):
            ratios.setdefault(pair[0], []).append(float(np.log(control / test)))
    return ratios


def waves(requests: Iterable[Mapping], concurrency: int) -> dict[str, int]:
    """Of each prompt the first wave in which it ran; prompts of one wave ran together."""
    found: dict[str, int] = {}
    for record in requests:
        if record["concurrency"] == concurrency:
            found[record["prompt"]] = min(record["wave"], found.get(record["prompt"], record["wave"]))
    return found


def at_load(sessions: Sequence[Sequence[Mapping]], concurrency: int, value=tpot) -> dict | None:
    """`speedup` at one load of sessions, each the list of its requests."""
    return speedup(*(log_ratios(requests, concurrency, value) for requests in sessions), together=waves(sessions[0], concurrency))


def speedup(*sessions: Mapping[str, Sequence[float]], together: Mapping[str, int] | None = None) -> dict | None:
    """Speed-up over a population of prompts (and of sessions) with its 95 % interval.

    Each session maps a prompt to its log ratios of TPOT, control over test, one a repeat. Only prompts present in every
    session count, so that prompts and sessions are crossed. None without such a prompt; the interval is None with one.

    One session: t on the prompts' means, or on those of the waves where `together` says which prompts ran in one: they
    share what disturbed it, and one wave tells nothing of that. More sessions see it, so there prompts count: the two-way
    random-effects analysis of variance, where the variance of the grand mean is
    (MS_sessions + MS_prompts - MS_residual) / (prompts * sessions). The part of the sessions and the part that the prompts
    add have few and different degrees of freedom, so each is widened by its own t quantile and the squares are added
    (Howe 1974, JASA 69:789, for the sum of two means). docs/validity.md has its coverage.

    `half_width` h: the interval is ratio / (1 + h) to ratio * (1 + h). `sign_test_p`: two-sided, over
    prompts, or over waves where `together` is given.
    """
    prompts = sorted(set.intersection(*(set(session) for session in sessions)))
    if not prompts:
        return None
    table = np.array([[fmean(session[prompt]) for prompt in prompts] for session in sessions])
    groups = [prompt if together is None else together[prompt] for prompt in prompts]
    mean, half, bounds = table.mean(), _half_width(table, groups), (None, None, None)
    of_groups = np.array(_means(table.mean(axis=0), groups))
    if half is not None:
        bounds = map(float, (*np.exp([mean - half, mean + half]), np.expm1(half)))
    return {
        "ratio": float(np.exp(mean)), **dict(zip(("low", "high", "half_width"), bounds)),
        "prompts": len(prompts), "sessions": len(sessions),
        "sign_test_p": _sign_test(int((of_groups > 0).sum()), int((of_groups < 0).sum())),
    }


def _half_width(table: np.ndarray, groups: Sequence) -> float | None:
    """Half of the 95 % interval of the mean of a table (sessions, prompts), in its unit. groups: what ran together, by prompt."""
    sessions, prompts = table.shape
    if sessions == 1:
        means = _means(table[0], groups)
        return _quantile(len(means) - 1) * np.sqrt(np.var(means, ddof=1) / len(means)) if len(means) > 1 else None
    if prompts == 1:
        return None
    of_prompts = table.mean(axis=0).var(ddof=1) / prompts
    residual = table - table.mean(axis=0) - table.mean(axis=1, keepdims=True) + table.mean()
    of_residual = (residual**2).sum() / ((sessions - 1) * (prompts - 1)) / table.size
    of_sessions = table.mean(axis=1).var(ddof=1) / sessions
    added = max(of_prompts - of_residual, 0.0)
    return np.sqrt(_quantile(sessions - 1) ** 2 * of_sessions + _quantile(prompts - 1) ** 2 * added)


def _means(values: Iterable[float], groups: Sequence) -> list[float]:
    """The mean of each group's values."""
    members: dict = {}
    for value, group in zip(values, groups):
        members.setdefault(group, []).append(value)
    return [fmean(each) for each in members.values()]


@functools.cache
def _quantile(freedom: int) -> float:
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom))


@functools.cache
def _sign_test(better: int, worse: int) -> float:
    """Two-sided p of so many on either side of 1; those at 1 are left out."""
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def noise_floor(null: Mapping | None) -> float | None:
    """What a comparison of two equal arms shows, as a share (0.02 is 2 %): the half-width of the null's interval.

    Where the null's own effect is larger than that, the machine favours one arm, and the floor is that effect.
    None where there is no null, or it has no interval.
    """
    return None if null is None or null["half_width"] is None else max(null["half_width"], _size(null))


def verdict(speedup: Mapping | None, floor: float | None) -> dict:
    """`faster` or `slower` if the interval excludes 1 and the effect exceeds the noise floor, else `unresolved`.

    `resolvable` is the smallest effect, as a share, that this cell could have shown; None if it could show none.
    """
    found, resolvable, reason = "unresolved", None, None
    if speedup is None or speedup["half_width"] is None:
        reason = NO_INTERVAL
    elif floor is None:
        reason = "no null cell to give the noise floor"
    elif _size(speedup) > (resolvable := max(speedup["half_width"], floor)):
        found = "faster" if speedup["ratio"] > 1 else "slower"
    else:
        reason = "the interval includes 1" if resolvable == speedup["half_width"] else "the effect is within the noise floor"
    return {"verdict": found, "resolvable": resolvable, "reason": reason}


def _size(speedup: Mapping) -> float:
    """Distance of a ratio from 1 as a share, the same for r and 1 / r."""
    return max(speedup["ratio"], 1 / speedup["ratio"]) - 1
