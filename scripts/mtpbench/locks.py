"""Locks between processes: whoever finds one held says so, and waits."""

from pathlib import Path

from filelock import FileLock, Timeout


def held(path: Path, say, waiting: str, mode: int = 0o644):
    """The lock at `path`, as a context to enter; `waiting` is said where another process holds it."""
    lock = FileLock(path, mode=mode)
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"[mtpbench] waiting | {waiting}")
        return lock.acquire()
