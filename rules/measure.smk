"""One cell: both arms measured on one device, into one file.

REQUIRED INPUTS:
    metrics/specs/{cell}/plan.json  the cell's plan, derived from the configuration while Snakemake plans
    metrics/weights/...             where its model lies on the hub (rules/weights.smk)

OUTPUTS:
    metrics/runs/{cell}/result.json where cell is {gpu}_{engine}_{prompts}_{mode}
"""


rule measure:
    input:
        plan=get_plan,
        weights=get_weights,
    output:
        update(RESULT),
    log:
        "logs/measure/{cell}.log",
    # All cores for a cell on this machine, so that nothing else runs beside it; a cloud cell only waits.
    threads: lambda wildcards: 1024 if is_local(wildcards) else 1
    resources:
        cloud_gpus=lambda wildcards: 0 if is_local(wildcards) else 1,
    message:
        "Measuring {wildcards.cell}; follow it in {log}"
    shell:
        "{PYTHON:q} scripts/measure.py {input.plan:q} {output:q} --log {log:q}"


rule cells:
    input:
        expand(RESULT, cell=CELLS),
