"""What `gpus.cpu.python` names in the workflow tests: an interpreter that answers a request at once, with simulated records.

Called as `engine_stand_in.py CONTROL -m mtpbench.measuring`, request on stdin, reply on stdout. The folder CONTROL steers
it and remembers: `calls` gets a line a request; `fail` makes it fail, `fail after 1` makes all but the first fail; `hang`
makes it wait so that it can be killed.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from mtpbench import simulate


def session(request: dict) -> dict:
    spec = request["spec"]
    truth = simulate.Truth(gamma=spec["mode"].get("num_speculative_tokens", 4))
    protocol = spec["protocol"]
    made = simulate.result(
        request["cell"], prompts=len(spec["prompts"]), tokens=protocol["output_tokens"], sessions=protocol["sessions"], truth=truth
    )["sessions"][request["session"]]
    names = dict(zip(made["categories"], request["prompts"]))
    for record in made["requests"]:
        record["prompt"] = names[record["prompt"]]["id"]
    made["categories"] = {prompt["id"]: prompt["category"] for prompt in request["prompts"]}
    made["device"] |= spec["device"]
    return made


control = Path(sys.argv[1])
request = json.load(sys.stdin)
with open(control / "calls", "a") as calls:
    calls.write(f"{request['cell']}\n")
made = (control / "calls").read_text().count("\n")
print("[mtpbench] measure | stand-in", file=sys.stderr, flush=True)
while (control / "hang").exists():
    time.sleep(0.05)
answer = {"nonce": request["nonce"], "fingerprint": request["fingerprint"]}
if (control / "fail").exists() or ((control / "fail after 1").exists() and made > 1):
    print("last words of the engine", file=sys.stderr, flush=True)
    answer |= {"status": "error", "error": {"kind": "engine", "message": "told to fail", "tail": ""}}
else:
    answer |= {"status": "ok", "session": session(request)}
json.dump(answer, sys.stdout)
