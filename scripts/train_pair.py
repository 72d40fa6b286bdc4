"""Trains the small Gemma 4 pair: train_pair.py --out DIR, or only the last part of it on an earlier pair, with --pair.

See models/small/README.md.
"""

import argparse
import json
import shutil
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
    parser.add_argument("--pair", type=Path, help="folder of a pair without agreement: its target is kept, its drafter goes on")
    parser.add_argument("--target-steps", type=int, default=1000)
    parser.add_argument("--drafter-steps", type=int, default=500)
    parser.add_argument("--agreement-steps", type=int, default=200)
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
    if args.pair:
        earlier = json.loads((args.pair / "training.json").read_text(encoding="utf-8"))
        if "agreement" in earlier:
            sys.exit(f"train_pair: {args.pair} has had its last part already")
        shutil.copytree(args.pair, args.out, dirs_exist_ok=True)
        target, drafter, tokenizer = pair.load(args.out)
        for model in (target, drafter):
            model.to(args.device)
    else:
        # Own answers weigh more in the vocabulary: they are what the pair will write.
        tokenizer = pair.make_tokenizer([part for d in text["own"] * 8 + text["train"] for part in d], folders)
        target, drafter = pair.new_model("target"), pair.new_model("drafter")
    own, general, held_out = (
        [pair.encode(tokenizer, *dialog)[: train.LONGEST] for dialog in text[part]]
        for part in ("own", "train", "held_out")
    )
    say(f"corpus: {len(own)} own dialogs, {sum(map(len, own))} tokens; {len(general)} others, {sum(map(len, general))}")

    # Said of each part by itself: a kept one was trained elsewhere, perhaps on another Python's text.
    run = {"seed": args.seed, "threads": args.threads, "python": text["python"], "digest": text["digest"]}
    run |= {"device": args.device, "torch": torch.__version__, "transformers": transformers.__version__}
    run |= {"own_dialogs": len(own), "own_tokens": sum(map(len, own))}
    run |= {"general_dialogs": len(general), "general_tokens": sum(map(len, general))}

    def trained(learn, *models, steps):
        start = time.monotonic()
        loss = learn(*models, own, general, steps, args.seed, say)
        size = sum(p.numel() for p in pair.round_weights(models[-1]).parameters())
        seconds = round(time.monotonic() - start)
        return run | {"parameters": size, "steps": steps, "seconds": seconds, "loss": round(loss, 3)}

    if args.pair:
        values = {part: earlier[part] for part in ("target", "drafter")}
    else:
        values = {"target": trained(train.train_target, target, steps=args.target_steps)}
        pair.save_model(target, "target", folders[0])
        values["target"] |= {"held_out_dialogs": len(held_out), "loss_held_out": measure.mean_loss(target, held_out)}
        values["target"] |= {"loss_own": measure.mean_loss(target, own)}
        values |= {"drafter": trained(train.train_drafter, target, drafter, steps=args.drafter_steps)}
    values |= {"agreement": trained(train.train_agreement, target, drafter, steps=args.agreement_steps)}
    pair.save_model(drafter, "drafter", folders[1])

    torch.set_default_device("cpu")
    say("measuring")
    values |= {"new_tokens": measure.NEW_TOKENS, "gamma": pair.GAMMA, **measure.measure(args.out)}
    pair.write_json(args.out / "training.json", values)
    (args.out / "README.md").write_text(card.render(values), encoding="utf-8")
    say(f"written: {args.out}")


if __name__ == "__main__":
    main()
