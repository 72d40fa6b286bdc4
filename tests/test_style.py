"""Snakemake's own linter and formatter, and what a reader of the repository would trip over."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The one place where exceptions to the linter are justified.
JUSTIFIED = {
    "Specify a conda environment or container for each rule.": "one locked venv runs the pipeline (envs/pipeline.txt), and "
    "each engine gets its own from its lock, here as on Modal; a conda file beside them would be a second, untested truth",
    "Shell command directly uses variable PYTHON from outside of the rule": "the interpreter that runs Snakemake; as a param "
    "its path would be a trigger, and every rule would run again in another clone",
    "No log directive defined": "rules that only print to the terminal, or only ask for files",
}


def run(*words: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True)


def test_the_linter_finds_nothing_that_is_not_justified():
    done = run("snakemake", "--lint")
    found = set(re.findall(r"^    \* (.+?):?$", done.stdout + done.stderr, re.MULTILINE))
    assert found, "the linter said nothing at all, so this test would pass on anything"
    assert found <= set(JUSTIFIED), found - set(JUSTIFIED)


def test_the_rules_are_formatted():
    done = run("snakefmt", "--check", "Snakefile", "rules")
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_path_of_one_machine_and_no_unfinished_spot_is_tracked():
    pattern = "|".join(["/wo" + "rk/", "/ro" + "ot/", "/opt/wh" + "eels", "TO" + "DO", "FIX" + "ME"])
    listed = subprocess.run(
        ["git", "grep", "-nIE", pattern, "--", ":!metrics/runs", ":!scripts/training/answers", ":!prompts"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert listed.stdout == ""
