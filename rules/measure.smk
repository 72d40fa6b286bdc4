"""One cell: both arms measured on one device, into one file.

REQUIRED INPUTS:
    metrics/specs/{cell}/plan.json  the cell's plan, derived from the configuration while Snakemake plans
    metrics/weights/{backend}/{model}.json   where its model lies on the hub: files, sizes and hashes of the checkpoints,
                                    fetched once for this machine's cache or for the Modal volume

OUTPUTS:
    metrics/runs/{cell}/result.json where cell is {gpu}_{engine}_{prompts}_{mode}
"""


rule weights_of:
    output:
        f"{checkpoints.RECORDS}/{{backend}}/{{model}}.json",
    log:
        "logs/weights/{backend}_{model}.log",
    params:
        what=lambda wildcards: json.dumps(checkpoints.order(config, wildcards.model)),
    message:
        "Fetching {wildcards.model} for {wildcards.backend}; follow it in {log}"
    shell:
        "{PYTHON:q} scripts/weights.py {wildcards.backend} {params.what:q} {output:q} 2>&1 | tee {log:q}"


rule weights:
    input:
        [str(path) for path in checkpoints.records(config, CELLS)],


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
        "{PYTHON:q} scripts/measure.py {input.plan:q} {output:q} {log:q}"


rule cells:
    input:
        expand(RESULT, cell=CELLS),
