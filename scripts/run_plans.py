"""Measure many cells in one sitting, on a machine that is lent by the minute and may have no packages to plan with.

    python scripts/run_plans.py plan PLANS.json CELL...      where the project's environment is
    python scripts/run_plans.py run PLANS.json [--minutes M] [--sittings N] [--beside K]      there

Cells that agree in engine, model and device are measured in one process, on engines that they share; the sessions of a
cell run in different processes, K of which load their engines side by side and then measure in turns. A session is kept
as soon as it is there, and a cell whose sessions are complete gets its result.json, so a sitting that is cut off loses
nothing that was finished, and the next one goes on from there.
"""

import argparse
import contextlib
import itertools
import json
import re
import sys
import time
from collections import defaultdict
from pathlib import Path

import measure
from mtpbench import backends, identity, ledger, results, sessions
from mtpbench.backends import local
from mtpbench.errors import UserError, one_line

NAME = re.compile(r"[a-z0-9-]+(_[a-z0-9-]+){3}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = arguments.add_subparsers(dest="command", required=True)
    command = commands.add_parser("plan", help="write the plans of cells to one file")
    command.add_argument("plans", type=Path)
    command.add_argument("cells", nargs="+")
    command = commands.add_parser("run", help="measure them here")
    command.add_argument("plans", type=Path)
    command.add_argument("--minutes", type=float, default=1e9, help="begin no session after so many")
    command.add_argument("--sittings", type=positive, default=1000, help="at most so many times the next sessions of each cell")
    command.add_argument("--beside", type=positive, default=1, help="processes that load side by side, for a session each; the memory must hold them")
    arguments = arguments.parse_args()
    try:
        if arguments.command == "plan":
            write(arguments.plans, arguments.cells)
        else:
            plans = planned(arguments.plans)
            with backends.terminable():
                say = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
                failed = run(plans, time.monotonic() + 60 * arguments.minutes, arguments.sittings, say, arguments.beside)
            if failed:
                sys.exit(f"error: no session of {', '.join(failed)} after a failure; mend it and run the same command again")
    except (UserError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        print(measure.INTERRUPTED, file=sys.stderr)
        sys.exit(130)


def positive(text: str) -> int:
    """A whole number from 1 on, as argparse wants it: ValueError otherwise."""
    if int(text) < 1:
        raise ValueError
    return int(text)


def write(path: Path, cells: list[str]) -> None:
    """Write the plans of `cells`, with the commit that they were made from, since its history stays here."""
    from mtpbench import config, spec

    if NAME.fullmatch(path.name):
        raise UserError(f"{path}: the name of a cell where the file of plans belongs: `python scripts/run_plans.py plan PLANS.json {path} ...`")
    if path.exists():
        try:
            planned(path, current=False)
        except UserError:
            raise UserError(f"{path}: there already, and no file of plans; name another one, or delete it first") from None
    specs = spec.Specs(config.load())
    plans = [specs.plan(cell) for cell in cells]
    if elsewhere := [plan["cell"] for plan in plans if plan["how"]["backend"] != "local"]:
        raise UserError(f"{', '.join(elsewhere)}: not measured on a machine of one's own; `snakemake -c1 metrics/runs/CELL/result.json` measures it")
    for plan in plans:  # the results do not travel, the sessions do
        sessions.take_over(plan["spec"], results.path_of(plan["cell"]))
    results.write_text(path, json.dumps([{**plan, "planned_from": measure.commit()} for plan in plans]))
    print(f"{path}: plans of {', '.join(plan['cell'] for plan in plans)}")


def planned(path: Path, cells: list[str] | None = None, current: bool = True) -> list[dict]:
    """The plans in a file that `write` made, or those of some cells. Raises UserError where it is not there or lacks one.

    current: also where one is not as it was written, or of another measurement version.
    """
    again = "`python scripts/run_plans.py plan PLANS.json CELL...` writes one"
    try:
        found = {plan["cell"]: plan for plan in json.loads(path.read_text())}
        for cell, plan in found.items() if current else ():
            if (version := plan["spec"]["measurement_version"]) != ledger.measurement_version():
                raise UserError(f"{path}: {cell} is of measurement version {version}, and this code's is {ledger.measurement_version()}; {again}")
            if plan["fingerprint"] != results.digest(plan["spec"]) or not NAME.fullmatch(cell) or plan["how"]["backend"] != "local":
                raise UserError(f"{path}: {cell} is not as it was written, or is measured elsewhere; {again}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: no file of plans ({one_line(repr(error), 80)}); {again}") from None
    if not found:
        raise UserError(f"{path}: no plan in it; {again}")
    if missing := [cell for cell in cells or [] if cell not in found]:
        raise UserError(f"{path}: no plan of {', '.join(missing)}; it has {', '.join(found)}; {again}")
    return [found[cell] for cell in cells or found]


def run(plans: list[dict], deadline: float, sittings: int, say, beside: int = 1) -> list[str]:
    """Measure the next `beside` sessions that each plan lacks, `sittings` times or until the deadline (time.monotonic) has passed.

    A cell of which a session failed is not tried again; those cells are returned.
    """
    failed: set[str] = set()
    for plan in plans:
        identity.check_planned(plan)
        if results.recorded(path := results.path_of(plan["cell"])) == plan["fingerprint"]:
            valid = results.read(path)["summary"]["valid"]
            say(f"[mtpbench] there already | {path}" + ("" if valid else " | INVALID; move it away, and it is measured again"))
    for _ in range(sittings):
        lacking = [plan for plan in plans if plan["cell"] not in failed and _lacking(plan)]
        for group in _alike(lacking):
            with contextlib.ExitStack() as alone:
                # The cells before the device, as `measure` does, and in one order everywhere: two never wait for each other.
                locks = {measure.lock_of(plan): plan for plan in group}
                for _, plan in sorted(locks.items()):
                    alone.enter_context(measure.alone(plan, say))
                alone.enter_context(local.device_alone(group[0]["spec"]["device"]["kind"], say))
                failed |= _failures(group, beside, deadline, say)
        for plan in plans:  # after the sessions, whoever measured them: results can be made of them later, anywhere
            made = results.recorded(results.path_of(plan["cell"])) == plan["fingerprint"]
            if plan["cell"] not in failed and not made and not _lacking(plan):
                measure.measure(plan, results.path_of(plan["cell"]), say)
        if not lacking or time.monotonic() > deadline:
            break
    return sorted(failed)


def _alike(plans: list[dict]) -> list[list[dict]]:
    """The plans in groups that one process can measure on shared engines."""
    groups = defaultdict(list)
    for plan in plans:
        spec = plan["spec"]
        groups[results.canonical([spec["device"], spec["engine"], spec["model"]["target"], spec["model"]["dtype"]])].append(plan)
    return list(groups.values())


def _failures(group: list[dict], beside: int, deadline: float, say) -> set[str]:
    """Measure and keep the next sessions of each plan of a group; the cells of which one failed."""
    failed: set[str] = set()
    if time.monotonic() > deadline:
        say(f"[mtpbench] time is up | {len(group)} cells not begun")
        return failed
    # Asked for now, with the device in hand: who held it before may have measured some of them.
    lacking = [(plan, _lacking(plan)) for plan in group]
    shares = [_turned([(plan, measure.request_of(plan, indices[at])) for plan, indices in lacking if len(indices) > at]) for at in range(beside)]
    asked, began = [*itertools.chain(*shares)], time.monotonic()
    requests = [[(request, plan["how"]) for plan, request in share] for share in shares if share]
    replies = local.run_together(requests, say) if asked else ()
    for number, ((plan, request), reply) in enumerate(zip(asked, replies), start=1):
        if backends.checked(request, reply)["status"] == "ok":
            measure.keep(plan, request["session"], reply, began)
        else:
            failed.add(plan["cell"])
            say(f"[mtpbench] FAILED | {plan['cell']}: {reply['error']['message']}\n{reply['error']['tail']}")
        say(f"[mtpbench] {number} of {len(asked)} | {plan['cell']} session {request['session'] + 1} | {time.monotonic() - began:.0f} s")
        if time.monotonic() > deadline:
            say(f"[mtpbench] time is up | {len(asked) - number} sessions left out")
            break
        began = time.monotonic()
    return failed


def _turned(share: list[tuple[dict, dict]]) -> list[tuple[dict, dict]]:
    """The cells of a session, beginning with another one each session: none always meets the host at the same time after its start."""
    by = share[0][1]["session"] % len(share) if share else 0
    return share[by:] + share[:by]


def _lacking(plan: dict) -> list[int]:
    return sessions.lacking(plan["spec"], results.path_of(plan["cell"]))


if __name__ == "__main__":
    main()
