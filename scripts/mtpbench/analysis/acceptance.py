"""How many drafts were accepted, from two sources: the steps of the records and the engine's own counters."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mtpbench.analysis.records import of_arm

COUNTERS = ("drafts", "drafted", "accepted")


def decided(record: Mapping) -> list[int] | None:
    """Drafts accepted in each step as the engine decided, before any cut; None where it does not tell per step."""
    return record["accepted"] if len(record["counts"]) > 1 else []


def window(sessions: Iterable[Mapping], arm: str, concurrency: int) -> dict | None:
    """The engine's counters over the measured windows: {"drafts", "drafted", "accepted"}; None where it has none."""
    found = [each for session in sessions for each in of_arm(session["windows"], arm, concurrency)]
    if not found or any(each[end]["counters"] is None for each in found for end in ("open", "close")):
        return None
    return {key: sum(each["close"]["counters"][key] - each["open"]["counters"][key] for each in found) for key in COUNTERS}


def preempted(session: Mapping, arm: str, concurrency: int) -> int:
    """How often the engine had to stop a request and begin it again, as far as it counts that; see docs/architecture.md."""
    ends = (("close", 1), ("open", -1))
    found = of_arm(session["windows"], arm, concurrency)
    return sum((each[end]["counters"] or {}).get("preempted", 0) * sign for each in found for end, sign in ends)


def of_requests(records: Iterable[Mapping]) -> dict | None:
    """The engine's counters over these requests alone; None where it does not tell them apart."""
    found = [record["counters"] for record in records]
    return None if None in found else {key: sum(each[key] for each in found) for key in COUNTERS}


def acceptance(records: Sequence[Mapping], counters: Mapping | None, gamma: int) -> dict | None:
    """The ACC of docs/architecture.md over requests of a speculative arm; None if no step had a draft.

    counters: the engine's own over just these requests, used for what the records do not tell: drafts where steps
    without one cannot be told apart, and what cut steps had accepted. `joint[k]` is the share of drafts of which at least
    k + 1 ids were accepted, `conditional[k]` the same among those that had the first k accepted (None if there are none).
    """
    known = all(decided(record) is not None for record in records)
    per_step = np.array([a for record in records for a in _shown(record)], dtype=int)
    drafts, drafted = _offered(records) or ((counters["drafts"], counters["drafted"]) if counters else (len(per_step), None))
    if not drafts:
        return None
    accepted = int(per_step.sum()) if known or counters is None else counters["accepted"]
    delivered = sum(sum(record["counts"][1:]) for record in records)
    joint = [int((per_step > position).sum()) / drafts for position in range(gamma)]
    return {
        "length": 1 + accepted / drafts, "rate": accepted / drafted if drafted else None,
        "drafts": drafts, "drafted": drafted, "accepted": accepted, "cut": accepted + len(per_step) - delivered,
        "joint": joint, "conditional": [now / before if before else None for before, now in zip([1.0, *joint], joint)],
    }  # fmt: skip


def censored(records: Iterable[Mapping], gamma: int) -> dict | None:
    """The ACC of requests whose engine tells nothing of them alone, by a method that drafts in every step; None where cuts hide it.

    A step brings one id more than it accepted, save a last one: the length limit or a stop may have cut it, so it shows only
    that it accepted so many or more. Position by position it counts as far as it is seen (Kaplan and Meier 1958, JASA 53:457);
    leaving it out would leave out long steps more often than short ones.
    """
    counts = [record["counts"][1:] for record in records if len(record["counts"]) > 1]
    whole, last = (np.array([count - 1 for each in counts for count in each[part]], dtype=int) for part in (slice(-1), slice(-1, None)))
    if not counts:
        return None
    conditional, joint = [], []
    for position in range(gamma):
        more = int((whole > position).sum() + (last > position).sum())
        seen = int((whole >= position).sum() + (last > position).sum())
        if not seen and (not joint or joint[-1]):
            return None  # every step that came as far was cut there
        conditional.append(more / seen if seen else None)
        joint.append((joint[-1] if joint else 1.0) * (conditional[-1] or 0.0))
    steps = len(whole) + len(last)
    return {
        "length": 1 + sum(joint), "rate": sum(joint) / gamma, "drafts": steps, "drafted": None, "accepted": None, "cut": None,
        "joint": joint, "conditional": conditional,
    }  # fmt: skip


def histogram(step_ids: np.ndarray) -> dict[str, int]:
    """How many steps brought so many ids: {"1": n, ...}, by number."""
    return {str(ids): count for ids, count in sorted(Counter(step_ids.tolist()).items())}


def disagreement(records: Sequence[Mapping], counters: Mapping | None, method: str, gamma: int) -> str | None:
    """The first thing in which records and counters of a speculative arm at one load contradict each other, or None."""
    for record in records:
        if found := _contradiction(record, method, gamma):
            return f"{record['prompt']}, repeat {record['repeat']}: {found}"
    if counters is None:
        return "no engine counters over the window"
    shown = sum(sum(_shown(record)) for record in records)
    hidden = sum(gamma + 1 - record["counts"][-1] for record in records if decided(record) is None)
    if not shown <= counters["accepted"] <= shown + hidden:
        could = f", of which cut steps can hide {hidden}" if hidden else ""
        return f"{shown} accepted by the records, {counters['accepted']} by the engine's counters{could}"
    return _drafts(records, counters, method)


def _contradiction(record: Mapping, method: str, gamma: int) -> str | None:
    steps, counts = decided(record), record["counts"][1:]
    if steps is None:
        return None if max(counts) <= gamma + 1 else f"a step of {max(counts)} ids at gamma {gamma}"
    offers = record["offered"] if record["offered"] is not None else [gamma] * len(steps)
    if not len(steps) == len(counts) == len(offers):
        return f"{len(counts)} steps, accepted told of {len(steps)}, offered of {len(offers)}"
    if any(not 0 <= a <= offer <= gamma for a, offer in zip(steps, offers)):
        return f"a step accepts more than it was offered, or more than gamma {gamma}"
    cuts = [a + 1 - count for a, count in zip(steps, counts)]
    if any(cuts[:-1]) or (cuts and cuts[-1] < 0):
        return "ids of a step are not its accepted drafts and one more"
    if record["counters"] is None:
        return None
    if sum(steps) != record["counters"]["accepted"]:
        return f"{sum(steps)} accepted by its steps, {record['counters']['accepted']} by the engine's counters"
    return _drafts([record], record["counters"], method)


def _drafts(records: Sequence[Mapping], counters: Mapping, method: str) -> str | None:
    """Steps with a draft, by records and by counters; a method like prompt lookup has steps without one."""
    steps = sum(len(record["counts"][1:]) for record in records)
    seen, drafted = _offered(records) or (steps if method == "mtp" else min(steps, counters["drafts"]), counters["drafted"])
    if drafted != counters["drafted"]:
        return f"{drafted} ids drafted by the records, {counters['drafted']} by the engine's counters"
    return None if seen == counters["drafts"] else f"{seen} steps with a draft by the records, {counters['drafts']} by the engine's counters"


def _offered(records: Sequence[Mapping]) -> tuple[int, int] | None:
    """Steps with a draft, and the ids offered in them; None where an engine does not tell per step."""
    if any(record["offered"] is None for record in records):
        return None
    offers = [offer for record in records for offer in record["offered"]]
    return sum(offer > 0 for offer in offers), sum(offers)


def _shown(record: Mapping) -> list[int]:
    """Drafts accepted in each step; where that cannot be known, as far as the delivered ids show."""
    steps = decided(record)
    return [count - 1 for count in record["counts"][1:]] if steps is None else steps
