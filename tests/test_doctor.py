"""`snakemake doctor`: what is there is ok, what is missing names its remedy, what cannot be asked is unknown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtpbench import config, doctor, environment

ROOT = Path(__file__).parents[1]


@pytest.fixture
def given():
    return config.load(ROOT / "config" / "config.yaml")


@pytest.fixture(autouse=True)
def nobody(monkeypatch, tmp_path):
    """No token, and no GPU."""
    for name in [name for name in os.environ if name.startswith("MODAL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("modal.config._user_config", {})
    monkeypatch.setattr(doctor, "_nvidia", lambda: [])
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def answers(given: dict, root: Path) -> dict:
    return {check.what: (check.state, check.say) for check in doctor.checks(given, root)}


def test_the_default_configuration_needs_no_token(given, tmp_path):
    found = answers(given, tmp_path)
    assert found["Modal token"][0] == "later" and "modal token new" in found["Modal token"][1]
    assert found["Modal volume mtpbench-weights"][0] == found["Modal secret hf-token"][0] == "later"
    assert found["device cpu"][0] == "ok" and found["disk"][0] in ("ok", "repair")


def test_a_gpu_of_modal_needs_one(given, tmp_path):
    given["matrix"]["gpus"] = ["h100"]
    found = answers(given, tmp_path)
    assert found["Modal token"] == ("repair", "none here: `modal token new`")
    record = tmp_path / "metrics" / "weights" / "modal" / "gemma4-e2b.json"
    assert found["weights gemma4-e2b (modal)"][0] == "later" and "snakemake -c1" in found["weights gemma4-e2b (modal)"][1]
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert answers(given, tmp_path)["weights gemma4-e2b (modal)"][0] == "ok"


def test_what_is_missing_names_its_remedy(given, tmp_path):
    found = answers(given, tmp_path)
    assert found["environment vllm (cpu)"][0] == "repair" and "git checkout -- envs/" in found["environment vllm (cpu)"][1]
    assert found["weights small (local)"][0] == "repair" and "git checkout -- models/" in found["weights small (local)"][1]
    assert all(" `" in say or "config/config.yaml" in say for state, say in found.values() if state == "repair")


def test_an_environment_is_ok_once_it_is_complete(given, tmp_path):
    (tmp_path / "envs").symlink_to(ROOT / "envs")
    files = [tmp_path / file for file in given["engines"]["vllm"]["requirements"]["cpu"]]
    assert answers(given, tmp_path)["environment vllm (cpu)"] == ("later", "built by the first cell, in minutes")
    folder = environment.folder("vllm", files, tmp_path / ".envs")
    folder.mkdir(parents=True)
    (folder / environment.COMPLETE).touch()
    assert answers(given, tmp_path)["environment vllm (cpu)"] == ("ok", str(folder))


def test_a_local_gpu_must_be_the_configured_one(given, tmp_path, monkeypatch):
    given["gpus"]["h200-modal"]["backend"] = "local"
    given["matrix"]["gpus"] = ["h200-modal"]
    found = answers(given, tmp_path)
    assert found["device h200-modal"][0] == "repair" and "no GPU" in found["device h200-modal"][1]
    assert found["weights gemma4-e2b (local)"] == (
        "repair",
        "google/gemma-4-E2B-it@3e22461f is not in the Hugging Face cache: fetch it with `snakemake -c1 -f metrics/weights/local/MODEL.json`, MODEL being its name in `models`",
    )
    monkeypatch.setattr(doctor, "_nvidia", lambda: ["NVIDIA H200"])
    assert answers(given, tmp_path)["device h200-modal"][0] == "ok"


def test_a_pair_that_does_not_fit_and_a_full_disk_are_named(given, tmp_path, monkeypatch):
    given["matrix"]["gpus"] = ["h100", "l4"]  # of one model and backend, and each has its own say
    given["gpus"]["h100"]["memory_gb"], given["gpus"]["l4"]["memory_gb"] = 8, 200
    monkeypatch.setattr(doctor, "FREE_GB", 1e9)
    found = answers(given, tmp_path)
    engine = given["matrix"]["engines"][0]
    assert found[f"memory h100, {engine}"][0] == "repair" and "choose a larger GPU" in found[f"memory h100, {engine}"][1]
    assert found[f"memory l4, {engine}"] == ("ok", "200 GB")
    assert found["disk"][0] == "repair" and "make room" in found["disk"][1]


@pytest.mark.parametrize(
    ("said", "token"),
    [
        ('["token", "ok", "accepted"]\\n["volume mtpbench-weights", "repair", "create it"]', ("ok", "accepted")),
        ("", ("unknown", "no answer from Modal in 20 s: check the network")),
    ],
)
def test_what_modal_answers_is_passed_on(given, tmp_path, monkeypatch, said, token):
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-x")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-x")
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\nprintf '{said}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(fake))
    found = answers(given, tmp_path)
    assert found["Modal token"] == token
    assert found["Modal volume mtpbench-weights"][0] == ("repair" if said else "unknown")
    assert found["Modal secret hf-token"][0] == "unknown"


def test_a_service_that_hangs_is_left_at_once(given, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "NETWORK_S", 1.0)
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-HIDDEN")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-HIDDEN")
    monkeypatch.setenv("MODAL_SERVER_URL", "http://127.0.0.1:9")  # the discard port: nobody answers
    found = answers(given, tmp_path)
    assert found["Modal token"][0] == "unknown" and "HIDDEN" not in str(found)


def test_no_token_is_said_by_the_questions_too():
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MODAL_")}
    done = subprocess.run(
        [sys.executable, "-m", "mtpbench.backends.questions", '{"volume": "v", "secret": null, "run_s": 1, "queue_s": 1}'],
        env={**kept, "HOME": "/nonexistent", "PYTHONPATH": str(ROOT / "scripts")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith('["token", "repair", "Modal: no valid token here') and done.stderr == ""
