"""Questions about the results, answered on the terminal; none of these rules makes a file or measures anything.

And the table of docs/validity.md, which says how often the method finds a known truth.
"""

for question in ["stale", "diff", "rederive", "cost", "doctor", "audit"]:

    rule:
        name:
            question
        params:
            question=question,
            config=config_file,
        shell:
            "{PYTHON:q} scripts/tools.py {params.question} {params.config:q}"


rule validity:
    input:
        "scripts/mtpbench/validity.py",
        "scripts/mtpbench/simulate.py",
        "scripts/mtpbench/analysis/effect.py",
    output:
        update("docs/validity.md"),
    log:
        "logs/validity.log",
    shell:
        "{PYTHON:q} scripts/tools.py validity 2> {log:q}"
