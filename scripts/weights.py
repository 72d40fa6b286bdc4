"""Fetch a model's checkpoints and list them: `python weights.py BACKEND ORDER OUTPUT`. What the rule `weights_of` calls.

ORDER: the JSON of `weights.order`. A failure is one line, and OUTPUT then stays as it was.
"""

import json
import sys
from pathlib import Path

from mtpbench import results, weights
from mtpbench.backends import terminable
from mtpbench.errors import UserError


backend, order, output = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
parts = order["parts"]
try:
    with terminable():
        weights.check_pinned(parts)
        on_modal = backend == "modal"
        found = weights.fetch_on_modal(parts, order["modal"], lambda line: print(line, flush=True)) if on_modal else weights.fetch(parts)
except UserError as error:
    sys.exit(str(error))
results.write_text(output, results.text_of(found))
for part in found.values():
    size = sum(file["bytes"] for file in part["files"])
    print(f"{part['repo']}@{part['revision'][:8]}: {len(part['files'])} files, {size / 1e9:.2f} GB")
