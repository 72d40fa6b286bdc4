"""Finished sessions, which wait until a result holds them all: a failure is not paid for twice, nor are they by who asks for more."""

import json
from pathlib import Path

from mtpbench import results
from mtpbench.errors import UserError

FOLDER = Path("metrics/sessions")


def kept(spec: dict, index: int, root: Path = Path(".")) -> Path:
    """Where a finished session of a spec waits, however many the spec asks for."""
    return root / FOLDER / results.digest(alike(spec))[:16] / f"{index}.json"


def keep(spec: dict, index: int, session: dict) -> None:
    """Let a finished session wait, with a checksum: it may lie for weeks, and much is built on it."""
    results.write_text(kept(spec, index), results.text_of(results.seal(session)))


def waiting(spec: dict, index: int, root: Path = Path(".")) -> dict | None:
    """The session that waits, or None where none does or its file is damaged or holds one of another number."""
    try:
        session = json.loads(kept(spec, index, root).read_text())
        # A copy of another session would count twice, as if it had been measured twice.
        whole = results.intact(session) and session["index"] == index
        return {key: value for key, value in session.items() if key != "checksum"} if whole else None
    except (OSError, ValueError, AttributeError, KeyError, RecursionError):
        return None


def take_over(spec: dict, path: Path) -> None:
    """Keep the sessions of a valid result at `path` whose spec differs in the number of sessions alone, be they too many."""
    for session in _measured(spec, path):
        if waiting(spec, session["index"]) is None:
            keep(spec, session["index"], session)


def lacking(spec: dict, path: Path, root: Path = Path(".")) -> list[int]:
    """The sessions that would have to be measured for a result of `spec` at `path`."""
    if results.recorded(path) == results.digest(spec):
        return []
    measured = {session["index"] for session in _measured(spec, path)}
    wanted = range(spec["protocol"]["sessions"])
    return [index for index in wanted if index not in measured and waiting(spec, index, root) is None]


def _measured(spec: dict, path: Path) -> list[dict]:
    """The sessions that the result at `path` holds and another number of sessions does not make stale."""
    try:
        old = results.read(path)
    except UserError:
        return []
    more = old["spec"] != spec and alike(old["spec"]) == alike(spec) and old["summary"]["valid"]
    return old["sessions"] if more else []


def alike(spec: dict) -> dict:
    """What sessions must share to stand in one result."""
    return {**spec, "protocol": {**spec["protocol"], "sessions": None}}
