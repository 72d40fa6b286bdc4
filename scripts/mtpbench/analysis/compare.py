"""Two results of one cell side by side: the effect between them, and what differs in spec, software and machine."""

from collections.abc import Iterator, Mapping

from mtpbench import spec
from mtpbench.analysis import effect


def effects(old: Mapping, new: Mapping) -> Iterator[tuple[int, str, dict | None]]:
    """TPOT of `old` over TPOT of `new`, paired by prompt and repeat: (concurrency, arm, speed-up as of effect.speedup).

    Session i of one is set beside session i of the other. They ran at different times, so the machine's own drift is
    inside the effect.
    """
    for load in old["spec"]["protocol"]["concurrency"]:
        if load in new["spec"]["protocol"]["concurrency"]:
            for arm in ("control", "test"):
                pairs = [_of(arm, one, "control") + _of(arm, other, "test") for one, other in zip(old["sessions"], new["sessions"])]
                yield load, arm, effect.speedup(*(effect.log_ratios(pair, load) for pair in pairs))


def surroundings(old: Mapping, new: Mapping) -> list[str]:
    """What differs besides the numbers: spec, device, software and engine settings, one line each."""
    parts = [("spec", old["spec"], new["spec"])]
    parts += [(part, *(result["sessions"][0].get(part, {}) for result in (old, new))) for part in ("device", "software", "settings")]
    lines = [f"{part}: {line}" for part, *pair in parts for line in spec.differences(*pair)]
    code = [result["provenance"]["measuring_code"][:12] for result in (old, new)]
    return lines + ([f"measuring code: {code[0]} -> {code[1]}"] if code[0] != code[1] else [])


def _of(arm: str, session: Mapping, side: str) -> list[dict]:
    """The requests of one arm, as those of the side that they take in the comparison."""
    return [{**record, "arm": side} for record in session["requests"] if record["arm"] == arm]
