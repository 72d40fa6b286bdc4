"""The Modal backend without Modal: all but the call itself is real. The last tests need a token and cost a few cents."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import modal
import modal_stand_in as stand_in
import pytest
from modal import exception

from mtpbench import backends, config, spec, weights
from mtpbench.backends import InfrastructureError, Terminated, container
from mtpbench.backends import modal as adapter
from mtpbench.backends.modal import explained
from mtpbench.errors import UserError

ROOT = Path(__file__).parents[1]
CONFIG = config.load(ROOT / "config" / "config.yaml")
GPUS = sorted(name for name, gpu in CONFIG["gpus"].items() if gpu["backend"] == "modal")
ENGINES = sorted(CONFIG["engines"])
SETTINGS = CONFIG["modal"]


@pytest.fixture(autouse=True)
def at_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def nobody(tmp_path):
    """The environment of someone without a token, and whose folder is not ours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "HF_"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "scripts")}


def measured(monkeypatch, reply=stand_in.answer, **changes) -> tuple[dict, list]:
    log = stand_in.install(monkeypatch, reply, [])
    return backends.run_session(stand_in.request(), stand_in.how(**changes), lambda line: None), log


# Without a token


def test_everything_imports_without_a_token_and_the_measuring_package_without_modal(nobody):
    code = "import mtpbench.backends.modal, mtpbench.doctor, mtpbench.cost"
    subprocess.run([sys.executable, "-c", code], env=nobody, check=True)
    code = "import sys, mtpbench.backends.container, mtpbench.measuring.session; assert 'modal' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], env=nobody, check=True)


def test_a_cell_without_a_token_is_one_line(nobody):
    code = (
        "import sys; sys.path.insert(0, 'tests'); import modal_stand_in as s; from mtpbench import backends\n"
        "try: backends.run_session(s.request(), s.how(), print)\n"
        "except backends.UserError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=nobody, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    assert done.stdout == "Modal: no valid token here: run `modal token new` (once), then run again\n"


# Image and app


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("gpu", GPUS)
def test_image_and_app_of_every_gpu_and_engine(gpu, engine, monkeypatch):
    asked = {}
    build = modal.App.function
    monkeypatch.setattr(modal.App, "function", lambda self, **options: asked.update(options) or build(self, **options))
    files = CONFIG["engines"][engine]["requirements"]["cuda"]
    plan = stand_in.how(request=CONFIG["gpus"][gpu]["request"], requirements=files)
    image = adapter.engine_image(plan["requirements"], {})
    app, function = adapter.measuring_app(f"{gpu}_{engine}_code_mtp", plan, image)
    assert isinstance(app, modal.App) and isinstance(function, modal.Function)
    assert asked["gpu"] == CONFIG["gpus"][gpu]["request"] and "+" not in asked["gpu"]
    assert (asked["retries"], asked["max_containers"], asked["single_use_containers"]) == (0, 1, True)
    assert asked["block_network"] and not asked["include_source"] and "secrets" not in asked
    assert set(asked["volumes"]) == {weights.MOUNT}
    assert asked["timeout"] > SETTINGS["run_s"]


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_image_installs_is_pinned_by_hash(engine):
    for file in CONFIG["engines"][engine]["requirements"]["cuda"]:
        text = Path(file).read_text().replace("\\\n", " ")
        pins = [line for line in text.splitlines() if line.strip() and not line.strip().startswith(("#", "-"))]
        assert pins and all("--hash=sha256:" in line for line in pins), file


def test_the_hashes_of_a_lock_are_required_and_local_models_mounted(monkeypatch, tmp_path):
    installed = []
    real = modal.Image.pip_install_from_requirements

    def install(self, file, **options):
        installed.append((Path(file).name, options["extra_options"]))
        return real(self, file, **options)

    monkeypatch.setattr(modal.Image, "pip_install_from_requirements", install)
    (tmp_path / "bare.txt").write_text("numpy==2.0.0\n")
    adapter.engine_image(["envs/weights.txt", str(tmp_path / "bare.txt")], {"/weights/target": str(tmp_path)})
    assert installed == [("weights.txt", "--no-deps --require-hashes"), ("bare.txt", "--no-deps")]


def test_a_model_without_hub_parts_needs_no_volume(monkeypatch):
    asked = {}
    build = modal.App.function
    monkeypatch.setattr(modal.App, "function", lambda self, **options: asked.update(options) or build(self, **options))
    model = {"name": "small", "target": {"path": "envs"}, "drafter": {"path": "envs"}}
    adapter.measuring_app("c", stand_in.how(model=model, request=None), adapter.engine_image([], {}))
    assert asked["volumes"] == {} and asked["gpu"] is None


# One session


def test_a_session_comes_back_with_its_place(monkeypatch):
    reply, log = measured(monkeypatch)
    assert log == [("run",), ("spawn", SETTINGS["run_s"]), ("get", SETTINGS["queue_s"]), ("end",)]
    where = reply["session"]["where"]
    assert where["image_id"] == stand_in.IMAGE and where["region"] == "us-east" and where["request"] == "H100!"
    assert where["app_id"] and where["call_id"] and where["url"].startswith("https://modal.com/") and where["wall_s"] >= 0


def test_the_container_is_told_where_the_weights_lie(monkeypatch):
    seen = []
    measured(monkeypatch, lambda asked: seen.append(asked["paths"]) or stand_in.answer(asked))
    model = CONFIG["models"]["gemma4-e2b"]
    assert seen == [{part: f"/models/{model[part]['repo']}/{model[part]['revision']}" for part in ("target", "drafter")}]


@pytest.mark.parametrize("changes", [{"nonce": "of another"}, {"fingerprint": "0" * 64}, {"where": {"image_id": "im-other"}}])
def test_the_answer_to_something_else_is_refused_and_not_tried_again(monkeypatch, changes):
    log = stand_in.install(monkeypatch, lambda asked: stand_in.answer(asked, **changes), [])
    with pytest.raises(UserError, match="nothing.* is kept") as found:
        backends.run_session(stand_in.request(), stand_in.how(), lambda line: None)
    assert not isinstance(found.value, InfrastructureError)
    assert log.count(("run",)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"session": {"device": {"kind": "cuda", "name": "NVIDIA H100 NVL"}}},
        {"status": "error", "error": {"kind": "device", "message": 'asked for "H100" and found "H200"', "tail": ""}},
    ],
)
def test_another_device_is_refused_and_another_container_asked_for(monkeypatch, changes):
    log = stand_in.install(monkeypatch, lambda asked: stand_in.answer(asked, **changes), [])
    with pytest.raises(InfrastructureError, match="NVL|H200"):
        backends.run_session(stand_in.request(), stand_in.how(), lambda line: None)
    assert log.count(("run",)) == backends.ATTEMPTS


def test_an_engine_that_failed_is_not_tried_again(monkeypatch):
    error = {"kind": "engine", "message": "it crashed", "tail": "last lines"}
    reply, log = measured(monkeypatch, lambda asked: stand_in.answer(asked, status="error", error=error))
    assert reply["error"] == error and log.count(("run",)) == 1


def test_a_container_that_died_is_replaced_and_the_attempt_said(monkeypatch):
    failures = [exception.RemoteError("Runner failed with exit code: 137"), exception.InternalFailure("lost")]

    def reply(asked):
        if failures:
            raise failures.pop(0)
        return stand_in.answer(asked)

    log, said = stand_in.install(monkeypatch, reply, []), []
    assert backends.run_session(stand_in.request(), stand_in.how(), said.append)["status"] == "ok"
    assert log.count(("run",)) == 3 and log.count(("cancel", True)) == 2
    assert [line for line in said if "retry" in line] == [
        "[mtpbench] retry | attempt 1 of 3: Modal: RemoteError: Runner failed with exit code: 137",
        "[mtpbench] retry | attempt 2 of 3: Modal: InternalFailure: lost",
    ]
    assert any("https://modal.com/id/ap-stand-in" in line for line in said)


@pytest.mark.parametrize(("runners", "waits"), [(0, ["queue_s"]), (1, ["queue_s", "run_s"])])
def test_a_session_that_has_begun_may_run_its_time_and_one_without_a_gpu_may_not(monkeypatch, runners, waits):
    def late(asked):
        raise TimeoutError

    log = stand_in.install(monkeypatch, late, [])
    monkeypatch.setattr(stand_in.Function, "get_current_stats", lambda self: SimpleNamespace(num_total_runners=runners))
    monkeypatch.setattr(backends, "ATTEMPTS", 1)
    with pytest.raises(InfrastructureError, match="no GPU was free"):
        backends.run_session(stand_in.request(), stand_in.how(), lambda line: None)
    waited = {"queue_s": SETTINGS["queue_s"], "run_s": SETTINGS["run_s"] + adapter.SPARE_S}
    assert log == [("run",), ("spawn", SETTINGS["run_s"]), *(("get", waited[name]) for name in waits), ("cancel", True), ("end",)]


def test_a_session_of_which_modal_cannot_tell_may_run_its_time(monkeypatch):
    """It may be running, and to end it would be to pay twice."""
    def late(asked):
        raise TimeoutError

    def lost(self):
        raise exception.ConnectionError("lost")

    log = stand_in.install(monkeypatch, late, [])
    monkeypatch.setattr(stand_in.Function, "get_current_stats", lost)
    monkeypatch.setattr(backends, "ATTEMPTS", 1)
    with pytest.raises(InfrastructureError):
        backends.run_session(stand_in.request(), stand_in.how(), lambda line: None)
    assert [entry for entry in log if entry[0] == "get"] == [("get", SETTINGS["queue_s"]), ("get", SETTINGS["run_s"] + adapter.SPARE_S)]


def test_what_modal_prints_goes_to_the_log_line_by_line(monkeypatch):
    def reply(asked):
        print("[mtpbench] load | 3 s\nhalf", end="")
        print(" a line")
        return stand_in.answer(asked)

    stand_in.install(monkeypatch, reply, [])
    said = []
    backends.run_session(stand_in.request(), stand_in.how(), said.append)
    assert said[1:] == ["[mtpbench] load | 3 s", "half a line"]


def test_a_pair_too_large_for_the_gpu_never_asks_for_one(monkeypatch):
    log = stand_in.install(monkeypatch, stand_in.answer, [])
    with pytest.raises(UserError, match=r"two copies of .* need about 25 GB .* has 24 GB; .* `order: blocks`"):
        backends.run_session(stand_in.request(), stand_in.how(memory_gb=24), lambda line: None)
    assert log == []


# Failures


@pytest.mark.parametrize(
    ("error", "again", "says"),
    [
        (exception.AuthError("Token missing"), False, "modal token new"),
        (exception.InvalidError("Unknown GPU: nonsense"), False, "`gpus` and `modal` in config/config.yaml"),
        (exception.NotFoundError("Secret 'x' not found"), False, "modal secret create hf-token"),
        (exception.NotFoundError("Secret is missing key(s): HF_TOKEN"), False, "modal secret create hf-token"),
        (exception.NotFoundError("Volume 'x' not found"), False, "modal volume create mtpbench-weights"),
        (exception.ImageBuildError("build failed", "im-1"), False, "build log"),
        (exception.PermissionDeniedError("no"), False, "modal profile"),
        (exception.VersionError("too old"), False, "envs/pipeline.in"),
        (exception.ExecutionError("Could not deserialize remote exception"), False, "program failed"),
        (exception.DeserializationError("x"), False, "program failed"),
        (exception.FunctionTimeoutError("Task's current input hit its timeout"), False, "modal.run_s"),
        (SystemExit(0), False, "exited with 0 and no reply"),
        (SystemExit(4), False, "exited with 4 and no reply"),
        (exception.RemoteError("Runner failed with exit code: 139"), True, "139"),
        (exception.InternalFailure("x"), True, "InternalFailure"),
        (exception.InternalError("x"), True, "InternalError"),
        (exception.ConnectionError("x"), True, "ConnectionError"),
        (exception.ServiceError("x"), True, "ServiceError"),
        (exception.ResourceExhaustedError("x"), True, "ResourceExhausted"),
        (exception.ConflictError("app is stopping"), True, "stopping"),
        (exception.ClientClosed("x"), True, "ClientClosed"),
        (TimeoutError(), True, "no GPU was free in 1800 s"),
    ],
)
def test_every_failure_is_one_line_and_only_infrastructure_is_tried_again(error, again, says):
    with pytest.raises(UserError) as found, explained(SETTINGS):
        raise error
    assert isinstance(found.value, InfrastructureError) == again
    assert says in str(found.value) and "\n" not in str(found.value)


def test_a_bug_stays_a_bug_and_a_signal_a_signal():
    for error in (ZeroDivisionError(), KeyboardInterrupt(), Terminated(143)):
        with pytest.raises(type(error)), explained(SETTINGS):
            raise error


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, -signal.SIGINT)])
def test_a_signal_ends_the_container_and_us(number, code, tmp_path):
    child = _start(tmp_path, "hang", "c")
    _wait_for(tmp_path / "c.started")
    child.send_signal(number)
    out, _ = child.communicate(timeout=20)
    assert child.returncode == code and out == ""  # a swallowed Ctrl-C would be 0, as if it had been measured
    assert (tmp_path / "c.log").read_text().splitlines()[-2:] == ["cancel True", "end"]


def test_four_cells_at_once(tmp_path):
    cells = [f"h100_vllm_{prompts}_mtp" for prompts in ("code", "generic", "structured", "other")]
    started = time.monotonic()
    children = [_start(tmp_path, "answer", cell) for cell in cells]
    for cell, child in zip(cells, children):
        out, _ = child.communicate(timeout=60)
        assert child.returncode == 0 and json.loads(out)["nonce"] == f"nonce of {cell}"
        assert (tmp_path / f"{cell}.log").read_text().splitlines()[-1] == "end"
    assert time.monotonic() - started < 60


def test_no_secret_reaches_log_or_result(tmp_path):
    hidden = {"MODAL_TOKEN_ID": "ak-HIDDEN", "MODAL_TOKEN_SECRET": "as-HIDDEN", "HF_TOKEN": "hf_HIDDEN"}
    child = _start(tmp_path, "answer", "c", **hidden)
    out, log = child.communicate(timeout=60)
    assert child.returncode == 0 and "https://modal.com/id/" in log
    assert "HIDDEN" not in out + log + (tmp_path / "c.log").read_text()


def _start(folder: Path, behaviour: str, cell: str, **environment) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "modal_stand_in.py"), str(folder), behaviour, cell],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # tests under nohup: the child would ignore it too, as it should
    )


def _wait_for(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until, f"{path} did not come"
        time.sleep(0.05)


# Inside the container


def test_the_container_measures_in_a_fresh_interpreter_and_says_where(monkeypatch, tmp_path):
    asked = {**stand_in.request(), "paths": {"target": str(tmp_path)}}
    monkeypatch.setattr(container.cell, "run", lambda text, python, **_: json.dumps({"status": "ok", "python": python}))
    monkeypatch.setenv("MODAL_IMAGE_ID", "im-1")
    monkeypatch.setenv("HF_TOKEN", "hf_HIDDEN")
    reply = container.measure(json.dumps(asked), 10.0)
    assert json.loads(reply)["python"] == sys.executable
    assert json.loads(reply)["where"]["image_id"] == "im-1" and "HIDDEN" not in reply


def test_weights_that_are_not_in_the_volume_cost_no_engine_start():
    asked = {**stand_in.request(), "paths": {"target": "/models/absent"}}
    reply = json.loads(container.measure(json.dumps(asked), 10.0))
    assert reply["status"] == "error" and reply["nonce"] == asked["nonce"]
    assert "snakemake -c1 -f metrics/weights/modal/MODEL.json" in reply["error"]["message"]


# On Modal itself


def _has_token() -> bool:
    from modal.config import config as client

    return bool(client.get("token_id") and client.get("token_secret"))


on_modal = [
    pytest.mark.modal,
    pytest.mark.skipif(not _has_token(), reason="no Modal token here: `modal token new`, then this costs a few cents"),
]


def _small_session(gpu: str, engine: str, monkeypatch, **changes) -> dict:
    settings = config.load(ROOT / "config" / "config.yaml")
    settings["gpus"][gpu] |= {"backend": "modal", "model": "small"}
    settings["gpus"][gpu]["protocol"] = {"prompts": 2, "output_tokens": 16, "warmup": 1, "rounds": {"min": 1, "max": 1}}
    plan = spec.Specs(settings).plan(f"{gpu}_{engine}_code_mtp")
    asked = {key: plan[key] for key in ("cell", "fingerprint", "spec", "prompts")} | {"nonce": "smoke", "session": 0}
    asked["spec"]["device"] |= changes
    monkeypatch.setattr(backends, "PAUSE_S", 1.0)
    return backends.run_session(asked, plan["how"], print)


@pytest.mark.parametrize("engine", [pytest.param("transformers", marks=on_modal)])
def test_a_cpu_cell_on_modal(engine, monkeypatch):
    with pytest.raises(InfrastructureError, match="found") as refused:  # so the device is checked there, and we learn its name
        _small_session("cpu", engine, monkeypatch, name="a CPU of this name does not exist")
    name = re.search(r'found "(.*)"', str(refused.value)).group(1)
    assert _small_session("cpu", engine, monkeypatch, name=name)["status"] == "ok"


@pytest.mark.parametrize("engine", [pytest.param("vllm", marks=on_modal)])
def test_an_l4_cell_on_modal(engine, monkeypatch):
    reply = _small_session("l4", engine, monkeypatch)
    assert reply["status"] == "ok", reply
    assert reply["session"]["device"]["name"] == "NVIDIA L4"
