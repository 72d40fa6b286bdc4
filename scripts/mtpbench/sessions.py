"""Finished sessions, which wait until a result holds them all: a failure is not paid for twice, nor are they by who asks for more."""

import json
from pathlib import Path

from mtpbench import results
from mtpbench.errors import UserError

FOLDER = Path("metrics/sessions")


def planned(path: Path, cells: list[str] | None = None) -> list[dict]:
    """The plans in a file of `run_plans.py plan`, or those of some cells. Raises UserError where it is not there or lacks one."""
    again = f"write it with `python scripts/run_plans.py plan {path} CELL...`"
    try:
        found = {plan["cell"]: plan for plan in json.loads(path.read_text())}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no file of plans ({error}); {again}") from None
    if missing := [cell for cell in cells or [] if cell not in found]:
        raise UserError(f"{path}: no plan of {', '.join(missing)}; it has {', '.join(found)}; {again}")
    return [found[cell] for cell in cells or found]


def kept(spec: dict, index: int, root: Path = Path(".")) -> Path:
    """Where a finished session of a spec waits, however many the spec asks for."""
    return root / FOLDER / results.digest(_alike(spec))[:16] / f"{index}.json"


def keep(spec: dict, index: int, session: dict, root: Path = Path(".")) -> None:
    """Let a finished session wait, with a checksum: it may lie for weeks, and much is built on it."""
    results.write_text(kept(spec, index, root), results.text_of(results.seal(session)))


def waiting(spec: dict, index: int, root: Path = Path(".")) -> dict | None:
    """The session that waits, or None where none does or its file is damaged."""
    try:
        session = json.loads(kept(spec, index, root).read_text())
        if session.pop("checksum") == results.digest(session):
            return session
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    return None


def take_over(spec: dict, path: Path, root: Path = Path(".")) -> None:
    """Keep the sessions of a valid result at `path` whose spec differs in the number of sessions alone, be they too many."""
    for session in _measured(spec, path):
        if waiting(spec, session["index"], root) is None:
            keep(spec, session["index"], session, root)


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
    more = old["spec"] != spec and _alike(old["spec"]) == _alike(spec) and old["summary"]["valid"]
    return old["sessions"] if more else []


def _alike(spec: dict) -> dict:
    """What sessions must share to stand in one result."""
    return {**spec, "protocol": {**spec["protocol"], "sessions": None}}
