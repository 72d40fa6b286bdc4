"""How often the method tells the truth, found by measuring simulated machines whose truth is known."""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
from scipy import stats

from mtpbench.analysis import effect
from mtpbench.simulate import Truth, experiment

RATIOS = (1.0, 1.02, 1.05, 1.10)

# A method takes the TPOTs of one experiment and of a null experiment, both shaped as simulate.tpots shapes them, and gives
# what effect.verdict takes: a speed-up with its interval, and a noise floor.
Finding = tuple[dict, float]


def paired(tpots: np.ndarray, null: np.ndarray) -> Finding:
    """Both arms in each session, as this project measures."""
    return _find(_ratios(*tpots.swapaxes(0, 1)), _ratios(*null.swapaxes(0, 1)))


def stopping(tpots: np.ndarray, null: np.ndarray, half_width: float = 0.02) -> Finding:
    """Paired, with no further round once the interval is narrow enough."""

    def stopped(all_rounds: np.ndarray) -> list[dict]:
        for rounds in range(2, all_rounds.shape[-1] + 1):
            tables = _ratios(*all_rounds[..., :rounds].swapaxes(0, 1))
            if effect.speedup(*tables)["half_width"] <= half_width:
                break
        return tables

    return _find(stopped(tpots), stopped(null))


def unpaired(tpots: np.ndarray, null: np.ndarray) -> Finding:
    """The same calculation with each arm in containers of its own: the first half of the sessions gives the control."""
    half = len(tpots) // 2
    return _find(_ratios(tpots[:half, 0], tpots[half:, 1]), _ratios(null[:half, 0], null[half:, 1]))


def welch(tpots: np.ndarray, null: np.ndarray) -> Finding:
    """Containers of its own for each arm and Welch's t test on the means of the containers, which needs no null."""
    means, half = np.log(tpots).mean(axis=(2, 3)), len(tpots) // 2
    interval = stats.ttest_ind(means[:half, 0], means[half:, 1], equal_var=False).confidence_interval(effect.LEVEL)
    low, high = np.exp([interval.low, interval.high])
    return {"ratio": np.sqrt(low * high), "low": low, "high": high, "half_width": np.sqrt(high / low) - 1}, 0.0


@dataclass(frozen=True)
class Scenario:
    name: str
    truth: Truth = Truth()
    design: Mapping = field(default_factory=dict)  # what simulate.experiment takes
    method: Callable[[np.ndarray, np.ndarray], Finding] = paired


FULL, DEMO = {"prompts": 32, "tokens": 128, "rounds": 2}, {"prompts": 12, "tokens": 64, "rounds": 2}
QUIET, NOISY = Truth(noise=0.02), Truth(noise=0.10)
CONTAINERS = Truth(noise=0.05, session_effect=0.03)
SCENARIOS = (
    Scenario("paired, 32 prompts x 128 tokens, quiet machine (2 % a request)", QUIET, FULL),
    Scenario("paired, the same, noisy machine (10 % a request)", NOISY, FULL),
    Scenario("paired, the same, heavy tails (t, 3 degrees of freedom) and 10 % drift", Truth(noise=0.10, tail=3, drift=0.10), FULL),
    Scenario("paired, the same, rounds until the half-width is 2 % (2 to 8)", NOISY, {**FULL, "rounds": 8}, stopping),
    Scenario("paired, the CPU demo: 12 prompts x 64 tokens", NOISY, DEMO),
    Scenario("paired null cells (two baselines), noisy machine", NOISY, {**FULL, "speculative": False}),
    Scenario("paired, containers differ by 3 % in the ratio, 1 session", CONTAINERS, FULL),
    Scenario("paired, the same, 2 sessions", CONTAINERS, {**FULL, "sessions": 2}),
    Scenario("paired, the same, 3 sessions", CONTAINERS, {**FULL, "sessions": 3}),
    Scenario("paired, the same, 5 sessions", CONTAINERS, {**FULL, "sessions": 5}),
    Scenario("unpaired, each arm in 1 container of its own, the same calculation", QUIET, {**FULL, "sessions": 2}, unpaired),
    Scenario("unpaired, each arm in 3 containers of its own, Welch's t on containers", QUIET, {**FULL, "sessions": 6}, welch),
)


@dataclass(frozen=True)
class Row:
    """What came of a scenario's experiments, as shares. The half-width is the median one."""

    coverage: float  # the 95 % interval holds the truth
    half_width: float
    called: Mapping[float, float]  # by true ratio: called faster (at 1: faster or slower)


def run(scenario: Scenario, experiments: int, seed: int = 0) -> Row:
    """Repeat a scenario: each experiment has a null experiment of the same machine, and is read at each of RATIOS.

    A true ratio multiplies every TPOT of one arm alike, so it multiplies what is found, whatever it is.
    """
    rng = np.random.default_rng(seed)
    covered, widths, called = [], [], {ratio: 0 for ratio in RATIOS}
    for _ in range(experiments):
        tpots = experiment(scenario.truth, rng, **scenario.design)
        null = experiment(scenario.truth, rng, **{**scenario.design, "speculative": False})
        found, floor = scenario.method(tpots, null)
        covered.append(found["low"] <= scenario.truth.ratio <= found["high"])
        widths.append(found["half_width"])
        for ratio in RATIOS:
            verdict = effect.verdict({**found, "ratio": found["ratio"] * ratio}, floor)["verdict"]
            called[ratio] += verdict == "faster" or (ratio == 1 and verdict == "slower")
    return Row(float(np.mean(covered)), float(np.median(widths)), {ratio: count / experiments for ratio, count in called.items()})


def table(experiments: int, say: Callable[[str], None] = lambda line: None) -> str:
    """The Markdown table of all scenarios, each with so many experiments."""
    lines = [
        "| what is measured | interval holds the truth | median half-width | false alarms | called faster at 1.02 | at 1.05 | at 1.10 |",
        "| --- | --: | --: | --: | --: | --: | --: |",
    ]
    with ProcessPoolExecutor() as pool:
        for scenario, row in zip(SCENARIOS, pool.map(run, SCENARIOS, repeat(experiments))):
            shares = [row.coverage, row.half_width, *(row.called[ratio] for ratio in RATIOS)]
            lines.append(f"| {scenario.name} | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |")
            say(lines[-1])
    return "\n".join(lines)


def _ratios(control: np.ndarray, test: np.ndarray) -> list[dict]:
    """Log ratios as effect.speedup takes them, from TPOTs of shape (sessions, prompts, rounds)."""
    return [dict(enumerate(session)) for session in np.log(control / test)]


def _find(tables: list[dict], null: list[dict]) -> Finding:
    return effect.speedup(*tables), effect.noise_floor(effect.speedup(*null))
