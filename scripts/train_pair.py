"""Trains the small Gemma 4 pair from scratch: train_pair.py --out DIR (see models/small/README.md)."""

import argparse
import sys
import time
from pathlib import Path

import torch
import transformers

from training import card, corpus, measure, pair, train


def say(text):
    """Progress, at once."""
    print(text, file=sys.stderr, flush=True)


def main():
    """Corpus, tokenizer, target, drafter, measurement, card."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder that receives target/, drafter/ and the card")
    parser.add_argument("--target-steps", type=int, default=1000)
    parser.add_argument("--drafter-steps", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where to train (cpu or cuda); measured on the CPU")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    torch.set_default_device(args.device)
    transformers.logging.set_verbosity_error()

    text = corpus.build(args.seed)
    folders = [args.out / "target", args.out / "drafter"]
    # Own answers weigh more in the vocabulary: they are what the pair will write.
    tokenizer = pair.make_tokenizer([part for d in text["own"] * 8 + text["train"] for part in d], folders)
    own, general, held_out = (
        [pair.encode(tokenizer, *dialog)[: train.LONGEST] for dialog in text[part]]
        for part in ("own", "train", "held_out")
    )
    say(f"corpus: {len(own)} own dialogs, {sum(map(len, own))} tokens; {len(general)} others, {sum(map(len, general))}")

    values = {"seed": args.seed, "threads": args.threads, "python": text["python"], "digest": text["digest"]}
    values |= {"device": args.device, "torch": torch.__version__, "transformers": transformers.__version__}
    values |= {"own_dialogs": len(own), "own_tokens": sum(map(len, own))}
    values |= {"general_dialogs": len(general), "general_tokens": sum(map(len, general))}
    values |= {"held_out_dialogs": len(held_out), "new_tokens": measure.NEW_TOKENS, "gamma": pair.GAMMA}

    target, drafter = pair.new_model("target"), pair.new_model("drafter")
    start = time.monotonic()
    loss = train.train_target(target, own, general, args.target_steps, args.seed, say)
    values |= {"target_steps": args.target_steps, "target_seconds": round(time.monotonic() - start)}
    pair.save_model(pair.round_weights(target), "target", folders[0])

    start = time.monotonic()
    drafter_loss = train.train_drafter(target, drafter, own, general, args.drafter_steps, args.seed, say)
    values |= {"drafter_steps": args.drafter_steps, "drafter_seconds": round(time.monotonic() - start)}
    pair.save_model(pair.round_weights(drafter), "drafter", folders[1])
    values |= {"target_loss": round(loss, 3), "drafter_loss": round(drafter_loss, 3)}

    torch.set_default_device("cpu")
    say("measuring")
    values |= measure.measure(args.out, own, held_out)
    pair.write_json(args.out / "training.json", values)
    (args.out / "README.md").write_text(card.render(values), encoding="utf-8")
    say(f"written: {args.out}")


if __name__ == "__main__":
    main()
