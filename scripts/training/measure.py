"""Measures the loss of a target, and a finished pair with transformers: lengths, acceptance, degenerate output."""

import time

import torch
from transformers.generation.streamers import BaseStreamer

from mtpbench.analysis import gates
from training import corpus, pair, train

NEW_TOKENS = 128


class StepRecorder(BaseStreamer):
    """Keeps the ids of every output of generate(), the prompt's left out."""

    def __init__(self):
        self.outputs = None

    def put(self, value):
        """The first call brings the prompt."""
        self.outputs = [] if self.outputs is None else [*self.outputs, value.flatten().tolist()]

    def end(self):
        """Nothing to close."""


def generate(target, ids, drafter=None):
    """Greedy output of transformers, one list of ids per engine output."""
    recorder = StepRecorder()
    target.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.long),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        assistant_model=drafter,
        streamer=recorder,
    )
    return recorder.outputs


def measure_set(target, drafter, tokenizer, name):
    """Lengths, degenerate share, identity and acceptance of one prompt set."""
    prompts = corpus.read_prompts(name)
    lengths, degenerate, identical, accepted = [], 0, 0, []
    for prompt in prompts:
        text = tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        plain = sum(generate(target, ids), [])
        steps = generate(target, ids, drafter)
        lengths.append(len(plain))
        degenerate += gates.degenerate(plain)
        identical += plain == sum(steps, [])
        accepted += [len(step) - 1 for step in steps[1:]]
    shares = [sum(a > k for a in accepted) / len(accepted) for k in range(pair.GAMMA)]
    return {
        "prompts": len(prompts),
        "median_length": sorted(lengths)[len(lengths) // 2],
        "at_least_64_ids": sum(n >= 64 for n in lengths),
        "degenerate": degenerate,
        "identical_with_mtp": identical,
        "acceptance_length": round(1 + sum(accepted) / len(accepted), 3),
        "joint_acceptance": [round(share, 3) for share in shares],
    }


@torch.no_grad()
def mean_loss(target, items):
    """Loss per token of the target on a list of encoded dialogs."""
    total = tokens = 0
    for ids in items:
        count = len(ids) - 1
        total += train.text_loss(target, torch.tensor([ids])).item() * count
        tokens += count
    return round(total / tokens, 3)


def measure(folder):
    """What the card says about the pair as it was written to `folder`."""
    start = time.monotonic()
    models = pair.load(folder)
    values = {"sets": {name: measure_set(*models, name) for name in corpus.SETS}}
    return values | {"seconds_measuring": round(time.monotonic() - start)}
