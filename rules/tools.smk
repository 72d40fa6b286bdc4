"""Questions about the results, answered on the terminal; none of these rules makes a file or measures anything."""


rule stale:
    script:
        "../scripts/stale.py"


rule diff:
    script:
        "../scripts/diff.py"


rule rederive:
    shell:
        "{PYTHON:q} scripts/rederive.py"


rule cost:
    script:
        "../scripts/cost.py"


rule doctor:
    script:
        "../scripts/doctor.py"
