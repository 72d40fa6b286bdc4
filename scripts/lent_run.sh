#!/usr/bin/env bash
# On the lent machine, from the project's folder: run COMMAND for at most SECONDS and leave results and log in $OUT.
#   usage: lent_run.sh SECONDS COMMAND...
# The tree is laid out anew for each call, so what was measured is kept outside of it and put back first: it is lost
# neither between two calls nor when the files of one call do not arrive. The figures are printed for the same reason.
set -uo pipefail
seconds=${1:?} kept=/tmp/mtpbench-kept
shift
mkdir -p "$kept" metrics "${OUT:=/tmp/out}"
cp -r "$kept"/. metrics/  # over what the tree brought: it is newer
keep() {
  for folder in runs sessions anatomy; do [ -d "metrics/$folder" ] && cp -r "metrics/$folder" "$kept/"; done
  tar cJf "$OUT/results.tar.xz" -C "$kept" .
}
trap keep EXIT
# TERM lets the command end its engines; the limit is for one that hangs.
timeout -k 10 -s TERM "$seconds" "$@" > "$OUT/run.log" 2>&1
echo "exit $? after $SECONDS s"
grep -E '^\[mtpbench\] ([0-9]+ of|time|FAILED|weights|anatomy)|^error' "$OUT/run.log" || tail -n 25 "$OUT/run.log"
python3 - <<'PYTHON'
import json
from pathlib import Path

for path in sorted(Path("metrics/runs").glob("h200*/result.json")):
    summary = json.loads(path.read_text())["summary"]
    for load in summary["loads"]:
        steps = [round(load["arms"][arm]["step_ms"]["p50"], 3) for arm in ("control", "test")]
        ratio = [round(value, 4) for key in ("ratio", "low", "high") if (value := (load["speedup"] or {}).get(key)) is not None]
        print(path.parent.name, load["concurrency"], *steps, ratio, "valid" if summary["valid"] else summary["reasons"])
PYTHON
