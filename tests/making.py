"""Records and results for the tests of the analysis."""

import json
from functools import cache

from mtpbench import simulate


@cache
def _simulated(*arguments, **named):
    return json.dumps(simulate.result(*arguments, **named))


def result(*arguments, **named) -> dict:
    """A simulated result that the caller may change."""
    return json.loads(_simulated(*arguments, **named))


def record(counts, times=None, *, arm="test", prompt="p-01", repeat=0, **changes) -> dict:
    """One request; outputs of `counts` ids at `times` (by default 10 ms apart)."""
    given = {
        "arm": arm, "concurrency": 1, "wave": 0, "prompt": prompt, "repeat": repeat, "prompt_tokens": 10, "prompt_sha256": "0" * 16,
        "cached_tokens": 0, "submit": 0.0, "times": times or [0.1 + 0.01 * index for index in range(len(counts))], "counts": list(counts),
        "ids": list(range(sum(counts))), "finish": "length", "offered": None, "accepted": None, "counters": None,
    }  # fmt: skip
    return given | changes


def speculative(accepted, gamma, cut=0, **changes) -> dict:
    """A request whose steps accepted so many drafts of gamma each, with `cut` ids cut off the last step."""
    counts = [1, *(a + 1 for a in accepted)]
    counts[-1] -= cut
    counters = {"drafts": len(accepted), "drafted": gamma * len(accepted), "accepted": sum(accepted)}
    return record(counts, accepted=list(accepted), offered=[gamma] * len(accepted), counters=counters, **changes)


def requests(result, arm="test"):
    return [each for session in result["sessions"] for each in session["requests"] if each["arm"] == arm]


def gate(result, name) -> dict:
    from mtpbench.analysis import gates

    return next(each for each in gates.judge(result) if each["name"] == name)
