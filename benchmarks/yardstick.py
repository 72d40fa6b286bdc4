"""Does our clock agree with the engine timed alone? One run, both on the same weights and prompts, in turn.

    .venv/bin/python benchmarks/yardstick.py [cpu_transformers_code_mtp ...] [--rounds 5] [--prompts 12] [--tokens 48]

Ours is the measuring program's engine, whose records hold a time for each step. The yardstick is what a user would time with
a watch: `model.generate` of transformers, or `LLM.generate` of vLLM, called on models loaded apart from ours. Compared are ids a
second from submission to the last id, and, where each answer's first output is one id, the decode rate, which the yardstick
gets from a second call for one id alone. Prints the median ratio of pairs (ours over theirs); status 1 where one is
more than 2 % from 1.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
WITHIN = 0.02


def main() -> None:
    """In the pipeline's environment: start the comparison of each cell in its engine's environment, and judge."""
    from mtpbench import config as configuration
    from mtpbench import environment, spec
    from mtpbench.backends import local

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", nargs="*", default=[f"cpu_{engine}_code_{mode}" for engine in ("transformers", "vllm") for mode in ("baseline", "mtp")])
    for name, default in {"--rounds": 5, "--prompts": 12, "--tokens": 48}.items():
        parser.add_argument(name, type=int, default=default)
    arguments = parser.parse_args()
    os.chdir(ROOT)
    specs, failed = spec.Specs(configuration.load()), False
    for cell in arguments.cells:
        plan = specs.plan(cell)
        python = environment.ensure(plan["how"]["engine"], [Path(file) for file in plan["how"]["requirements"]])
        paths = {part: str(Path(plan["how"]["model"][part]["path"]).resolve()) for part in ("target", "drafter")}
        request = {**plan, "paths": paths, "prompts": plan["prompts"][: arguments.prompts], "rounds": arguments.rounds, "tokens": arguments.tokens}
        with local.device_alone("cpu", print):  # no measurement of a cell runs beside it
            done = subprocess.run([python, __file__, "inside"], input=json.dumps(request), stdout=subprocess.PIPE, text=True, check=True,
                                  env={**os.environ, "PYTHONPATH": str(ROOT / "scripts")})  # fmt: skip
        for what, pairs in json.loads(done.stdout.splitlines()[-1]).items():
            low, median, high = statistics.quantiles(pairs, n=4)
            off = abs(median - 1) > WITHIN
            failed |= off
            print(f"{cell}: {what}: ours / theirs {median:.4f} (quartiles {low:.4f} to {high:.4f}, {len(pairs)} pairs){' OFF' * off}", flush=True)
    sys.exit(failed)


def inside() -> None:
    """In the engine's environment: request on stdin, {quantity: [ours / theirs, one a pair]} as the last line of stdout."""
    request = json.load(sys.stdin)
    options = request["spec"]["engine"]["options"]
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", **options.pop("environment", {})})
    from mtpbench.measuring import engines

    tokens, mode = request["tokens"], request["spec"]["mode"]
    name = request["spec"]["engine"]["implementation"]
    engine = engines.implementation(name)(request, mode, None)
    alone = {"transformers": transformers_alone, "vllm": vllm_alone}[name](request, mode)
    prompts = [engine.encode(prompt["messages"]) for prompt in request["prompts"]]
    gc.freeze()
    pairs: dict[str, list[float]] = {"ids a second": [], "decode rate": []}
    for round_ in range(-1, request["rounds"]):  # round -1 warms up
        for number, prompt in enumerate(prompts):
            turns = [lambda: quietly(engine.run, [prompt], tokens, True)[1], lambda: (timed(alone, prompt, tokens), timed(alone, prompt, 1))]
            if (number + round_) % 2:
                (theirs, first), (record,) = turns[1](), turns[0]()
            else:
                (record,), (theirs, first) = turns[0](), turns[1]()
            if round_ >= 0:
                pairs["ids a second"].append(theirs / (record["times"][-1] - record["submit"]))
            if round_ >= 0 and record["counts"][0] == 1:
                pairs["decode rate"].append((theirs - first) / (record["times"][-1] - record["times"][0]))
    print(json.dumps({what: found for what, found in pairs.items() if len(found) == len(prompts) * request["rounds"]}))
    sys.stdout.flush()
    os._exit(0)


def quietly(function, *arguments) -> tuple:
    """Seconds of one call without the garbage collector, and what it returned."""
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    found = function(*arguments)
    seconds = time.perf_counter() - start
    gc.enable()
    return seconds, found


def timed(generate, prompt: list[int], tokens: int) -> float:
    """Seconds of one call that must give so many ids."""
    seconds, count = quietly(generate, prompt, tokens)
    assert count == tokens, f"{count} ids where {tokens} were asked for"
    return seconds


def transformers_alone(request: dict, mode: dict):
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    def load(part: str):
        model = AutoModelForCausalLM.from_pretrained(request["paths"][part], dtype=getattr(torch, request["spec"]["model"]["dtype"])).eval()
        model.generation_config = GenerationConfig(pad_token_id=model.generation_config.pad_token_id)
        return model

    target, arguments = load("target"), {}
    if mode["method"] == "mtp":
        arguments["assistant_model"] = drafter = load("drafter")
        drafter.generation_config.num_assistant_tokens = mode["num_speculative_tokens"]
        drafter.generation_config.num_assistant_tokens_schedule = "constant"
        drafter.generation_config.assistant_confidence_threshold = 0.0

    def generate(prompt: list[int], tokens: int) -> int:
        ids = torch.tensor([prompt])
        return target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **arguments).shape[1] - len(prompt)

    return generate


def vllm_alone(request: dict, mode: dict):
    from vllm import LLM, SamplingParams

    speculative = None if mode["method"] == "none" else {**mode, "model": request["paths"]["drafter"]}
    llm = LLM(model=request["paths"]["target"], dtype=request["spec"]["model"]["dtype"], enable_prefix_caching=False,
              kv_cache_memory_bytes=512 << 20, enforce_eager=True, speculative_config=speculative, **request["spec"]["engine"]["options"])  # fmt: skip

    def generate(prompt: list[int], tokens: int) -> int:
        parameters = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        (output,) = llm.generate({"prompt_token_ids": prompt}, parameters, use_tqdm=False)
        return len(output.outputs[0].token_ids)

    return generate


if __name__ == "__main__":
    if sys.argv[1:] == ["inside"]:
        inside()
    else:
        sys.path.insert(0, str(ROOT / "scripts"))
        main()
