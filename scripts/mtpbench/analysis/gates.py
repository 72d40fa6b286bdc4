"""Whether a result may be believed. Each gate looks at one thing and says what it saw.

A gate takes a result (spec and sessions suffice) and returns (passed, seen, warning): passed is None where the gate does not
apply, and `seen` then says why; `warning` is True where the cell is valid and its reader should still know.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from mtpbench.analysis import acceptance, hardware, losslessness
from mtpbench.analysis.records import pairs, unequal

LONGEST_CYCLE = 8  # ids
SHORTEST_JUDGED = 16  # ids; below that nothing is called a loop
DEGENERATE_SHARE = 0.1  # of the prompts
# Times the later ones. A hiccup of the scheduler doubles one short prefill, but not the mean of many steps; a cold start
# costs many times either.
OUTLIER = {"TTFT": 3.0, "step time": 2.0}
CLOCK_DOWN, SAMPLES_DOWN = 0.05, 0.10  # below the clock that the device otherwise held (the 95th percentile); share of samples
SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake"}

Seen = tuple[bool | None, str, bool]


def judge(result: Mapping) -> list[dict]:
    """[{"name", "passed", "seen", "warning"}] in the order of GATES. After a gate that must hold for the numbers to be
    computable at all has failed, the rest are not looked at."""
    found: list[dict] = []
    for name, gate in GATES.items():
        passed, seen, warning = gate(result) if computable(found) else (None, "not looked at: the records are malformed", False)
        found.append({"name": name, "passed": passed, "seen": seen, "warning": warning})
    return found


def computable(gates: Sequence[Mapping]) -> bool:
    """Whether no gate has failed that the computation of any number rests on."""
    return not any(gate["name"] == "finite" and gate["passed"] is False for gate in gates)


def degenerate(ids: Sequence[int]) -> bool:
    """Whether one id, or a cycle of up to 8 ids repeated three times or more, fills more than half of an output.

    Outputs under 16 ids are never called so.
    """
    array = np.asarray(ids)
    if len(array) < SHORTEST_JUDGED:
        return False
    for period in range(1, LONGEST_CYCLE + 1):
        breaks = (array[period:] != array[:-period]).nonzero()[0]
        same = int(np.diff(breaks, prepend=-1, append=len(array) - period).max()) - 1  # longest run equal to a period before
        if same >= 2 * period and same + period > len(array) / 2:
            return True
    return False


def _finite(result: Mapping) -> Seen:
    for session, record in _records(result):
        times = [record["submit"], *record["times"]]
        where = _name(session, record)
        if not all(map(math.isfinite, times)) or any(b < a for a, b in zip(times, times[1:])):
            return False, f"{where}: times that are no finite, rising numbers", False
        if len(record["times"]) != len(record["counts"]) or sum(record["counts"]) != len(record["ids"]):
            return False, f"{where}: {len(record['times'])} times, {len(record['counts'])} counts summing to {sum(record['counts'])}, {len(record['ids'])} ids", False
        if any(count < 1 for count in record["counts"]) or (len(times) > 2 and times[-1] == times[1]):
            return False, f"{where}: an output without ids, or steps that took no time", False
    return True, "all times finite and rising, all counts equal their ids", False


def _device(result: Mapping) -> Seen:
    asked, seen = result["spec"]["device"], [session["device"] for session in result["sessions"]]
    same = all(device[key] == asked[key] for device in seen for key in ("kind", "name"))
    return same, f"asked for {asked['name']}, measured on {', '.join(sorted({device['name'] for device in seen}))}", False


def _complete(result: Mapping) -> Seen:
    """Every prompt in each round, and both arms alike. A prompt may come more often: it then filled up a wave."""
    protocol, prompts = result["spec"]["protocol"], set(result["spec"]["prompts"])
    if len(result["sessions"]) != protocol["sessions"]:
        return False, f"{len(result['sessions'])} sessions of {protocol['sessions']}", False
    for session, load, arms in _loads(result):
        where = f"session {session['index']}, concurrency {load}"
        control, test = (Counter((record["prompt"], record["repeat"]) for record in arms[arm]) for arm in ("control", "test"))
        repeats = Counter(prompt for prompt, _ in control)
        if control != test or max(control.values(), default=0) > 1:
            return False, f"{where}: {control.total()} requests of the control and {test.total()} of the test arm make no pairs", False
        if repeats.keys() != prompts or min(repeats.values(), default=0) < protocol["rounds"]["min"]:
            least = min((repeats[prompt] for prompt in prompts), default=0)
            return False, f"{where}: a prompt ran {least} times of {protocol['rounds']['min']}, or is none of the spec's", False
    return True, f"{sum(len(session['requests']) for session in result['sessions'])} requests in {protocol['sessions']} session(s)", False


def _speculation(result: Mapping) -> Seen:
    method, notes = result["spec"]["mode"]["method"], []
    for load in result["spec"]["protocol"]["concurrency"]:
        control, test = (acceptance.window(result["sessions"], arm, load) for arm in ("control", "test"))
        for arm, counters in {"control": control, **({"test": test} if method == "none" else {})}.items():
            records = (record for _, record in _records(result) if (record["arm"], record["concurrency"]) == (arm, load))
            if (counters and counters["drafts"]) or any(count > 1 for record in records for count in record["counts"][1:]):
                return False, f"concurrency {load}: speculation active in the {arm} arm", False
        if method != "none":
            if not test or not test["drafts"]:
                return False, f"concurrency {load}: speculation not active in the test arm", False
            notes.append(f"concurrency {load}: {test['accepted']} of {test['drafted']} draft ids accepted")
            if not test["accepted"]:
                return True, f"concurrency {load}: {test['drafts']} drafts and none accepted", True
    return True, "; ".join(notes) or "no speculation in either arm, as asked", False


def _token_sources(result: Mapping) -> Seen:
    mode = result["spec"]["mode"]
    if mode["method"] == "none":
        return None, "no speculation in this cell", False
    for session, load, arms in _loads(result):
        counters = acceptance.window([session], "test", load)
        if found := acceptance.disagreement(arms["test"], counters, mode["method"], mode["num_speculative_tokens"]):
            return False, f"session {session['index']}, concurrency {load}: {found}", False
    return True, "ids of the steps and the engine's counters agree", False


def _same_prompts(result: Mapping) -> Seen:
    seen: dict[str, tuple] = {}
    for session, record in _records(result):
        mine = (record["prompt_sha256"], record["prompt_tokens"])
        if seen.setdefault(record["prompt"], mine) != mine:
            return False, f"{_name(session, record)}: other prompt ids than elsewhere", False
    return True, f"{len(seen)} prompts, each with the same ids throughout", False


def _no_cache(result: Mapping) -> Seen:
    cached = [record["cached_tokens"] for _, record in _records(result)]
    if any(cached):
        return False, f"{sum(map(bool, cached))} requests with prompt tokens from a cache", False
    if None in cached:
        return None, "the engine does not tell how many prompt tokens were cached", False
    return True, "no prompt token came from a cache", False


def _not_degenerate(result: Mapping) -> Seen:
    if reason := _no_text(result):
        return None, reason, False
    outputs, prompts = {(record["prompt"], tuple(record["ids"])) for _, record in _records(result)}, len(result["spec"]["prompts"])
    looping = sorted({prompt for prompt, ids in outputs if degenerate(ids)})
    seen = f"{len(looping)} of {prompts} prompts with an output that loops" + (f": {', '.join(looping[:5])}" if looping else "")
    return len(looping) <= DEGENERATE_SHARE * prompts, seen, bool(looping)


def _lengths(result: Mapping) -> Seen:
    found = [unequal(pair) for session in result["sessions"] for pair in pairs(session["requests"]).values()]
    if any(found):
        return True, f"{sum(found)} of {len(found)} pairs differ in length and are left out of e2e", True
    return True, f"all {len(found)} pairs have equal lengths", False


def _warmed_up(result: Mapping) -> Seen:
    """First requests of each prompt beside its later repeats: those of the very first wave must not stand out."""
    if not result["spec"]["protocol"]["warmup"]:
        return False, "no warm-up was asked for", False
    for (session, load, arms), arm in product(_loads(result), ("control", "test")):
        opening_wave = min((record["wave"] for record in arms[arm]), default=None)
        opening = {record["prompt"] for record in arms[arm] if record["wave"] == opening_wave}
        for what, value in (("TTFT", _ttft), ("step time", _step)):
            ratios = _first_over_later([(record["prompt"], found) for record in arms[arm] if (found := value(record))])
            first = [ratio for prompt, ratio in ratios.items() if prompt in opening]
            others = [ratio for prompt, ratio in ratios.items() if prompt not in opening]
            if first and np.median(first) > max([OUTLIER[what], *others]):
                return False, f"session {session['index']}, {arm}, concurrency {load}: the first {what} is {np.median(first):.1f} times the later ones", False
    return True, "the first requests are no outliers", False


def _first_over_later(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Per prompt its first value over the median of its later ones, or of everything where it ran once."""
    by_prompt = defaultdict(list)
    for prompt, value in values:
        by_prompt[prompt].append(value)
    everything = [value for _, value in values]
    return {prompt: found[0] / float(np.median(found[1:] or everything)) for prompt, found in by_prompt.items()}


def _no_throttling(result: Mapping) -> Seen:
    notes = []
    for session in result["sessions"]:
        columns, reason = hardware.busy_samples(session)
        if columns is None or np.isnan(columns["sm_mhz"]).all():
            return None, reason or "this GPU reports no clock", False
        clocks = columns["sm_mhz"][~np.isnan(columns["sm_mhz"])]
        share = float((clocks < (1 - CLOCK_DOWN) * np.quantile(clocks, 0.95)).mean())
        reasons = int(np.bitwise_or.reduce(np.nan_to_num(columns["throttle"]).astype(int)))
        why = ", ".join(name for bit, name in SLOWDOWNS.items() if reasons & bit) or "none given"
        notes.append(f"session {session['index']}: SM clock down in {share:.0%} of samples, reasons: {why}")
        if share > SAMPLES_DOWN:
            return False, notes[-1], False
    return True, "; ".join(notes), False


def _lossless(result: Mapping) -> Seen:
    if reason := _no_text(result):
        return None, reason, False
    spec = result["spec"]
    found = losslessness.compare(result["sessions"], spec["model"]["dtype"])
    seen = f"{found['identical']} of {found['prompts']} outputs identical, {found['tie']} tie(s), {found['mismatch']} mismatch(es)"
    if found["differences"]:
        worst = max(found["differences"], key=lambda each: math.inf if each["margin"] is None else abs(each["margin"]))
        margin = "of unknown margin" if worst["margin"] is None else f"with margin {worst['margin']:.3g}"
        seen += f"; {worst['prompt']} differs at {worst['first_difference']} {margin}"
    exact = spec["device"]["kind"] == "cpu" and spec["model"]["dtype"] == "float32"
    return not found["mismatch"] and not (exact and found["tie"]), seen, bool(found["tie"])


GATES: dict[str, Callable[[Mapping], Seen]] = {
    "finite": _finite, "device": _device, "complete": _complete, "speculation": _speculation, "token_sources": _token_sources,
    "same_prompts": _same_prompts, "no_cache": _no_cache, "not_degenerate": _not_degenerate, "lengths": _lengths,
    "warmed_up": _warmed_up, "no_throttling": _no_throttling, "lossless": _lossless,
}  # fmt: skip


def _records(result: Mapping):
    return ((session, record) for session in result["sessions"] for record in session["requests"])


def _loads(result: Mapping):
    """Every load point of every session, with its requests by arm."""
    for session, load in product(result["sessions"], result["spec"]["protocol"]["concurrency"]):
        arms = {"control": [], "test": []}
        for record in session["requests"]:
            if record["concurrency"] == load:
                arms[record["arm"]].append(record)
        yield session, load, arms


def _name(session: Mapping, record: Mapping) -> str:
    return f"session {session['index']}, {record['arm']}, concurrency {record['concurrency']}, {record['prompt']}, repeat {record['repeat']}"


def _no_text(result: Mapping) -> str | None:
    """Why a gate that speaks of text does not apply."""
    reasons = {"random": "random weights make no text", "synthetic_acceptance": "acceptance is synthetic, so the output is no text"}
    return next((why for mark, why in reasons.items() if any(session["model"][mark] for session in result["sessions"])), None)


def _ttft(record: Mapping) -> float | None:
    return record["times"][0] - record["submit"] if record["times"] else None


def _step(record: Mapping) -> float | None:
    return (record["times"][-1] - record["times"][0]) / (len(record["times"]) - 1) if len(record["times"]) > 1 else None
