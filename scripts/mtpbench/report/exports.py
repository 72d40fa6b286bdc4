"""The results for other programs: a tidy table, llm-d benchmark reports, Prometheus text, RO-Crate metadata.

Invalid cells stand in the table of cells, marked so; no other export shows a number of theirs.
"""

import itertools
import json
import shutil
from functools import partial
from operator import itemgetter
from pathlib import Path

from mtpbench import results
from mtpbench.report.cells import ARMS, Cell, Load, Study, frame, tidy
from mtpbench.weights import sha256_of

LLMD_VERSION = "0.2"
LICENSE = "https://spdx.org/licenses/MIT"
_write = partial(results.write_text, durable=False)
LABELS = ("cell", "gpu", "engine", "prompts", "mode", "concurrency", "arm", "marks")


def write(study: Study, root: Path) -> None:
    """Write metrics/exports/ anew, and metrics/ro-crate-metadata.json over all that lies in metrics/."""
    folder = root / "metrics/exports"
    shutil.rmtree(folder, ignore_errors=True)
    rows = {name: list(found) for name, found in itertools.groupby(tidy(study), key=itemgetter("cell"))}
    for cell in study.cells:
        for load in cell.loads if cell.summary["valid"] else ():
            for arm in ARMS:
                place = folder / "llm-d" / f"{cell.name}.{arm}.c{load.concurrency}.json"
                _write(place, json.dumps(llmd(load, arm), indent=1, ensure_ascii=False))
        _write(folder / "prometheus" / f"{cell.name}.prom", prometheus(cell, rows.get(cell.name, [])))
    _write(root / "metrics/ro-crate-metadata.json", json.dumps(ro_crate(study, root), indent=1, ensure_ascii=False) + "\n")


def write_cells(study: Study, root: Path) -> None:
    """Write metrics/cells.csv and metrics/cells.parquet: one row a cell, load point and arm."""
    table = frame(study)
    (root / "metrics").mkdir(exist_ok=True)
    table.to_csv(root / "metrics/cells.csv", index=False)
    table.to_parquet(root / "metrics/cells.parquet", index=False)


def llmd(load: Load, arm: str) -> dict:
    """One arm at one load point as an llm-d Benchmark Report v0.2 (package llmd-benchmark-report has its schema).

    What that format has no field for (acceptance, the paired speed-up, gates) stands under `results.profiling`.
    """
    cell, measured = load.cell, load.data["arms"][arm]
    spec, session = cell.spec, cell.sessions[0]
    implementation = spec["engine"]["implementation"]
    mode = spec["mode"] if arm == "test" else {"method": "none"}
    target = spec["model"]["target"]
    name = target.get("repo") or target.get("shape") or f"sha256:{target['sha256'][:12]}"
    times = {"time_to_first_token": "ttft_ms", "time_per_output_token": "tpot_ms", "request_latency": "e2e_ms"}
    protocol = spec["protocol"]
    lengths = {
        f"{name}_length": {"units": "count", "mean": measured[f"{which}_tokens"] / measured["requests"]}
        for name, which in (("input", "prompt"), ("output", "output"))
    }
    engine = {
        "metadata": {"label": "engine", "cfg_id": results.digest([spec["engine"], spec["model"], mode])},
        "standardized": {
            "kind": "inference_engine", "tool": implementation, "tool_version": str(session["software"].get(implementation)),
            "role": "replica", "replicas": 1, "model": {"name": name},
            "accelerator": {"model": spec["device"]["name"], "count": int(spec["device"]["kind"] != "cpu"), "parallelism": {"tp": 1}},
        },
        "native": {"config": {"mode": mode, "engine": spec["engine"], "dtype": spec["model"]["dtype"]}},
    }  # fmt: skip
    workload = {
        "metadata": {"cfg_id": results.digest([spec["prompts"], protocol])},
        "standardized": {
            "tool": "mtpbench", "tool_version": str(spec["measurement_version"]), "source": "sampled", "concurrency": load.concurrency,
            "input_seq_len": {"distribution": "other", "value": lengths["input_length"]["mean"]},
        },
        "native": {"config": {"prompts": cell.prompts, **protocol}},
    }  # fmt: skip
    if protocol["ignore_eos"]:
        workload["standardized"]["output_seq_len"] = {"distribution": "fixed", "value": protocol["output_tokens"]}
    aggregate = {
        "requests": {"total": measured["requests"], "failures": 0, **lengths},
        "latency": {
            name: {"units": "ms/token" if key == "tpot_ms" else "ms", **measured[key]} for name, key in times.items() if measured[key]
        },
    }
    if measured["throughput_tok_s"] is not None:
        aggregate["throughput"] = {"output_token_rate": {"units": "tokens/s", "mean": measured["throughput_tok_s"]}}
    return {
        "version": LLMD_VERSION,
        "run": {
            "uid": f"{cell.document['fingerprint'][:32]}-{arm}-c{load.concurrency}", "eid": cell.document["fingerprint"],
            "time": {
                "start": min(each["started_at"] for each in cell.sessions),
                "duration": f"PT{sum(each['seconds']['total'] for each in cell.sessions):.3f}S",
            },
            "description": f"{cell.name}, arm {arm}, concurrency {load.concurrency}", "keywords": [mode["method"], *cell.marks],
        },
        "scenario": {"stack": [engine], "load": workload},
        "results": {
            "request_performance": {"aggregate": aggregate},
            "profiling": {"mtpbench": {
                "acceptance": measured["acceptance"], "speedup": load.data["speedup"] if arm == "test" else None,
                "gates": cell.summary["gates"],
            }},
        },
    }  # fmt: skip


def prometheus(cell: Cell, rows: list[dict]) -> str:
    """A cell in Prometheus' text format: a gauge for each number of its rows in cells.csv, and whether it is valid."""
    lines = [
        "# HELP mtpbench_valid Whether every gate of the cell passed; an invalid cell has no other sample.",
        "# TYPE mtpbench_valid gauge",
        f"mtpbench_valid{_labels({'cell': cell.name})} {int(cell.summary['valid'])}",
    ]
    samples: dict[str, list[str]] = {}
    for row in rows if cell.summary["valid"] else ():
        labels = _labels({name: row[name] for name in LABELS})
        for column, value in row.items():
            if column not in LABELS and isinstance(value, int | float) and not isinstance(value, bool):
                samples.setdefault(column, []).append(f"mtpbench_{column}{labels} {value!r}")
    for column, found in samples.items():
        lines += [f"# HELP mtpbench_{column} Column {column} of metrics/cells.csv.", f"# TYPE mtpbench_{column} gauge", *found]
    return "\n".join(lines) + "\n"


def _labels(values: dict) -> str:
    given = {name: str(value) for name, value in values.items() if value not in (None, "")}
    escaped = {name: value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for name, value in given.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def ro_crate(study: Study, root: Path) -> dict:
    """RO-Crate 1.2 metadata of metrics/: every result with what made it, the table of cells, plots and exports."""
    folder, entities = root / "metrics", []
    for cell in study.cells:
        spec, path = cell.spec, Path(cell.path).relative_to("metrics").as_posix()
        made = cell.document["created_at"]
        engine, device = f"#engine-{cell.engine}", f"#device-{cell.gpu}"
        entities += [
            {"@id": path, "@type": "File", "name": cell.name, "encodingFormat": "application/json", "dateCreated": made,
             "description": _described(cell), **_size(folder / path)},
            {"@id": f"#measuring-{cell.name}", "@type": "CreateAction", "name": f"Measuring {cell.name}", "endTime": made,
             "instrument": [{"@id": engine}, {"@id": device}], "result": {"@id": path}},
            {"@id": engine, "@type": "SoftwareApplication", "name": cell.engine,
             "softwareVersion": str(cell.sessions[0]["software"].get(spec["engine"]["implementation"]))},
            {"@id": device, "@type": "Product", "name": spec["device"]["name"]},
        ]  # fmt: skip
    derived = ["cells.csv", "cells.parquet", *sorted(path.relative_to(folder).as_posix() for path in (folder / "plots").glob("*"))]
    formats = {".csv": "text/csv", ".parquet": "application/vnd.apache.parquet", ".svg": "image/svg+xml", ".png": "image/png"}
    entities += [
        {"@id": name, "@type": "File", "name": name, "encodingFormat": formats[Path(name).suffix], **_size(folder / name)}
        for name in derived
        if (folder / name).exists()
    ]
    if study.cells:
        entities.append({"@id": "exports/", "@type": "Dataset", "name": "llm-d benchmark reports and Prometheus text"})
    unique = {entity["@id"]: entity for entity in entities}
    parts = [{"@id": name} for name, entity in unique.items() if entity["@type"] in ("File", "Dataset")]
    actions = [{"@id": name} for name, entity in unique.items() if entity["@type"] == "CreateAction"]
    published = max((cell.document["created_at"] for cell in study.cells), default="1970-01-01")
    about = {
        "@id": "./", "@type": "Dataset", "name": "mtpbench measurements", "datePublished": published, "license": {"@id": LICENSE},
        "description": "Speed-up of language models by multi-token prediction, one GPU, engine, prompt set and mode a file.",
        "hasPart": parts, "mentions": actions,
    }  # fmt: skip
    descriptor = {
        "@id": "ro-crate-metadata.json", "@type": "CreativeWork", "about": {"@id": "./"},
        "conformsTo": {"@id": "https://w3id.org/ro/crate/1.2"},
    }  # fmt: skip
    license = {"@id": LICENSE, "@type": "CreativeWork", "name": "MIT License"}
    return {"@context": "https://w3id.org/ro/crate/1.2/context", "@graph": [descriptor, about, license, *unique.values()]}


def _described(cell: Cell) -> str:
    state = "valid" if cell.summary["valid"] else f"invalid: {'; '.join(cell.summary['reasons'])}"
    return "; ".join(["baseline against baseline" if not cell.speculative else "baseline against speculation", state, *cell.marks])


def _size(path: Path) -> dict:
    """Size and SHA-256 of a file, where it exists."""
    if not path.exists():
        return {}
    return {"contentSize": str(path.stat().st_size), "sha256": sha256_of(path)}
