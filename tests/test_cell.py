"""A session in an interpreter of its own: whatever the child does, the caller gets one JSON object and no process stays."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from mtpbench import cell

REQUEST = json.dumps({"nonce": "n-1", "fingerprint": "f-1"})
SHARES = [[{"nonce": f"n-{share}{at}", "fingerprint": "f"} for at in range(2)] for share in range(3)]
SCRIPTS = Path(cell.__file__).resolve().parents[1]


@pytest.fixture
def interpreter(tmp_path):
    """interpreter(code): an executable that runs this Python code whatever arguments it gets."""

    def made(code: str) -> str:
        path = tmp_path / "interpreter"
        script = tmp_path / "interpreter.py"
        script.write_text(f"import json, os, signal, subprocess, sys, time\n{textwrap.dedent(code)}")
        path.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} \"$@\"\n")  # a shebang ends at a space
        path.chmod(0o755)
        return str(path)

    return made


def run(python: str, **arguments) -> tuple[dict, list[str]]:
    lines: list[str] = []
    return json.loads(cell.run(REQUEST, python, log=lines.append, **arguments)), lines


def gone(pid: int, within: float = 5) -> bool:
    end = time.monotonic() + within
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_the_reply_comes_back_and_stderr_streams_by(interpreter):
    reply, lines = run(interpreter("""
        request = json.load(sys.stdin)
        print("[mtpbench] device", file=sys.stderr)
        print(json.dumps({**request, "status": "ok", "session": {"text": "ä"}}))
    """))
    assert reply == {"nonce": "n-1", "fingerprint": "f-1", "status": "ok", "session": {"text": "ä"}}
    assert lines == ["[mtpbench] device"]


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("print('oh', file=sys.stderr); sys.exit(3)", "engine", "ended with exit code 3 and gave no reply"),
        ("os.abort()", "engine", "was killed by SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "memory", "SIGKILL (the kernel does that when memory runs out)"),
        ("print('this is no JSON')", "engine", "exit code 0 and gave no reply"),
        ("print('[1, 2]')", "engine", "gave no reply"),
        ("print('torch.OutOfMemoryError: CUDA out of memory.', file=sys.stderr); sys.exit(1)", "memory", "exit code 1"),
    ],
)
def test_a_child_without_a_reply_becomes_an_error_reply(interpreter, code, kind, message):
    reply, lines = run(interpreter(code))
    assert (reply["nonce"], reply["fingerprint"], reply["status"]) == ("n-1", "f-1", "error")
    assert reply["error"]["kind"] == kind and message in reply["error"]["message"]
    assert "\n" not in reply["error"]["message"] and reply["error"]["tail"] == "\n".join(lines)


def test_an_engine_error_of_the_child_gets_the_last_lines_of_its_stderr(interpreter):
    reply, _ = run(interpreter("""
        for line in range(100): print("line", line, file=sys.stderr)
        print("ValueError: No available memory for the cache blocks.", file=sys.stderr)
        print(json.dumps({"status": "error", "error": {"kind": "engine", "message": "RuntimeError: see above", "tail": ""}}))
    """))
    assert reply["error"]["kind"] == "memory" and reply["error"]["message"] == "RuntimeError: see above"
    tail = reply["error"]["tail"].splitlines()
    assert len(tail) == cell.TAIL_LINES and tail[0] == f"line {101 - cell.TAIL_LINES}"


@pytest.mark.parametrize("together", [False, True])
def test_lines_that_are_still_being_logged_when_the_error_is_there(interpreter, together):
    """Each session's error holds what was said before it, the line without an end too, and nothing that came later."""
    python = interpreter(f"""
        if {together}:
            print(json.dumps({{"status": "loaded"}}), flush=True)
            os.read(int(sys.argv[-1]), 1)
        for number in range({2 if together else 1}):
            for line in range([40, 29][number]): print("session", number, "line", line, file=sys.stderr)
            sys.stderr.write(["ValueError: No available memory for the cache blocks.", "a crash"][number])
            sys.stderr.flush()
            print(json.dumps({{"status": "error", "error": {{"kind": "engine", "message": "see above", "tail": ""}}}}), flush=True)
            time.sleep(1.5)
        time.sleep(600)  # such a child ends when it is told to
    """)
    lines: list[str] = []

    def slow(line: str) -> None:
        time.sleep(0.02)
        lines.append(line)

    if together:
        errors = [reply["error"] for reply in cell.run_together(SHARES[:1], python, log=slow)]
    else:
        errors = [json.loads(cell.run(REQUEST, python, log=slow))["error"]]
    assert [error["kind"] for error in errors] == ["memory", "engine"][: len(errors)]
    for number, error in enumerate(errors):
        tail = error["tail"].splitlines()
        assert tail[-2] == f"session {number} line {[39, 28][number]}" and len(tail) == cell.TAIL_LINES
        assert all(line.startswith(f"session {number} ") for line in tail[:-1])
    assert cell.MARK not in "".join(lines)


def test_a_mark_that_an_engine_prints_hides_no_line(interpreter):
    reply, lines = run(interpreter(f"""
        print("before{cell.MARK}out of memory", "{cell.MARK}", "after", sep="\\n", file=sys.stderr)
        print(json.dumps({{"status": "error", "error": {{"kind": "engine", "message": "see above", "tail": ""}}}}))
    """))
    assert reply["error"]["kind"] == "memory" and lines[0].endswith("out of memory") and lines[-1] == "after"


def test_a_flood_of_lines_that_nobody_reads_ends_with_the_time_limit(interpreter):
    python = interpreter("while True: print('x' * 63, file=sys.stderr)")
    start = time.monotonic()
    blocked = threading.Event()
    assert "no reply within 1 s" in json.loads(cell.run(REQUEST, python, log=lambda line: blocked.wait(), timeout=1))["error"]["message"]
    blocked.set()
    assert time.monotonic() - start < 30


def test_a_child_that_is_killed_in_the_midst_of_its_reply(interpreter):
    reply, _ = run(interpreter("""
        sys.stdout.write('{"status": "ok", "session": {"text": "' + "x" * 100_000)
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """))
    assert reply["error"]["kind"] == "memory" and "SIGKILL" in reply["error"]["message"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("reply", ["", '{"status": "error", "error": {"kind": "engine", "message": "x", "tail": ""}}'])
def test_a_log_that_fails_leaves_the_reply(interpreter, reply):
    def broken(line: str) -> None:
        raise BrokenPipeError

    python = interpreter(f"print('a line', file=sys.stderr, flush=True); time.sleep(0.5); print({reply!r})")
    assert json.loads(cell.run(REQUEST, python, log=broken))["status"] == "error"


def test_an_interpreter_that_is_not_there(tmp_path):
    reply, _ = run(str(tmp_path / "nowhere"))
    assert reply["error"]["message"] == f"cannot start {tmp_path / 'nowhere'}: No such file or directory"


WITH_A_WORKER = """
    worker = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
    print("worker", worker.pid, file=sys.stderr, flush=True)
    time.sleep(0.5)
"""


def test_a_timeout_ends_the_child_and_the_workers_that_it_started(interpreter):
    start = time.monotonic()
    reply, lines = run(interpreter(WITH_A_WORKER + "    time.sleep(600)"), timeout=2)
    assert reply["error"]["message"] == "no reply within 2 s; stopped" and time.monotonic() - start < 20
    assert gone(int(lines[0].split()[1]))


def test_a_worker_that_outlives_a_good_child_is_ended_too(interpreter):
    reply, lines = run(interpreter(WITH_A_WORKER + "    print('{\"status\": \"ok\"}')"))
    assert reply["status"] == "ok" and gone(int(lines[0].split()[1]))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_caller_leaves_no_process(interpreter, number):
    """SIGINT raises KeyboardInterrupt; SIGTERM becomes SystemExit in whoever handles it so, as scripts/measure.py does."""
    python = interpreter(WITH_A_WORKER + "    time.sleep(600)")
    caller = subprocess.Popen(
        [sys.executable, "-c", f"""
import signal, sys
sys.path.insert(0, {str(SCRIPTS)!r})
from mtpbench import cell
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
cell.run("{{}}", {python!r}, log=lambda line: print(line, flush=True))
"""],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    worker = int(caller.stdout.readline().split()[1])
    time.sleep(0.5)
    caller.send_signal(number)
    assert caller.wait(20) != 0
    assert gone(worker)


def test_the_callers_engine_settings_do_not_reach_the_child(interpreter, monkeypatch):
    for name in ("VLLM_USE_V1", "OMP_NUM_THREADS", "PYTHONSTARTUP", "HF_HOME", "TORCH_LOGS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    python = interpreter("print(json.dumps({'status': 'ok', 'session': {'names': dict(os.environ)}}))")
    names = run(python, site="/some/site")[0]["session"]["names"]
    assert not {"VLLM_USE_V1", "OMP_NUM_THREADS", "PYTHONSTARTUP", "HF_HOME", "TORCH_LOGS"} & set(names)
    assert names["CUDA_VISIBLE_DEVICES"] == "1"
    assert names["PYTHONPATH"].split(os.pathsep) == [str(SCRIPTS), "/some/site"]


def request(tmp_path, **changes) -> dict:
    from mtpbench.measuring.device import cpu_name

    for part in ("target", "drafter"):
        (tmp_path / part).mkdir(exist_ok=True)
        (tmp_path / part / "config.json").write_text("{}")
    return {
        "nonce": "n-1", "fingerprint": "f-1", "cell": "c", "session": 0,
        "spec": {
            "device": {"kind": "cpu", "name": cpu_name()}, "engine": {"implementation": "transformers", "options": {}},
            "model": {"target": {}, "drafter": {}, "dtype": "float32"}, "mode": {"method": "mtp", "num_speculative_tokens": 4},
            "protocol": {"output_tokens": 8, "ignore_eos": False, "warmup": 1, "concurrency": [1], "order": "interleaved",
                         "rounds": {"min": 1, "max": 1, "half_width": None}},
        },
        "prompts": [{"id": "p", "category": "c", "messages": []}],
        "paths": {"target": str(tmp_path / "target"), "drafter": str(tmp_path / "drafter")},
        **changes,
    }  # fmt: skip


def measured(request: dict | str, **arguments) -> tuple[dict, list[str]]:
    """The reply of the real measuring program, in this interpreter: it refuses before it needs an engine."""
    lines: list[str] = []
    text = request if isinstance(request, str) else json.dumps(request)
    return json.loads(cell.run(text, sys.executable, log=lines.append, **arguments)), lines


def test_the_wrong_device_is_refused_before_anything_is_loaded(tmp_path):
    asked = request(tmp_path)
    asked["spec"]["device"]["name"] = "AMD Other (96 cores)"
    reply, lines = measured(asked)
    assert reply["error"]["kind"] == "device" and reply["nonce"] == "n-1" and lines == ["[mtpbench] device"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"paths": {"target": "/no/where", "drafter": "/no/where"}}, "no model folder target: /no/where; drafter: /no/where"),
        ({"prompts": []}, "no prompts"),
        ({"spec": {}}, "KeyError 'mode'"),
    ],
)
def test_a_bad_request_is_one_clear_line(tmp_path, change, message):
    reply, lines = measured(request(tmp_path, **change))
    assert reply["error"]["kind"] == "request" and message in reply["error"]["message"] and lines == []


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_no_request_at_all(text):
    assert measured(text)[0]["error"]["kind"] == "request"


def test_what_an_engine_prints_never_reaches_the_reply(tmp_path):
    """A library that prints, writes to the file descriptor as C code does, and starts a process that prints."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "torch.py").write_text(
        "import os, subprocess\nprint('chatter 1')\nos.write(1, b'chatter 2\\n')\nsubprocess.run(['echo', 'chatter 3'])\n"
        "subprocess.run(['cat'], timeout=5)\nraise RuntimeError('broken\\nat length')\n"
    )
    reply, lines = measured(request(tmp_path), site=str(site))
    assert reply["error"]["kind"] == "engine" and reply["error"]["message"] == "RuntimeError: broken"
    assert {"chatter 1", "chatter 2", "chatter 3"} <= set(lines)
    assert "RuntimeError: broken" in reply["error"]["tail"]


def test_processes_load_side_by_side_and_measure_one_after_another(interpreter, tmp_path):
    """Each notes when it loads, when its turn begins and when it ends; the second dies in its turn."""
    python = interpreter(f"""
        notes, requests, turn = open({str(tmp_path / "notes")!r}, "a", buffering=1), json.load(sys.stdin), int(sys.argv[-1])
        share = requests[0]["nonce"][2]
        notes.write(f"load {{share}}\\n")
        print(json.dumps({{"status": "loaded"}}), flush=True)
        os.read(turn, 1)
        notes.write(f"begin {{share}}\\n")
        time.sleep(0.2)
        for number, request in enumerate(requests):
            if number and share == "1":
                os._exit(3)
            if number:
                notes.write(f"end {{share}}\\n")
            print(json.dumps({{**request, "status": "ok", "session": {{}}}}), flush=True)
    """)
    replies = list(cell.run_together(SHARES, python, log=lambda line: None))
    assert [reply["nonce"] for reply in replies] == [request["nonce"] for share in SHARES for request in share]
    assert [reply["status"] for reply in replies] == ["ok", "ok", "ok", "error", "ok", "ok"]
    notes = (tmp_path / "notes").read_text().split("\n")
    assert {*notes[:3]} == {"load 0", "load 1", "load 2"}
    assert [note for note in notes[3:] if note] == ["begin 0", "end 0", "begin 1", "begin 2", "end 2"]


def test_one_that_dies_while_it_loads_leaves_the_others_their_turns(interpreter):
    python = interpreter("""
        requests, turn = json.load(sys.stdin), int(sys.argv[-1])
        if requests[0]["nonce"] == "n-10":
            sys.exit("no memory left")
        print(json.dumps({"status": "loaded"}), flush=True)
        os.read(turn, 1)
        for request in requests:
            print(json.dumps({**request, "status": "ok", "session": {}}), flush=True)
    """)
    replies = list(cell.run_together(SHARES, python, log=lambda line: None))
    assert [reply["status"] for reply in replies] == ["ok", "ok", "error", "error", "ok", "ok"]
    assert "no memory left" in replies[2]["error"]["tail"]


def test_no_process_stays_where_the_replies_are_not_all_asked_for(interpreter, tmp_path):
    python = interpreter(f"""
        requests, turn = json.load(sys.stdin), int(sys.argv[-1])
        open({str(tmp_path)!r} + f"/pid-{{os.getpid()}}", "w")
        print(json.dumps({{"status": "loaded"}}), flush=True)
        os.read(turn, 1)
        print(json.dumps({{**requests[0], "status": "ok", "session": {{}}}}), flush=True)
        time.sleep(60)
    """)
    replies = cell.run_together(SHARES, python, log=lambda line: None)
    assert next(replies)["status"] == "ok"
    replies.close()
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(pids) == 3 and all(gone(pid) for pid in pids)


def test_together_without_an_interpreter_is_an_error_for_each():
    replies = list(cell.run_together(SHARES[:2], "/no/such/python", log=lambda line: None))
    assert [reply["status"] for reply in replies] == ["error"] * 4 and "cannot start" in replies[0]["error"]["message"]


def test_a_record_that_is_no_json_costs_no_other_session(tmp_path):
    """A NaN in one of two sessions: its reply is an error, and the second comes as it is."""
    package = tmp_path / "fake" / "mtpbench" / "measuring"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "__init__.py").write_text("")
    shutil.copy(SCRIPTS / "mtpbench/measuring/__main__.py", package)
    (package / "together.py").write_text(
        "def answers(requests, turn):\n    yield {'nonce': 1, 'status': 'ok', 'session': {'t': float('nan')}}\n"
        "    yield {'nonce': 2, 'status': 'ok', 'session': {}}\n"
    )
    command = [sys.executable, "-P", "-m", "mtpbench.measuring", "0"]
    done = subprocess.run(command, input="[{}]", env={"PYTHONPATH": str(tmp_path / "fake")}, capture_output=True, text=True)
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["nonce"], first["status"], second["status"]) == (1, "error", "ok") and "no JSON" in first["error"]["message"]
