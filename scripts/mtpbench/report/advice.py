"""Words from numbers, by rules.

1. A comparison says `enable` if it is faster, `do not enable` if slower, `unresolved` otherwise (`effect.verdict`).
2. A group of comparisons (a scenario, a GPU, an engine) says what all of them say. Faster and unresolved ones give
   `enable where shown`, slower and unresolved ones `do not enable`, faster beside slower ones `depends`.
3. Evidence is called thin, with the reason, where a group has a comparison of a single session (noise between sessions
   not seen) or of fewer than FEW_PROMPTS prompts, has no more than one comparison, or, unless it is a GPU, one GPU.
4. Where a cell's verdict at a higher concurrency differs from that at its lowest, the text says so.

Invalid cells, random weights and synthetic acceptance never get here: `Study.comparisons` leaves them out.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

from mtpbench.analysis.records import grouped
from mtpbench.report.cells import Comparison
from mtpbench.report.figures import Null

FEW_PROMPTS = 8
NAMED = 6  # comparisons that a sentence names before it says "and others"
WORDS = {"faster": "enable", "slower": "do not enable", "unresolved": "unresolved"}
SCENARIOS = {"generic": "open text"}
SCOPES: dict[str, Callable[[Comparison], str]] = {
    "scenario": lambda item: SCENARIOS.get(item.cell.prompts, item.cell.prompts),
    "hardware": lambda item: item.cell.gpu,
    "engine": lambda item: item.cell.engine,
}


@dataclass(frozen=True)
class Advice:
    """What a group of comparisons says: a word, and a sentence of text and figures that grounds it."""

    subject: str
    word: str
    parts: tuple
    thin: tuple[str, ...]


def word(verdicts: Iterable[str]) -> str:
    """Rule 2."""
    found = set(verdicts)
    if len(found) == 1:
        return WORDS[found.pop()]
    if {"faster", "slower"} <= found:
        return "depends"
    return "enable where shown" if "faster" in found else "do not enable"


def thin(items: list[Comparison], scope: str) -> tuple[str, ...]:
    """Rule 3."""
    reasons = {
        "a single comparison": len(items) == 1,
        "one GPU": scope != "hardware" and len(items) > 1 and len({item.cell.gpu for item in items}) == 1,
        "one session a cell, so noise between sessions was not seen": any(len(item.cell.sessions) == 1 for item in items),
        "few prompts": any((item.data["speedup"] or {"prompts": 0})["prompts"] < FEW_PROMPTS for item in items),
    }
    return tuple(reason for reason, holds in reasons.items() if holds)


def advice(comparisons: list[Comparison], scope: str) -> list[Advice]:
    """One advice for each group of a scope, and each method."""
    groups = grouped(comparisons, lambda item: (SCOPES[scope](item), item.cell.spec["mode"]["method"].upper()))
    several = len({name for _, name in groups}) > 1
    return [
        Advice(
            f"{subject}, {name}" if several else subject, word(item.verdict for item in items), _sentence(items), thin(items, scope)
        )
        for (subject, name), items in groups.items()
    ]


def load_changes(comparisons: list[Comparison]) -> list[tuple]:
    """Rule 4, a sentence each."""
    sentences = []
    for items in grouped(comparisons, attrgetter("cell.name")).values():
        first, *others = sorted(items, key=attrgetter("concurrency"))
        if other := next((item for item in others if item.verdict != first.verdict), None):
            said = f"{label(first, False)}: {WORDS[first.verdict]} at concurrency "
            sentences.append((said, first.at, f", but {WORDS[other.verdict]} at ", other.at, "."))
    return sentences


def label(item: Comparison, with_load: bool = True) -> str:
    """A comparison's name in a sentence; its load only where the cell has several."""
    cell = item.cell
    load = f" at concurrency {item.concurrency}" if with_load and len(cell.loads) > 1 else ""
    return f"{cell.gpu} {cell.engine} {cell.prompts} {cell.mode}{load}"


def joined(clauses: Iterable[tuple]) -> tuple:
    """The parts of all clauses, with a semicolon between them."""
    parts = [part for clause in clauses for part in (*clause, "; ")]
    return tuple(parts[:-1])


def _sentence(items: list[Comparison]) -> tuple:
    """What the group's comparisons say, each kind with its range; names where they differ."""
    kinds = grouped(sorted(items, key=lambda item: list(WORDS).index(item.verdict)), attrgetter("verdict"))
    clauses = []
    for verdict, found in kinds.items():
        who = _names(found) if len(kinds) > 1 or len(found) == 1 else "Every comparison"
        unresolved = verdict == "unresolved"
        clauses.append((f"{who}: unresolved", *_hidden(found)) if unresolved else (f"{who}: {verdict}, ", *_range(found)))
    return (*joined(clauses), ".")


def _names(items: list[Comparison]) -> str:
    """Comparisons by name; a cell once, without its load, where all of its loads are among them."""
    loads = Counter(item.cell.name for item in items)
    names = list(dict.fromkeys(label(item, loads[item.cell.name] < len(item.cell.loads)) for item in items))
    return ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")


def _range(items: list[Comparison]) -> tuple:
    ratios = sorted((item.ratio for item in items), key=attrgetter("value"))
    return (ratios[0],) if ratios[0].text == ratios[-1].text else (ratios[0], " to ", ratios[-1])


def _hidden(items: list[Comparison]) -> tuple:
    """What unresolved comparisons leave possible, by their intervals; and what some lack."""
    whole = grouped(items, lambda item: not isinstance(item.noise_floor, Null) and not isinstance(item.low, Null))
    known, lacking = whole.get(True, []), grouped(whole.get(False, []), attrgetter("reason"))
    ends = [least(map(attrgetter(end), known), key=attrgetter("value")) for least, end in ((min, "low"), (max, "high"))] if known else []
    coarse = [item.noise_floor for item in known if item.noise_floor.value > item.half_width.value]
    floor = [" within a noise floor of up to ", max(coarse, key=attrgetter("value"))] if coarse else []
    hidden = [("anything from ", ends[0], " to ", ends[1], " is possible", *floor)] if known else []
    lacks = [(reason if len(found) == len(items) else f"{_names(found)}: {reason}",) for reason, found in lacking.items()]
    return (" (", *joined([*hidden, *lacks]), ")")
