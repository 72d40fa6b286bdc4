"""Where a session is measured: on this machine (`local`) or in a container on Modal (`modal`).

A backend is a module with `run(request, how, say) -> reply` for one session. Nothing here imports Modal, and the
container imports this package, so it keeps to the standard library.
"""

import contextlib
import importlib
import signal
import time

from mtpbench.errors import UserError

ATTEMPTS = 3
PAUSE_S = 15.0


class InfrastructureError(UserError):
    """The machine failed and not the measurement: a new container may do better, so it is tried a few times."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP as an exception, so that every `with` and `finally` on the way out still ends what it started."""


def run_session(request: dict, how: dict, say) -> dict:
    """Measure one session and return the reply that answers this request.

    request: the request of docs/architecture.md, without `paths`. how: the plan's `how`. say: takes one line of progress.
    An engine that failed is a reply with status "error" and is never tried again; a failure of the infrastructure is
    tried ATTEMPTS times, each on a new machine. Raises UserError, of which InfrastructureError is one.
    """
    backend = importlib.import_module(f"mtpbench.backends.{how['backend']}")
    with terminable():
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return checked(request, backend.run(request, how, say))
            except InfrastructureError as error:
                if attempt == ATTEMPTS:
                    raise
                say(f"[mtpbench] retry | attempt {attempt} of {ATTEMPTS}: {error}")
                time.sleep(PAUSE_S * attempt)


def checked(request: dict, reply: dict) -> dict:
    """The reply, if it is the answer to this very request and was measured on the device that the spec insists on."""
    for key in ("nonce", "fingerprint"):
        if reply.get(key) != request[key]:
            raise UserError(f"{request['cell']}: the reply carries another {key} than the request; nothing of it is kept")
    if reply["status"] == "ok":
        wanted, seen = request["spec"]["device"], reply["session"]["device"]
        if any(seen[key] != wanted[key] for key in ("kind", "name")):
            raise InfrastructureError(
                f"{request['cell']}: measured on '{seen['name']}' where the configuration insists on '{wanted['name']}'"
            )
    return reply


@contextlib.contextmanager
def terminable():
    """Inside, SIGTERM (Snakemake stopping its jobs) and SIGHUP (a terminal that is gone, unless under nohup) raise Terminated, so that
    a child or a container does not outlive us."""
    def leave(number, frame):
        raise Terminated(128 + number)

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
