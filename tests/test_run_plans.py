"""Many cells in one sitting: shared engines, sessions that are kept, results that are whole."""

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import run_plans  # noqa: E402

from mtpbench import config as configuration  # noqa: E402
from mtpbench import results, simulate, spec  # noqa: E402
from mtpbench.errors import UserError  # noqa: E402

CELLS = ["cpu_vllm_code_baseline", "cpu_vllm_code_mtp", "cpu_vllm_generic_mtp"]  # synthetic acceptance needs a GPU


@pytest.fixture
def plans(tmp_path, monkeypatch):
    """The plans of three cells of two short sessions, in a copy of what they are made from."""
    for name in ("prompts", "envs", "models", "config"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / ".envs").symlink_to(ROOT / ".envs")
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_load(Path("config/config.yaml").read_text())
    text["gpus"]["cpu"]["protocol"] = {"prompts": 2, "output_tokens": 24, "warmup": 1, "sessions": 2, "rounds": {"min": 1, "max": 1}}
    config = configuration.validate(text)
    return [spec.Specs(config).plan(cell) for cell in CELLS]


def test_entries_for_the_lent_machine_resolve():
    config = configuration.load(ROOT / "config" / "config.yaml")
    for cell, sessions in (("h200_transformers_generic_mtp-g8", 1), ("h200_vllm021_code_mtp", 4), ("h200_vllm021_code_baseline", 18), ("h200_vllm021_generic_syn-g2-l100", 2)):
        plan = spec.Specs(config, ROOT).plan(cell)
        assert plan["spec"]["protocol"]["sessions"] == sessions and plan["how"]["python"].endswith("python3")
        assert ("site" in plan["how"]) == ("vllm021" in cell)
        assert plan["spec"]["engine"]["requirements"].keys() >= {"h200.txt"}


def test_engines_that_agree_are_shared(plans):
    other = json.loads(json.dumps(plans[0]))
    other["spec"]["engine"]["options"] = {"enforce_eager": True}
    assert [len(group) for group in run_plans._alike([*plans, other])] == [3, 1]


def test_nothing_begins_after_the_deadline(plans, monkeypatch):
    monkeypatch.setattr(run_plans.local, "run_together", lambda *_: pytest.fail("measured all the same"))
    said = []
    run_plans.run(plans, time.monotonic() - 1, 5, said.append)
    assert "time is up" in said[-1]  # another test may hold this machine's device


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_two_sittings_on_shared_engines_make_whole_results(plans):
    said = []
    run_plans.run(plans, time.monotonic() + 900, 1, said.append)
    assert not list(Path("metrics/runs").glob("*")) and len(list(Path("metrics/sessions").glob("*/0.json"))) == 3
    run_plans.run(plans, time.monotonic() + 900, 5, said.append)
    assert sum("load |" in line for line in said) == 2 * 3, "control, a second baseline and one drafting engine a sitting"
    for plan in plans:
        result = results.read(results.path_of(plan["cell"]))
        assert result["fingerprint"] == plan["fingerprint"] and [s["index"] for s in result["sessions"]] == [0, 1]
        assert result["summary"]["valid"], result["summary"]["reasons"]
    assert not any("side by side" in session["settings"]["engines"] for session in result["sessions"])
    said.clear()
    run_plans.run(plans, time.monotonic() + 900, 5, said.append)
    assert len(said) == 3 and all("there already" in line for line in said)


@pytest.mark.engine
@pytest.mark.timeout(900)
def test_two_sessions_whose_engines_load_side_by_side_make_whole_results(plans):
    said = []
    run_plans.run(plans[:2], time.monotonic() + 900, 1, said.append, beside=2)
    loads, turns = ([at for at, line in enumerate(said) if word in line] for word in ("load |", "[mtpbench] device"))
    assert len(loads) == 2 * 3 and len(turns) == 2 * 2 and max(loads) < min(turns), "control, a second baseline and one drafting engine in each process"
    for plan in plans[:2]:
        result = results.read(results.path_of(plan["cell"]))
        assert result["summary"]["valid"] and [s["index"] for s in result["sessions"]] == [0, 1]
        assert all("2 of which loaded theirs side by side" in session["settings"]["engines"] for session in result["sessions"])


def test_no_cell_is_always_the_first_of_its_session(plans, monkeypatch):
    asked = []
    monkeypatch.setattr(run_plans.local, "run_together", lambda requests, say: asked.extend(requests) or ())
    run_plans.run(plans, time.monotonic() + 900, 1, print, beside=2)
    first, second = ([request["cell"] for request, _ in share] for share in asked)
    assert first == CELLS and second == [*CELLS[1:], CELLS[0]]


def test_who_waits_for_a_cell_does_not_pay_for_it_again(plans, monkeypatch):
    """As after a Snakemake that was killed: its measurement goes on, and the next Snakemake starts another."""
    simulated, paid, said = simulate.result(plans[0]["cell"], prompts=2, rounds=1, tokens=8), [], []

    def session(request, how, say):
        paid.append(request["nonce"])
        time.sleep(0.5)
        return {"status": "ok", "session": {**simulated["sessions"][0], "index": request["session"]}}

    monkeypatch.setattr(run_plans.measure.backends, "run_session", session)
    monkeypatch.setattr(run_plans.identity, "check_planned", lambda plan: None)
    plan = {**plans[0], "spec": simulated["spec"], "fingerprint": results.digest(simulated["spec"])}
    path = results.path_of(plan["cell"])
    runs = [threading.Thread(target=run_plans.measure.measure, args=(plan, path, said.append)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(paid) == 1 and results.read(path)["summary"]["valid"]
    assert any("waiting" in line for line in said) and any("fresh" in line for line in said)


@pytest.fixture
def asked(plans, monkeypatch) -> list[int]:
    """The sessions that were measured, by a stand-in for the engine that answers with simulated ones."""
    simulated, indices = simulate.result(plans[0]["cell"], prompts=2, rounds=1, tokens=8), []

    def session(request, how, say):
        indices.append(request["session"])
        return {"status": "ok", "session": {**simulated["sessions"][0], "index": request["session"], "asked": len(indices)}}

    monkeypatch.setattr(run_plans.measure.backends, "run_session", session)
    monkeypatch.setattr(run_plans.identity, "check_planned", lambda plan: None)  # the simulated prompts are no files
    plans[0]["spec"] = simulated["spec"]
    return indices


def _measured(plan: dict, **protocol) -> dict:
    """The result of a cell under another protocol, over whatever result is there."""
    wanted = {**plan["spec"], "protocol": {**plan["spec"]["protocol"], **protocol}}
    path = results.path_of(plan["cell"])
    run_plans.measure.measure({**plan, "spec": wanted, "fingerprint": results.digest(wanted)}, path, lambda line: None)
    assert results.recorded(path) == results.digest(wanted)
    return results.read(path)


@pytest.mark.parametrize("number, paid", [(3, [2]), (1, []), (2, [])])
def test_who_asks_for_another_number_of_sessions_pays_for_the_new_ones_only(plans, asked, number, paid):
    first = _measured(plans[0], sessions=2)
    asked.clear()
    result = _measured(plans[0], sessions=number)
    assert asked == paid and len(result["sessions"]) == number
    assert result["sessions"][:2] == first["sessions"][:number]
    assert [path.name for path in Path("metrics/sessions").glob("*/*.json")] == ["1.json"] * (number == 1)


def test_sessions_of_another_spec_are_measured_anew(plans, asked):
    _measured(plans[0], sessions=2)
    _measured(plans[0], sessions=3, output_tokens=9)
    assert asked == [0, 1, 0, 1, 2]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_anatomy_of_a_step(plans, engine_python, tmp_path):
    plan = spec.Specs(configuration.load(ROOT / "config" / "config.yaml"), ROOT).plan("cpu_transformers_code_baseline")
    plan["spec"]["protocol"]["output_tokens"] = 8
    plan["fingerprint"] = results.digest(plan["spec"])
    Path("plans.json").write_text(json.dumps([plan]))
    python, traces = engine_python("transformers"), tmp_path / "traces"
    subprocess.run([python, ROOT / "scripts/anatomy.py", "plans.json", traces, plan["cell"]], check=True, timeout=300)
    ((path, found),) = results.anatomies().items()
    assert path.stem == plan["cell"]
    assert found["fingerprint"] == plan["fingerprint"]
    assert all(turn["mean_ms"] > 0 and len(turn["steps_ms"][0]) == 7 for turns in found["steps"].values() for turn in turns)
    lengths = [turn for turns in found["lengths"].values() for turn in turns]
    assert len({turn["prompt_tokens"] for turn in lengths}) == len(lengths) == 6
    assert all(len(turn[when]) == 8 for turn in lengths for when in ("new_ms", "again_ms"))
    assert found["trace"]["phases"]["forward"]["host_ms"] > 0 and found["trace"]["gpu_busy_ms"] == 0
    failing = [python, "-c", f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import anatomy; anatomy.TRACED = 4; sys.argv[0] = 'x'; anatomy.main()"]
    done = subprocess.run([*failing, "plans.json", traces, plan["cell"]], timeout=300, capture_output=True, text=True)
    assert done.returncode == 1 and "steps in the trace, 10 are needed" in done.stderr and "Traceback" not in done.stderr
    assert results.anatomies() == {path: found}, "a trace that failed takes the place of none that did not"
    turning = [*failing[:2], failing[2].replace("anatomy.main()", (
        "import itertools, json, types; anatomy._steps = lambda *_, count=itertools.count(): next(count); "
        "print(json.dumps(anatomy._conditions(types.SimpleNamespace(spec=json.load(open('plans.json'))[0]['spec']), [], 8)))"
    ))]  # fmt: skip
    order = json.loads(subprocess.run(turning, check=True, timeout=300, capture_output=True, text=True).stdout)
    first = [name for name, at in order.items() if any(number % len(order) == 0 for number in at)]
    assert len(first) == 3 and order["free"][0] == 0, "each turn begins with another condition"
    ahead = [python, ROOT / "scripts/compile_ahead.py", "plans.json"]
    assert "compiled |" in subprocess.run([*ahead, plan["cell"]], check=True, timeout=300, capture_output=True, text=True).stdout
    done = subprocess.run([*ahead, "cpu_vllm_code_mtp"], timeout=300, capture_output=True, text=True)
    assert done.returncode == 1 and "plans.json: no plan of cpu_vllm_code_mtp; it has cpu_transformers_code_baseline" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("change", [
    lambda plan: plan["spec"]["protocol"].update(output_tokens=4), lambda plan: plan.update(cell="../../../esc"), lambda plan: plan["how"].update(backend="modal"),
    lambda plan: plan.update(spec=3), lambda plan: plan.update(how=None), lambda plan: plan["spec"].update(measurement_version=0),
])  # fmt: skip
def test_a_plan_that_was_edited_is_refused(plans, change):
    """Else the result would carry the fingerprint of another spec, and be taken for fresh."""
    change(plans[0])
    Path("plans.json").write_text(json.dumps(plans))
    with pytest.raises(UserError, match="plans.json: .*`python scripts/run_plans.py plan PLANS.json CELL...` writes one"):
        run_plans.planned(Path("plans.json"))


def test_who_measures_a_cell_holds_it_until_the_session_is_kept(plans, monkeypatch):
    """Seen before: Snakemake, which waited for the device meanwhile, measured all of it again."""
    order = []

    @contextlib.contextmanager
    def held(what):
        order.append(what)
        yield
        order.append(f"{what} given back")

    monkeypatch.setattr(run_plans.measure, "alone", lambda plan, say: held("cell"))
    monkeypatch.setattr(run_plans.local, "device_alone", lambda kind, say: held("device"))
    monkeypatch.setattr(run_plans, "_failures", lambda *_: order.append("measured") or {plan["cell"] for plan in plans})
    run_plans.run(plans[:2], time.monotonic() + 60, 1, lambda line: None)
    assert order == ["cell", "cell", "device", "measured", "device given back", "cell given back", "cell given back"]


def test_cells_are_held_in_one_order_however_many_sessions_are_asked_for(plans, monkeypatch):
    """Else two sittings could wait for each other; and two names of one spec are one lock, which nobody takes twice."""
    orders = []
    for sessions in (1, 2):
        held: list = []
        asked = [{**plan, "spec": {**plan["spec"], "protocol": {**plan["spec"]["protocol"], "sessions": sessions}}} for plan in plans]
        asked = [{**plan, "fingerprint": results.digest(plan["spec"])} for plan in (*asked, {**asked[0], "cell": "cpu_vllm_code_alias"})]
        monkeypatch.setattr(run_plans.measure, "alone", lambda plan, say: held.append(run_plans.measure.lock_of(plan)) or contextlib.nullcontext())
        monkeypatch.setattr(run_plans, "_failures", lambda group, *_: {plan["cell"] for plan in group})
        run_plans.run(asked, time.monotonic() + 60, 1, lambda line: None)
        orders.append(held)
    assert orders[0] == orders[1] == sorted(set(orders[0])) and len(orders[0]) == len(plans)


@pytest.mark.parametrize("text", [None, "", "[1]", "[[1]]", '{"cell": 2}', "null"])
def test_a_file_that_holds_no_plans_is_named(tmp_path, text):
    path = tmp_path / "plans.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match="no file of plans.*run_plans.py plan"):
        run_plans.planned(path)


def test_sessions_beyond_the_number_asked_for_wait_for_who_asks_for_more_again(plans, asked):
    first = _measured(plans[0], sessions=3)
    asked.clear()
    _measured(plans[0], sessions=1)
    assert _measured(plans[0], sessions=3)["sessions"] == first["sessions"] and asked == []


@pytest.mark.parametrize("damage", [lambda text: text[: len(text) // 2], lambda text: text.replace('"index": 1', '"index": 0'), lambda text: ""])
def test_a_damaged_session_is_measured_again(plans, asked, damage):
    _measured(plans[0], sessions=2)
    _measured(plans[0], sessions=1)  # the second waits
    asked.clear()
    (waits,) = Path("metrics/sessions").glob("*/1.json")
    waits.write_text(damage(waits.read_text()))
    assert [session["index"] for session in _measured(plans[0], sessions=2)["sessions"]] == [0, 1] and asked == [1]


def test_a_cell_whose_session_failed_is_not_tried_again_and_is_told(plans, monkeypatch):
    asked = []

    def run_together(shares, say):
        for request, _ in shares[0]:
            asked.append((request["cell"], request["session"]))
            error = {"kind": "engine", "message": "told to fail", "tail": ""}
            yield {"nonce": request["nonce"], "fingerprint": request["fingerprint"], "status": "error", "error": error}

    monkeypatch.setattr(run_plans.local, "run_together", run_together)
    said = []
    assert run_plans.run(plans[:2], time.monotonic() + 60, 5, said.append) == sorted(CELLS[:2])
    assert asked == [(cell, 0) for cell in CELLS[:2]] and sum("FAILED" in line for line in said) == 2


def test_sessions_that_another_run_measured_meanwhile_are_not_measured_again(plans, monkeypatch):
    """The device is waited for first, and what is lacking is asked then."""
    def alone(kind, say):
        for plan in plans:
            for index in range(2):
                run_plans.sessions.keep(plan["spec"], index, {"index": index})
        return contextlib.nullcontext()

    monkeypatch.setattr(run_plans.local, "device_alone", alone)
    monkeypatch.setattr(run_plans.local, "run_together", lambda *_: pytest.fail("measured all the same"))
    monkeypatch.setattr(run_plans.measure, "measure", lambda *_: None)
    assert run_plans.run(plans, time.monotonic() + 60, 1, lambda line: None) == []


def test_kept_sessions_become_a_result_whoever_measured_them(plans, asked):
    """As after a sitting that was killed between its last session and the result."""
    _measured(plans[0], sessions=2)
    path, wanted = results.path_of(plans[0]["cell"]), {**plans[0]["spec"], "protocol": {**plans[0]["spec"]["protocol"], "sessions": 2}}
    plan = {**plans[0], "spec": wanted, "fingerprint": results.digest(wanted)}
    for session in results.read(path)["sessions"]:
        run_plans.sessions.keep(wanted, session["index"], session)
    path.unlink()
    asked.clear()
    assert run_plans.run([plan], time.monotonic() + 60, 1, lambda line: None) == []
    assert results.recorded(path) == plan["fingerprint"] and asked == []


def test_without_git_what_was_measured_is_kept(plans, asked, monkeypatch):
    """Seen before: a whole measurement was made, and lost to the question which commit it was made from."""
    monkeypatch.setenv("PATH", "/nowhere")
    result = _measured(plans[0], sessions=1)
    assert (result["provenance"]["commit"], result["sessions"][0]["provenance"]["uncommitted_changes"]) == (None, None)


def test_an_interpreter_that_is_not_here_is_named(plans):
    plans[0]["how"]["python"] = "/no/such/python3"
    with pytest.raises(UserError, match="/no/such/python3 is not on this machine: measure where it is, or correct `python`"):
        run_plans.run(plans[:1], time.monotonic() + 60, 1, lambda line: None)


def test_each_cell_is_asked_for_with_its_own_drafter(plans, monkeypatch):
    """Two drafters of one target share the process, and nothing else."""
    other = json.loads(json.dumps(plans[1]))
    other["cell"] = "cpu_vllm_code_other"
    other["how"]["model"]["drafter"] = {"path": "models/small/target"}
    sent = []
    monkeypatch.setattr(run_plans.local, "_python", lambda how, say: Path("python"))
    monkeypatch.setattr(run_plans.local.cell, "run_together", lambda shares, *_, **__: sent.extend(shares) or iter(()))
    list(run_plans.local.run_together([[(run_plans.measure.request_of(plan, 0), plan["how"]) for plan in (plans[1], other)]], print))
    assert [Path(request["paths"]["drafter"]).name for request in sent[0]] == ["drafter", "target"]


def test_engines_of_two_drafters_are_two(tmp_path):
    from mtpbench.measuring.together import Together

    def key(arm, drafter, **protocol):
        made = object.__new__(Together)
        made.request = {"paths": {"target": "t", "drafter": drafter}}
        made.spec = {"model": {"dtype": "float32"}, "engine": {}}
        made.protocol, made.modes = {"order": "interleaved"} | protocol, {"control": {"method": "none"}, "test": {"method": "mtp"}}
        made.implementation = type("Any", (), {"family": staticmethod(lambda mode: mode)})
        return made._key(arm)

    assert key("test", "a") != key("test", "b") and key("control", "a") == key("control", "b")
    assert key("test", "a") != key("test", "a", order="blocks")


def test_an_engine_that_is_shared_runs_all_prompts_of_each_set_where_all_are_asked_for():
    """New prompts have new lengths; where a number of waves is asked for, a warm engine is reminded by a short one."""
    from mtpbench.measuring.together import SHORT, Together

    ran = []
    engine = type("Any", (), {"mode": {"method": "none"}, "run": lambda self, ids, tokens, eos: ran.append((ids, tokens))})()
    made = object.__new__(Together)
    made.warm = set()
    for warmup, prompts in itertools.product(["all", 1], [{"a": [1], "b": [2]}, {"a": [1], "b": [2]}, {"c": [3]}]):
        made.protocol, made.prompts = {"concurrency": [1], "warmup": warmup, "output_tokens": 99, "ignore_eos": True}, prompts
        made._warm_up(engine, False)
        ran.append(None)
    whole = [(ids, 99) for ids in ([[1]], [[2]])]
    assert ran[:8] == [*whole, None, ([[1]], SHORT), None, ([[3]], 99), None, whole[0]]
    assert ran[8:] == [None, ([[1]], SHORT), None, ([[3]], SHORT), None]
    for tokens in (99, 100):
        made.protocol = {"concurrency": [1], "warmup": "all", "output_tokens": tokens, "ignore_eos": True}
        made._warm_up(engine, False)
    assert ran[13:] == [([[3]], SHORT), ([[3]], 100)]


def test_plans_of_another_machine_are_refused(tmp_path):
    with pytest.raises(UserError, match="h100_vllm_code_mtp: not measured on a machine of one's own"):
        run_plans.write(tmp_path / "plans.json", ["h100_vllm_code_mtp"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run plans.json --beside 0", "argument --beside: invalid positive value: '0'"),
        ("run plans.json --sittings -1", "argument --sittings: invalid positive value: '-1'"),
        ("run plans.json", "plans.json: no file of plans"),
        ("plan cpu_vllm_code_mtp cpu_vllm_code_baseline", "cpu_vllm_code_mtp: the name of a cell where the file of plans belongs"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(tmp_path, words, said):
    for name in ("prompts", "envs", "models", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run([sys.executable, ROOT / "scripts/run_plans.py", *words.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode and said in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("in_environment.py", "usage: in_environment.py ENGINE SCRIPT"),
        ("in_environment.py vllm", "usage: in_environment.py ENGINE SCRIPT"),
        ("in_environment.py vllm021 script.py", "one that runs on a CPU: transformers, vllm"),
        ("anatomy.py plans.json traces cell", "runs in an engine's interpreter"),
        ("compile_ahead.py plans.json cell", "runs in an engine's interpreter"),
    ],
)
def test_a_script_for_the_engines_says_where_it_runs(words, said):
    script, *rest = words.split()
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, *rest], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("text", ["[]", '[{"cell": "x"}]'])
def test_a_file_without_a_whole_plan_is_named(tmp_path, text):
    (tmp_path / "plans.json").write_text(text)
    with pytest.raises(UserError, match="plans.json: no (plan in it|file of plans)"):
        run_plans.planned(tmp_path / "plans.json")


def test_a_whole_plan_beside_half_of_one_is_not_run_alone(plans):
    Path("plans.json").write_text(json.dumps([plans[0], {"cell": CELLS[1]}]))
    with pytest.raises(UserError, match="plans.json: no file of plans"):
        run_plans.planned(Path("plans.json"))


@pytest.mark.parametrize("text", ["a: result\n", "{}", "[]", '{"schema_version": 1, "cell": "x"}', "[3]"])
def test_nothing_but_plans_is_written_over_with_plans(plans, text):
    """Seen before: an error message led to it that a good result was replaced."""
    Path("precious.json").write_text(text)
    with pytest.raises(UserError, match="precious.json: there already, and no file of plans; name another one, or delete it first"):
        run_plans.write(Path("precious.json"), CELLS[:1])
    assert Path("precious.json").read_text() == text
    Path("precious.json").unlink()
    for cells in (CELLS[:1], CELLS[1:]):  # its own it writes over
        run_plans.write(Path("precious.json"), cells)
    assert [plan["cell"] for plan in run_plans.planned(Path("precious.json"))] == CELLS[1:]


@pytest.mark.parametrize("file", ["envs/vllm-cpu.txt", "models/small/target/config.json", None])
def test_what_changed_since_the_plan_is_not_measured_under_its_name(plans, monkeypatch, file):
    monkeypatch.setattr(run_plans, "_failures", lambda *_: pytest.fail("measured all the same"))
    if file:
        Path(file).write_text(Path(file).read_text() + "\n1==1\n")
    else:
        plans[1]["prompts"][0]["messages"][0]["content"] += "!"
    with pytest.raises(UserError, match=f"{CELLS[0] if file else CELLS[1]}: .* has changed since this cell was planned; plan it again"):
        run_plans.run(plans, time.monotonic() + 60, 1, lambda line: None)


def test_a_copy_of_a_session_is_not_taken_for_another_measurement(plans, asked):
    """Seen before: session 0 of two machines, one renamed; the result held 0 twice and was valid."""
    _measured(plans[0], sessions=2)
    _measured(plans[0], sessions=1)
    (waits,) = Path("metrics/sessions").glob("*/1.json")
    for number in (2, 3):
        shutil.copy(waits, waits.with_name(f"{number}.json"))
    asked.clear()
    assert [session["index"] for session in _measured(plans[0], sessions=4)["sessions"]] == [0, 1, 2, 3] and asked == [2, 3]


def test_a_result_is_kept_twice_since_a_waiting_job_that_fails_puts_an_older_one_back(plans, asked):
    _measured(plans[0], sessions=1)
    path = results.path_of(plans[0]["cell"])
    old, made = path.read_bytes(), _measured(plans[0], sessions=2)
    path.write_bytes(old)  # by Snakemake, which had backed it up before the job could ask for the cell's lock
    assert made in [results.read(kept) for kept in Path("metrics/archive").glob("*.json")]


def test_what_is_there_already_is_told_and_so_is_its_fault(plans, asked):
    result, path, said = _measured(plans[0], sessions=1), results.path_of(plans[0]["cell"]), []
    plan = {**plans[0], "spec": result["spec"], "fingerprint": result["fingerprint"]}
    assert run_plans.run([plan], time.monotonic() + 60, 1, said.append) == [] and said == [f"[mtpbench] there already | {path}"]
    results.write(path, {**result, "summary": {**result["summary"], "valid": False}})
    assert run_plans.run([plan], time.monotonic() + 60, 1, said.append) == [] and "INVALID" in said[-1]
    path.write_text(path.read_text().replace('"index": 0', '"index": 1'))
    with pytest.raises(UserError, match="its checksum does not fit"):
        run_plans.run([plan], time.monotonic() + 60, 1, said.append)
