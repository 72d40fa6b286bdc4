from snakemake.utils import min_version

min_version("9.27.1")


report: "report/workflow.rst"


include: "rules/common.smk"
include: "rules/models.smk"
include: "rules/measure.smk"
include: "rules/tools.smk"
include: "rules/report.smk"


rule all:
    default_target: True
    input:
        rules.report.output,
        rules.tables.output,
        rules.exports.output,
