"""Measure one cell: `python measure.py PLAN RESULT LOG`. What the rule `measure` calls.

Runs the plan's sessions on its backend and writes the result by rename. The old result stays until
its successor is whole; a session that succeeded is kept until the result holds it, so a failure does not pay twice.
"""

import contextlib
import datetime
import json
import platform
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mtpbench import backends, identity, ledger, locks, results, sessions
from mtpbench.analysis.aggregate import recompute
from mtpbench.errors import UserError

ARCHIVE = Path("metrics/archive")
INTERRUPTED = "[mtpbench] interrupted | finished sessions are kept; the same command goes on from there"


def main() -> None:
    plan, path, log_path = map(Path, sys.argv[1:])
    plan = json.loads(plan.read_text())
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with open(log_path, "a", encoding="utf-8") as log:

        def say(line: str) -> None:
            """One line of progress: everything to the cell's log, the project's own lines to the terminal too."""
            with contextlib.suppress(OSError):  # a full disk takes no line, and what is said matters less than what is measured
                print(line, file=log, flush=True)
            if line.startswith("[mtpbench]"):
                print(f"{plan['cell']}: {line.removeprefix('[mtpbench] ')}", file=sys.stderr, flush=True)

        try:
            measure(plan, path, say)
        except (UserError, OSError) as error:
            say(f"[mtpbench] failed | {error}")
            sys.exit(1)
        except KeyboardInterrupt:
            say(INTERRUPTED)
            sys.exit(130)


def measure(plan: dict, path: Path, say) -> None:
    """Measure a planned cell into `path`, unless the file there answers the plan and is valid.

    Raises UserError when a session fails or the plan no longer holds, OSError when the disk is full; `path` then still
    holds what it held.
    """
    with alone(plan, say):
        with contextlib.suppress(UserError):
            if results.recorded(path) == plan["fingerprint"] and results.read(path)["summary"]["valid"]:
                say(f"[mtpbench] fresh | {path} answers the spec; nothing to measure")
                return
        identity.check_planned(plan)  # now, since the cell may have waited long for its turn
        _measured(plan, path, say)


def alone(plan: dict, say):
    """The plan's lock: whoever waits here finds the other's result and does not pay for it twice.

    Snakemake's own lock does not see to that: a measurement outlives a killed Snakemake, and any second Snakemake, were it
    only `snakemake stale`, removes the locks of all when it ends.
    """
    lock = lock_of(plan)
    lock.parent.mkdir(parents=True, exist_ok=True)
    return locks.held(lock, say, "another run measures this cell; its result will be looked at first")


def lock_of(plan: dict) -> Path:
    """The same for all plans whose sessions can stand in one result."""
    return sessions.kept(plan["spec"], 0).parent.with_suffix(".lock")


def _measured(plan: dict, path: Path, say) -> None:
    """Measure what is lacking of a planned cell and write its result."""
    sessions.take_over(plan["spec"], path)
    measured = [_session(plan, index, say) for index in range(plan["spec"]["protocol"]["sessions"])]
    summary = recompute({"spec": plan["spec"], "sessions": measured})
    result = {
        "schema_version": results.SCHEMA_VERSION, **{key: plan[key] for key in ("cell", "fingerprint", "spec")},
        "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "provenance": {
            **_state(plan), "backend": plan["how"]["backend"],
            "client": {"python": platform.python_version(), "system": platform.system()},
        },
        "summary": summary, "sessions": measured,
    }  # fmt: skip
    _archive(path)
    results.write(path, result)
    _archive(path)  # a job of Snakemake's that waited for this one puts back what it found at its start, should it fail
    for session in measured:
        sessions.kept(plan["spec"], session["index"]).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # sessions beyond the plan's number stay
        sessions.kept(plan["spec"], 0).parent.rmdir()
    again = f"{'; '.join(summary['reasons'])}; measure it again with `snakemake -f {path}`"
    say(f"[mtpbench] done | {path}" + ("" if summary["valid"] else f" | INVALID, kept out of the answers: {again}"))


def keep(plan: dict, index: int, reply: dict, began: float) -> dict:
    """Keep the session of a reply that was waited for since `began` (time.monotonic), and return its record."""
    session = {**reply["session"], "client_seconds": round(time.monotonic() - began, 3), "provenance": _state(plan)}
    sessions.keep(plan["spec"], index, session)
    return session


def request_of(plan: dict, index: int) -> dict:
    """The request for one session of a plan, without `paths`."""
    return {"nonce": secrets.token_hex(16), "session": index, **{key: plan[key] for key in ("cell", "fingerprint", "spec", "prompts")}}


def _session(plan: dict, index: int, say) -> dict:
    """One session's record: the one kept from an earlier, failed run of the same plan, or a new measurement."""
    if session := sessions.waiting(plan["spec"], index):
        say(f"[mtpbench] session {index + 1} | kept from an earlier run")
        return session
    if (place := sessions.kept(plan["spec"], index)).exists():
        say(f"[mtpbench] session {index + 1} | {place} is damaged, or a copy of another session, and measured again")
    began = time.monotonic()
    reply = backends.run_session(request_of(plan, index), plan["how"], say)
    if reply.get("status") == "error":
        error = reply["error"]
        for line in error.get("tail", "").splitlines():
            say(f"  {line}")
        raise UserError(f"{plan['cell']}: {error['kind']} error: {error['message']}")
    return keep(plan, index, reply, began)


def _archive(path: Path) -> None:
    """Keep a result reachable, whether or not it is ever committed."""
    if path.exists():
        ARCHIVE.mkdir(parents=True, exist_ok=True)
        stamp = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC).strftime("%Y%m%dT%H%M%S")
        shutil.copy2(path, ARCHIVE / f"{path.parent.name}-{stamp}-{(results.recorded(path) or 'damaged')[:12]}.json")


def _state(plan: dict) -> dict:
    """The project's state; a plan brings it along, since a copy on a lent machine has no history."""
    return {**(plan.get("planned_from") or commit()), "measuring_code": ledger.measuring_digest()}


def commit() -> dict:
    """Which state of the project this is: {"commit", "uncommitted_changes"}, None where there is no git."""

    def git(*words: str) -> str | None:
        try:
            return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    changed = git("status", "--porcelain", "--", "scripts", "config", "prompts", "envs", "models")
    return {"commit": git("rev-parse", "HEAD"), "uncommitted_changes": None if changed is None else bool(changed)}


if __name__ == "__main__":
    main()
