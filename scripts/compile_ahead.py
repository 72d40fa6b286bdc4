"""Start a cell's test engine once, so that what it compiles lies in its cache: `compile_ahead.py PLANS.json CELL [--start NAME]`.

In the engine's interpreter. vLLM compiles in one thread, so on a fresh machine several of these side by side take as long
as one; and no measured engine is one that has just compiled, which were seen to run at another speed than later starts.
"""

import argparse
import sys
import time
from pathlib import Path

from anatomy import STARTS, loaded
from mtpbench.backends import local
from mtpbench.errors import UserError
from run_plans import planned


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("plans", type=Path)
    arguments.add_argument("cell")
    arguments.add_argument("--start", choices=STARTS, default="started again", help="with another setting, for anatomy.py")
    arguments = arguments.parse_args()
    began = time.monotonic()
    try:
        (plan,) = planned(arguments.plans, [arguments.cell])
        engine, _ = loaded(local.with_paths({**plan, "session": 0}, plan["how"], Path(sys.executable), print), STARTS[arguments.start])
    except UserError as error:
        sys.exit(f"error: {error}")
    engine.close()
    print(f"[mtpbench] compiled | {plan['cell']} | {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
