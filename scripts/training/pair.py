"""Tokenizer, configurations and checkpoint files of the pair.

The JSON files are written here by hand rather than by save_pretrained, because
transformers 5.9 to 5.24 and vLLM 0.21 to 0.32 must all read the same ones:
a plain head_dim and global_head_dim instead of per_layer_config, and the
k_norm weights of the KV-sharing layers, which old vLLM insists on.
"""

import json

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    Gemma4AssistantForCausalLM,
    Gemma4ForCausalLM,
    PreTrainedTokenizerFast,
)

VOCAB = 2048
PAD, EOS, BOS, TURN_END = 0, 1, 2, 5
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"]
GAMMA = 4
TEMPLATE = """{{ bos_token }}{% for message in messages %}<|turn>{{ 'model' if message['role'] == 'assistant' \
else message['role'] }}
{{ message['content'] | trim }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""

SHAPE = {
    "vocab_size": VOCAB,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "global_head_dim": 64,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "pad_token_id": PAD,
    "eos_token_id": [EOS, TURN_END],
    "bos_token_id": BOS,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "sliding_window": 512,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
    },
    "initializer_range": 0.02,
    "use_cache": True,
    "model_type": "gemma4_text",
}
TARGET = SHAPE | {
    "architectures": ["Gemma4ForCausalLM"],
    "dtype": "bfloat16",
    "hidden_size": 160,
    "intermediate_size": 320,
    "num_hidden_layers": 8,
    "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
    "num_kv_shared_layers": 4,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 16,
    "vocab_size_per_layer_input": VOCAB,
    "final_logit_softcapping": 30.0,
}
DRAFTER = {
    "architectures": ["Gemma4AssistantForCausalLM"],
    "model_type": "gemma4_assistant",
    "backbone_hidden_size": TARGET["hidden_size"],
    "use_ordered_embeddings": False,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
    "bos_token_id": BOS,
    "eos_token_id": [EOS, TURN_END],
    "pad_token_id": PAD,
    "text_config": SHAPE
    | {
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": False,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "final_logit_softcapping": None,
    },
}
GENERATION = {"bos_token_id": BOS, "eos_token_id": [EOS, TURN_END], "pad_token_id": PAD, "do_sample": False}
ASSISTANT = {
    "num_assistant_tokens": GAMMA,
    "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.0,
}


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
        "model_max_length": SHAPE["max_position_embeddings"],
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
    values = TARGET if kind == "target" else DRAFTER
    config = AutoConfig.for_model(**{k: v for k, v in values.items() if k != "dtype"})
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
    if kind == "target":
        for layer in range(TARGET["num_hidden_layers"] - TARGET["num_kv_shared_layers"], TARGET["num_hidden_layers"]):
            width = SHAPE["head_dim" if TARGET["layer_types"][layer] == "sliding_attention" else "global_head_dim"]
            tensors[f"model.layers.{layer}.self_attn.k_norm.weight"] = torch.ones(width, dtype=torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", TARGET if kind == "target" else DRAFTER)
    write_json(folder / "generation_config.json", GENERATION | (ASSISTANT if kind == "drafter" else {}))


def load(folder):
    """(target, drafter, tokenizer) of a written pair, float32."""
    target = Gemma4ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32).eval()
    drafter = Gemma4AssistantForCausalLM.from_pretrained(folder / "drafter", dtype=torch.float32).eval()
    return target, drafter, PreTrainedTokenizerFast.from_pretrained(folder / "target")
