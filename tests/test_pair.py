"""The shipped pair: its files, its card, its template, and that an engine runs it."""

import json
import struct
import subprocess
from pathlib import Path

import jinja2
import pytest

from training import card, corpus

ROOT = Path(__file__).resolve().parents[1]
PAIR = ROOT / "models" / "small"
FILES = (
    "chat_template.jinja config.json generation_config.json model.safetensors tokenizer.json tokenizer_config.json"
).split()


def read(path):
    return json.loads((PAIR / path).read_text(encoding="utf-8"))


def shapes(part):
    """{tensor: shape} from the header of the weights."""
    with open(PAIR / part / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}


def test_files_are_there_and_small():
    for part in ("target", "drafter"):
        assert sorted(path.name for path in (PAIR / part).iterdir()) == FILES
    assert sum(path.stat().st_size for path in PAIR.rglob("*") if path.is_file()) <= 10_000_000


def test_card_is_what_the_training_wrote():
    assert (PAIR / "README.md").read_text(encoding="utf-8") == card.render(read("training.json"))


def test_parameters_match_the_weights():
    values = read("training.json")
    for part in ("target", "drafter"):
        # The norms that old vLLM wants on KV-sharing layers are no parameters of the model.
        first_sharing = 4 if part == "target" else 0
        counted = 0
        for name, shape in shapes(part).items():
            sharing = ".k_norm." in name and int(name.split(".")[2]) >= first_sharing
            if sharing or name.endswith("layer_scalar"):
                continue
            size = 1
            for side in shape:
                size *= side
            counted += size
        assert counted == values[part]["parameters"]


def test_sharing_layers_have_the_norm_that_old_vllm_wants():
    config = read("target/config.json")
    norms = {name for name in shapes("target") if ".k_norm." in name}
    assert len(norms) == config["num_hidden_layers"]


def test_drafter_fits_the_target():
    target, drafter = read("target/config.json"), read("drafter/config.json")
    assert drafter["backbone_hidden_size"] == target["hidden_size"]
    for key in ("vocab_size", "head_dim", "global_head_dim", "sliding_window", "rope_parameters"):
        assert drafter["text_config"][key] == target[key]
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (PAIR / "target" / name).read_bytes() == (PAIR / "drafter" / name).read_bytes()


def test_tokenizer_ids():
    tokenizer, config = read("target/tokenizer.json"), read("target/config.json")
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert [vocabulary[t] for t in ("<pad>", "<eos>", "<bos>", "<turn|>")] == [0, 1, 2, 5]
    assert read("target/generation_config.json")["eos_token_id"] == [1, 5]


def test_chat_template():
    text = (PAIR / "target" / "chat_template.jinja").read_text(encoding="utf-8")
    template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(text)
    messages = [{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yes"}]
    assert template.render(messages=messages, bos_token="<bos>", add_generation_prompt=True) == (
        "<bos><|turn>user\nHi<turn|>\n<|turn>model\nYes<turn|>\n<|turn>model\n"
    )


@pytest.mark.parametrize("name", corpus.SETS)
def test_prompt_set(name):
    prompts = corpus.read_prompts(name)
    assert [p["id"] for p in prompts] == [f"{name}-{n:02d}" for n in range(1, len(prompts) + 1)]
    assert 32 <= len(prompts) <= 40
    assert 4 <= len({p["category"] for p in prompts}) <= 7
    assert set(corpus.read_answers(name)) == {p["id"] for p in prompts}


@pytest.mark.parametrize("name", corpus.SETS)
def test_measured_set_is_fit_for_the_demo(name):
    values = read("training.json")["sets"][name]
    assert values["prompts"] == values["identical_with_mtp"] == len(corpus.read_prompts(name))
    assert values["degenerate"] <= 0.1 * values["prompts"]
    assert values["at_least_64_ids"] >= 0.9 * values["prompts"]
    joint = values["joint_acceptance"]
    assert joint == sorted(joint, reverse=True)
    assert values["acceptance_length"] == pytest.approx(1 + sum(joint), abs=0.003)


def test_acceptance_differs_between_sets():
    taus = {name: values["acceptance_length"] for name, values in read("training.json")["sets"].items()}
    assert taus["code"] > 2
    assert max(taus.values()) - min(taus.values()) > 0.5


@pytest.mark.engine
def test_transformers_runs_the_pair(engine_python):
    python = engine_python("transformers")
    program = """
from pathlib import Path
from training import corpus, measure, pair
target, drafter, tokenizer = pair.load(Path("models/small"))
messages = corpus.read_prompts("code")[0]["messages"]
ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
plain, drafted = measure.generate(target, ids), measure.generate(target, ids, drafter)
assert sum(plain, []) == sum(drafted, [])
print(len(plain), len(drafted), tokenizer.decode(sum(plain, []))[:12])
"""
    done = subprocess.run(
        [python, "-c", program],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    steps, drafted, text = done.stdout.strip().split(" ", 2)
    assert int(drafted) < int(steps)
    assert text.startswith("```python")
