"""`snakemake readme`: write the results section of README.md: `python readme.py [--check]`.

It speaks of all results under metrics/runs, whatever this machine could measure, so that `--check` (status 1 where the
README is out of date) says the same in every clone.
"""

import sys
from pathlib import Path

from mtpbench import results
from mtpbench.errors import UserError
from mtpbench.report import cells, page

path = Path("README.md")
text = path.read_text(encoding="utf-8")
try:
    new = page.readme(cells.load(Path(".")), text)
except UserError as error:
    sys.exit(str(error))
if "--check" in sys.argv[1:] and new != text:
    sys.exit(f"{path}: its results are out of date; run `snakemake readme`")
results.update_text(path, new)
