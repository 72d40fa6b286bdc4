"""Two results of one cell side by side: the effect between them, and what differs in spec, software and machine."""

from collections.abc import Mapping

from mtpbench import spec
from mtpbench.analysis import effect


def effects(old: Mapping, new: Mapping) -> list[dict]:
    """TPOT of `old` over TPOT of `new` per load point and arm, paired by prompt and repeat, with its 95 % interval.

    Each entry: {"concurrency", "arm", "speedup": see effect.speedup, or None without a common prompt}. Session i of one is
    set beside session i of the other. They ran at different times, so the machine's own drift is inside the effect.
    """
    loads = [load for load in old["spec"]["protocol"]["concurrency"] if load in new["spec"]["protocol"]["concurrency"]]
    return [
        {"concurrency": load, "arm": arm, "speedup": _between(old["sessions"], new["sessions"], load, arm)}
        for load in loads
        for arm in ("control", "test")
    ]


def surroundings(old: Mapping, new: Mapping) -> list[str]:
    """What differs besides the numbers: spec, device, software and engine settings, one line each."""
    lines = [f"spec: {line}" for line in spec.differences(old["spec"], new["spec"])]
    for part in ("device", "software", "settings"):
        pair = (old["sessions"][0].get(part, {}), new["sessions"][0].get(part, {}))
        lines += [f"{part}: {line}" for line in spec.differences(*pair)]
    code = [result["provenance"]["measuring_code"] for result in (old, new)]
    return lines + ([f"measuring code: {code[0][:12]} -> {code[1][:12]}"] if code[0] != code[1] else [])


def _between(old: list, new: list, load: int, arm: str) -> dict | None:
    sides = ((old, "control"), (new, "test"))
    pairs = [
        [
            {**record, "arm": side}
            for sessions, side in sides
            for record in sessions[index]["requests"]
            if record["arm"] == arm
        ]
        for index in range(min(len(old), len(new)))
    ]
    return effect.speedup(*(effect.log_ratios(pair, load) for pair in pairs))
