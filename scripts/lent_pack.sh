#!/usr/bin/env bash
# Packs envs/h200-site.txt (vLLM 0.21.0 and what it needs) for a machine that has Python 3.12 and torch and reaches no
# registry, in parts that fit a transfer.    usage: lent_pack.sh OUT_FOLDER [PART_SIZE]
# There: cat PARTS | xz -d -T0 | tar x -C /tmp   gives /tmp/site.
set -euo pipefail
out=${1:?usage: lent_pack.sh OUT_FOLDER [PART_SIZE]}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64 --platform any)
for tag in 39 35 34 31 28 27 26 24 17; do platforms+=(--platform "manylinux_2_${tag}_x86_64"); done  # pip matches each exactly
python3 -m pip install -q --no-deps --no-compile --only-binary=:all: --python-version 3.12 --implementation cp \
  --abi cp312 --abi abi3 --abi none "${platforms[@]}" --target "$work/site" -r "$(dirname "$0")/../envs/h200-site.txt"
# Large, and nothing of it is read: Gemma 4's attention runs on Triton, and no grammar or Mistral tokenizer is used.
rm -rf "$work"/site/{bin,pycountry/locales,xgrammar/lib/libxgrammar.a,mistral_common/data/*.json} \
  "$work"/site/vllm/{vllm_flash_attn/_vllm_fa2_C.abi3.so,third_party/deep_gemm/include}
find "$work/site" -name '*.so*' -type f -exec strip --strip-unneeded {} + 2>/dev/null || true  # symbols: a tenth of it all
mkdir -p "$out"
rm -f "$out"/site.txz.*
tar c -C "$work" site | xz -T0 -7 | split -b "${2:-52000000}" - "$out/site.txz."
ls -l "$out"
