"""Measures a finished pair and writes its model card; every number in the card comes from the JSON beside it."""

import time

import torch
from transformers.generation.streamers import BaseStreamer

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


def is_degenerate(ids, longest_cycle=8):
    """Whether one id, or a cycle of at most `longest_cycle` ids, covers more than half of the output."""
    for period in range(1, longest_cycle + 1):
        run = best = 0
        for i in range(period, len(ids)):
            run = run + 1 if ids[i] == ids[i - period] else 0
            best = max(best, run)
        if best and best + period > len(ids) / 2:
            return True
    return False


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
        degenerate += is_degenerate(plain)
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


def measure(folder, own, held_out):
    """Everything the card says about the pair as it was written to `folder`."""
    start = time.monotonic()
    target, drafter, tokenizer = pair.load(folder)
    values = {
        "target_parameters": sum(p.numel() for p in target.parameters()),
        "drafter_parameters": sum(p.numel() for p in drafter.parameters()),
        "loss_own": mean_loss(target, own),
        "loss_held_out": mean_loss(target, held_out),
        "sets": {name: measure_set(target, drafter, tokenizer, name) for name in corpus.SETS},
    }
    return values | {"seconds_measuring": round(time.monotonic() - start)}


def render(v):
    """The model card, from the values in training.json."""
    rows = "\n".join(
        f"| {name} | {s['prompts']} | {s['median_length']} | {s['at_least_64_ids']} | {s['degenerate']} "
        f"| {s['identical_with_mtp']} | {s['acceptance_length']:.2f} "
        f"| {' '.join(f'{x:.2f}' for x in s['joint_acceptance'])} |"
        for name, s in v["sets"].items()
    )
    return f"""# A small Gemma 4 pair

Written by `scripts/train_pair.py`; every number below also stands in `training.json`.

A target of {v['target_parameters']:,} parameters (`target/`, Gemma 4 text architecture) and its multi-token-prediction
drafter of {v['drafter_parameters']:,} (`drafter/`, Gemma 4 assistant architecture), so that both engines can run on a
CPU the code path that the real pair takes.

**The pair has seen what it is measured on.** The project's own prompts and answers to them are part of the training
text, so that greedy output neither loops nor ends at once. It exercises the pipeline and stands for no other model:
neither its answers nor its acceptance say anything about a real one.

## Data

- {v['own_dialogs']} own answers to the prompts in `prompts/` (`scripts/training/answers/`), {v['own_tokens']:,} tokens
- {v['general_dialogs']:,} questions about the Python standard library (source and docstrings, Python {v['python']}) and
  requests for generated JSON, YAML, CSV, SQL and tables, {v['general_tokens']:,} tokens; {v['held_out_dialogs']} more
  are held out
- sha256 of all of it: `{v['digest']}`; the library's text changes with the Python version, and the weights with it

## Training

Seed {v['seed']}, device {v['device']}, {v['threads']} threads, torch {v['torch']}, transformers {v['transformers']},
float32; weights rounded to bfloat16 before the drafter learns and before anything is measured.

| part | steps | seconds | loss of the last steps |
| --- | --- | --- | --- |
| target | {v['target_steps']} | {v['target_seconds']} | {v['target_loss']} |
| drafter | {v['drafter_steps']} | {v['drafter_seconds']} | {v['drafter_loss']} |

Target's loss per token after rounding: {v['loss_held_out']} on held-out text, {v['loss_own']} on the own dialogs.

## Measured

transformers, CPU, float32, greedy, at most {v['new_tokens']} new tokens, gamma {v['gamma']}. Joint acceptance: share of
steps in which at least 1, 2, 3, 4 drafts were accepted. Degenerate: one id or a cycle of at most 8 ids covers more
than half of the output.

| prompts | n | median length | at least 64 ids | degenerate | same with MTP | acceptance length | joint acceptance |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""
