"""Builds the virtual environment of an engine from its locked requirement files.

An environment lives in a folder named by the content of those files, is never changed once it is complete, and can be
deleted at any time: the next run builds it again.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from mtpbench.errors import UserError, one_line

Say = Callable[[str], object]

ENVIRONMENTS = Path(".envs")
COMPLETE = "complete"  # written last: without it the folder is the rest of a build that did not finish
LOG = "install.log"
SAY_EVERY_S = 10.0
POLL_S = 0.25
# Settings of the caller's Python or pip that would send packages elsewhere than into the environment.
FOREIGN = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
# Once the venv exists, byte code is written even where PYTHONDONTWRITEBYTECODE is set: nothing is compiled at install
# time, and without the cache every start of vLLM takes 20 s in place of 10.
BYTECODE = ("write_bytecode.pth", "import sys; sys.dont_write_bytecode = False\n")
REMEDIES = (
    (r"No space left on device|Errno 28\b|Disk quota", "free some disk space, then run again"),
    (r"Permission denied|Errno (?:13|30)\b|Read-only file system", "make that folder writable, then run again"),
    (r"does not match the hash|HASHES|hashes are required", "restore that file from git, then run again"),
    (r"requires a different Python|Requires-Python", "use Python 3.11, 3.12 or 3.13"),
    (
        r"NewConnectionError|NameResolutionError|[Nn]ame resolution|ConnectTimeout|[Rr]ead timed out|ReadTimeout"
        r"|Network is unreachable|ConnectionError|ProxyError|SSLError|Connection (refused|reset|broken|aborted)",
        "check the connection to the package index, then run again",
    ),
    (r"No matching distribution", "that version does not exist for this Python and machine"),
)


def folder(name: str, requirements: list[Path], root: Path) -> Path:
    """The folder of an environment: its name holds a hash of the files' content and of the Python minor version."""
    digest = hashlib.sha256("python{}.{}".format(*sys.version_info).encode())
    for path in requirements:
        try:
            digest.update(hashlib.sha256(Path(path).read_bytes()).digest())
        except OSError as error:
            raise UserError(f"environment {name}: cannot read {path}: {error.strerror}") from error
    return Path(root).resolve() / f"{name}-{digest.hexdigest()[:12]}"


def ensure(name: str, requirements: list[Path], root: Path = ENVIRONMENTS, say: Say = print) -> Path:
    """The interpreter of the environment that holds exactly these requirements, which is built when it is missing.

    The files are installed in order, each with --no-deps: a lock names everything. A second process that wants the
    same environment waits for the first.
    """
    env = folder(name, requirements, root)
    python = env / "bin" / "python"
    if not _complete(env):
        try:
            env.parent.mkdir(parents=True, exist_ok=True)
            with _lock(name, env, say) as lock:
                if not _complete(env):
                    _build(name, [Path(path) for path in requirements], env, say, lock)
        except OSError as error:
            cure = _remedy(f"Errno {error.errno}", "check that place, then run again")
            raise UserError(f"environment {name}: {error.filename or env}: {error.strerror or error}; {cure}") from error
    return python


def _complete(env: Path) -> bool:
    return (env / COMPLETE).is_file() and (env / "bin" / "python").exists()


@contextlib.contextmanager
def _lock(name: str, env: Path, say: Say) -> Iterator[int]:
    """An exclusive lock, as a descriptor that pip inherits: a pip that outlives its killed parent still holds it."""
    lock = os.open(env.parent / f".{env.name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"environment {name}: another process is building it, waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _build(name: str, requirements: list[Path], env: Path, say: Say, lock: int) -> None:
    start = time.monotonic()
    if importlib.util.find_spec("pip") is None:
        cure = f"run '{sys.executable} -m ensurepip', then run again"
        raise UserError(f"environment {name}: {sys.executable} has no pip; {cure}")
    if env.exists():
        say(f"environment {name}: removing an unfinished build")
        shutil.rmtree(env)
    env.mkdir()
    say(f"environment {name}: building {env} (once)")
    try:
        _run(name, "python -m venv", [sys.executable, "-m", "venv", "--without-pip", str(env)], env / LOG, lock)
        for path in requirements:
            _install(name, path, env, say, lock, start)
        (_site(env) / BYTECODE[0]).write_text(BYTECODE[1])
        (env / COMPLETE).write_text("".join(f"{path.name}\n" for path in requirements))
    except BaseException:
        shutil.rmtree(env / "lib", ignore_errors=True)  # useless, and perhaps gigabytes; the log stays
        raise
    say(f"environment {name}: ready after {time.monotonic() - start:.0f} s")


def _install(name: str, path: Path, env: Path, say: Say, lock: int, start: float) -> None:
    log, total, installed = env / LOG, _count(path), lambda: len(list(_site(env).glob("*.dist-info")))
    present, offset, spoken = installed(), log.stat().st_size, time.monotonic()
    say(f"environment {name}: {path.name}: {total} package{'' if total == 1 else 's'}")

    def progress() -> None:
        nonlocal spoken
        if time.monotonic() - spoken < SAY_EVERY_S:
            return
        spoken, text = time.monotonic(), _read(log, offset)
        phase, done = "downloading", len(re.findall(r"^(?:Collecting|Processing) ", text, re.MULTILINE))
        if "Installing collected packages" in text:
            phase, done = "installing", installed() - present
        say(f"environment {name}: {path.name}: {phase}, {min(done, total)} of {total}, {spoken - start:.0f} s")

    # The pip of this Python installs into the environment, which needs none of its own.
    command = [sys.executable, "-m", "pip", "--python", str(env / "bin" / "python"), "install", "-r", str(path)]
    command += ["--no-deps", "--no-compile", "--no-input", "--progress-bar", "off", "--disable-pip-version-check"]
    what = f"pip install -r {path}"
    if "--extra-index-url" in path.read_text():
        # A second index may be out of reach where a folder or a mirror has its package: do not wait for it at first.
        try:
            return _run(name, what, [*command, "--retries", "1"], log, lock, progress)
        except UserError:
            say(f"environment {name}: {path.name}: failed, trying once more with more patience")
    return _run(name, what, command, log, lock, progress)


def _run(name: str, what: str, command: list[str], log: Path, lock: int, progress: Callable[[], object] = lambda: None) -> None:
    environ = {key: value for key, value in os.environ.items() if key not in FOREIGN} | {"PYTHONUNBUFFERED": "1"}
    with log.open("ab") as out:
        offset = out.tell()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environ, pass_fds=[lock], start_new_session=True
        )
        try:
            while child.poll() is None:
                time.sleep(POLL_S)
                progress()
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)  # pip runs itself again as a child of its own
                child.wait()
    if child.returncode:
        text = _read(log, offset)
        cure = _remedy(text, "the log says more")
        # pip's last error, or its last line
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [f"exit status {child.returncode}"]
        reason = ([line.removeprefix("ERROR:") for line in lines if line.startswith("ERROR:")] or lines)[-1]
        raise UserError(f"environment {name}: {what}: {one_line(reason)}; {cure} (log: {log})")


def _remedy(text: str, otherwise: str) -> str:
    return next((cure for pattern, cure in REMEDIES if re.search(pattern, text)), otherwise)


def _read(log: Path, offset: int) -> str:
    return log.read_bytes()[offset:].decode("utf-8", "replace")


def _site(env: Path) -> Path:
    return next(env.glob("lib/python*/site-packages"))


def _count(path: Path) -> int:
    """How many packages of a requirement file this Python takes."""
    count = 0
    for line in path.read_text().replace("\\\n", " ").splitlines():
        text = re.split(r"(?:^|\s)(?:#|-)", line, maxsplit=1)[0].strip()
        with contextlib.suppress(InvalidRequirement):  # nothing, or a path or an address, which a lock does not hold
            marker = Requirement(text).marker
            count += marker is None or marker.evaluate()
    return count
