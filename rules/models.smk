"""The small pair that the CPU cells measure, trained from scratch.

OUTPUTS:
    build/pair/     target/, drafter/, README.md and training.json, as in models/small

It is never written over the shipped one, which results answer for: compare the cards, then move it by hand.
"""


rule pair:
    input:
        code=sorted(map(str, Path("scripts/training").glob("*.py"))),
        answers=sorted(map(str, Path("scripts/training/answers").glob("*.md"))),
        prompts=sorted(set(config["prompts"].values())),
    output:
        directory("build/pair"),
    log:
        "logs/pair.log",
    threads: 1024
    message:
        "Training the pair; some 15 minutes on two idle cores; follow it in {log}"
    shell:
        "{PYTHON:q} scripts/in_environment.py transformers scripts/train_pair.py --out {output:q} 2>&1 | tee {log:q}"
