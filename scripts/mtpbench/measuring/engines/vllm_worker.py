"""What the session asks of a vLLM worker, which may be another process; vLLM mixes this class into its worker."""

import torch


class Report:
    def mtpbench_accept(self, rates: list[float] | None) -> None:
        """Accept the k-th draft at rates[k], as `rejection_sample_method: synthetic` does from the start; None: as it should be."""
        from vllm.v1.spec_decode.utils import unconditional_to_conditional_rates

        sampler, runner = self.model_runner.rejection_sampler, self.model_runner
        sampler.synthetic_mode = rates is not None
        sampler.synthetic_conditional_rates = None if rates is None else torch.tensor(
            unconditional_to_conditional_rates(rates), dtype=torch.float32, device=runner.device
        )  # fmt: skip

    def mtpbench_report(self) -> dict:
        """{"attention": backend names, "threads", "model_runner", "peak_bytes": of torch's CUDA allocator, 0 on a CPU}."""
        runner = self.model_runner
        backends = {group.backend.get_name() for groups in runner.attn_groups for group in groups}
        return {
            "attention": sorted(backends),
            "threads": torch.get_num_threads(),
            "model_runner": f"{type(runner).__module__}.{type(runner).__name__}",
            "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        }
