"""Constants of a model from its config.json and the headers of its weight files; standard library only."""

import json
import math
import re
from pathlib import Path

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Not read by a decode step of text: towers of other inputs, and the tables of which a step gathers single rows.
NOT_STREAMED = re.compile(r"vision|audio|embed_tokens|token_ordering|rotary")
OF_SHARED_LAYERS = re.compile(r"layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm|v_norm)\.")


def constants(target: Path, drafter: Path | None, dtype: str) -> dict:
    """The model constants of a session record; those of the drafter are None without one.

    parameters: all that the files hold. streamed_bytes: what one decode step of one request reads of the weights.
    kv_bytes_per_token: what one more position adds to the cache (below the sliding window). flops_per_token: two for
    each streamed weight.
    """
    size = BYTES[dtype]
    config, shapes = text_config(target), tensor_shapes(target)
    streamed = target_streamed(config, shapes)
    gathered = config["num_hidden_layers"] * (config.get("hidden_size_per_layer_input") or 0)
    out = {
        "parameters": _count(shapes), "streamed_bytes": (streamed + gathered) * size,
        "kv_bytes_per_token": kv_elements(config) * size, "flops_per_token": 2 * streamed,
        "drafter_parameters": None, "drafter_streamed_bytes": None, "drafter_flops_per_token": None,
    }  # fmt: skip
    if drafter is not None:
        shapes = tensor_shapes(drafter)
        streamed = drafter_streamed(json.loads((drafter / "config.json").read_text()), shapes)
        out |= {"drafter_parameters": _count(shapes), "drafter_streamed_bytes": streamed * size, "drafter_flops_per_token": 2 * streamed}
    return out


def text_config(folder: Path) -> dict:
    """The text model's part of a folder's config.json."""
    config = json.loads((folder / "config.json").read_text())
    return config.get("text_config") or config


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Name and shape of each tensor in a folder's safetensors files, from their headers."""
    shapes = {}
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    return shapes


def target_streamed(config: dict, shapes: dict[str, list[int]]) -> int:
    """Weights that a decode step reads: every layer's, and the output matrix, which is the embedding where they are tied."""
    first_shared = config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)

    def read(name: str) -> bool:
        shared = OF_SHARED_LAYERS.search(name)  # in some checkpoints, and never used
        return not NOT_STREAMED.search(name) and not (shared and int(shared[1]) >= first_shared)

    layers = _matrices({name: shape for name, shape in shapes.items() if read(name)})
    has_head = any(name.endswith("lm_head.weight") for name in shapes)
    return layers + (0 if has_head else config["vocab_size"] * config["hidden_size"])


def drafter_streamed(config: dict, shapes: dict[str, list[int]]) -> int:
    """Weights that one draft step reads; with ordered embeddings only the rows of the chosen centroids of its output matrix."""
    text = config.get("text_config") or config
    rows = text["vocab_size"]
    if config.get("use_ordered_embeddings"):
        rows = rows // config["num_centroids"] * config["centroid_intermediate_top_k"]
    layers = {name: shape for name, shape in shapes.items() if not NOT_STREAMED.search(name) and "lm_head" not in name}
    return _matrices(layers) + rows * text["hidden_size"]


def kv_elements(config: dict) -> int:
    """Elements that one position adds to the cache: keys and values of each layer with a cache of its own."""
    own = config["num_hidden_layers"] - (config.get("num_kv_shared_layers") or 0)
    # transformers writes the layers' numbers as text, padded with zeros in a deep model.
    per_layer = {int(index): override for index, override in (config.get("per_layer_config") or {}).items()}
    total = 0
    for index, kind in enumerate(config["layer_types"][:own]):
        full = kind == "full_attention"
        heads = (full and config.get("num_global_key_value_heads")) or config["num_key_value_heads"]
        width = (full and config.get("global_head_dim")) or config["head_dim"]
        override = per_layer.get(index, {})
        total += 2 * override.get("num_key_value_heads", heads) * override.get("head_dim", width)
    return total


def _matrices(shapes: dict[str, list[int]]) -> int:
    """Weights in matrices; the vectors of norms and scales are nothing beside them."""
    return _count({name: shape for name, shape in shapes.items() if len(shape) > 1})


def _count(shapes: dict[str, list[int]]) -> int:
    return sum(map(math.prod, shapes.values()))
