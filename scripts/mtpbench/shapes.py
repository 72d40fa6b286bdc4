"""Checkpoints with random weights at a real model's shape, for machines that cannot fetch the real ones.

A shape (models/shapes/*.json) is the config.json of the checkpoint. `ensure` runs in the pipeline and calls this file
as a program in the engine's interpreter, which has torch and transformers and makes the weights on its GPU in seconds.
They are the same for the same shape, seed and kind of device, and serve both engines.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

from mtpbench.errors import UserError
from mtpbench.weights import sha256_of

CACHE = Path.home() / ".cache" / "mtpbench" / "shapes"
# The ids of the small tokenizer are valid in any larger vocabulary.
TOKENIZER = [Path("models/small/target") / name for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")]


def ensure(entry: dict, python: Path, environment: dict[str, str], say, cache: Path = CACHE) -> Path:
    """The folder of the checkpoint of {"shape": file, "seed": n}, made first where the cache has none. Raises UserError."""
    shape = Path(entry["shape"])
    folder = cache / f"{shape.stem}-{sha256_of(shape)[:16]}-{entry['seed']}"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{folder.name}.lock"):
        if not folder.exists():
            say(f"[mtpbench] weights | random, at the shape {entry['shape']}")
            half = folder.with_suffix(".part")
            shutil.rmtree(half, ignore_errors=True)
            command = [python, "-P", "-m", "mtpbench.shapes", entry["shape"], str(entry["seed"]), half]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"{entry['shape']}: no weights made: {(done.stderr.splitlines() or ['no message'])[-1]}")
            half.rename(folder)
    return folder


def make(shape: Path, seed: int, folder: Path) -> None:
    """Write config, tokenizer and weights. Matrices are drawn from the shape's initializer range; all else is one."""
    import torch
    import transformers
    from safetensors.torch import save_file

    config = json.loads(shape.read_text())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = getattr(torch, config["dtype"])
    with torch.device("meta"):
        resolved = transformers.AutoConfig.for_model(**{key: value for key, value in config.items() if key != "dtype"})
        empty = getattr(transformers, config["architectures"][0])(resolved).state_dict()
    random = torch.Generator(device).manual_seed(seed)
    scale = (config.get("text_config") or config)["initializer_range"]

    def filled(name: str, like) -> torch.Tensor:
        if name.endswith("token_ordering"):
            return torch.randperm(like.numel(), generator=random, device=device)
        if like.dim() < 2:
            return torch.ones(like.shape, dtype=dtype, device=device)
        return torch.empty(like.shape, dtype=dtype, device=device).normal_(0.0, scale, generator=random)

    # cpu() one by one: safetensors writes from the host.
    weights = {name: filled(name, like).cpu() for name, like in sorted(empty.items()) if name != "lm_head.weight"}
    folder.mkdir(parents=True)
    save_file({**unread_norms(config, dtype), **weights}, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    ids = {key: value for key, value in config.items() if key.endswith("_token_id")}
    (folder / "generation_config.json").write_text(json.dumps({**ids, "do_sample": False}))
    for file in TOKENIZER:
        shutil.copy(file, folder)
    os.sync()  # else the kernel writes 10 GB back while the first cells are measured


def unread_norms(config: dict, dtype) -> dict:
    """The key norms of the target's layers that share another's keys: vLLM 0.21.0 refuses a checkpoint without them."""
    import torch

    if config["architectures"] != ["Gemma4ForCausalLM"]:
        return {}
    first = config["num_hidden_layers"] - config["num_kv_shared_layers"]
    width = {"sliding_attention": config["head_dim"], "full_attention": config["global_head_dim"]}
    norms = enumerate(config["layer_types"][first:], start=first)
    return {f"model.layers.{layer}.self_attn.k_norm.weight": torch.ones(width[kind], dtype=dtype) for layer, kind in norms}


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
