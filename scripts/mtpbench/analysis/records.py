"""The records of one arm at one load point, over all sessions, as arrays."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Requests of one arm at one concurrency. Arrays have one entry a request; times in seconds."""

    records: list[Mapping]
    session: np.ndarray
    submit: np.ndarray
    first: np.ndarray  # NaN without an output
    last: np.ndarray
    tokens: np.ndarray  # all output ids
    decoded: np.ndarray  # those after the first output
    steps: np.ndarray  # outputs after the first

    @property
    def decode_s(self) -> np.ndarray:
        return self.last - self.first

    def step_seconds(self) -> np.ndarray:
        """Durations of all steps of all requests, in order."""
        return np.concatenate([np.zeros(0), *(np.diff(record["times"]) for record in self.records)])

    def step_ids(self) -> np.ndarray:
        """Ids that each of those steps brought."""
        return np.array([count for record in self.records for count in record["counts"][1:]], dtype=int)


def batch(sessions: Sequence[Mapping], arm: str, concurrency: int) -> Batch:
    """The requests of `arm` at `concurrency`, in the order of sessions and records."""
    parts = [of_arm(session["requests"], arm, concurrency) for session in sessions]
    records = [record for part in parts for record in part]
    column = lambda value, kind=float: np.array([value(record) for record in records], dtype=kind)  # noqa: E731
    return Batch(
        records, session=np.repeat(np.arange(len(parts)), [len(part) for part in parts]),
        submit=column(lambda record: record["submit"]),
        first=column(lambda record: record["times"][0] if record["times"] else np.nan),
        last=column(lambda record: record["times"][-1] if record["times"] else np.nan),
        tokens=column(lambda record: sum(record["counts"]), int),
        decoded=column(lambda record: sum(record["counts"][1:]), int),
        steps=column(lambda record: max(len(record["counts"]) - 1, 0), int),
    )  # fmt: skip


def of_arm(items: Iterable[Mapping], arm: str, concurrency: int) -> list[Mapping]:
    """Those of a session's requests, or windows, that belong to one arm at one load."""
    return [item for item in items if (item["arm"], item["concurrency"]) == (arm, concurrency)]


def unequal(pair: Iterable[Mapping]) -> bool:
    """Whether the requests of a pair brought different numbers of ids."""
    return len({len(record["ids"]) for record in pair}) > 1


def busy(start: np.ndarray, end: np.ndarray, session: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Per session the union of the intervals start to end: (session, array of disjoint [start, end] rows), NaN left out.

    Requests of one wave overlap, and the waves of the other arm lie between them, so this is the time that the arm
    really had the device.
    """
    found = []
    for index in np.unique(session):
        chosen = (session == index) & ~np.isnan(end)
        order = np.argsort(start[chosen], kind="stable")
        begin, finish = start[chosen][order], np.maximum.accumulate(end[chosen][order])
        opens = np.r_[True, begin[1:] > finish[:-1]][: len(begin)]
        closes = np.r_[opens[1:], True][: len(begin)]
        found.append((int(index), np.column_stack([begin[opens], finish[closes]])))
    return found


def seconds(intervals: list[tuple[int, np.ndarray]]) -> float:
    """Total length of what `busy` gives."""
    return float(sum((rows[:, 1] - rows[:, 0]).sum() for _, rows in intervals))


def pairs(requests: Iterable[Mapping]) -> dict[tuple, list[Mapping]]:
    """The requests of one session by what a pair has in common: concurrency, prompt and repeat."""
    return grouped(requests, lambda record: (record["concurrency"], record["prompt"], record["repeat"]))


def grouped(items: Iterable, key: Callable) -> dict[object, list]:
    """The items by what `key` says of them, in order of appearance; a key that none has stands for no items."""
    found = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return found
