"""The model card: card_template.md, filled with the values of training.json."""

from pathlib import Path

DATA = "| {part} | {python} | {own_dialogs} | {own_tokens:,} | {general_dialogs:,} | {general_tokens:,} | `{digest}` |"
TRAINING = "| {part} | {seed} | {device} | {threads} | {torch} | {transformers} | {steps} | {seconds} | {loss} |"


def render(values):
    """The card's text."""
    rows = "\n".join(
        f"| {name} | {s['prompts']} | {s['median_length']} | {s['at_least_64_ids']} | {s['degenerate']} "
        f"| {s['identical_with_mtp']} | {s['acceptance_length']:.2f} "
        f"| {' '.join(f'{share:.2f}' for share in s['joint_acceptance'])} |"
        for name, s in values["sets"].items()
    )
    parts = ("target", "drafter", "agreement")
    data, training = ("\n".join(row.format(part=part, **values[part]) for part in parts) for row in (DATA, TRAINING))
    template = (Path(__file__).parent / "card_template.md").read_text(encoding="utf-8")
    return template.format(rows=rows, data=data, training=training, **values)
