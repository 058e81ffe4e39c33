"""How a logged run is shared among GPUs: what the log says, and what follows from it."""

import math

from dsnb.results.logs.reading import LoggedRun


def derive(run: LoggedRun) -> None:
    """Derive GPUs, nodes, parallel sizes and batch sizes from each other; what nothing says stays unknown."""
    have = run.settings
    run.derive(nodes=len(run.slots), gpus=sum(run.slots.values()))
    if run.launchers > 1:  # one may be the only node whose output is in this file
        run.derive(nodes=run.launchers)
    run.derive(gpus=run.gpus_by_rates)
    if run.has_trainer_total and _shared_by(run) == 1:
        # transformers' Trainer prints micro-batch x accumulation x ranks as its total.
        run.derive(
            gpus=_divided(have["global_batch_size"], have["micro_batch_size"], have["grad_accum"])
        )
    _model_parallel_sizes(run)
    of_replica = _product(have["tensor_parallel"], have["pipeline_parallel"], _shared_by(run))
    replicas = _divided(have["global_batch_size"], have["micro_batch_size"], have["grad_accum"])
    run.derive(gpus=_product(replicas, of_replica))
    run.derive(gpus=_product(have["data_parallel"], of_replica))
    run.derive(data_parallel=_divided(have["gpus"], of_replica))
    micro = have["micro_batch_size"]
    ways = have["data_parallel"]
    run.derive(grad_accum=_divided(have["global_batch_size"], micro, ways))
    run.derive(global_batch_size=_product(micro, ways, have["grad_accum"]))


def _product(*sizes: int | None) -> int | None:
    """Return the product; None if a size is unknown."""
    if all(sizes):
        return math.prod(filter(None, sizes))
    return None


def _divided(whole: int | None, *sizes: int | None) -> int | None:
    """Return a size divided by others; None if one is unknown or there is a remainder."""
    parts = _product(*sizes)
    if whole and parts and whole % parts == 0:
        return whole // parts
    return None


def _shared_by(run: LoggedRun) -> int:
    """Return the number of ranks that share a sequence: 1 unless the log names such parallelism."""
    return math.prod(run.splits.values())


def _model_parallel_sizes(run: LoggedRun) -> None:
    """Derive tensor and pipeline parallelism from all GPUs and the data-parallel ranks.

    DeepSpeed's engine prints as its world size all ranks, or with a model-parallel unit the
    data-parallel ones. Such a unit shows itself: Megatron's arguments, a pipeline's topology, or
    sizes.
    """
    ranks = _ranks_of_replica(run)
    if ranks == 1 and not run.has_stages:
        run.derive(tensor_parallel=1, pipeline_parallel=1)
    run.derive(pipeline_parallel=_divided(ranks, run.settings["tensor_parallel"]))
    run.derive(tensor_parallel=_divided(ranks, run.settings["pipeline_parallel"]))


def _ranks_of_replica(run: LoggedRun) -> int | None:
    """Return the tensor- and pipeline-parallel GPUs of a replica of the model; None if unknown."""
    gpus = run.settings["gpus"]
    ways = run.settings["data_parallel"]
    if gpus == 1:
        return 1
    if gpus and ways:
        return _divided(gpus, ways, _shared_by(run))
    if run.has_engine_world and not run.is_megatron:
        return 1
    return None
