"""What runs inside a Modal container: module-level functions with JSON text in and out.

No app is built here, so nothing is built again when the container imports it; at import the standard library suffices.
"""

import json
import os
import sys
import time

from mtpbench import cell

# Modal's own identifiers of the place; nothing else of the environment ever leaves the container.
PLACE = {"task_id": "MODAL_TASK_ID", "image_id": "MODAL_IMAGE_ID", "region": "MODAL_REGION", "cloud": "MODAL_CLOUD_PROVIDER"}


def measure(request_json: str, timeout_s: float) -> str:
    """Measure one session in a fresh interpreter; the reply, and under `where` the container that it comes from."""
    started = time.monotonic()
    request = json.loads(request_json)
    missing = [path for path in request["paths"].values() if not os.path.isdir(path)]
    if missing:
        message = f"{missing[0]} is not in the container: download it with `snakemake -c1 -f metrics/weights/modal/MODEL.json`, MODEL being its name in `models`"
        error = {"kind": "request", "message": message, "tail": ""}
        reply = {"nonce": request["nonce"], "fingerprint": request["fingerprint"], "status": "error", "error": error}
    else:
        reply = json.loads(cell.run(request_json, sys.executable, timeout=timeout_s, log=print))
    where = {name: os.environ.get(variable) for name, variable in PLACE.items()}
    where |= {"python": sys.version.split()[0], "container_s": round(time.monotonic() - started, 3)}
    return json.dumps({**reply, "where": where}, allow_nan=False)


def download(parts_json: str, volume: str) -> str:
    """Download pinned checkpoints into the mounted volume; what came, as JSON, or {"error": one line}."""
    import modal

    from mtpbench import weights
    from mtpbench.errors import UserError

    try:
        found = weights.fetch(json.loads(parts_json), weights.MOUNT)
    except UserError as error:
        return json.dumps({"error": str(error)})
    modal.Volume.from_name(volume).commit()
    return json.dumps(found)
