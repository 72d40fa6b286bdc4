"""`snakemake validity`: simulate, and put the table between the markers of docs/validity.md: `python validity.py FILE`."""

import re
import sys
from pathlib import Path

from mtpbench import results, validity

EXPERIMENTS = 5000
MARKED = re.compile(r"(<!-- simulated: start -->\n).*(<!-- simulated: end -->)", re.DOTALL)

path = Path(sys.argv[1])
text = path.read_text(encoding="utf-8")
if not MARKED.search(text):
    sys.exit(f"{path}: lost its markers <!-- simulated: start --> and <!-- simulated: end -->; put them back")
table = validity.table(EXPERIMENTS, lambda line: print(line, file=sys.stderr, flush=True))
note = f"{EXPERIMENTS:,} experiments a row; sampling error (95 %) up to 0.6 points near 5 % and 1.4 near 50 %."
results.write_text(path, MARKED.sub(lambda found: f"{found[1]}{table}\n\n{note}\n{found[2]}", text))
