"""Tokenizer, configurations and checkpoint files of the pair.

The JSON files are written here by hand rather than by save_pretrained, because
transformers 5.9 to 5.24 and vLLM 0.21 to 0.32 must all read the same ones:
a plain head_dim and global_head_dim instead of per_layer_config, and the
k_norm weights of the KV-sharing layers, which old vLLM insists on.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    PreTrainedTokenizerFast,
)

from mtpbench import shapes

PAD, BOS = 0, 2
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
TEMPLATE = """{{ bos_token }}{% for message in messages %}<|turn>{{ 'model' if message['role'] == 'assistant' \
else message['role'] }}
{{ message['content'] | trim }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""

SHAPES = json.loads((Path(__file__).parent / "shapes.json").read_text(encoding="utf-8"))
TARGET, DRAFTER = SHAPES["target"], SHAPES["drafter"]
VOCAB, GAMMA = TARGET["vocab_size"], SHAPES["assistant"]["num_assistant_tokens"]


def write_json(path, value):
    """Writes JSON the way every file of the pair is written."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def make_tokenizer(texts, folders):
    """Trains the byte-level BPE on `texts`, writes it into each folder and returns it."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCAB,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    core.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": TARGET["max_position_embeddings"],
        "padding_side": "left",
    }
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        core.save(str(folder / "tokenizer.json"))
        write_json(folder / "tokenizer_config.json", config)
        (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return PreTrainedTokenizerFast.from_pretrained(folders[0])


def encode(tokenizer, question, answer):
    """Token ids of one dialog, the end of the model's turn included."""
    messages = [{"role": "user", "content": question}]
    head = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(head + answer + "<turn|>", add_special_tokens=False)["input_ids"]


def new_model(kind):
    """A target or a drafter with random float32 weights."""
    config = AutoConfig.for_model(**{k: v for k, v in SHAPES[kind].items() if k != "dtype"})
    return (Gemma4ForCausalLM if kind == "target" else Gemma4AssistantForCausalLM)(config)


def round_weights(model):
    """Rounds the weights to bfloat16 in place, so that what is measured is what is shipped."""
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(tensor.bfloat16().float())
    return model


def save_model(model, kind, folder):
    """Writes weights and configuration."""
    tensors = {k: v.bfloat16().cpu() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    tensors |= shapes.unread_norms(SHAPES[kind], torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", SHAPES[kind])
    write_json(folder / "generation_config.json", SHAPES["generation" if kind == "target" else "assistant"])


def load(folder):
    """(target, drafter, tokenizer) of a written pair, float32."""
    target = Gemma4ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    drafter = Gemma4AssistantForCausalLM.from_pretrained(folder / "drafter", dtype=torch.float32).eval()
    return target, drafter, PreTrainedTokenizerFast.from_pretrained(folder / "target")
