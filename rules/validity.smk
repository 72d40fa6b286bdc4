"""Checks that everything shown follows from the raw records, and fills the table of docs/validity.md."""


rule audit:
    shell:
        "{PYTHON:q} scripts/audit.py"


rule validity:
    input:
        "scripts/validity.py",
        "scripts/mtpbench/simulate.py",
        "scripts/mtpbench/analysis/effect.py",
    output:
        update("docs/validity.md"),
    log:
        "logs/validity.log",
    shell:
        "{PYTHON:q} scripts/validity.py {output:q} 2> {log:q}"
