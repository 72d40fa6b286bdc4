"""Fetch a model's checkpoints and list them: `python weights.py BACKEND ORDER OUTPUT`. What the rule `weights_of` calls.

ORDER: the JSON of `weights.order`. A failure is one line, and OUTPUT then stays as it was.
"""

import argparse
import json
import sys
from pathlib import Path

from mtpbench import results, weights
from mtpbench.backends import terminable
from mtpbench.errors import UserError


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("backend", choices=("local", "modal"))
    arguments.add_argument("order", type=json.loads)
    arguments.add_argument("output", type=Path)
    arguments = arguments.parse_args()
    try:
        with terminable():
            parts = arguments.order["parts"]
            weights.check_pinned(parts)
            if arguments.backend == "modal":
                found = weights.fetch_on_modal(parts, arguments.order["modal"], lambda line: print(line, flush=True))
            else:
                found = weights.fetch(parts)
    except UserError as error:
        sys.exit(str(error))
    results.write_text(arguments.output, results.text_of(found))
    for part in found.values():
        size = sum(file["bytes"] for file in part["files"])
        print(f"{part['repo']}@{part['revision'][:8]}: {len(part['files'])} files, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
