"""Whether speculation changed the greedy output, and whether a tie can explain it."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mtpbench.analysis.records import pairs

# Largest gap of log-probabilities between the two best ids that rounding can close: two units in the last place of
# logits around 16 to 32 for the half types, and far above the error of a float32 sum.
TIE = {"float32": 0.01, "float16": 0.03, "bfloat16": 0.25}
LISTED = 100  # differences kept in a summary


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first id that differs, the length of the shorter where that is the other's beginning, None if equal."""
    end = None if len(one) == len(other) else min(len(one), len(other))
    return next((index for index, (a, b) in enumerate(zip(one, other)) if a != b), end)


def outcome(margin: float | None, dtype: str) -> str:
    """`tie` where rounding in `dtype` can have turned the choice, else `mismatch`, as is an unknown margin."""
    return "tie" if margin is not None and abs(margin) <= TIE[dtype] else "mismatch"


def compare(sessions: Sequence[Mapping], dtype: str) -> dict:
    """Outputs of the two arms by ids, over every prompt of every load point and session ("prompts" counts those).

    A prompt differs if any of its repeats does. Of the indices at which they differ first the worst stands for it: one whose
    margin no session reports, else the widest. {"prompts", "identical", "tie", "mismatch", "differences": [the first 100]}
    """
    differences, prompts = [], 0
    for session in sessions:
        margins = defaultdict(list)
        for each in session["losslessness"]:
            margins[each["prompt"], each["concurrency"], each["first_difference"]].append(each["margin"])
        by_prompt = defaultdict(list)
        for (concurrency, prompt, _), pair in pairs(session["requests"]).items():
            ids = {record["arm"]: record["ids"] for record in pair}
            if len(ids) == 2:
                by_prompt[prompt, concurrency].append(first_difference(ids["control"], ids["test"]))
        prompts += len(by_prompt)
        for (prompt, concurrency), found in sorted(by_prompt.items()):
            known = {index: max(margins[prompt, concurrency, index] or [None], key=_width) for index in sorted(set(found) - {None})}
            if known:
                index = max(known, key=lambda index: _width(known[index]))
                differences.append({"prompt": prompt, "session": session["index"], "concurrency": concurrency,
                                    "first_difference": index, "margin": known[index], "outcome": outcome(known[index], dtype)})  # fmt: skip
    count = {kind: sum(each["outcome"] == kind for each in differences) for kind in ("tie", "mismatch")}
    return {"prompts": prompts, "identical": prompts - len(differences), **count, "differences": differences[:LISTED]}


def _width(margin: float | None) -> float:
    return math.inf if margin is None else abs(margin)
