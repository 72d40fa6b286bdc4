"""Stands in for the call to Modal alone: image and app are built by the real client, then nothing is sent anywhere.

As a program, `modal_stand_in.py FOLDER BEHAVIOUR CELL` measures one session with it; FOLDER is told what happened to the call.
"""

import contextlib
import json
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from mtpbench import backends, config  # noqa: E402
from mtpbench.backends import modal as adapter  # noqa: E402

IMAGE = "im-stand-in"
H100 = {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3"}


def how(**changes) -> dict:
    """The part of a plan that is no spec, for one cell of the shipped configuration on an H100."""
    settings = config.load(ROOT / "config" / "config.yaml")
    return {
        "backend": "modal",
        "request": "H100!",
        "memory_gb": 80,
        "engine": "vllm",
        "requirements": [str(ROOT / "envs" / "weights.txt")],
        "model": {"name": "gemma4-e2b", **settings["models"]["gemma4-e2b"]},
        "modal": settings["modal"],
        **changes,
    }


def request(cell: str = "h100_vllm_code_mtp") -> dict:
    spec = {
        "device": H100,
        "engine": {"implementation": "vllm"},
        "model": {"target": {}, "drafter": {}},
        "protocol": {"order": "interleaved"},
    }
    return {"nonce": f"nonce of {cell}", "fingerprint": "f" * 64, "cell": cell, "session": 0, "spec": spec, "prompts": []}


def answer(asked: dict, **changes) -> dict:
    """What a container would return that measured what it was asked to."""
    return {
        **{key: asked[key] for key in ("nonce", "fingerprint")},
        "status": "ok",
        "session": {"device": H100, "seconds": {"total": 1.0}},
        "where": {"image_id": IMAGE, "region": "us-east"},
        **changes,
    }


class Call:
    """A spawned call; `get` does what the test says: returns what `reply` makes of the request, or raises."""

    object_id = "fc-stand-in"

    def __init__(self, asked: dict, reply, log: list):
        self.asked, self.reply, self.log = asked, reply, log

    def get(self, timeout: float) -> str:
        self.log.append(("get", timeout))
        return json.dumps(self.reply(self.asked))

    def cancel(self, terminate_containers: bool) -> None:
        self.log.append(("cancel", terminate_containers))


class Image:
    object_id = IMAGE


class App:
    app_id = "ap-stand-in"

    def __init__(self, log: list):
        self.log = log

    def get_dashboard_url(self) -> str:
        return "https://modal.com/id/ap-stand-in"

    @contextlib.contextmanager
    def run(self):
        self.log.append(("run",))
        try:
            yield self
        except KeyboardInterrupt:  # as the real one: swallowed
            pass
        finally:
            self.log.append(("end",))


class Function:
    def __init__(self, reply, log: list):
        self.reply, self.log = reply, log

    def get_current_stats(self):
        return SimpleNamespace(num_total_runners=1)

    def spawn(self, request_json: str, timeout_s: float) -> Call:
        self.log.append(("spawn", timeout_s))
        return Call(json.loads(request_json), self.reply, self.log)


def install(monkeypatch, reply, log: list) -> list:
    """Let calls be answered by `reply(request) -> reply`; what happens to them is appended to `log`, which is returned."""
    build_image, build_app = adapter.engine_image, adapter.measuring_app

    def image(*arguments):
        build_image(*arguments)
        return Image()

    def app(cell, how, _):
        build_app(cell, how, build_image(how["requirements"], {}))
        return App(log), Function(reply, log)

    monkeypatch.setattr(adapter, "engine_image", image)
    monkeypatch.setattr(adapter, "measuring_app", app)
    monkeypatch.setattr(backends, "PAUSE_S", 0.0)
    return log


def main() -> None:
    import pytest

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    folder, behaviour, cell = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

    def reply(asked):
        (folder / f"{cell}.started").touch()
        if behaviour == "hang":
            time.sleep(60)
        time.sleep(0.5)
        return answer(asked)

    class Log(list):
        def append(self, entry) -> None:
            with open(folder / f"{cell}.log", "a") as file:
                print(*entry, file=file, flush=True)

    with pytest.MonkeyPatch.context() as patch:
        install(patch, reply, Log())
        done = backends.run_session(request(cell), how(), lambda line: print(line, file=sys.stderr))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
