"""From the results to what people read; measures nothing itself, and is cheap to run again.

INPUTS:
    metrics/specs/all/states.json   which cells are fresh, missing, stale, or outside the matrix
    metrics/anatomy/*.json          where a step's time goes, by scripts/anatomy.py
    metrics/runs/*/result.json      every result there is; those of the matrix are measured first, unless `partial` is set

OUTPUTS:
    metrics/specs/all/study.pickle  what is shown of all results, read once for the rules below; git-ignored
    metrics/plots/{name}.svg, .png, .csv
    report/results.md, report/index.html
    metrics/cells.csv, .parquet; metrics/tables/{name}.html for Snakemake's own report
    metrics/exports/, metrics/ro-crate-metadata.json
    README.md                       between its markers
"""

from mtpbench.report import PLOTS, STANDALONE

# All that a page or plot depends on beside the results; a template may include any other.
REPORT_CODE = [
    str(path)
    for pattern in ("scripts/mtpbench/report/*.py", "report/templates/*")
    for path in sorted(Path(workflow.basedir).glob(pattern))
]


# The only rule of the report that has every result as input: Snakemake's time for a job grows with their number squared.
rule study:
    input:
        unpack(get_report_inputs),
        config="config/config.yaml",
        code=expand(
            "scripts/mtpbench/{name}.py",
            name=["results", "report/cells", "report/figures"],
        ),
    output:
        f"{spec.PLANS}/all/study.pickle",
    log:
        "logs/report/study.log",
    shell:
        "{PYTHON:q} scripts/study.py {input.states:q} {output:q} 2> {log:q}"


rule plots:
    input:
        study=rules.study.output,
        code=REPORT_CODE,
    output:
        svg=[
            report(
                f"metrics/plots/{plot}.svg",
                caption="../report/plot.rst",
                category="Plots",
                labels={"plot": plot},
            )
            for plot in PLOTS
        ],
        png=expand("metrics/plots/{plot}.png", plot=PLOTS),
        data=expand("metrics/plots/{plot}.csv", plot=PLOTS),
    log:
        "logs/report/plots.log",
    shell:
        "{PYTHON:q} scripts/report.py plots {input.study:q} 2> {log:q}"


rule report:
    input:
        study=rules.study.output,
        plots=rules.plots.output,
        published="report/published.csv",
        anatomy=sorted(map(str, Path(workflow.basedir).glob("metrics/anatomy/*.json"))),
        code=REPORT_CODE,
    output:
        markdown="report/results.md",
        page=report(
            "report/index.html",
            caption="../report/page.rst",
            category="Report",
            labels={"kind": "page"},
        ),
    log:
        "logs/report/report.log",
    shell:
        "{PYTHON:q} scripts/report.py report {input.study:q} 2> {log:q}"


rule tables:
    input:
        study=rules.study.output,
        published="report/published.csv",
        code=REPORT_CODE,
    output:
        cells=report(
            "metrics/cells.csv",
            caption="../report/cells.rst",
            category="Data",
            labels={"table": "cells.csv"},
        ),
        parquet="metrics/cells.parquet",
        html=[
            report(
                f"metrics/tables/{table}.html",
                caption="../report/table.rst",
                category="Tables",
                labels={"table": table},
            )
            for table in STANDALONE
        ],
    log:
        "logs/report/tables.log",
    shell:
        "{PYTHON:q} scripts/report.py tables {input.study:q} 2> {log:q}"


rule exports:
    input:
        study=rules.study.output,
        plots=rules.plots.output,
        tables=rules.tables.output,
    output:
        crate="metrics/ro-crate-metadata.json",
        others=directory("metrics/exports"),
    log:
        "logs/report/exports.log",
    shell:
        "{PYTHON:q} scripts/report.py exports {input.study:q} 2> {log:q}"


rule readme:
    input:
        rules.report.output,
        "report/templates/readme.md.jinja",
    output:
        update("README.md"),
    log:
        "logs/report/readme.log",
    shell:
        "{PYTHON:q} scripts/readme.py 2> {log:q}"
