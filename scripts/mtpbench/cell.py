"""Runs one session of a cell in a fresh interpreter: JSON in, JSON out, whatever happens to the child."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

TAIL_LINES = 30
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
    (reply,) = _replies(request_json, [request_json], python, timeout, log, site)
    return reply


def run_together(
    requests: list[dict], python: str = sys.executable, *, log: Callable[[str], object] = _say, site: str | None = None
) -> Iterator[dict]:
    """Measure sessions of several cells in one process, on engines that they share, and yield each reply when it comes.

    The requests ask for one device and one engine. Where the process dies, the replies that are missing are errors.
    """
    yield from map(json.loads, _replies(json.dumps(requests), [json.dumps(request) for request in requests], python, None, log, site))


def _replies(sent: str, requests: list[str], python: str, timeout: float | None, log, site: str | None) -> Iterator[str]:
    """Send text to a child and yield its reply to each request, a line each."""
    tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(sent.encode())
        stdin.seek(0)
        try:
            child = subprocess.Popen(
                [python, "-P", "-m", "mtpbench.measuring"], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=environment(site), start_new_session=True, text=True, errors="replace",
            )  # fmt: skip
        except OSError as error:
            yield from (_error(request, f"cannot start {python}: {error.strerror}", tail) for request in requests)
            return
        reader = threading.Thread(target=_follow, args=(child.stderr, log, tail), daemon=True)
        reader.start()
        late = threading.Event()
        timer = threading.Timer(timeout or 0, lambda: (late.set(), _stop(child)))
        if timeout:
            timer.start()
        try:
            for request in requests:
                line = child.stdout.readline()
                if not line:
                    child.wait()
                    reader.join(5)  # what the child said last may tell why
                if late.is_set():
                    yield _error(request, f"no reply within {timeout:g} s; stopped", tail)
                else:
                    yield _checked(request, line, child.returncode or 0, tail)
        finally:
            timer.cancel()
            _stop(child)
            reader.join(5)


def environment(site: str | None) -> dict[str, str]:
    """The variables of a child that runs this package beside the packages of `site`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    here = str(Path(__file__).resolve().parent.parent)
    return {**kept, "PYTHONPATH": os.pathsep.join([here, site] if site else [here])}


def _follow(stream, log: Callable[[str], object], tail: collections.deque) -> None:
    for line in stream:
        line = line.rstrip()
        tail.append(line)
        log(line)


def _stop(child: subprocess.Popen) -> None:
    """End the child's process group: an engine's worker outlives its parent otherwise, and keeps the GPU's memory."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(child.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue


def _checked(request_json: str, output: str, returncode: int, tail: collections.deque) -> str:
    try:
        reply = json.loads(output)
        status = reply["status"]
    except (ValueError, TypeError, KeyError):
        if returncode < 0:
            how = f"was killed by {signal.Signals(-returncode).name}"
            how += ", as the kernel does when memory runs out" if returncode == -signal.SIGKILL else ""
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
