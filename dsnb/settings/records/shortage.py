"""A run that ran out of memory: what is known of it, and which settings would need less."""

import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.run_record import RunRecord

OF_OTHERS = (
    "lower the micro-batch (more accumulation keeps the global batch), recompute activations, or share the model "
    "states among more GPUs"
)
"""Advice on a program of which not all settings are known."""
ANYWHERE = {"hostfile": "", "include": "", "exclude": "", "nodes": 1}
"""Settings with which no rule about hosts applies."""


@dataclass(frozen=True)
class Shortage:
    """The settings and figures of a run that ran out of memory; figures are None if they are unknown."""

    experiment: Experiment
    phase: str = ""
    """Phase of the failed rank (see `failures.jsonl`); empty if unknown."""
    of_host: bool = False
    """Whether host memory ran out rather than GPU memory."""
    capacity_gib: float | None = None
    """Available memory: `memory_limit_gib`, that of the smallest GPU, or the host's."""
    allocated_gib: float | None = None
    """Memory allocated when an allocation failed."""
    requested_gib: float | None = None
    """Size of the allocation that failed."""

    @classmethod
    def of(
        cls, record: RunRecord, summary: Mapping[str, Any], exit_codes: Mapping[int, int]
    ) -> Self:
        """Return the shortage of a run with this summary.

        A rank that recorded where its memory ran out was not killed; the launcher kills its peers
        afterwards.
        """
        phase = summary.get("oom_phase")
        was_killed = phase is None and -signal.SIGKILL in exit_codes.values()
        of_host = record.experiment.device != "cuda" or was_killed
        gpus = record.environment.get("gpus", [])
        sizes = [gpu["memory_gib"] for gpu in gpus if gpu.get("memory_gib")]
        capacity_gib = min(sizes, default=None)
        if of_host:
            capacity_gib = record.environment.get("memory_gib")
        return cls(
            record.experiment,
            phase or "",
            of_host,
            record.experiment.memory_limit_gib or capacity_gib,
            summary.get("oom_allocated_gib"),
            summary.get("oom_requested_gib"),
        )

    def advice(self) -> list[str]:
        """Return changes that would save memory, one sentence each."""
        if None in vars(self.experiment).values():  # another program's, of which not all is known
            return [OF_OTHERS]
        return list(self._changes()) or ["use a smaller model, or a device with more memory"]

    def _changes(self) -> Iterator[str]:
        limit_gib = self.experiment.memory_limit_gib
        if limit_gib:
            yield f"raise memory_limit_gib ({limit_gib:g})"
        if self.of_host:
            yield "free memory on the machine, request more of it under Slurm, offload less, or start fewer ranks"
        # Model states peak while they are built and updated, activations in the other phases.
        in_states = self.of_host or self.phase in {"build", "optimizer"}
        if self.experiment.device != "cuda" or not in_states:
            yield from self._fewer_activations()
        if not self.of_host:
            yield from self._smaller_states()

    def _fewer_activations(self) -> Iterator[str]:
        s = self.experiment
        in_loss = s.loss == "whole" and self.phase in {"loss", "backward"}
        if in_loss and self._is_allowed(loss="chunked"):
            yield "set loss to chunked"
        size = s.micro_batch_size
        if isinstance(size, int) and size > 1:
            yield f"lower micro_batch_size ({size}); a higher grad_accum keeps the global batch"
        if s.checkpoint_every > 1:
            yield f"lower checkpoint_every ({s.checkpoint_every})"
        elif not s.activation_checkpointing and self._is_allowed(activation_checkpointing=True):
            yield "turn activation_checkpointing on"
        yield f"lower seq_len ({s.seq_len})"

    def _smaller_states(self) -> Iterator[str]:
        s = self.experiment
        ranks = s.data_parallel
        if ranks == 1:
            yield "use several GPUs with zero_stage 3: on one, there is nothing to share the model states with"
        elif s.shard_size:
            yield f"leave shard_size ({s.shard_size}) out: {ranks} ranks then share the model states"
        elif s.parallel_strategy.is_deepspeed:
            for stage in range(3, s.zero_stage, -1):
                if self._is_allowed(zero_stage=stage):
                    yield f"raise zero_stage ({s.zero_stage}) to {stage}: {ranks} ranks then share the model states"
                    break
        stage = max(s.zero_stage, 1)
        if s.offload == "none" and self._is_allowed(zero_stage=stage, offload="optimizer-cpu"):
            yield f"move the optimizer states to host memory (zero_stage {stage}, offload optimizer-cpu)"
        if s.offload == "optimizer-cpu" and self._is_allowed(zero_stage=3, offload="all-cpu"):
            yield "move the weights to host memory too (zero_stage 3, offload all-cpu)"

    def _is_allowed(self, **change: Any) -> bool:
        """Return whether a change breaks no rule, except rules about hosts."""
        before = self.experiment.model_copy(update=ANYWHERE)
        after = before.model_copy(update=change)
        return set(checks.contradictions(after)) <= set(checks.contradictions(before))
