"""`snakemake audit`: recompute everything that is shown from the raw records; status 1 and one line at the first difference."""

import sys
from pathlib import Path

from mtpbench.analysis.audit import audit
from mtpbench.errors import UserError

try:
    counts = audit(Path("."))
except UserError as error:
    sys.exit(f"audit: {error}; after new results, `snakemake all readme` brings what is shown up to date")
print("audit: " + ", ".join(f"{count} {what}" for what, count in counts.items()) + " follow from the records")
