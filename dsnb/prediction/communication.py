"""What one rank sends in an optimizer step, by kind of collective, and over which connection it goes.

Bytes are those that leave a rank: 2 (n - 1) / n of a message for an all-reduce of n ranks, (n - 1) / n for a
reduce-scatter or an all-gather (Patarasuk and Yuan 2009; NVIDIA's nccl-tests, doc/PERFORMANCE.md).
"""

from dsnb.errors import SettingsError
from dsnb.prediction.gpus import GpuSpec, Link
from dsnb.prediction.work import LINEAR_LAYERS, Mode, gathering_passes, recomputed_share, shape, trained_parameters
from dsnb.settings.experiment import Experiment

GRADIENT_BUCKET = 25 * 2**20 / 4
"""DDP's gradients in a message (torch's default, 25 MiB of fp32)."""
ZERO_BUCKET = 5e8
"""Elements in a message of ZeRO (DeepSpeed's default)."""
POWERSGD_SHARE = 1.4
"""Numbers in PowerSGD's factors of rank 1 over hidden size, for each number of hidden size squared."""


def traffic(experiment: Experiment) -> dict[str, float]:
    """Return what one rank sends in an optimizer step of an experiment, as `step_time.Setting` names it.

    Tensor parallelism has two all-reduces a block and pass (Shoeybi et al. 2019, arXiv:1909.08053). DeepSpeed's layers
    reduce the gradient of each input, also where OPT's queries, keys and values have the same one. A pipeline's stage
    sends activations to the next one, and their gradients to the one before.
    """
    sent = _data_parallel(experiment) | _offload(experiment)
    model, ranks = shape(experiment.model), experiment.tensor_parallel
    hidden_states = int(experiment.micro_batch_size) * experiment.seq_len * model.hidden * Mode.of(experiment).width
    if ranks > 1:
        each = LINEAR_LAYERS.get(model.family, 4) + 2 * recomputed_share(experiment)
        times = experiment.grad_accum * each * model.layers / experiment.pipeline_parallel
        sent |= {"tensor_all_reduce": times * hidden_states * 2 * (ranks - 1) / ranks, "tensor_messages": times}
    if experiment.pipeline_parallel > 1:
        count = 2 * experiment.grad_accum
        sent |= {"point_to_point": count * hidden_states, "pipeline_messages": count}
    return sent


def routes(experiment: Experiment, gpu: GpuSpec, link: Link) -> dict[str, float]:
    """Return the bandwidths of an experiment's groups; tensor-parallel ranks are neighbours, then data-parallel ones.

    A ring over several nodes enters and leaves each node once, so its members on a node add up their network.
    """
    nodes = link.nodes(experiment)
    if nodes > 1 and not link.network_gb_per_s:
        raise SettingsError(
            f"gpus is {experiment.gpus}, on {nodes} nodes: say how these are connected, such as ib:400 (Gbit/s a GPU)"
        )
    node_gpus = max(1, experiment.gpus // nodes)
    split, replicas = experiment.tensor_parallel, experiment.data_parallel

    def route(name: str, members: int, stride: int) -> dict[str, float]:
        own = max(1, min(members, node_gpus // stride)) if stride < node_gpus else 1
        inside = link.inside_gb_per_s(gpu, own, node_gpus) * 1e9
        network = link.network_gb_per_s * own * 1e9 if own < members else 0.0
        return {f"{name}_inside": inside, f"{name}_network": network}

    is_within = split * replicas * experiment.pipeline_parallel <= node_gpus
    return {
        **route("data", replicas, split),
        **route("tensor", split, 1),
        "pipeline_inside": link.inside_gb_per_s(gpu, 2, node_gpus) * 1e9,
        "pipeline_network": 0.0 if is_within else link.network_gb_per_s * 1e9,
        "host_link": gpu.pcie_gb_per_s * 1e9,
    }


def _data_parallel(experiment: Experiment) -> dict[str, float]:
    ranks, count = experiment.data_parallel, experiment.grad_accum
    if ranks == 1 or experiment.strategy == "plain":
        return {}
    model, once = shape(experiment.model), (ranks - 1) / ranks
    own = experiment.tensor_parallel * experiment.pipeline_parallel
    trained, everything = trained_parameters(experiment) / own, model.parameters / own
    weight, gradient = _widths(experiment)
    if experiment.strategy == "fsdp":
        return {
            "all_gather": 2 * count * everything * weight * once,
            "reduce_scatter": trained * gradient * once,  # only with the last micro-batch
            "data_messages": (2 * count + 1) * model.layers,
            "reduction_overlaps": 1.0,
            "gather_overlaps": 1.0,
        }
    if experiment.strategy == "ddp":
        return {
            "all_reduce": trained * gradient * 2 * once,
            "data_messages": trained / (experiment.bucket_elements or GRADIENT_BUCKET) + 1,
            "reduction_overlaps": 1.0,
        }
    if experiment.zero_stage == 3:
        return _zero_3(experiment, trained * once, everything * once)
    # DeepSpeed 0.19.8, engine.allreduce_gradients and zero/stage_1_and_2.average_tensor: ZeRO 0 and 1 reduce at the
    # last micro-batch, ZeRO 2 at each. ZeRO 1 and 2 all-reduce whole buckets (`use_multi_rank_bucket_allreduce`, on by
    # default) where the paper has a reduce-scatter of half the bytes.
    stage, reductions = experiment.zero_stage, count if experiment.zero_stage == 2 else 1
    messages = trained / (experiment.bucket_elements or ZERO_BUCKET) + 1
    return {
        "all_reduce": reductions * trained * gradient * 2 * once,
        "all_gather": trained * weight * once if stage else 0.0,
        "data_messages": (reductions + (stage > 0)) * messages,
        "reduction_overlaps": float(stage in {1, 2} and experiment.overlap_comm == "on"),
    }


def _zero_3(experiment: Experiment, reduced: float, gathered: float) -> dict[str, float]:
    """Return what ZeRO 3 sends: weights for each pass, unless they are kept, and gradients with each micro-batch."""
    weight, gradient = _widths(experiment)
    count, passes = experiment.grad_accum, gathering_passes(experiment)
    sent = 1.0 if experiment.zeropp in {"weights", "all"} else weight
    to_all = experiment.zeropp in {"gradients", "all"}
    return {
        "all_gather": passes * count * gathered * sent,
        "reduce_scatter": 0.0 if to_all else reduced * count * gradient,
        # 4 bits, inside nodes and between them (Wang et al. 2023)
        "all_to_all": reduced * count * 0.5 * 2 if to_all else 0.0,
        "data_messages": (passes + 1) * count * shape(experiment.model).layers * 2,
        "reduction_overlaps": float(experiment.overlap_comm != "off"),
        "gather_overlaps": 1.0,
    }


def _widths(experiment: Experiment) -> tuple[float, float]:
    """Return the bytes of a weight as it is gathered and of a gradient as it is sent (explanation/fairness.md)."""
    mode = Mode.of(experiment)
    if experiment.strategy == "ddp":
        factors = {"bf16": 2.0, "powersgd": 4 * POWERSGD_SHARE * experiment.powersgd_rank}
        sent = factors.get(experiment.gradient_compression or "none", float(mode.width if experiment.lora_rank else 4))
        if experiment.gradient_compression == "powersgd":
            sent /= shape(experiment.model).hidden
        return 4.0, sent
    if experiment.strategy == "fsdp":
        return float(2 if experiment.precision == "bf16" and not mode.autocast else 4), 4.0
    half_linear = mode.autocast and experiment.zero_stage > 0 and shape(experiment.model).family != "gpt2"
    return float(mode.stream_width), 2.0 if half_linear else float(mode.stream_width)


def _offload(experiment: Experiment) -> dict[str, float]:
    """Return traffic to host memory: gradients down and weights up, with `all` also the weights of each pass."""
    what = (experiment.offload or "none").partition("-")[0]
    if what == "none":
        return {}
    own = trained_parameters(experiment) / experiment.gpus
    weight, gradient = _widths(experiment)
    downs = experiment.grad_accum if experiment.zero_stage >= 2 else 1
    moved = own * (downs * gradient + weight)
    if what == "all":
        moved += 2 * experiment.grad_accum * own * weight
    return {"to_host": moved, "cpu_parameters": own}
