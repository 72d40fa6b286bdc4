"""The checkpoints of hub models, fetched once for each place where they are measured.

OUTPUTS:
    metrics/weights/{backend}/{model}.json   files, sizes and hashes: in this machine's cache or in the Modal volume
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
