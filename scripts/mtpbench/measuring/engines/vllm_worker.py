"""What the session asks of a vLLM worker, which may be another process; vLLM mixes this class into its worker."""

import torch


class Report:
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
