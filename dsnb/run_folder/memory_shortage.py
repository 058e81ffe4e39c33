"""What an out-of-memory run lacked, and which changes of its settings address that.

The advice follows the phase: activations peak in the forward and backward passes, model states in the build and the
optimizer step. A change that the other settings rule out is not proposed.
"""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dsnb.run_folder import record_schema
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment

STATE_PHASES = {"build", "optimizer"}
"""Phases that allocate weights, gradients or optimizer states; all others allocate activations too."""
Proposal = tuple[dict[str, Any], str]
"""Settings to change, and the change in words."""


@dataclass(frozen=True)
class Shortage:
    """The settings and figures of a run that ran out of memory; figures are None if they are unknown."""

    settings: dict[str, Any]
    phase: str = ""
    """Phase of the failed rank (see `failures.jsonl`); empty if unknown."""
    of_host: bool = False
    """Whether the memory of the machine ran out, not that of a GPU."""
    capacity_gib: float | None = None
    """Memory that was there: `memory_limit_gib`, that of the smallest GPU, or the machine's."""
    allocated_gib: float | None = None
    """Memory allocated when an allocation failed."""
    requested_gib: float | None = None
    """Size of the allocation that failed."""

    @classmethod
    def of(cls, run: RunPaths, summary: Mapping[str, Any], exit_codes: Mapping[int, int]) -> Self:
        """Return the shortage of a run from its records and its result."""
        settings = Experiment.recorded(record_schema.read(run.experiment) or {}).model_dump()
        machine = record_schema.read(run.environment) or {}
        of_host = settings["device"] != "cuda" or -signal.SIGKILL in exit_codes.values()
        memory = [gpu["memory_gib"] for gpu in machine.get("gpus") or [] if gpu.get("memory_gib")]
        at_hand = machine.get("memory_gib") if of_host else min(memory, default=None)
        return cls(
            settings,
            summary.get("oom_phase") or "",
            of_host,
            settings["memory_limit_gib"] or at_hand,
            summary.get("oom_allocated_gib"),
            summary.get("oom_requested_gib"),
        )

    def advice(self) -> list[str]:
        """Return what could be changed, one sentence each."""
        texts = [text for change, text in self._proposals() if self._is_allowed(change)]
        return texts or ["use a smaller model, or a device with more memory"]

    def _is_allowed(self, change: dict[str, Any]) -> bool:
        """Return whether a change breaks no rule; whether the hosts of the run can be reached does not matter."""
        before = {**self.settings, "hostfile": "", "include": "", "exclude": "", "nodes": 1}
        return set(checks.contradictions({**before, **change})) <= set(checks.contradictions(before))

    def _proposals(self) -> Iterator[Proposal]:
        s = self.settings
        if limit_gib := s["memory_limit_gib"]:
            yield {}, f"raise memory_limit_gib ({limit_gib:g})"
        if not self.of_host:
            if self.phase not in STATE_PHASES:
                yield from self._fewer_activations()
            yield from self._smaller_states()
            return
        if s["device"] != "cuda":
            yield from self._fewer_activations()
        elif s["offload"] != "none":
            yield {}, f"offload less, or to NVMe (offload is {s['offload']})"
        if not limit_gib:
            yield {}, "free memory on the machine, or request more of it under Slurm"
        if s["gpus"] > 1:
            yield {}, f"start fewer ranks on one machine (gpus is {s['gpus']})"

    def _fewer_activations(self) -> Iterator[Proposal]:
        s = self.settings
        size = s["micro_batch_size"]
        if s["loss"] == "whole" and self.phase in {"loss", "backward"}:
            yield {"loss": "chunked"}, "set loss to chunked"
        if isinstance(size, int) and size > 1:
            yield {}, f"lower micro_batch_size ({size}); a higher grad_accum keeps the global batch"
        if not s["activation_checkpointing"]:
            yield {"activation_checkpointing": True}, "turn activation_checkpointing on"
        elif s["checkpoint_every"] > 1:
            yield {}, f"lower checkpoint_every ({s['checkpoint_every']})"
        yield {}, f"lower seq_len ({s['seq_len']})"

    def _smaller_states(self) -> Iterator[Proposal]:
        s = self.settings
        ranks = s["gpus"] // (s["tensor_parallel"] * s["pipeline_parallel"])
        if s["strategy"] == "deepspeed" and ranks > 1:
            stages = (stage for stage in range(3, s["zero_stage"], -1) if self._is_allowed({"zero_stage": stage}))
            if stage := next(stages, None):
                yield {}, f"raise zero_stage ({s['zero_stage']}) to {stage}: {ranks} ranks then share the model states"
        if s["offload"] == "none":
            stage = max(s["zero_stage"], 1)
            moved = f"move the optimizer states to host memory (zero_stage {stage}, offload optimizer-cpu)"
            yield {"zero_stage": stage, "offload": "optimizer-cpu"}, moved
        elif s["offload"] == "optimizer-cpu":
            moved = "move the weights to host memory too (zero_stage 3, offload all-cpu)"
            yield {"zero_stage": 3, "offload": "all-cpu"}, moved
        if ranks == 1:
            yield {}, "use several GPUs with zero_stage 3: on one, there is nothing to share the model states with"
