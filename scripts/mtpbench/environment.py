"""Builds the virtual environment of an engine from its locked requirement files.

An environment lives in a folder named by the content of those files, is never changed once it is
complete, and can be deleted at any time: the next run builds it again.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout
from packaging.requirements import InvalidRequirement, Requirement

from mtpbench.errors import UserError

MARKER = "complete"
LOG = "install.log"
SAY_EVERY_S = 10.0
# Settings of the caller's Python or pip that would send packages elsewhere than into the environment.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
REMEDIES = (
    (r"No space left on device|Errno 28|Disk quota", "free some disk space, then run again"),
    (r"Permission denied|Errno 13|Read-only file system", "make that folder writable, then run again"),
    (r"requires a different Python|Ignored the following versions that require", "use Python 3.11, 3.12 or 3.13"),
    (
        r"NewConnectionError|NameResolutionError|name resolution|ConnectTimeout|Read timed out|ReadTimeout"
        r"|Network is unreachable|ConnectionError|ProxyError|SSLError|Connection (refused|reset|broken|aborted)",
        "check the connection to the package index, then run again",
    ),
)


class EnvironmentFailed(UserError):
    """An environment could not be built; the message is one line and says what to do."""


def folder(name: str, requirements: list[Path], root: Path) -> Path:
    """The folder of the environment: its name holds the hash of the files and of the Python version."""
    digest = hashlib.sha256(f"python{sys.version_info[0]}.{sys.version_info[1]}".encode())
    for path in requirements:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise EnvironmentFailed(f"environment {name}: cannot read {path}: {error.strerror}") from error
        digest.update(hashlib.sha256(content).digest())
    return Path(root).resolve() / f"{name}-{digest.hexdigest()[:12]}"


def ensure(
    name: str, requirements: list[Path], root: Path, say: Callable[[str], object] = print
) -> Path:
    """The interpreter of the environment with exactly these requirements, built first when it is missing."""
    requirements = [Path(path) for path in requirements]
    env = folder(name, requirements, root)
    python = env / "bin" / "python"
    if _is_complete(env):
        return python
    try:
        env.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(env.parent / f".{env.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"environment {name}: another process is building it, waiting")
            lock.acquire()
    except OSError as error:
        raise EnvironmentFailed(f"environment {name}: cannot write to {env.parent}: {error.strerror}") from error
    with lock:
        lock.release()  # the second count of the acquire above; the with block holds the first
        if not _is_complete(env):
            _build(name, requirements, env, say)
    return python


def _is_complete(env: Path) -> bool:
    return (env / MARKER).is_file() and (env / "bin" / "python").exists()


def _build(name: str, requirements: list[Path], env: Path, say: Callable[[str], object]) -> None:
    start = time.monotonic()
    log = env / LOG
    try:
        if env.exists():
            say(f"environment {name}: removing an unfinished one")
            shutil.rmtree(env)
        env.mkdir()
        say(f"environment {name}: building {env} (once; log in {LOG} there)")
        _run(name, [sys.executable, "-m", "venv", "--without-pip", str(env)], log, None)
        for path in requirements:
            _install(name, path, env, log, say, start)
        (env / MARKER).write_text("".join(f"{path.name}\n" for path in requirements))
    except OSError as error:
        raise EnvironmentFailed(f"environment {name}: {env}: {error.strerror or error}") from error
    except EnvironmentFailed:
        # What is there is useless and may be gigabytes; the log stays.
        shutil.rmtree(env / "lib", ignore_errors=True)
        raise
    say(f"environment {name}: ready after {time.monotonic() - start:.0f} s")


def _install(
    name: str, path: Path, env: Path, log: Path, say: Callable[[str], object], start: float
) -> None:
    total = len(_names(path))
    site = next(env.glob("lib/python*/site-packages"))
    before = _installed(site)
    offset = log.stat().st_size
    last = [time.monotonic()]
    say(f"environment {name}: {path.name}: {total} package{'s' if total != 1 else ''}")

    def progress() -> None:
        now = time.monotonic()
        if now - last[0] < SAY_EVERY_S:
            return
        last[0] = now
        text = _tail(log, offset)
        if "Installing collected packages" in text:
            phase, count = "installing", _installed(site) - before
        else:
            phase, count = "downloading", len(re.findall(r"^Collecting ", text, re.MULTILINE))
        say(f"environment {name}: {path.name}: {phase}, {count} of {total}, {now - start:.0f} s")

    # pip of this Python installs into the environment, which needs none of its own. Byte code is left to the first
    # import: an engine imports a fraction of what is installed.
    command = [sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), "install"]
    command += ["--no-deps", "--no-compile", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    _run(name, [*command, "-r", str(path)], log, progress, f"pip install -r {path}")


def _run(name: str, command: list[str], log: Path, progress: Callable[[], None] | None, what: str = "") -> None:
    offset = log.stat().st_size if log.exists() else 0
    keep = {key: value for key, value in os.environ.items() if key not in FOREIGN}
    with log.open("ab") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=keep)
        try:
            while True:
                try:
                    code = child.wait(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    if progress:
                        progress()
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    if code:
        text = _tail(log, offset)
        remedy = next((cure for pattern, cure in REMEDIES if re.search(pattern, text)), "the whole output is in the log")
        what = what or " ".join(command[1:3])
        raise EnvironmentFailed(f"environment {name}: {what} failed: {_reason(text, code)}; {remedy} (log: {log})")


def _reason(text: str, code: int) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.split("ERROR:", 1)[1].strip() for line in lines if line.startswith("ERROR:")]
    if not errors:
        errors = lines[-1:] or [f"exit code {code}"]
    reason = errors[-1]
    return reason if len(reason) <= 300 else reason[:297] + "..."


def _tail(log: Path, offset: int) -> str:
    with log.open("rb") as file:
        file.seek(offset)
        return file.read().decode("utf-8", "replace")


def _installed(site: Path) -> int:
    return sum(1 for entry in os.scandir(site) if entry.name.endswith(".dist-info"))


def _names(path: Path) -> list[str]:
    """The packages of a requirement file that this Python needs."""
    names = []
    for line in path.read_text().replace("\\\n", " ").splitlines():
        text = re.split(r"\s(?:#|--hash)", f" {line}", maxsplit=1)[0].strip()
        if not text or text.startswith("-"):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:  # a path or an address: pip will judge it
            names.append(text)
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            names.append(requirement.name)
    return names
