"""A session in a container on Modal: one ephemeral app of this process, one container that serves one call and ends.

Nothing is deployed and nothing is configured by environment: the request is the argument, the reply the return value,
both JSON text. The measuring container has no secret and no network, and reads the weights from a read-only volume.
"""

import contextlib
import io
import json
import os
import time
from importlib.metadata import version
from pathlib import Path

# The base image is fixed by these two and not by the workspace's setting, which moves; read when an image is built.
os.environ.setdefault("MODAL_IMAGE_BUILDER_VERSION", "2025.06")
PYTHON = "3.12.12"

import modal  # noqa: E402
from modal import exception  # noqa: E402

from mtpbench import weights  # noqa: E402
from mtpbench.backends import InfrastructureError, Terminated, container  # noqa: E402
from mtpbench.errors import UserError, one_line  # noqa: E402

SPARE_S = 120  # for the container to report that its program ran out of time, before Modal ends it
# The first class that fits decides. Text in braces comes from the configuration's `modal` section.
RULES = (
    (exception.AuthError, UserError, "no valid token here: run `modal token new` (once), then run again"),
    (exception.FunctionTimeoutError, UserError, "still running after {run_s} s: raise modal.run_s, or measure less"),
    (exception.ImageBuildError, UserError, "{error}; the build log stands above"),
    (exception.PermissionDeniedError, UserError, "{error}; check the token's workspace with `modal profile current`"),
    (exception.VersionError, UserError, "{error}; raise modal in envs/pipeline.in and lock it again"),
    (exception.ConflictError, InfrastructureError, "{error}"),  # an InvalidError by class, but it comes and goes
    (exception.InvalidError, UserError, "{error}; check `gpus` and `modal` in config/config.yaml"),
    (exception.ExecutionError, UserError, "the container's program failed: {error}"),
    (exception.DeserializationError, UserError, "the container's program failed: {error}"),
    (exception.Error, InfrastructureError, "{name}: {error}"),  # connections, quotas, containers that died
    (TimeoutError, InfrastructureError, "no GPU was free in {queue_s} s, or no reply came in {run_s} s after that"),
)

# What Modal does not find; its message alone tells which.
CREATION = {
    "secret": "`modal secret create {secret} --from-dotenv hf.env`, where hf.env holds HF_TOKEN=...",
    "volume": "`modal volume create {volume}`, then `snakemake -c1 weights`",
}


def run(request: dict, how: dict, say) -> dict:
    """Measure one session there and return its reply, with the container's and the app's identifiers under `where` of its session.

    request: the request of docs/architecture.md, without `paths`. how: the plan's `how`. say: takes one line of progress.
    Raises InfrastructureError where a new container may do better, else UserError.
    """
    planned = request["spec"]
    copies = weights.copies(planned["engine"]["implementation"], planned["protocol"]["order"])
    weights.check_memory(request["cell"], how["model"], how.get("memory_gb"), copies)
    paths, folders = weights.places(how["model"], [part for part in weights.PARTS if part in planned["model"]])
    image = engine_image(how["requirements"], folders)
    app, function = measuring_app(request["cell"], how, image)
    text = json.dumps({**request, "paths": paths}, allow_nan=False)
    reply, ids = call(app, function, (text, how["modal"]["run_s"]), how["modal"], say)
    if reply["status"] == "error" and reply["error"]["kind"] == "device":
        raise InfrastructureError(f"{request['cell']}: {reply['error']['message']}")  # another container may have the right one
    seen = reply.get("where", {}).get("image_id")
    if seen not in (None, image.object_id):
        raise UserError(f"{request['cell']}: the reply comes from image {seen} and not from {image.object_id}; nothing is kept")
    if reply["status"] == "ok":
        reply["session"]["where"] = {**reply["where"], **ids, "request": how.get("request"), "image_id": image.object_id}
    return reply


def engine_image(requirements: list[str], folders: dict[str, str]) -> modal.Image:
    """The image of an engine's locked requirements, with this package and local folders (remote path: local) mounted."""
    image = modal.Image.debian_slim(PYTHON)
    for file in requirements:
        options = "--no-deps --require-hashes" if "--hash=" in Path(file).read_text() else "--no-deps"
        image = image.pip_install_from_requirements(file, extra_options=options)
    for remote, local in folders.items():
        image = image.add_local_dir(Path(local).resolve(), remote)
    return image.add_local_python_source("mtpbench")


def measuring_app(cell: str, how: dict, image: modal.Image) -> tuple[modal.App, modal.Function]:
    """The app of a cell."""
    settings = how["modal"]
    volume = modal.Volume.from_name(settings["volume"]).with_mount_options(read_only=True)
    return app_of(
        "mtpbench", container.measure, {"cell": cell[:63]}, image=image, gpu=how.get("request"), cpu=settings["cpu"],
        memory=int(settings["memory_gib"] * 1024), volumes={weights.MOUNT: volume} if weights.hub_parts(how["model"]) else {},
        timeout=settings["run_s"] + SPARE_S, block_network=True,
    )  # fmt: skip


def app_of(name: str, program, tags: dict[str, str] = {}, **options) -> tuple[modal.App, modal.Function]:
    """A new app with the one function `program`, in a container that serves one call."""
    app = modal.App(name, tags={"project": "mtpbench", **tags})
    once = {"retries": 0, "max_containers": 1, "single_use_containers": True, "include_source": False}
    return app, app.function(**once, **options)(program)


def call(app: modal.App, function: modal.Function, arguments: tuple, settings: dict, say) -> tuple[dict, dict]:
    """Run the app, call its function once and return (the JSON it returned, identifiers); whatever happens, end both."""
    with explained(settings), contextlib.redirect_stdout(_Lines(say)), modal.enable_output():
        with app.run():
            ids = {"app_id": app.app_id, "url": app.get_dashboard_url(), "modal": version("modal")}
            say(f"[mtpbench] modal | {ids['url']}")
            started, running = time.monotonic(), function.spawn(*arguments)
            try:
                reply = json.loads(_awaited(running, function, settings))
            except BaseException:  # Ctrl-C and SIGTERM too: a forgotten container goes on costing money
                with contextlib.suppress(Exception):  # the end of the app ends it as well
                    running.cancel(terminate_containers=True)
                raise
            return reply, {**ids, "call_id": running.object_id, "wall_s": round(time.monotonic() - started, 3)}
        raise KeyboardInterrupt  # app.run() swallows a Ctrl-C and leaves its block: nothing else gets here


def _awaited(running: modal.FunctionCall, function: modal.Function, settings: dict) -> str:
    try:
        return running.get(timeout=settings["queue_s"])
    except TimeoutError:
        with contextlib.suppress(exception.Error):  # who cannot be asked may be running
            if function.get_current_stats().num_total_runners == 0:  # nothing has started: no GPU
                raise
        return running.get(timeout=settings["run_s"] + SPARE_S)


@contextlib.contextmanager
def explained(settings: dict):
    """Inside, Modal's exceptions become UserError or InfrastructureError. settings: the configuration's `modal` section."""
    try:
        yield
    except (exception.Error, TimeoutError) as error:
        if isinstance(error, exception.NotFoundError):
            kind, text = UserError, "{error}; create it: " + CREATION["secret" if "secret" in str(error).lower() else "volume"]
        else:
            kind, text = next((kind, text) for known, kind, text in RULES if isinstance(error, known))
        raise kind("Modal: " + text.format(error=one_line(str(error)), name=type(error).__name__, **settings)) from error
    except Terminated:
        raise
    except SystemExit as error:  # a sys.exit() in the container is raised here, and with 0 it would pass for success
        raise UserError(f"Modal: the container's program exited with {error.code} and no reply") from error


class _Lines(io.TextIOBase):
    """Takes what Modal prints (image builds, the container's log) and says it line by line."""

    def __init__(self, say):
        self.say, self.rest = say, ""

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            self.say(line.rstrip())
        return len(text)
