"""Checkpoints without a hub: what is fetched is listed, what cannot be fetched is one line with the remedy."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import httpx2
import huggingface_hub
import pytest
from huggingface_hub import errors

from mtpbench import config, results, weights
from mtpbench.errors import UserError

ROOT = Path(__file__).parents[1]
REVISION = "0123456789abcdef0123456789abcdef01234567"
SHA256 = hashlib.sha256(b"weights").hexdigest()
PARTS = {"target": {"repo": "someone/model", "revision": REVISION}}


class Hub:
    """Serves a configuration and one file a repository, or raises what it is given; `broken`: the download breaks off after the first."""

    broken = None

    def __init__(self, cache: Path):
        self.cache, self.error, self.listed = cache, None, SimpleNamespace(size=7, lfs=SimpleNamespace(sha256=SHA256))

    def model_info(self, repo, *, revision, files_metadata):
        if self.error:
            raise self.error
        config = SimpleNamespace(rfilename="config.json", size=2, lfs=None)
        return SimpleNamespace(siblings=[config, SimpleNamespace(rfilename="model.safetensors", **vars(self.listed))])

    def snapshot_download(self, repo, *, revision, local_dir=None, local_files_only=False):
        folder = Path(local_dir or self.cache / repo / revision)
        if local_files_only and not folder.exists():
            raise errors.LocalEntryNotFoundError("not there")
        (folder / ".cache").mkdir(parents=True, exist_ok=True)
        (folder / ".cache" / "note").write_text("the downloader's own")
        if local_files_only:
            return str(folder)
        (folder / "config.json").write_text("{}")
        if self.broken:
            raise self.broken
        (folder / "model.safetensors").write_bytes(b"weights")
        return str(folder)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub = Hub(tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: hub)
    return hub


def _http(kind: type, text: str = "404 Client Error. (Request ID: x)\n\nmore"):
    error = kind.__new__(kind)
    Exception.__init__(error, text)
    return error


def test_what_is_fetched_is_listed_with_sizes_and_hashes(hub):
    found = weights.fetch(PARTS)
    assert found["target"] == {**PARTS["target"], "files": [
        {"name": "config.json", "bytes": 2, "sha256": hashlib.sha256(b"{}").hexdigest()},
        {"name": "model.safetensors", "bytes": 7, "sha256": SHA256},
    ]}


def test_what_came_incomplete_or_damaged_is_refused(hub):
    for listed in (SimpleNamespace(size=8, lfs=None), SimpleNamespace(size=7, lfs=SimpleNamespace(sha256="0" * 64))):
        hub.listed = listed
        with pytest.raises(UserError, match="model.safetensors came incomplete or damaged"):
            weights.fetch(PARTS)


def test_a_machine_without_network_lists_what_its_cache_holds(hub, tmp_path):
    online = weights.fetch(PARTS)
    hub.error = errors.OfflineModeIsEnabled("offline")
    assert weights.fetch(PARTS) == online
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):  # a folder of the volume may be half full
        weights.fetch(PARTS, str(tmp_path))


def test_a_download_that_broke_off_is_not_taken_for_the_whole(hub):
    hub.broken = httpx2.ReadTimeout("too slow")
    with pytest.raises(UserError, match="huggingface.co cannot be reached; run again"):
        weights.fetch(PARTS)
    with pytest.raises(UserError, match=r"not whole in the Hugging Face cache \(\*.safetensors missing\)"):
        weights.local_folder("someone/model", REVISION)
    hub.error = errors.OfflineModeIsEnabled("offline")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE is set"):
        weights.fetch(PARTS)


def test_a_missing_shard_is_named(hub):
    weights.fetch(PARTS)
    folder = weights.local_folder("someone/model", REVISION)
    (folder / "model.safetensors").rename(folder / "some.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "some.safetensors", "b": "more.safetensors"}}))
    with pytest.raises(UserError, match="more.safetensors missing"):
        weights.local_folder("someone/model", REVISION)


def test_in_the_volume_every_revision_has_its_folder(hub, tmp_path):
    weights.fetch(PARTS, str(tmp_path))
    assert (tmp_path / "someone" / "model" / REVISION / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (_http(errors.GatedRepoError), "accept its licence at https://huggingface.co/someone/model"),
        (_http(errors.RevisionNotFoundError), "no such revision; see https://huggingface.co/someone/model/commits/main"),
        (_http(errors.RepositoryNotFoundError), "a token that may read it: `hf auth login` here"),
        (_http(errors.HfHubHTTPError, "429 Too Many Requests\nmore"), "429 Too Many Requests; run again"),
        (errors.OfflineModeIsEnabled("offline"), "HF_HUB_OFFLINE is set"),
        (httpx2.ConnectError("no connection"), "huggingface.co cannot be reached"),
        (OSError(28, "No space left on device"), "No space left on device"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(hub, error, says):
    hub.error = error
    with pytest.raises(UserError) as found:
        weights.fetch(PARTS)
    assert says in str(found.value) and REVISION in str(found.value) and "\n" not in str(found.value)


def test_weights_that_are_not_here_name_the_rule(hub):
    with pytest.raises(UserError, match="fetch it with `snakemake -c1 -f metrics/weights/local/MODEL.json`"):
        weights.local_folder("someone/model", REVISION)
    weights.fetch(PARTS)
    assert weights.local_folder("someone/model", REVISION).is_dir()


def test_a_revision_that_is_not_pinned_is_refused():
    model = {"target": {"repo": "someone/model", "revision": None}, "drafter": {"path": "x"}}
    with pytest.raises(UserError, match="no revision is pinned; put the 40 hex digits"):
        weights.check_pinned(weights.hub_parts(model))


def test_the_shipped_pair_is_pinned_and_its_size_known():
    model = config.load(ROOT / "config" / "config.yaml")["models"]["gemma4-e2b"]
    assert set(weights.hub_parts(model)) == {"target", "drafter"}
    # ../shared/reference/gemma4_e2b.md
    assert [weights.size_of(model[part]) for part in weights.PARTS] == [10_246_621_918, 157_565_344]


def test_memory_is_checked_against_both_checkpoints():
    model = {"name": "pair", "target": {"repo": "a/b", "bytes": int(20e9)}, "drafter": {"repo": "a/c", "bytes": int(1e9)}}
    weights.check_memory("l40s", model, 48)
    weights.check_memory("unknown memory", model, None)
    weights.check_memory("unknown size", {**model, "drafter": {"repo": "a/c"}}, 1)
    with pytest.raises(UserError, match="l4: the pair pair need about 25 GB .* has 24 GB; choose a larger GPU or a smaller pair in"):
        weights.check_memory("l4", model, 24)
    with pytest.raises(UserError, match="two copies of .* need about 48 GB"):
        weights.check_memory("l40s", model, 48, weights.copies("vllm", "interleaved"))
    weights.check_memory("l40s", model, 48, weights.copies("vllm", "blocks"))
    weights.check_memory("l40s", model, 48, weights.copies("transformers", "interleaved"))


def test_every_modal_gpu_holds_its_pair():
    settings = config.load(ROOT / "config" / "config.yaml")
    for name, gpu in settings["gpus"].items():
        if gpu["backend"] == "modal":
            order = {**settings["protocol"], **gpu["protocol"]}["order"]
            model = {"name": gpu["model"], **settings["models"][gpu["model"]]}
            weights.check_memory(name, model, gpu["memory_gb"], weights.copies("vllm", order))


def test_random_weights_are_not_for_modal():
    model = {"name": "m", "target": {"shape": "x.json", "seed": 0}, "drafter": {"path": "x"}}
    with pytest.raises(UserError, match="backend: local"):
        weights.places(model, ["target"])


def test_only_hub_models_have_a_list():
    settings = config.load(ROOT / "config" / "config.yaml")
    cells = ["cpu_vllm_code_mtp", "h100_vllm_code_mtp", "l4_vllm_code_mtp", "unknown_vllm_code_mtp"]
    assert weights.records(settings, cells) == [Path("metrics/weights/modal/gemma4-e2b.json")]


# The script that the rule calls


def _script(tmp_path, backend: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MODAL_", "HF_"))}
    order = weights.order(config.load(ROOT / "config" / "config.yaml"), "gemma4-e2b")
    command = [sys.executable, str(ROOT / "scripts" / "weights.py"), backend, json.dumps(order)]
    return subprocess.run(
        [*command, str(tmp_path / "out.json")],
        env={**kept, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_TOKEN": "hf_HIDDEN"},
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_the_script_says_one_line_and_leaves_no_file(tmp_path):
    for backend, says in (("modal", "modal token new"), ("local", "HF_HUB_OFFLINE is set")):
        done = _script(tmp_path, backend)
        assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert "HIDDEN" not in done.stdout + done.stderr and not (tmp_path / "out.json").exists()


def test_fetching_on_modal_gives_the_secret_to_that_container_alone(monkeypatch):
    import modal

    from mtpbench.backends import modal as adapter

    monkeypatch.chdir(ROOT)
    asked, found = {}, {"target": {"files": []}}
    build = modal.App.function
    monkeypatch.setattr(modal.App, "function", lambda self, **options: asked.update(options) or build(self, **options))
    monkeypatch.setattr(adapter, "call", lambda app, function, arguments, settings, say: (found, {}))
    settings = config.load(ROOT / "config" / "config.yaml")["modal"]
    assert weights.fetch_on_modal(PARTS, settings, print) == found
    assert len(asked["secrets"]) == 1 and "gpu" not in asked and set(asked["volumes"]) == {"/models"}
    weights.fetch_on_modal(PARTS, {**settings, "secret": None}, print)
    assert asked["secrets"] == []
    found = {"error": "someone/model: no such revision"}
    with pytest.raises(UserError, match="no such revision"):
        weights.fetch_on_modal(PARTS, settings, print)


@pytest.mark.workflow
def test_a_fresh_result_needs_no_weights_and_a_missing_one_does(tmp_path):
    """In a clone the list is not there: that must neither fetch anything nor make a committed result stale."""
    for name in ("Snakefile", "config", "envs", "prompts", "rules", "scripts", "profiles", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    settings = config.load(ROOT / "config" / "config.yaml")
    settings["gpus"]["h100"]["model"] = "gemma4-e2b"
    settings["engines"]["vllm"]["requirements"]["cuda"] = ["envs/weights.txt"]
    settings["matrix"] |= {"gpus": ["h100"], "engines": ["vllm"], "prompts": ["code"], "modes": ["mtp"]}
    (tmp_path / "config.json").write_text(json.dumps(settings))

    def planned(*words: str) -> str:
        command = [sys.executable, "-m", "snakemake", *words, "-n", "--configfile", "config.json"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "Fetching gemma4-e2b for modal" in planned("cells") and "Measuring" in planned("cells")
    assert "Fetching gemma4-e2b for modal" in planned("weights") and "Measuring" not in planned("weights")
    cell = "h100_vllm_code_mtp"
    plan = json.loads((tmp_path / "metrics" / "specs" / cell / "plan.json").read_text())
    head = {"schema_version": results.SCHEMA_VERSION, "cell": cell, "fingerprint": plan["fingerprint"], "spec": plan["spec"]}
    results.write(results.path_of(cell, tmp_path), head)
    assert "Nothing to be done" in planned("cells")
