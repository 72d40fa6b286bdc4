"""What Modal raises, as one line, and whether a new container may do better."""

import contextlib

from modal import exception

from mtpbench.backends import InfrastructureError, Terminated
from mtpbench.errors import UserError

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


@contextlib.contextmanager
def explained(settings: dict):
    """Inside, Modal's exceptions become UserError or InfrastructureError. settings: the configuration's `modal` section."""
    try:
        yield
    except exception.NotFoundError as error:
        raise UserError(f"Modal: {_line(error)}; create it: {_creation(str(error), settings)}") from error
    except (exception.Error, TimeoutError) as error:
        kind, text = next((kind, text) for known, kind, text in RULES if isinstance(error, known))
        raise kind("Modal: " + text.format(error=_line(error), name=type(error).__name__, **settings)) from error
    except Terminated:
        raise
    except SystemExit as error:  # a sys.exit() in the container is raised here, and with 0 it would pass for success
        raise UserError(f"Modal: the container's program exited with {error.code} and no reply") from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:297]}..."


def _creation(message: str, settings: dict) -> str:
    if "secret" in message.lower():
        return f"`modal secret create {settings['secret']} --from-dotenv hf.env`, where hf.env holds HF_TOKEN=..."
    return f"`modal volume create {settings['volume']}`, then `snakemake -c1 weights`"
