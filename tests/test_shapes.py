"""Random weights at a shape: made once, the same again, and real enough for both engines to run on."""

import hashlib
import json
from pathlib import Path

import pytest

from mtpbench import cell, shapes
from mtpbench.measuring import weights
from mtpbench.measuring.device import cpu_name

SHAPES = ("gemma4-e2b", "gemma4-e2b-assistant")


@pytest.fixture(scope="session")
def tiny(root, tmp_path_factory):
    """The shapes of the real pair with everything made small, the pattern of layers kept."""
    folder, made = tmp_path_factory.mktemp("shapes"), {}
    for name in SHAPES:
        shape = json.loads((root / f"models/shapes/{name}.json").read_text())
        text = shape.get("text_config", shape)
        text |= {"vocab_size": 2048, "hidden_size": 64, "intermediate_size": 128, "head_dim": 32, "global_head_dim": 64,
                 "max_position_embeddings": 1024, "num_attention_heads": 2}  # fmt: skip
        if name == "gemma4-e2b":
            text |= {"num_hidden_layers": 10, "num_kv_shared_layers": 5, "layer_types": text["layer_types"][:10],
                     "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 2048}  # fmt: skip
        else:
            shape |= {"backbone_hidden_size": 64, "num_centroids": 64, "centroid_intermediate_top_k": 8}
        made[name] = folder / f"{name}.json"
        made[name].write_text(json.dumps(shape))
    # vLLM captures the choice among the centroids in a CUDA graph, also where there is no CUDA.
    made["plain"] = folder / "plain.json"
    made["plain"].write_text(json.dumps(shape | {"use_ordered_embeddings": False}))
    return made


def ensure(root, tiny, name, seed, python, cache):
    monkey = pytest.MonkeyPatch()
    monkey.chdir(root)  # the tokenizer is found from the project's folder
    try:
        return shapes.ensure({"shape": str(tiny[name]), "seed": seed}, Path(python), cell.environment(None), print, cache)
    finally:
        monkey.undo()


@pytest.fixture(scope="session")
def pair(root, tiny, engine_python, tmp_path_factory):
    cache = tmp_path_factory.mktemp("cache")
    return [ensure(root, tiny, name, seed, engine_python("transformers"), cache) for seed, name in enumerate((*SHAPES, "plain"))]


def digest(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_the_shapes_are_those_of_the_notes(root):
    """shared/reference: what one decode step streams, and the drafter's size where its tables are counted."""
    target, drafter = (json.loads((root / f"models/shapes/{name}.json").read_text()) for name in SHAPES)
    assert weights.kv_elements(target) * 2 == 18_432
    assert target["layer_types"].count("full_attention") == 7 and len(target["layer_types"]) == 35
    assert drafter["backbone_hidden_size"] == target["hidden_size"]


@pytest.mark.engine
@pytest.mark.timeout(600)
def test_weights_depend_on_shape_and_seed_alone(root, tiny, pair, engine_python, tmp_path):
    again = ensure(root, tiny, SHAPES[0], 0, engine_python("transformers"), tmp_path)
    other = ensure(root, tiny, SHAPES[0], 5, engine_python("transformers"), tmp_path)
    assert digest(again) == digest(pair[0]) != digest(other)
    assert again.name == pair[0].name != other.name


@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine, drafter", [("transformers", 1), ("vllm", 2)])
def test_both_engines_run_on_random_weights(root, pair, engine_python, engine, drafter):
    spec = {
        "device": {"kind": "cpu", "name": cpu_name()}, "engine": {"implementation": engine, "options": {}},
        "model": {"target": {"shape": "tiny"}, "drafter": {"shape": "tiny"}, "dtype": "float32"},
        "mode": {"method": "mtp", "num_speculative_tokens": 2},
        "protocol": {"output_tokens": 12, "ignore_eos": True, "warmup": 0, "concurrency": [1], "order": "interleaved",
                     "rounds": {"min": 1, "max": 1, "half_width": None}},
    }  # fmt: skip
    line = (root / "prompts" / "code.jsonl").read_text().splitlines()[0]
    request = {"nonce": "n", "cell": "c", "fingerprint": "f", "session": 0, "spec": spec, "prompts": [json.loads(line)],
               "paths": {"target": str(pair[0]), "drafter": str(pair[drafter])}}  # fmt: skip
    reply = json.loads(cell.run(json.dumps(request), engine_python(engine), log=print, timeout=600))
    assert reply["status"] == "ok", reply["error"]
    session = reply["session"]
    assert session["model"]["random"] and not session["model"]["synthetic_acceptance"]
    control, test = ([r for r in session["requests"] if r["arm"] == arm] for arm in ("control", "test"))
    assert control[0]["ids"] == test[0]["ids"] and len(test[0]["ids"]) == 12
    assert test[0]["counters"]["drafts"] > 0
