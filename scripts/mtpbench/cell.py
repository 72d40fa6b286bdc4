"""Runs one session of a cell in a fresh interpreter: JSON in, JSON out, whatever happens to the child."""

import collections
import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

TAIL_LINES = 30
MARK = "\x04"  # what the caller writes behind the last line of a child to learn that it has read up to there
# The caller's settings of Python, the engines and the thread libraries must not reach a measurement unseen.
FOREIGN = ("PYTHON", "VLLM_", "TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_", "OMP_", "MKL_", "KMP_", "GOMP_")
OUT_OF_MEMORY = re.compile(
    r"out of memory|MemoryError|No available memory for the cache blocks|Free memory on device|Available memory on node", re.I
)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run(
    request_json: str,
    python: str = sys.executable,
    *,
    timeout: float | None = None,
    log: Callable[[str], object] = _say,
    site: str | None = None,
) -> str:
    """Measure one session and return its reply (docs/architecture.md), always a JSON object with "status".

    python: the interpreter of the engine's environment. timeout: seconds, None for no limit. log: takes each line of
    the child's stderr as it comes. site: folders (joined by ":") with the engine's packages, for a machine where
    nothing can be installed. A crash, a time-out or a child that prints no JSON becomes an error reply. However this
    function is left, no process of the measurement stays.
    """
    with _Child(request_json, python, log, site, timeout) as child:
        return child.reply(request_json)


def run_together(
    shares: list[list[dict]], python: str = sys.executable, *, log: Callable[[str], object] = _say, site: str | None = None
) -> Iterator[dict]:
    """Measure sessions of several cells on engines that they share, each share in a process; yields the replies in order.

    All requests ask for one device and engine. The processes load their engines side by side; then each measures alone,
    one after the other, and is gone before the next. Where one dies, the replies that are missing are errors.
    """
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(_Child(json.dumps(share), python, log, site, held=True)) for share in shares]
        for child in children:
            child.wait_until_loaded()
        for child, share in zip(children, shares):
            with child:
                child.go_on()
                yield from (json.loads(child.reply(json.dumps(request))) for request in share)


class _Child:
    """The measuring program at work on what was sent to it. Leaving it ends it, with every process that it started."""

    def __init__(self, sent: str, python: str, log, site: str | None, timeout: float | None = None, held: bool = False) -> None:
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.timeout, self.late, self.failure = timeout, threading.Event(), ""
        self.process: subprocess.Popen | None = None
        turn, self.turn = os.pipe()
        said, self.said = os.pipe()
        with tempfile.TemporaryFile() as stdin:
            stdin.write(sent.encode())
            stdin.seek(0)
            try:
                self.process = subprocess.Popen(
                    [python, "-P", "-m", "mtpbench.measuring", *([str(turn)] if held else [])],
                    stdin=stdin, stdout=subprocess.PIPE, stderr=self.said, pass_fds=[turn] if held else [],
                    env=environment(site), start_new_session=True, text=True, errors="replace",
                )  # fmt: skip
            except OSError as error:
                self.failure = f"cannot start {python}: {error.strerror}"
        os.close(turn)
        self.timer = threading.Timer(timeout or 0, lambda: (self.late.set(), self._stop()))
        self.read_to_mark = threading.Event()
        self.reader = threading.Thread(target=self._follow, args=(said, log), daemon=True)
        self.reader.start()
        if self.process and timeout:
            self.timer.start()

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_) -> None:
        if self.turn is None:
            return  # it was left before
        self.timer.cancel()
        os.close(self.turn)
        self.turn = None
        if self.process:
            self._stop()
        os.close(self.said)
        self.reader.join(5)

    def wait_until_loaded(self) -> None:
        """Until the engines of a held child are loaded; what went wrong with one is told by the replies."""
        if self.process:
            self.process.stdout.readline()

    def go_on(self) -> None:
        """Let a held child measure."""
        if self.process:
            with contextlib.suppress(BrokenPipeError):  # it has died, as its replies will tell
                os.write(self.turn, b"\n")

    def reply(self, request: str) -> str:
        """The reply to the next of the requests sent, which is `request`."""
        if self.failure:
            return _error(request, self.failure, self.tail)
        line = self.process.stdout.readline()
        if not line.endswith("\n"):  # it has ended, perhaps in the midst of a reply
            self.process.wait()
        self._read_all()  # what it said last may tell why it failed
        if self.late.is_set():
            return _error(request, f"no reply within {self.timeout:g} s; stopped", self.tail)
        reply = _checked(request, line, self.process.returncode or 0, self.tail)
        self.tail.clear()  # what comes belongs to the next request
        return reply

    def _follow(self, stderr: int, log: Callable[[str], object]) -> None:
        with open(stderr, errors="replace") as stream:
            for line in stream:
                line = line.rstrip()
                said = line.removesuffix(MARK)
                if said or not line:
                    self.tail.append(said)
                    log(said)
                if line.endswith(MARK):
                    self.read_to_mark.set()

    def _read_all(self) -> None:
        """Until the lines that were written up to now are in the tail: those of stderr do not come with those of stdout."""
        self.read_to_mark.clear()
        with contextlib.suppress(OSError):  # nobody reads any more, since a line could not be logged
            if select.select([], [self.said], [], 5)[1]:
                os.write(self.said, f"{MARK}\n".encode())
                self.read_to_mark.wait(5)

    def _stop(self) -> None:
        for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, number)
            except (ProcessLookupError, PermissionError):
                break
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue


def environment(site: str | None) -> dict[str, str]:
    """The variables of a child that runs this package beside the packages of `site`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    here = str(Path(__file__).resolve().parent.parent)
    return {**kept, "PYTHONPATH": os.pathsep.join([here, site] if site else [here])}


def _checked(request_json: str, output: str, returncode: int, tail: collections.deque) -> str:
    try:
        reply = json.loads(output)
        status = reply["status"]
    except (ValueError, TypeError, KeyError):
        if returncode < 0:
            how = f"was killed by {signal.Signals(-returncode).name}"
            how += " (the kernel does that when memory runs out)" if returncode == -signal.SIGKILL else ""
        else:
            how = f"ended with exit code {returncode}"
        return _error(request_json, f"the measuring program {how} and gave no reply", tail, killed=returncode == -signal.SIGKILL)
    if status == "error" and reply["error"]["kind"] == "engine":
        return _error(request_json, reply["error"]["message"], tail)
    return output


def _error(request_json: str, message: str, tail: collections.deque, killed: bool = False) -> str:
    try:
        request = json.loads(request_json)
        echo = {"nonce": request.get("nonce"), "fingerprint": request.get("fingerprint")}
    except (ValueError, AttributeError):
        echo = {"nonce": None, "fingerprint": None}
    text = "\n".join(tail)
    kind = "memory" if killed or OUT_OF_MEMORY.search(f"{message}\n{text}") else "engine"
    return json.dumps({**echo, "status": "error", "error": {"kind": kind, "message": message, "tail": text}})
