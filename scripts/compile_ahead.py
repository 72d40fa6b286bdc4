"""Start a cell's test engine once, so that what it compiles lies in its cache: `python compile_ahead.py PLANS.json CELL`.

In the engine's interpreter. vLLM compiles in one thread, so on a fresh machine several of these side by side take as long
as one; and no measured engine is one that has just compiled, which were seen to run at another speed than later starts.
"""

import json
import sys
import time
from pathlib import Path

from anatomy import loaded
from mtpbench.backends import local


def main() -> None:
    plans, cell = sys.argv[1:]
    began = time.monotonic()
    (plan,) = (plan for plan in json.loads(Path(plans).read_text()) if plan["cell"] == cell)
    engine, _ = loaded(local.with_paths({**plan, "session": 0}, plan["how"], Path(sys.executable), print))
    engine.close()
    print(f"[mtpbench] compiled | {cell} | {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
