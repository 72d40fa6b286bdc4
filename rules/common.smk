"""Shared by all: the checked configuration and the lookups from cells to files."""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "scripts"))

from mtpbench import config as configuration
from mtpbench import results, spec
from mtpbench import weights as checkpoints
from mtpbench.errors import UserError

PYTHON = sys.executable
RESULT = f"{results.RUNS}/{{cell}}/result.json"
STATES = f"{spec.PLANS}/all/states.json"


def asked(function, *arguments):
    """What `function` answers; a user's mistake ends Snakemake with its one line, where an exception would add a traceback."""
    try:
        return function(*arguments)
    except (UserError, OSError) as error:
        sys.exit(f"mtpbench: {error}")


# Before Snakemake's own reading, which lets a key stand twice and names neither file nor line.
asked(configuration.read_yaml, configuration.DEFAULT)


configfile: str(configuration.DEFAULT)


config.update(asked(configuration.validate, config))

CELLS = configuration.cells(config)
SPECS = spec.Specs(config)


wildcard_constraints:
    cell="[^/]+",


def config_file(wildcards):
    """The checked configuration with the command line's overrides, as a file for the tools that answer on the terminal."""
    path = Path(spec.PLANS) / "all" / "config.json"
    asked(results.update_text, path, json.dumps(config))
    return str(path)


def get_plan(wildcards):
    """The cell's plan: ancient once the committed result answers it, else written anew (see Specs.planned_path)."""
    path, answered = asked(SPECS.planned_path, wildcards.cell)
    return ancient(str(path)) if answered else str(path)


def get_weights(wildcards):
    """The list of the cell's weights, where they come from the hub; it never makes a result stale, since the spec names them."""
    return list(map(ancient, map(str, checkpoints.records(config, [wildcards.cell]))))


def is_local(wildcards):
    """Whether the cell's device is in this machine."""
    return config["gpus"][wildcards.cell.split("_")[0]]["backend"] == "local"


def get_report_inputs(wildcards):
    """The results behind the report, and the state of every cell with the checksum of its result, so that any change is seen.

    Those of the matrix are measured where need be, and so fresh when the states are read; with `--config partial=true` nothing
    is measured, and the states name the gaps.
    """
    states = {
        cell: {**found, "checksum": results.ends(results.path_of(cell))[1]}
        for cell, found in asked(SPECS.states).items()
    }
    wanted = [] if config["partial"] else CELLS
    for cell in wanted:
        states[cell] |= {"state": "fresh", "differences": []}
    results.update_text(Path(STATES), json.dumps(states, indent=1) + "\n")
    return {"states": STATES, "results": [RESULT.format(cell=cell) for cell in wanted]}
