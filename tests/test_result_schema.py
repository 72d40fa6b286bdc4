"""The published schema of a result: what the code makes fits it, and what does not fit is named."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from mtpbench import results, simulate

ROOT = Path(__file__).parents[1]
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs" / "result.schema.json").read_text()))


@pytest.mark.parametrize("cell", ["cpu_transformers_code_mtp", "h100_vllm_generic_baseline", "h100_vllm_code_ngram"])
def test_a_result_fits(cell):
    Draft202012Validator.check_schema(SCHEMA.schema)
    SCHEMA.validate(simulate.result(cell, prompts=2, rounds=1, tokens=8, concurrency=(1, 2), sessions=2))


@pytest.mark.parametrize("path", [["spec", "mode", "method"], ["sessions", 0, "requests", 0, "counts", 0], ["fingerprint"]])
def test_what_does_not_fit_is_found(path):
    result = simulate.result(prompts=2, rounds=1, tokens=8)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "not this"
    assert path in [list(error.absolute_path) for error in SCHEMA.iter_errors(result)]


@pytest.mark.parametrize("path", results.existing(ROOT), ids=lambda path: path.parent.name)
def test_every_committed_result_fits_and_is_intact(path):
    SCHEMA.validate(results.read(path))
