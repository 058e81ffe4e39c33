"""Other estimates of the measured peaks: DeepSpeed's estimators of model states, and 16 bytes a parameter.

Both leave out activations; this says how far they are from the peaks that their users ask for.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dsnb.base.system.hardware import GIB
from dsnb.prediction.accuracy import ALL, kind
from dsnb.prediction.traces import MemoryTrace
from dsnb.settings.experiment import Experiment

Estimate = Callable[[Experiment, MemoryTrace], float | None]
HEADER = ("kind", "settings", "dsnb", "DeepSpeed's estimator", "16 bytes a parameter")


@dataclass(frozen=True)
class Peak:
    """A measured run and its prediction, in GiB."""

    experiment: Experiment
    predicted_gib: float
    allocated_gib: float

    @property
    def error_pct(self) -> float:
        """The error of the predicted peak in per cent."""
        return 100 * (self.predicted_gib / self.allocated_gib - 1)


def deepspeed_gib(experiment: Experiment, trace: MemoryTrace) -> float | None:
    """Return what DeepSpeed's estimator of the stage says of a GPU; None for stage 0 and LoRA, which have none."""
    if experiment.strategy != "deepspeed" or experiment.zero_stage == 0 or experiment.lora_rank:
        return None
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs  # takes seconds
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    how = {"num_gpus_per_node": experiment.gpus, "cpu_offload": experiment.offload != "none"}
    parameters = int(trace.parameters)
    if experiment.zero_stage < 3:
        return float(estimate_zero2_model_states_mem_needs(parameters, **how)[1]) / GIB
    everything = experiment.offload.startswith("all")
    needs = estimate_zero3_model_states_mem_needs(
        parameters, int(trace.largest), cpu_offload_params=everything, **how
    )
    return float(needs[1]) / GIB


def sixteen_bytes_gib(experiment: Experiment, trace: MemoryTrace) -> float | None:
    """Return 16 bytes a trained parameter and 2 a frozen one, divided as the ZeRO paper does; None for offload."""
    if experiment.offload != "none":
        return None
    stage = 3 if experiment.strategy == "fsdp" else experiment.zero_stage
    replicated = {0: 16, 1: 4, 2: 2, 3: 0}[stage]
    per_parameter = (replicated + (16 - replicated) / experiment.data_parallel) * trace.trainable
    split = experiment.tensor_parallel * experiment.pipeline_parallel
    return (per_parameter + 2 * (trace.parameters - trace.trainable)) / split / GIB


def lines(peaks: Sequence[Peak], traces: Sequence[MemoryTrace]) -> list[str]:
    """Return the table of docs/explanation/prediction_memory.md: mean and worst error of each in per cent, by kind."""
    rows = list(zip(peaks, traces, strict=True))
    kinds = sorted({kind(peak.experiment) for peak in peaks})
    groups = {name: [row for row in rows if kind(row[0].experiment) == name] for name in kinds} | {
        ALL: rows
    }
    table = [f"| {' | '.join(HEADER)} |", "|---|---|---|---|---|"]
    for name, group in groups.items():
        ours = [abs(peak.error_pct) for peak, _ in group]
        others = [_errors(group, estimate) for estimate in (deepspeed_gib, sixteen_bytes_gib)]
        cells = [name, str(len(group)), *(_cell(errors) for errors in (ours, *others))]
        table.append(f"| {' | '.join(cells)} |")
    return table


def _errors(rows: Sequence[tuple[Peak, MemoryTrace]], estimate: Estimate) -> list[float]:
    estimates = [(peak, estimate(peak.experiment, trace)) for peak, trace in rows]
    return [abs(100 * (gib / peak.allocated_gib - 1)) for peak, gib in estimates if gib is not None]


def _cell(errors: Sequence[float]) -> str:
    """Return mean and worst error, and of how many settings."""
    if not errors:
        return ""
    return f"{sum(errors) / len(errors):.1f}, worst {max(errors):.1f} ({len(errors)})"
