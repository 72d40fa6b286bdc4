"""Whether a result may be believed. Each gate looks at one thing and says what it saw.

A gate takes a result (spec and sessions suffice) and returns (passed, seen, warning): passed is None where the gate does not
apply, and `seen` then says why; `warning` is True where the cell is valid and its reader should still know.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from operator import itemgetter

import numpy as np
from scipy import stats

from mtpbench.analysis import acceptance, hardware, losslessness
from mtpbench.analysis.records import grouped, of_arm, pairs, unequal

LONGEST_CYCLE = 8  # ids
SHORTEST_JUDGED = 16  # ids; below that nothing is called a loop
DEGENERATE_SHARE = 0.1  # of the prompts
# Times the later ones. A hiccup of the scheduler doubles one short prefill, but not the mean of many steps; a cold start
# costs many times either.
OUTLIER = {"TTFT": 3.0, "step time": 2.0}
FEWEST_WAVES = 3  # at a load; with two, only what no hiccup and no slow phase of a host does is called cold
NOTABLE = 1.12  # geometric mean over prompts of first over later runs; two of twelve cells that were warm in full were seen beyond it, on a drifting host
GROSS = {"TTFT": math.inf, "step time": 10.0}  # on one H200, single prefills were seen to take 20 times as long, and steps twice
CLOCK_DOWN, SAMPLES_DOWN = 0.05, 0.10  # below the clock that the device otherwise held (the 95th percentile); share of samples
SLOWDOWNS = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "thermal (software)", 0x40: "thermal (hardware)", 0x80: "power brake"}
SLOWED = 0x8 | 0x20 | 0x40 | 0x80  # a clock held low all the while for these has no higher one to be seen against

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
    speculative, seen, none_accepted = result["spec"]["mode"]["method"] != "none", Counter(), []
    for session, load, arms in _loads(result):
        where = f"session {session['index']}, concurrency {load}"
        counters = {arm: acceptance.window([session], arm, load) for arm in arms}
        for arm in ("control",) if speculative else ("control", "test"):
            several = any(count > 1 for record in arms[arm] for count in record["counts"][1:])
            if several or (counters[arm] and counters[arm]["drafts"]):
                return False, f"{where}: speculation active in the {arm} arm", False
        if speculative:
            if not counters["test"] or not counters["test"]["drafts"]:
                return False, f"{where}: speculation not active in the test arm", False
            seen.update({(load, name): counters["test"][name] for name in acceptance.COUNTERS})
            if not counters["test"]["accepted"]:
                none_accepted.append(f"{where}: {counters['test']['drafts']} drafts and none accepted")
    loads = dict.fromkeys(load for load, _ in seen)
    notes = [f"concurrency {load}: {seen[load, 'accepted']} of {seen[load, 'drafted']} draft ids accepted" for load in loads if seen[load, "accepted"]]
    return True, "; ".join([*none_accepted[:1], *notes]) or "no speculation in either arm, as asked", bool(none_accepted)


def _concurrency(result: Mapping) -> Seen:
    """The requests of a wave must run together at some time: a cache too small for them makes some wait, or start again."""
    if max(result["spec"]["protocol"]["concurrency"]) == 1:
        return None, "one request at a time", False
    warnings = []
    for session, load, arms in _loads(result):
        for arm, records in arms.items():
            where = f"session {session['index']}, {arm}, concurrency {load}"
            if preempted := acceptance.preempted(session, arm, load):
                return False, f"{where}: the engine stopped {preempted} request(s) for want of cache, and began them again", False
            for wave in grouped(records, lambda record: record["wave"]).values():
                ran = [record for record in wave if record["times"]]
                for finish in ("length", "stop"):
                    ends = min((record["times"][-1] for record in ran if record["finish"] == finish), default=math.inf)
                    if late := sum(record["times"][0] > ends for record in ran):
                        seen = f"{where}: {late} of {len(wave)} requests began after another had ended"
                        if finish == "length":
                            return False, f"{seen}, so they never ran together", False
                        warnings.append(f"{seen} by itself, so whether they waited for room is not known")
    return True, "; ".join(warnings[:1]) or "the requests of each wave ran together", bool(warnings)


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
    """Neither may the very first wave stand out from what came later, nor the first runs of all prompts.

    A warning where first runs take notably longer over all sessions and the warm-up left prompts out: less than a cold start, and
    as much as an effect that one looks for.
    """
    warmup, prompts = result["spec"]["protocol"]["warmup"], len(result["spec"]["prompts"])
    if not warmup:
        return False, "no warm-up was asked for", False
    few, judged, firsts = set(), False, defaultdict(list)
    for (session, load, arms), arm in product(_loads(result), ("control", "test")):
        waves = sorted({record["wave"] for record in arms[arm]})
        if len(waves) < FEWEST_WAVES:
            few.add(load)
        if len(waves) == 1:
            continue
        judged, limits = True, OUTLIER if len(waves) >= FEWEST_WAVES else GROSS
        for what, value in (("TTFT", _ttft), ("step time", _step)):
            ratios = _first_over_later([(record["prompt"], record["wave"], found) for record in arms[arm] if (found := value(record))])
            opening = [ratio for wave, ratio, _ in ratios if wave == waves[0]]
            others = [ratio for wave, ratio, _ in ratios if wave != waves[0]]
            repeated = [each for each in ratios if each[2]]
            every = [ratio for _, ratio, _ in repeated]
            where = f"session {session['index']}, {arm}, concurrency {load}"
            if opening and np.median(opening) > max([limits[what], *others]):
                return False, f"{where}: the first {what} is {np.median(opening):.1f} times the later ones", False
            if len(every) <= len(ratios) / 2:
                continue
            if np.median(every) > limits[what]:
                return False, f"{where}: the first {what} of each prompt is {np.median(every):.1f} times its later ones", False
            if warmup != "all" and warmup * load < prompts:
                by_wave = grouped(repeated, itemgetter(0))  # what ran together was disturbed together
                firsts[load, arm, what] += [np.mean(np.log([ratio for _, ratio, _ in wave])) for wave in by_wave.values()]
    notes = [f"concurrency {', '.join(map(str, sorted(few)))}: too few waves to tell a cold first one from a hiccup"] if few else []
    longer = {place: np.exp(np.mean(logs)) for place, logs in firsts.items() if _cold(logs)}
    notes += [f"concurrency {load}, {arm}: first runs have {ratio:.2f} times the {what} of later ones" for (load, arm, what), ratio in longer.items()]
    notes += ["a host that drifts, or lengths that were new, which `warmup: all` rules out"] if longer else []
    return (True, "; ".join(["the first requests are no outliers", *notes]), bool(longer)) if judged else (None, "; ".join(notes), False)


def _cold(logs: Sequence[float]) -> bool:
    """Whether first runs, by the mean log of each wave that held some, take notably longer beyond chance (one-sided t, 1 %)."""
    return len(logs) > 1 and np.mean(logs) > max(np.log(NOTABLE), stats.t.ppf(0.99, len(logs) - 1) * stats.sem(logs))


def _first_over_later(values: Sequence[tuple[str, int, float]]) -> list[tuple[int, float, bool]]:
    """Of each prompt: its first wave; the mean there over the median of its later waves, or of all other waves where it ran in
    one; whether it ran in several. values: (prompt, wave, value)."""
    ratios = []
    for found in grouped(values, itemgetter(0)).values():
        first = min(wave for _, wave, _ in found)
        later = [value for _, wave, value in found if wave != first]
        beside = later or [value for _, wave, value in values if wave != first]
        if beside:
            ratios.append((first, float(np.mean([value for _, wave, value in found if wave == first]) / np.median(beside)), bool(later)))
    return ratios


def _no_throttling(result: Mapping) -> Seen:
    notes, failed, unknown, slowed = [], [], [], False
    for session in result["sessions"]:
        columns, reason = hardware.busy_samples(session)
        if columns is None or np.isnan(columns["sm_mhz"]).all():
            unknown.append(reason or "this GPU reports no clock")
            continue
        clocks = columns["sm_mhz"][~np.isnan(columns["sm_mhz"])]
        share = float((clocks < (1 - CLOCK_DOWN) * np.quantile(clocks, 0.95)).mean())
        given = np.nan_to_num(columns["throttle"]).astype(int)
        slowed |= bool((given & SLOWED != 0).mean() > SAMPLES_DOWN)
        why = ", ".join(name for bit, name in SLOWDOWNS.items() if np.bitwise_or.reduce(given) & bit) or "none given"
        notes.append(f"session {session['index']}: SM clock down in {share:.0%} of samples, reasons: {why}")
        failed += notes[-1:] if share > SAMPLES_DOWN else []
    if failed:
        return False, failed[0], False
    return (None if unknown else True), "; ".join([*notes, *dict.fromkeys(unknown)]), slowed


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
    "finite": _finite, "device": _device, "complete": _complete, "concurrency": _concurrency, "speculation": _speculation, "token_sources": _token_sources,
    "same_prompts": _same_prompts, "no_cache": _no_cache, "not_degenerate": _not_degenerate, "lengths": _lengths,
    "warmed_up": _warmed_up, "no_throttling": _no_throttling, "lossless": _lossless,
}  # fmt: skip


def _records(result: Mapping):
    return ((session, record) for session in result["sessions"] for record in session["requests"])


def _loads(result: Mapping):
    """Every load point of every session, with its requests by arm."""
    for session, load in product(result["sessions"], result["spec"]["protocol"]["concurrency"]):
        yield session, load, {arm: of_arm(session["requests"], arm, load) for arm in ("control", "test")}


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
