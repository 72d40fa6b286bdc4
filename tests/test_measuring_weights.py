"""Model constants: the published shape of Gemma 4 E2B, built from its config alone, and the shipped pair."""

import json
import math
import struct
import subprocess

import pytest

from mtpbench.measuring import weights

# The shapes in ../shared/reference/gemma4_e2b.md; the engine's environment builds the modules on the meta device.
REAL_SHAPE = """
import json, torch
from transformers import Gemma4AssistantConfig, Gemma4AssistantForCausalLM, Gemma4ForCausalLM, Gemma4TextConfig

common = dict(vocab_size=262144, num_key_value_heads=1, head_dim=256, global_head_dim=512, sliding_window=512)
target = Gemma4TextConfig(
    hidden_size=1536, intermediate_size=6144, num_hidden_layers=35, num_attention_heads=8, num_kv_shared_layers=20,
    layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 7, use_double_wide_mlp=True,
    hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144, **common)
drafter = Gemma4AssistantConfig(
    text_config=Gemma4TextConfig(
        hidden_size=256, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=4, num_kv_shared_layers=4,
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        hidden_size_per_layer_input=0, vocab_size_per_layer_input=0, **common),
    backbone_hidden_size=1536, use_ordered_embeddings=True, num_centroids=2048, centroid_intermediate_top_k=32)
with torch.device("meta"):
    models = Gemma4ForCausalLM(target), Gemma4AssistantForCausalLM(drafter)
print(json.dumps([
    {"config": json.loads(model.config.to_json_string(use_diff=False)),
     "shapes": {name: list(value.shape) for name, value in model.state_dict().items() if name != "lm_head.weight"}}
    for model in models]))
"""


def folder(path, config: dict, shapes: dict[str, list[int]]):
    """A model folder whose weight file is all header and holes: its tensors are as large as they say and take no disk."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (path / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    return path


@pytest.fixture(scope="module")
def real_shape(engine_python, tmp_path_factory):
    made = subprocess.run([engine_python("transformers"), "-c", REAL_SHAPE], capture_output=True, text=True, check=True)
    base = tmp_path_factory.mktemp("gemma4-e2b")
    parts = dict(zip(("target", "drafter"), json.loads(made.stdout)))
    return {name: folder(base / name, **part) for name, part in parts.items()}


@pytest.mark.engine
def test_real_shape_has_the_reference_figures(real_shape):
    found = weights.constants(real_shape["target"], real_shape["drafter"], "bfloat16")
    gathered = 35 * 256 * 2  # bytes: the per-layer embedding of one id, about 17.9 KB
    assert found["streamed_bytes"] == 2 * 2_279_473_152 + gathered
    assert found["flops_per_token"] == 2 * 2_279_473_152
    assert found["kv_bytes_per_token"] == 18_432
    assert found["drafter_parameters"] == 77_993_476
    assert found["drafter_streamed_bytes"] == pytest.approx(23e6, rel=0.03)


@pytest.mark.engine
def test_keys_and_values_that_a_checkpoint_holds_for_sharing_layers_are_not_streamed(real_shape, tmp_path):
    config, shapes = weights.text_config(real_shape["target"]), weights.tensor_shapes(real_shape["target"])
    unused = {f"model.layers.{layer}.self_attn.{part}_proj.weight": [256, 1536] for layer in range(15, 35) for part in "kv"}
    vision = {"model.vision_tower.layers.0.self_attn.q_proj.weight": [768, 768]}
    assert weights.target_streamed(config, {**shapes, **unused, **vision}) == 2_279_473_152


def test_the_same_model_written_in_the_older_style_has_the_same_cache():
    layers = (["sliding_attention"] * 4 + ["full_attention"]) * 7
    base = {"num_hidden_layers": 35, "num_kv_shared_layers": 20, "layer_types": layers, "num_key_value_heads": 1, "head_dim": 256}
    old = {**base, "global_head_dim": 512}
    new = {**base, "per_layer_config": {f"{layer:02d}": {"head_dim": 512} for layer in range(4, 35, 5)}}
    assert weights.kv_elements(old) == weights.kv_elements(new) == 9_216


def test_an_output_matrix_of_its_own_is_streamed_once():
    config = {"num_hidden_layers": 1, "vocab_size": 10, "hidden_size": 4}
    tied = {"model.embed_tokens.weight": [10, 4], "model.layers.0.mlp.up_proj.weight": [8, 4], "model.norm.weight": [4]}
    assert weights.target_streamed(config, tied) == 40 + 32
    assert weights.target_streamed(config, {**tied, "lm_head.weight": [10, 4]}) == 40 + 32


def test_the_shipped_pair(root):
    pair = root / "models" / "small"
    found = weights.constants(pair / "target", pair / "drafter", "float32")
    assert 1_000_000 < found["parameters"] and found["streamed_bytes"] <= 4 * found["parameters"]
    assert 0 < found["drafter_streamed_bytes"] <= 4 * found["drafter_parameters"] < 4 * found["parameters"]
    without = weights.constants(pair / "target", None, "float32")
    assert without["drafter_parameters"] is without["drafter_streamed_bytes"] is without["drafter_flops_per_token"] is None
