"""From the results to what people read; here are the names of what is made, for the pages and for Snakemake's rules."""

PLOTS = {
    "speedup": "Speed-up of every comparison, with 95 % interval and noise floor",
    "acceptance_speedup": "Speed-up against acceptance length, with the break-even line",
    "acceptance_position": "Share of steps whose draft was accepted up to each position, at each cell's first load",
    "step_times": "Step times of both arms",
    "roofline": "Use of memory bandwidth and arithmetic, normalised to each device's peaks",
    "cost": "Cost against speed; an arrow leads from control to test",
    "curves": "Step time by draft length, and break-even length by concurrency",
    "predicted": "Speed-up predicted from the step times of other cells that draft alike, against the observed",
}
# Tables with a page of their own, for Snakemake's report.
STANDALONE = ("answer", "headline", "acceptance", "latency", "hardware", "cost", "curves", "losslessness", "invalid", "gaps")
