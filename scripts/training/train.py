"""Training of the target on text, then of the drafter on the target, then for agreement between the engines."""

import math
import random
import time

import torch
import torch.nn.functional as F

from training import pair

LONGEST = 384
BATCH_TOKENS, AGREEMENT_BATCH_TOKENS = 3072, 1024  # the latter are read in two ways


def batches(items, tokens, rng):
    """Endless batches of at most `tokens`: rows of similar length, padded; one pass over all items before the next."""
    while True:
        order = sorted(items, key=lambda ids: len(ids) * rng.uniform(0.85, 1.15))
        chunks, chunk = [], []
        for ids in order:
            if chunk and (len(chunk) + 1) * max(len(ids), *map(len, chunk)) > tokens:
                chunks.append(chunk)
                chunk = []
            chunk.append(ids)
        chunks.append(chunk)
        rng.shuffle(chunks)
        for chunk in chunks:
            width = max(map(len, chunk))
            yield torch.tensor([ids + [pair.PAD] * (width - len(ids)) for ids in chunk])


def mixed(own, general, share, seed, tokens=BATCH_TOKENS):
    """Batches of own dialogs with probability share(progress), else of general text."""
    rng = random.Random(seed)
    mine, other = batches(own, tokens, rng), batches(general, tokens, rng)
    return lambda progress: next(mine if rng.random() < share(progress) else other)


def optimise(name, model, steps, draw, loss_of, peak, log):
    """AdamW, warm-up, then cosine decay; says step, loss and time left. Returns the mean loss of the last steps."""
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.02}, {"params": rest, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))
    warm = max(1, min(100, steps // 10))
    start, recent = time.monotonic(), []
    for step in range(steps):
        rate = peak * min(1.0, (step + 1) / warm) * (0.02 + 0.49 * (1 + math.cos(math.pi * step / steps)))
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = loss_of(draw(step / steps))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        recent = [*recent[-49:], loss.item()]
        if (step + 1) % 20 == 0 or step + 1 == steps:
            spent = time.monotonic() - start
            left = spent / (step + 1) * (steps - step - 1)
            log(f"{name}: step {step + 1}/{steps}, loss {sum(recent) / len(recent):.3f}, {left:.0f} s left")
    return sum(recent) / len(recent)


def text_loss(target, rows):
    """Next-token cross-entropy over everything but padding."""
    logits = target(input_ids=rows, use_cache=False).logits[:, :-1]
    labels = rows[:, 1:].masked_fill(rows[:, 1:] == pair.PAD, -100)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def drafter_loss(target, drafter, rows, rng):
    """Cross-entropy of the drafts against the target's greedy choice, all starting points at once.

    A round of drafts that starts behind token i sees the target's state at i, the
    embedding of token i+1, and the shared keys and values up to i. vLLM asks at
    position i. transformers asks at i+1 and leaves in place the keys and values
    that a rejected draft wrote at i+1; here another row's stand in for those.
    Each of the two is drawn with probability 1/2, so that neither is strange.
    """
    with torch.no_grad():
        out = target(
            input_ids=rows, use_cache=False, output_hidden_states=True, return_shared_kv_states=True
        )
    width = rows.shape[1] - pair.GAMMA - 1
    as_transformers = rng.random() < 0.5
    mask = torch.ones(width, rows.shape[1], dtype=torch.bool).tril()
    shared = out.shared_kv_states
    if as_transformers:
        stale = torch.eye(rows.shape[1], dtype=torch.bool)[1 : width + 1]
        mask = torch.cat([mask, stale & (torch.rand(width, 1) < 0.7)], dim=1)
        shared = {k: tuple(torch.cat([x, x.roll(1, 0)], dim=2) for x in v) for k, v in shared.items()}
    mask = mask[None, None].expand(rows.shape[0], 1, -1, -1)
    positions = (torch.arange(width) + int(as_transformers))[None]
    total = torch.zeros(())
    for logits, label, alive in drafts(target, drafter, rows, out, mask, positions, shared):
        losses = F.cross_entropy(logits.flatten(0, 1), label.flatten(), reduction="none")
        total = total + (losses * alive.flatten()).sum() / alive.sum().clamp(min=1)
    return total / pair.GAMMA


def drafts(target, drafter, rows, out, mask, positions, shared):
    """Per draft of a round (its logits, the target's greedy choice, where that counts), at all starting points."""
    width = mask.shape[2]
    choice = out.logits.argmax(-1)
    token, state = rows[:, 1 : width + 1], out.hidden_states[-1][:, :width]
    alive = rows[:, 1 : width + 1] != pair.PAD
    for step in range(pair.GAMMA):
        embedding = target.model.embed_tokens(token)
        hidden = drafter.model(
            inputs_embeds=drafter.pre_projection(torch.cat([embedding, state], dim=-1)),
            attention_mask={"full_attention": mask, "sliding_attention": mask},
            position_ids=positions,
            shared_kv_states=shared,
            use_cache=False,
            output_hidden_states=True,
        ).last_hidden_state
        state = drafter.post_projection(hidden)
        label = choice[:, step + 1 : step + 1 + width]
        yield drafter.lm_head(hidden), label, alive
        token = label
        # The next label answers the text, so it counts only while text and greedy choice agree.
        alive = alive & (label == rows[:, step + 2 : step + 2 + width])


def read_wrong(target, rows, out):
    """The shared keys and values of `rows`, then those of a wrong id in each place behind the right ones.

    The wrong ids are drawn from what the target expected there, without the id that came.
    """
    length = rows.shape[1]
    expected = out.logits.roll(1, 1).scatter(-1, rows[..., None], -math.inf).softmax(-1)
    mask = torch.cat([torch.ones(length, length, dtype=torch.bool).tril(-1), torch.eye(length, dtype=torch.bool)], dim=1)
    mask = mask.expand(rows.shape[0], 1, -1, -1)
    return target(
        input_ids=torch.multinomial(expected.flatten(0, 1), 1).view_as(rows),
        cache=out.cache,
        attention_mask={"full_attention": mask, "sliding_attention": mask},
        position_ids=torch.arange(length)[None],
        return_shared_kv_states=True,
        logits_to_keep=1,
    ).shared_kv_states


def agreement_loss(target, drafter, rows):
    """drafter_loss in both engines' ways at once, and how far transformers' drafts are from vLLM's.

    What lies at i+1 is here what transformers finds there: keys and values of a wrong id behind the right ones. vLLM's way
    leads, since nothing disturbs it; the other way round transformers fell further behind.
    """
    with torch.no_grad():
        out = target(input_ids=rows, use_cache=True, output_hidden_states=True)
        shared = read_wrong(target, rows, out)
    length, width = rows.shape[1], rows.shape[1] - pair.GAMMA - 1
    right = torch.ones(width, length, dtype=torch.bool).tril().expand(rows.shape[0], 1, -1, -1)
    rejected = torch.rand(rows.shape[0], 1, width, 1) < 0.85
    stale = torch.eye(length, dtype=torch.bool)[1 : width + 1] & rejected
    places = torch.arange(width)[None]
    only_right = {k: tuple(x[:, :, :length] for x in v) for k, v in shared.items()}
    as_vllm = drafts(target, drafter, rows, out, right, places, only_right)
    as_transformers = drafts(target, drafter, rows, out, torch.cat([right, stale], dim=3), places + 1, shared)
    total = torch.zeros(())
    for (one, label, alive), (other, _, _) in zip(as_vllm, as_transformers):
        one, other, label = one[alive].log_softmax(-1), other[alive].log_softmax(-1), label[alive]
        losses = (F.nll_loss(one, label, reduction="sum") + F.nll_loss(other, label, reduction="sum")) / 2
        losses = losses + F.kl_div(other, one.detach(), reduction="sum", log_target=True)
        total = total + losses / alive.sum().clamp(min=1)
    return total / pair.GAMMA


def train_target(target, own, general, steps, seed, log):
    """First mostly general text, at the end mostly own dialogs."""
    draw = mixed(own, general, lambda progress: 0.3 + 0.5 * progress, seed)
    return optimise("target", target.train(), steps, draw, lambda rows: text_loss(target, rows), 3e-3, log)


def train_drafter(target, drafter, own, general, steps, seed, log):
    """Learns to guess the (already rounded) target.

    Share and steps are few on purpose: a drafter that sees the own dialogs as often as the target did
    knows them by heart, and then acceptance is near its ceiling on every prompt set.
    """
    rng = random.Random(seed)
    draw = mixed(own, general, lambda progress: 0.4, seed)
    target.eval()
    return optimise(
        "drafter", drafter.train(), steps, draw, lambda rows: drafter_loss(target, drafter, rows, rng), 3e-3, log
    )


def train_agreement(target, drafter, own, general, steps, seed, log):
    """Goes on with a trained drafter, so that both engines accept its drafts alike."""
    # As much of the own dialogs as keeps acceptance where it was: with more it rises, with less it falls.
    draw = mixed(own, general, lambda progress: 0.25, seed + 1, AGREEMENT_BATCH_TOKENS)
    target.eval()
    return optimise(
        "agreement", drafter.train(), steps, draw, lambda rows: agreement_loss(target, drafter, rows), 1e-3, log
    )
