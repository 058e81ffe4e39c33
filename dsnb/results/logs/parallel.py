"""How a logged run is shared among GPUs: what the log says, and what follows from it."""

import math

from dsnb.results.logs.reading import DERIVED, LoggedRun


def derive(run: LoggedRun) -> None:
    """Derive GPUs, nodes, parallel sizes and batch sizes from each other; what nothing says stays unknown."""
    have = run.settings
    if run.slots:
        _set(run, nodes=len(run.slots), gpus=sum(run.slots.values()) or None)
    launchers = run.scratch.get("launchers", 0)
    _set(
        run, nodes=launchers if launchers > 1 else None
    )  # one may be the only node whose output is in this file
    _set(run, gpus=run.scratch.get("gpus_by_rates"))
    _set(run, gpus=_by_trainer(run))
    _model_parallel_sizes(run)
    sizes = have.get("tensor_parallel"), have.get("pipeline_parallel")
    model_parallel = sizes[0] * sizes[1] * _shared_by(run) if sizes[0] and sizes[1] else None
    micro, accum, batch = (
        have.get(name) for name in ("micro_batch_size", "grad_accum", "global_batch_size")
    )
    if model_parallel and micro and accum and batch and batch % (micro * accum) == 0:
        _set(run, gpus=batch // (micro * accum) * model_parallel)
    if model_parallel and have.get("data_parallel"):
        _set(run, gpus=have["data_parallel"] * model_parallel)
    gpus = have.get("gpus")
    if model_parallel and gpus and gpus % model_parallel == 0:
        _set(run, data_parallel=gpus // model_parallel)
    ways = have.get("data_parallel")
    if micro and ways and batch and batch % (micro * ways) == 0:
        _set(run, grad_accum=batch // (micro * ways))
    if micro and ways and have.get("grad_accum"):
        _set(run, global_batch_size=micro * ways * have["grad_accum"])


def _by_trainer(run: LoggedRun) -> int | None:
    """Return the ranks of transformers' Trainer, which prints micro-batch x accumulation x ranks as its total."""
    have = run.settings
    per_rank = have.get("micro_batch_size", 0) * have.get("grad_accum", 0)
    total = have.get("global_batch_size", 0)
    is_known = (
        run.scratch.get("trainer_total")
        and per_rank
        and total % per_rank == 0
        and _shared_by(run) == 1
    )
    return total // per_rank if is_known else None


def _shared_by(run: LoggedRun) -> int:
    """Return the number of ranks that share a sequence: 1 unless the log names such parallelism."""
    return math.prod(run.splits.values())


def _model_parallel_sizes(run: LoggedRun) -> None:
    """Derive tensor and pipeline parallelism from all GPUs and the data-parallel ranks.

    DeepSpeed's engine prints as its world size all ranks, or with a model-parallel unit the data-parallel ones. Such a
    unit shows itself: Megatron's arguments, a pipeline's topology, or sizes.
    """
    have = run.settings
    ranks = _ranks_of_replica(run)
    if ranks == 1 and not run.scratch.get("stages"):
        _set(run, tensor_parallel=1, pipeline_parallel=1)
    if ranks and have.get("tensor_parallel") and ranks % have["tensor_parallel"] == 0:
        _set(run, pipeline_parallel=ranks // have["tensor_parallel"])
    if ranks and have.get("pipeline_parallel") and ranks % have["pipeline_parallel"] == 0:
        _set(run, tensor_parallel=ranks // have["pipeline_parallel"])


def _ranks_of_replica(run: LoggedRun) -> int | None:
    """Return the tensor- and pipeline-parallel GPUs of a replica of the model; None if unknown."""
    gpus, ways = run.settings.get("gpus"), run.settings.get("data_parallel")
    if gpus == 1:
        return 1
    if gpus and ways:
        groups = ways * _shared_by(run)
        return int(gpus // groups) if gpus % groups == 0 else None
    return 1 if run.scratch.get("engine_world") and not run.is_megatron else None


def _set(run: LoggedRun, **settings: int | None) -> None:
    for name, value in settings.items():
        if value and name not in run.settings:
            run.settings[name] = value
            run.provenance[name] = DERIVED
