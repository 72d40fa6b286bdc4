"""What Modal raises, as one line, and whether a new container may do better."""

import contextlib

from modal import exception

from mtpbench.backends import InfrastructureError, Terminated
from mtpbench.errors import UserError, one_line

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
