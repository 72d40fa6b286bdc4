"""Questions about the results, answered on the terminal; none of these rules makes a file or measures anything."""


rule stale:
    params:
        config=config_file,
    shell:
        "{PYTHON:q} scripts/stale.py {params.config:q}"


rule diff:
    params:
        config=config_file,
    shell:
        "{PYTHON:q} scripts/diff.py {params.config:q}"


rule rederive:
    shell:
        "{PYTHON:q} scripts/rederive.py"


rule cost:
    params:
        config=config_file,
    shell:
        "{PYTHON:q} scripts/cost.py {params.config:q}"


rule doctor:
    params:
        config=config_file,
    shell:
        "{PYTHON:q} scripts/doctor.py {params.config:q}"
