"""What other programs are given: complete, in their own formats, and without a number of an invalid cell."""

import hashlib
import json
import re

import pandas as pd
import pytest
import report_studies as studies

from mtpbench import results
from mtpbench.report import cells, exports

CELLS = studies.matrix(engines=("vllm",), prompts=("code",))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two valid cells, one with random weights and two loads, one invalid; exported."""
    root = studies.write(tmp_path_factory.mktemp("exports"), CELLS)
    studies.write(root, ["h100_vllm_code_mtp"], studies.diagnostic, concurrency=(1, 4))
    studies.write(root, ["h100_vllm_generic_mtp"], studies.invalidate)
    study = cells.load(root)
    exports.write_cells(study, root)
    exports.write(study, root)
    return root


def reports(root) -> dict[str, dict]:
    return {path.name: json.loads(path.read_text()) for path in (root / "metrics/exports/llm-d").glob("*.json")}


def test_the_table_has_a_row_for_each_cell_load_and_arm(root):
    table = pd.read_csv(root / "metrics/cells.csv")
    assert len(table) == 2 * (2 + 2 + 1) and not table.duplicated(["cell", "concurrency", "arm"]).any()
    assert set(table.loc[~table["valid"], "cell"]) == {"h100_vllm_generic_mtp"}
    assert table.loc[table["arm"] == "control", "speedup_ratio"].isna().all()
    pd.testing.assert_frame_equal(pd.read_parquet(root / "metrics/cells.parquet"), table, check_dtype=False)


def test_a_report_for_each_arm_and_load_of_the_valid_cells(root):
    found = reports(root)
    assert len(found) == 2 * (2 + 2)
    assert not [name for name in found if "generic" in name]
    assert len({report["run"]["uid"] for report in found.values()}) == len(found)


def test_the_reports_have_the_fields_that_the_format_documents(root):
    table = pd.read_csv(root / "metrics/cells.csv").set_index(["cell", "arm", "concurrency"])
    report = reports(root)["h100_vllm_code_mtp.test.c4.json"]
    row = table.loc["h100_vllm_code_mtp", "test", 4]
    assert report["version"] == "0.2" and "random weights" in report["run"]["keywords"]
    assert report["scenario"]["stack"][0]["standardized"]["accelerator"]["model"] == "NVIDIA H100 80GB HBM3"
    assert report["scenario"]["load"]["standardized"]["concurrency"] == 4
    aggregate = report["results"]["request_performance"]["aggregate"]
    assert aggregate["requests"]["total"] == row["requests"]
    sessions = results.read(root / "metrics/runs/h100_vllm_code_mtp/result.json")["sessions"]
    assert report["run"]["time"]["duration"] == f"PT{sum(session['seconds']['total'] for session in sessions):.3f}S"
    assert aggregate["latency"]["time_to_first_token"] == {"units": "ms", **{name: row[f"ttft_ms_{name}"] for name in ("mean", "p50", "p90")}}
    assert aggregate["throughput"]["output_token_rate"] == {"units": "tokens/s", "mean": row["throughput_tok_s"]}
    assert report["results"]["profiling"]["mtpbench"]["acceptance"]["length"] == row["acceptance_length"]


def test_the_reports_pass_the_formats_own_model(root):
    """Its package is not among the locked ones: `pip install llmd-benchmark-report==0.2.1` makes this run."""
    library = pytest.importorskip("llmd_benchmark_report")
    for path in (root / "metrics/exports/llm-d").glob("*.json"):
        library.import_benchmark_report(str(path))


def test_prometheus_text_parses_and_gives_the_tables_numbers(root):
    text = (root / "metrics/exports/prometheus/cpu_vllm_code_mtp.prom").read_text()
    sample = re.compile(r'^(mtpbench_[a-z0-9_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)+)\} (-?[\d.e+-]+)$')
    declared, samples = set(), {}
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            name = line.split()[2]
            assert name not in declared, "a metric's samples must stand together"
            declared.add(name)
        elif not line.startswith("#"):
            name, labels, value = sample.match(line).groups()
            assert name in declared
            samples[name, 'arm="test"' in labels] = float(value)
    row = pd.read_csv(root / "metrics/cells.csv").query("cell == 'cpu_vllm_code_mtp' and arm == 'test'").iloc[0]
    assert 'None"' not in text and 'marks=' not in text, "what a cell lacks is no label"
    assert samples["mtpbench_speedup_ratio", True] == row["speedup_ratio"] and samples["mtpbench_decode_tok_s", True] == row["decode_tok_s"]


def test_an_invalid_cell_exports_that_it_is_invalid_and_no_number(root):
    text = (root / "metrics/exports/prometheus/h100_vllm_generic_mtp.prom").read_text()
    assert [line for line in text.splitlines() if not line.startswith("#")] == ['mtpbench_valid{cell="h100_vllm_generic_mtp"} 0']


def test_the_crate_describes_every_result_and_its_references_resolve(root):
    graph = json.loads((root / "metrics/ro-crate-metadata.json").read_text())["@graph"]
    by_id = {entity["@id"]: entity for entity in graph}
    assert len(by_id) == len(graph)
    assert by_id["ro-crate-metadata.json"]["about"] == {"@id": "./"}
    assert {"name", "description", "datePublished", "license"} <= by_id["./"].keys()
    parts = {part["@id"] for part in by_id["./"]["hasPart"]}
    assert {f"runs/{name}/result.json" for name in CELLS} | {"cells.csv", "cells.parquet"} <= parts

    def references(value):
        if isinstance(value, dict):
            yield from [value["@id"]] if set(value) == {"@id"} else [found for each in value.values() for found in references(each)]
        elif isinstance(value, list):
            yield from (found for each in value for found in references(each))

    wanted = {found for entity in graph for found in references({key: value for key, value in entity.items() if key != "@id"})}
    assert {reference for reference in wanted - by_id.keys() if not reference.startswith("https://")} == set()
    content = (root / "metrics/cells.csv").read_bytes()
    assert by_id["cells.csv"]["sha256"] == hashlib.sha256(content).hexdigest()


def test_exports_of_nothing_are_written_too(tmp_path):
    study = cells.load(studies.write(tmp_path, []))
    exports.write_cells(study, tmp_path)
    exports.write(study, tmp_path)
    assert pd.read_csv(tmp_path / "metrics/cells.csv").empty
    assert len(json.loads((tmp_path / "metrics/ro-crate-metadata.json").read_text())["@graph"]) >= 2
