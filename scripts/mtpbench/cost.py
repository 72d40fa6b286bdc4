"""What the cells that are missing or stale would cost, before anything is spent. Needs no token and no network."""

import contextlib
import math
from pathlib import Path
from typing import NamedTuple

from mtpbench import config as configuration
from mtpbench import results, sessions, spec
from mtpbench.errors import UserError

ARMS = 2


class Cost(NamedTuple):
    """One cell: what it would take. minutes and usd are (least, most), None where nothing is known to tell them from."""

    cell: str
    state: str
    sessions: int
    minutes: tuple[float, float] | None
    usd: tuple[float, float] | None
    basis: str
    warning: str = ""


def costs(config: dict, root: Path = Path(".")) -> list[Cost]:
    """The cells of the matrix that the next run would measure, in its order."""
    found, specs = [], spec.Specs(config, root)
    for cell in configuration.cells(config):
        try:
            specs.fingerprint(cell)  # raises what would stop the plan
            state = specs.state(cell)
            if state != "fresh":
                found.append(_cost(cell, state, specs, root))
        except UserError as error:
            found.append(Cost(cell, "blocked", 0, None, None, "", str(error)))
    return found


def usd_per_hour(gpu: dict, modal: dict) -> float | None:
    """List price of a running container: the GPU and the cores and memory reserved beside it. None where one is not known."""
    if gpu["backend"] == "local":
        return 0.0
    priced = [(1, gpu.get("price")), (modal["cpu"], modal.get("price_core")), (modal["memory_gib"], modal.get("price_gib"))]
    known = [(amount, price["usd_per_hour"]) for amount, price in priced if price and price["usd_per_hour"] is not None]
    return sum(amount * price for amount, price in known) if len(known) == len(priced) else None


def _cost(cell: str, state: str, specs: spec.Specs, root: Path) -> Cost:
    config, names = specs.config, configuration.parts(cell, specs.config)
    gpu, engine = config["gpus"][names["gpu"]], configuration.engine_on(names, config)
    protocol = engine["protocol"]
    minutes, basis = _measured(cell, root, protocol) or _estimated(gpu.get("estimate"), engine["implementation"], protocol)
    warning = _warning(names, minutes, config)
    to_measure = len(sessions.lacking(specs.resolve(cell), results.path_of(cell, root), root))
    if minutes:
        minutes = tuple(each * to_measure for each in minutes)
    price = usd_per_hour(gpu, config["modal"])
    known = price is not None and (minutes or price == 0)
    usd = tuple(each / 60 * price for each in minutes or (0.0, 0.0)) if known else None
    return Cost(cell, state, to_measure, minutes, usd, basis, warning)


def _measured(cell: str, root: Path, protocol: dict) -> tuple[tuple[float, float], str] | None:
    """Minutes a session as its last result took, else as the cells of the same GPU and engine did, and where from.

    Where they did less, or more, than `protocol` asks for, they are scaled by it, loading included, which errs on the dear side.
    """
    kin = "_".join(cell.split("_")[:2])
    for cells, basis in ((cell, "its last result"), (f"{kin}_*", f"results of {kin}")):
        seconds = []
        for path in results.existing(root, cells):
            with contextlib.suppress(UserError):  # a damaged file tells nothing; `snakemake audit` names it
                result = results.read(path)
                then = {**result["spec"]["protocol"], "prompts": len(result["spec"]["prompts"])}
                scale = max(1.0, _work(protocol, "max") / _work(then, "max"))
                seconds += [scale * (each.get("where", {}).get("container_s") or each["seconds"]["total"]) for each in result["sessions"]]
        if seconds:
            return (min(seconds) / 60, max(seconds) / 60), basis
    return None


def _estimated(estimate: dict | None, implementation: str, protocol: dict) -> tuple[tuple[float, float] | None, str]:
    """Minutes a session by the configured rates: both arms, the fewest and the most rounds, warm-up included."""
    if not estimate or implementation not in estimate:
        return None, "no estimate configured"
    work = (_work(protocol, end) / estimate[implementation] / 60 for end in ("min", "max"))
    return tuple(estimate["start_minutes"] + ARMS * each for each in work), "the configured estimate"


def _work(protocol: dict, end: str) -> float:
    """Output tokens of an arm in a session, one request of a wave counted, by the fewest ("min") or most ("max") rounds."""
    a_round = sum(math.ceil(protocol["prompts"] / load) for load in protocol["concurrency"])  # in waves
    rounds, loads = protocol["rounds"][end], len(protocol["concurrency"])
    first, again = (a_round, loads) if protocol["warmup"] == "all" else (loads * protocol["warmup"],) * 2
    reopened = (rounds - 1) / 2 if protocol["order"] == "blocks" else 0  # A B, then B A: each arm is opened anew every other round
    return (first + reopened * again + rounds * a_round) * protocol["output_tokens"]


def _warning(names: dict, minutes: tuple | None, config: dict) -> str:
    gpu = config["gpus"][names["gpu"]]
    try:
        spec.check_fits(names["gpu"], names, config)
    except UserError as error:
        return str(error)
    limit = config["modal"]["run_s"] / 60
    if gpu["backend"] == "modal" and minutes and minutes[1] > limit:
        return f"a session may take longer than modal.run_s ({limit:.0f} minutes) and be ended: raise it or measure less"
    return ""
