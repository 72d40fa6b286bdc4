"""Two results of one cell side by side: the effect between them, and what differs in spec, software and machine."""

from collections.abc import Iterator, Mapping

from mtpbench import results, spec
from mtpbench.analysis import effect


def effects(old: Mapping, new: Mapping) -> Iterator[tuple[int, str, dict | None]]:
    """TPOT of `old` over TPOT of `new`, paired by prompt and repeat: (concurrency, arm, speed-up as of effect.speedup).

    The sessions are paired in order, without those that both results hold. They ran at different times, so the machine's
    own drift is inside the effect; None where no session is left.
    """
    common = _common(old, new)
    sessions = [[session for session in result["sessions"] if _name(session) not in common] for result in (old, new)]
    for load in old["spec"]["protocol"]["concurrency"]:
        if load in new["spec"]["protocol"]["concurrency"]:
            for arm in ("control", "test"):
                pairs = [_of(arm, one, "control") + _of(arm, other, "test") for one, other in zip(*sessions)]
                yield load, arm, effect.at_load(pairs, load) if pairs else None


def surroundings(old: Mapping, new: Mapping) -> list[str]:
    """What differs besides the numbers: spec, device, software and engine settings, one line each."""
    parts = [("spec", old["spec"], new["spec"])]
    parts += [(part, *(result["sessions"][0].get(part, {}) for result in (old, new))) for part in ("device", "software", "settings")]
    lines = [f"{part}: {line}" for part, *pair in parts for line in spec.differences(*pair)]
    if common := len(_common(old, new)):
        lines.append(f"sessions: {common} of {len(old['sessions'])} and {len(new['sessions'])} are the same recordings, and left out of the effect")
    code = [result["provenance"]["measuring_code"][:12] for result in (old, new)]
    return lines + ([f"measuring code: {code[0]} -> {code[1]}"] if code[0] != code[1] else [])


def _common(old: Mapping, new: Mapping) -> set[str]:
    """The sessions that stand in both results, since the one was made of the other with more."""
    return set.intersection(*({_name(session) for session in result["sessions"]} for result in (old, new)))


def _name(session: Mapping) -> str:
    """What is the same for the same recording only."""
    return results.digest(session["requests"])


def _of(arm: str, session: Mapping, side: str) -> list[dict]:
    """The requests of one arm, as those of the side that they take in the comparison."""
    return [{**record, "arm": side} for record in session["requests"] if record["arm"] == arm]
