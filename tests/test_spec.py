"""Specs and fingerprints: what may change them, what must not, and how a difference is said."""

import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtpbench import config as configuration
from mtpbench import identity, ledger, results, spec
from mtpbench.errors import UserError

CELL = "cpu_vllm_code_mtp"
ROOT = Path(__file__).parents[1]


@pytest.fixture
def root(tmp_path):
    """A folder with all that a spec is resolved from."""
    for name in ("prompts", "envs", "models"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.in"))
    return tmp_path


@pytest.fixture
def config():
    return configuration.load()


def test_the_ledger_knows_the_measuring_code():
    """Changed measuring code: say in measuring/ledger.json whether the numbers are the same or the version goes up."""
    last = ledger.entries()[-1]
    assert last["measuring_code"] == ledger.measuring_digest(), (
        "the measuring code has changed: append an entry to scripts/mtpbench/measuring/ledger.json with "
        f"measuring_code {ledger.measuring_digest()}, and the same measurement_version if no number moves, the next one if any does"
    )
    versions = [entry["measurement_version"] for entry in ledger.entries()]
    assert versions == sorted(versions) and all(entry["why"] for entry in ledger.entries())


def test_the_ledger_ignores_comments_and_docstrings(tmp_path):
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    one.write_text('"""Words."""\ndef f(x):\n    """More."""\n    return x + 1  # why\n')
    other.write_text("def f(x):\n\n    return (x + 1)\n")
    assert ledger._tree(one) == ledger._tree(other)
    other.write_text("def f(x):\n    return x + 2\n")
    assert ledger._tree(one) != ledger._tree(other)


def test_a_plan_carries_its_fingerprint_and_the_prompts_it_hashes(root, config):
    plan = spec.Specs(config, root).plan(CELL)
    assert plan["fingerprint"] == results.digest(plan["spec"])
    assert {prompt["id"]: results.digest(prompt) for prompt in plan["prompts"]} == plan["spec"]["prompts"]
    assert list(plan)[0] == "fingerprint", "planned_path finds it at the head of the file"


def test_no_label_or_place_is_in_the_spec(root, config):
    text = json.dumps(spec.Specs(config, root).resolve(CELL))
    assert "small" not in text and str(root) not in text and "local" not in text


def test_the_drafter_is_in_the_spec_of_mtp_only(root, config):
    assert "drafter" in spec.Specs(config, root).resolve(CELL)["model"]
    for mode in ("baseline", "ngram"):
        assert "drafter" not in spec.Specs(config, root).resolve(f"cpu_vllm_code_{mode}")["model"]


def test_planning_again_writes_a_newer_and_different_plan_over_a_result_until_it_answers(root, config):
    def planned(result: dict) -> tuple[bytes, int]:
        results.write(results.path_of(CELL, root), {"schema_version": 1, "cell": CELL, **result})
        path, answered = spec.Specs(config, root).planned_path(CELL)
        assert answered == (result["fingerprint"] != "0" * 64)
        return path.read_bytes(), path.stat().st_mtime_ns

    path, _ = spec.Specs(config, root).planned_path(CELL)
    before = path.stat().st_mtime_ns
    assert spec.Specs(config, root).planned_path(CELL) == (path, False)
    assert path.stat().st_mtime_ns == before, "without a result the cell runs anyway"
    config["gpus"]["cpu"]["python"] = "another"
    spec.Specs(config, root).planned_path(CELL)
    assert json.loads(path.read_text())["how"]["python"] == "another", "how to run it is in no fingerprint"
    stale = {"fingerprint": "0" * 64}
    assert planned(stale)[0] != planned(stale)[0]
    answer = {"fingerprint": json.loads(path.read_text())["fingerprint"]}
    assert planned(answer) == planned(answer)
    config["gpus"]["cpu"]["python"] = "a third"
    assert json.loads(planned(answer)[0])["how"]["python"] == "a third", "what an invalid result is measured again with"


@pytest.mark.parametrize("what", ["envs/transformers.txt", "models.small.target"])
def test_what_changed_since_a_cell_was_planned_is_not_measured_as_if_it_had_not(root, config, what):
    plan = spec.Specs(config, root).plan("cpu_transformers_code_mtp")
    identity.check_planned(plan, root)
    changed = root / ("models/small/target/config.json" if what.startswith("models") else what)
    changed.write_text(changed.read_text() + "\n1==1\n")
    with pytest.raises(UserError, match=f"cpu_transformers_code_mtp: {what} has changed since this cell was planned; plan it again"):
        identity.check_planned(plan, root)


MALFORMED = {
    "empty": ("", "an empty prompt file"),
    "blank lines": ("\n \n", "an empty prompt file"),
    "no JSON": ('{"id": "a", \n', ":1: not valid JSON"),
    "a list": ("[1]\n", ":1: a prompt has exactly the keys"),
    "a key too many": ('{"id":"a","category":"c","messages":[],"x":1}\n', ":1: a prompt has exactly the keys"),
    "no messages": ('{"id":"a","category":"c","messages":[]}\n', ":1: messages must be a list"),
    "a role": ('{"id":"a","category":"c","messages":[{"role":"usr","content":"x"}]}\n', ":1: messages must be"),
    "blank text": ('{"id":"a","category":"c","messages":[{"role":"user","content":" "}]}\n', ":1: messages must be"),
    "a number as id": ('{"id":1,"category":"c","messages":[{"role":"user","content":"x"}]}\n', ":1: messages must be"),
    "twice": ('{"id":"a","category":"c","messages":[{"role":"user","content":"x"}]}\n' * 2, "the id 'a' stands twice"),
    "a lone surrogate": ('{"id":"a","category":"c","messages":[{"role":"user","content":"\\ud800"}]}\n', ":1: text that is no valid Unicode"),
    "too few": ('{"id":"a","category":"c","messages":[{"role":"user","content":"x"}]}\n', "holds 1 prompts and protocol.prompts asks for 12"),
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_prompt_file_is_named_with_its_line(root, config, kind):
    content, said = MALFORMED[kind]
    (root / "prompts/code.jsonl").write_text(content)
    with pytest.raises(UserError, match=re.escape("prompts/code.jsonl") + ".*" + re.escape(said)) as caught:
        spec.Specs(config, root).resolve(CELL)
    assert "\n" not in str(caught.value)


def test_a_prompt_file_is_utf8_and_its_lines_end_at_newlines_alone(root, config):
    file = root / "prompts/code.jsonl"
    file.write_bytes(b"\xff" + file.read_bytes())
    with pytest.raises(UserError, match="prompts/code.jsonl: not UTF-8 text"):
        spec.Specs(config, root).resolve(CELL)
    lines = [json.dumps({"id": f"a{i}", "category": "c", "messages": [{"role": "user", "content": "a\u2028b\x85c"}]}, ensure_ascii=False) for i in range(12)]
    file.write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    assert len(spec.Specs(config, root).resolve(CELL)["prompts"]) == 12


def test_missing_files_and_folders_are_named(root, config):
    shutil.rmtree(root / "models/small/drafter")
    with pytest.raises(UserError, match=r"models\.small\.drafter: .*no such model folder"):
        spec.Specs(config, root).resolve(CELL)
    (root / "models/small/target/model.safetensors").unlink()
    with pytest.raises(UserError, match=r"models\.small\.target: .*no config.json with \*\.safetensors"):
        spec.Specs(config, root).resolve(CELL)
    shutil.copytree(ROOT / "models/small/target", root / "models/small/target", dirs_exist_ok=True)
    (root / "envs/vllm-cpu.txt").unlink()
    with pytest.raises(UserError, match="envs/vllm-cpu.txt: no such file"):
        spec.Specs(config, root).resolve("cpu_vllm_code_baseline")
    (root / "envs/vllm-cpu.txt").touch()
    (root / "prompts/code.jsonl").unlink()
    with pytest.raises(UserError, match=r"prompts\.code: .*no such file"):
        spec.Specs(config, root).resolve("cpu_vllm_code_baseline")


def test_an_engine_without_an_environment_for_the_device_is_refused(root, config):
    with pytest.raises(UserError, match="engines.vllm021.requirements: no entry 'cpu'"):
        spec.Specs(config, root).resolve("cpu_vllm021_code_mtp")


trees = st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(st.sampled_from("abcd"), inner), max_leaves=12)


@given(st.dictionaries(st.sampled_from("abcd"), trees), st.dictionaries(st.sampled_from("abcd"), trees))
def test_differences_are_said_exactly_where_there_are_any(one, other):
    assert bool(spec.differences(one, other)) == (one != other)
    assert spec.differences(one, one) == []


def test_differences_read_as_a_person_would_say_them():
    old = {"mode": {"gamma": 4}, "prompts": {"a": "1", "b": "2"}, "measurement_version": 3}
    new = {"mode": {"gamma": 3}, "prompts": {"a": "9", "c": "2"}, "measurement_version": 4}
    assert spec.differences(old, new) == [
        "prompts: 1 changed, 1 added, 1 removed",
        "mode.gamma 4 -> 3",
        "measurement_version 3 -> 4",
    ]
    assert spec.differences({"prompts": {"a": 1, "b": 2}}, {"prompts": {"b": 2, "a": 1}}) == []


def test_layers_are_merged_key_by_key():
    assert configuration.merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"y": 3}}, {"b": {"z": 1}}) == {"a": {"x": 1, "y": 3}, "b": {"z": 1}}


def test_what_transformers_cannot_do_is_refused_before_anything_is_loaded(root, config):
    config["modes"]["mtp"]["protocol"] = {"concurrency": [1, 4]}
    specs = spec.Specs(config, root)
    with pytest.raises(UserError, match=r"cpu_transformers_code_mtp: .* one request at a time.*\[1, 4\]; set \[1\] for it"):
        specs.plan("cpu_transformers_code_mtp")
    assert specs.plan("cpu_vllm_code_mtp")["spec"]["protocol"]["concurrency"] == [1, 4]
    assert "protocol" not in specs.plan("cpu_vllm_code_mtp")["spec"]["mode"]
