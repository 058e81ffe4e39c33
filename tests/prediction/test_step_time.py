"""The parts of a step, bytes of communication, bandwidths by route; more resources never slow a step down.

`test_calibration` compares whole steps with measured ones: no part can change unnoticed there.
"""

from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus
from dsnb.prediction import step_time as module
from dsnb.prediction.gpus import link
from dsnb.prediction.step_time import (
    DEFAULT,
    Constants,
    StepCounts,
    count_step,
    parts,
    step_times,
)
from dsnb.settings.experiment import Experiment

IDEAL = Constants(**dict.fromkeys(vars(DEFAULT), 1.0))
IDEAL = replace(
    IDEAL, kernel_us=0, host_launch_us=0, host_parameter_us=0, host_gather_us=0, cpu_parameter_ns=0
)
"""Every nominal rate is reached, and nothing else takes time."""
ROUNDING_S = 1e-12
PSI = PRESETS["opt-1.3b"].parameters
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
MANY = 1000
"""Ranks, so that (n - 1) / n is nearly 1."""


def experiment(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 4, "seq_len": 1024, "device": "cuda"}
    return Experiment(**{**common, **settings})


def step_time(gpu="H200", path="nvlink", constants=DEFAULT, **settings):
    gpu = gpus.find(gpu) if isinstance(gpu, str) else gpu
    return parts(count_step(experiment(**settings), gpu, link(path)), constants)


def seconds(*where, **settings):
    return step_time(*where, **settings).step_time_s


def compute_and_communication_s(step):
    data = step.all_reduce_s + step.reduce_scatter_s + step.all_gather_s + step.all_to_all_s
    computing = step.matmul_s + step.attention_s + step.memory_bound_s
    return computing + data + step.tensor_all_reduce_s + step.point_to_point_s


VARIED = [
    {},
    {"strategy": "plain", "compile": "reduce-overhead", "model": "gpt2"},
    {"strategy": "ddp", "gpus": 2, "compile": "default", "model": "bloom-1b7"},
    {"strategy": "fsdp", "gpus": 8, "activation_checkpointing": True},
    {"zero_stage": 1, "gpus": 8, "grad_accum": 4, "offload": "optimizer-cpu", "model": "gpt2"},
    {"zero_stage": 3, "gpus": 4, "attention": "eager", "model": "bloom-1b7"},
    {"zero_stage": 1, "gpus": 4, "tensor_parallel": 2, "precision": "fp16"},
    {"zero_stage": 1, "gpus": 4, "pipeline_parallel": 2, "grad_accum": 8, "model": "gpt2"},
    {"lora_rank": 16, "precision": "fp32", "model": "bloom-1b7"},
]


def test_parts_by_hand():
    """A pipeline of two at ideal rates: products at 67 TFLOP/s, and the bubble of one micro-batch in eight."""
    found = step_time(constants=IDEAL, precision="fp32", pipeline_parallel=2, gpus=2, grad_accum=8)
    flops = 8 * 6 * 4096 * (12 * 12 * 2048**2 + 50272 * 2048)
    operands = 8 * 12 * 3 * (4096 * 2048 * 18 + 12 * 2048**2) * 4
    assert found.matmul_s == pytest.approx(flops / 67e12 + operands / 4.8e12)
    assert found.point_to_point_s == pytest.approx(16 * (20e-6 + 4096 * 2048 * 4 / 450e9))
    average = (12 * 12 * 2048**2 + 50272 * 2048 / 2) / (12 * 12 * 2048**2 + 50272 * 2048)
    assert found.pipeline_bubble_s == pytest.approx(
        compute_and_communication_s(found) / 8 * average
    )
    assert (found.host_s, found.offload_s, found.all_gather_s) == (0, 0, 0)
    assert module._waits(3.0, np.array([3.0, 0.0])) == pytest.approx(
        [3 * 2**0.2 - 3, 3]
    )  # in turn, and alone


def test_communication_is_hidden_for_as_long_as_both_passes_take():
    slow = replace(gpus.find("H200"), nvlink_gb_per_s=1.0)
    settings = {"strategy": "ddp", "gpus": 2}
    alone = step_time(slow, constants=replace(IDEAL, overlap=0.0), **settings)
    half = step_time(slow, constants=replace(IDEAL, overlap=0.001), **settings)
    beside = step_time(slow, constants=IDEAL, **settings)
    passes = alone.matmul_s + alone.attention_s + alone.memory_bound_s
    assert alone.all_reduce_s > 2 * passes
    assert half.all_reduce_s == pytest.approx(0.999 * alone.all_reduce_s)
    assert beside.all_reduce_s == pytest.approx(alone.all_reduce_s - passes)


def test_ranks_that_share_optimizer_states_share_its_step():
    """28 bytes of AdamW in fp32, 28 of checks for ZeRO 1, and of its buckets 16 on every rank."""
    for ranks in (1, 4):
        found = step_time(constants=IDEAL, precision="fp32", zero_stage=1, gpus=ranks)
        assert found.optimizer_s == pytest.approx(PSI * ((28 + 28) / ranks + 16) / 4.8e12)


def test_no_part_is_negative_and_they_sum_to_the_step_alone_or_among_many():
    chosen = [
        count_step(experiment(**settings), gpus.find("H200"), link("nvlink")) for settings in VARIED
    ]
    for settings, step_time_s in zip(
        VARIED, np.asarray(step_times(chosen).step_time_s), strict=True
    ):
        step = step_time(**settings)
        assert min(vars(step).values()) >= 0
        others = step.pipeline_bubble_s + step.optimizer_s + step.offload_s + step.host_s
        assert compute_and_communication_s(step) + others == pytest.approx(step.step_time_s)
        assert step_time_s == pytest.approx(step.step_time_s)


@pytest.mark.parametrize("settings", VARIED)
def test_more_resources_never_slow_a_step_down_and_more_work_never_takes_less(settings):
    gpu, base = gpus.find("H200"), seconds(**settings)
    for name in (
        "half_tflops",
        "fp32_tflops",
        "memory_gb_per_s",
        "nvlink_gb_per_s",
        "pcie_gb_per_s",
    ):
        better = replace(gpu, **{name: 1.5 * getattr(gpu, name)})
        assert seconds(better, **settings) <= base + ROUNDING_S
    if settings.get("strategy") != "plain":
        slow, fast = (
            seconds(path=path, **{**settings, "gpus": 16}) for path in ("ib:100", "ib:400")
        )
        assert fast <= slow + ROUNDING_S
    assert seconds(**{**settings, "micro_batch_size": 6}) >= base - ROUNDING_S
    assert (
        seconds(**{**settings, "seq_len": 1023})
        >= seconds(**{**settings, "seq_len": 512}) - ROUNDING_S
    )
    if settings.get("compile") != "reduce-overhead":
        assert (
            seconds(**{**settings, "grad_accum": 2 * settings.get("grad_accum", 1)})
            >= base - ROUNDING_S
        )


def traffic(**settings):
    sent = module.traffic(experiment(**{"gpus": MANY, **settings}))
    return SimpleNamespace(**{**dict.fromkeys(KINDS, 0.0), **sent})


def routes(gpu, path, **settings):
    return SimpleNamespace(**module.routes(experiment(**settings), gpus.find(gpu), link(path)))


def test_volumes_of_the_zero_paper():
    """Rajbhandari et al. 2020, section 7: plain data parallelism 2 psi, partitioned weights 3 psi.

    Its reduce-scatter and all-gather of ZeRO 1 and 2 are 2 psi; DeepSpeed 0.19.8 all-reduces buckets by default: 3 psi.
    """
    nothing = {
        f"deepspeed.zero_optimization.stage3_max_{name}": 1
        for name in ("live_parameters", "reuse_distance")
    }
    for settings, reduced, gathered in (
        ({"zero_stage": 0}, 2, 0),
        ({"zero_stage": 1}, 2, 1),
        ({"zero_stage": 2}, 2, 1),
        ({"zero_stage": 3, **nothing}, 1, 2),
    ):
        sent = traffic(**settings)
        assert (sent.all_reduce + sent.reduce_scatter) / 2 / PSI == pytest.approx(reduced, rel=0.01)
        assert sent.all_gather / 2 / PSI == pytest.approx(gathered, rel=0.01)
    assert traffic(lora_rank=64).all_reduce == pytest.approx(
        2 * 2 * 24 * 64 * 18 * 2048, rel=0.01
    )  # adapters only
    assert not any(module.traffic(experiment(gpus=1, zero_stage=3)).values())


def test_accumulation_and_widths_of_compressed_gradients():
    once, eight = (traffic(strategy="fsdp", grad_accum=count) for count in (1, 8))
    assert (eight.all_gather, eight.reduce_scatter) == (
        8 * once.all_gather,
        8 * once.reduce_scatter,
    )
    assert eight.data_messages == 8 * once.data_messages
    a_step = traffic(strategy="fsdp", grad_accum=8, reduce_gradients="step")
    assert (a_step.all_gather, a_step.reduce_scatter) == (8 * once.all_gather, once.reduce_scatter)
    assert a_step.data_messages == (2 * 8 + 1) * 24
    whole, half, low_rank = (
        traffic(strategy="ddp", gradient_compression=name).all_reduce
        for name in ("none", "bf16", "powersgd")
    )
    assert half == whole / 2
    assert low_rank < half / 100
    one = experiment(zero_stage=3, gpus=MANY)
    full, quantized = (
        SimpleNamespace(**module.traffic(one.model_copy(update={"zeropp": what})))
        for what in ("none", "all")
    )
    assert (quantized.all_gather, quantized.reduce_scatter) == (
        full.all_gather / 2,
        0,
    )  # weights in one byte
    assert quantized.all_to_all == full.reduce_scatter / 2


def test_ranks_of_a_host_share_its_updates_and_its_links():
    """OPT-1.3B, everything offloaded, takes 1.55 s a step on one H100 with 16 cores and 1.49 s on four with 64."""
    each = {"zero_stage": 2, "offload": "optimizer-cpu", "model": "opt-1.3b"}
    found = [traffic(gpus=gpus, **each) for gpus in (1, 2, 8, 16)]
    assert [one.cpu_parameters / PSI for one in found] == [
        1,
        1,
        1,
        1 / 2,
    ]  # 16 ranks are on two hosts
    links = [routes("H200", "ib:400", gpus=gpus, **each).host_link for gpus in (1, 2, 4, 8)]
    assert [link / links[0] for link in links] == [1, 1, 1 / 2, 1 / 4]
    alone, shared = (step_time(gpus=gpus, **each).offload_s for gpus in (1, 8))
    assert shared == pytest.approx(alone, rel=0.25), (
        "an eighth of the parameters, and the same host"
    )


def test_offload_moves_gradients_down_and_weights_up():
    one, two, everything = (
        traffic(gpus=2, zero_stage=stage, offload=offload, grad_accum=2)
        for stage, offload in ((1, "optimizer-cpu"), (2, "optimizer-cpu"), (3, "all-cpu"))
    )
    assert one.to_host == PSI / 2 * (4 + 2)  # in fp32, once a step
    assert two.to_host == PSI / 2 * (4 + 3 * 2 + 2)  # down, up to be added to, and down again
    assert everything.to_host == PSI / 2 * (
        3 * 4 + 2 * 2 * 2
    )  # gradients in fp32; weights for two passes, twice
    weights_on_gpu = traffic(gpus=2, zero_stage=3, offload="optimizer-cpu", precision="bf16")
    assert weights_on_gpu.to_host == PSI / 2 * (2 + 2)
    assert weights_on_gpu.cpu_parameters == PSI * (
        1 + 12 / 28
    )  # casts read and write 12 bytes, updates 28


def test_routes_inside_a_node_and_between_nodes():
    def data(path, **settings):
        found = routes("H100", path, **settings)
        return found.data_inside, found.data_network

    assert data("ib:400", gpus=8) == (450e9, 0)
    assert data("ib:400", gpus=16) == (450e9, 8 * 50e9)  # a ring uses all adapters of a node
    assert data("ib:100/node", gpus=16) == (450e9, pytest.approx(12.5e9))
    split = routes("H100", "ib:400", gpus=16, tensor_parallel=8)
    assert (split.data_network, split.tensor_network) == (50e9, 0)
    stages = routes("H100", "ib:400", gpus=16, pipeline_parallel=2, grad_accum=2)
    assert (stages.data_network, stages.pipeline_network) == (0, 50e9)
    # Pairs share links without a switch: two of four V100 have two of the six links; all four have all of them.
    four = {"gpus": 4, "precision": "fp16", "model": "gpt-1.3b"}
    assert routes("V100", "nvlink", **four, tensor_parallel=2).tensor_inside == pytest.approx(50e9)
    two = routes("V100", "nvlink", **{**four, "gpus": 2}, tensor_parallel=2)
    assert two.tensor_inside == 150e9
    assert routes("V100", "nvlink", **{**four, "gpus": 1}).data_inside == 150e9  # nobody to send to
    assert routes("V100", "nvlink", **four).data_inside == 150e9
    assert routes("V100", "pcie", **four).data_inside == module.STEP.pcie_share * 16e9
    unlinked = routes("L40S", "nvlink", gpus=4)  # it has no NVLink
    assert unlinked.data_inside == pytest.approx(module.STEP.pcie_share * 32e9)


def test_shards_stay_in_a_node_and_each_of_its_gpus_averages_its_own():
    """Two nodes of eight: all of a node share its links, and each GPU has its own adapter to its copy."""
    within = routes("H100", "ib:400", strategy="fsdp", gpus=16, shard_size=8)
    assert (within.data_inside, within.data_network) == (450e9, 0)
    assert within.replica_network == 50e9
    across = routes("H100", "ib:400", strategy="fsdp", gpus=32, shard_size=16)
    assert (across.data_network, across.replica_network) == (8 * 50e9, 50e9)
    inside = routes("H100", "nvlink", strategy="fsdp", gpus=8, shard_size=2)
    assert (inside.replica_inside, inside.replica_network) == (450e9, 0)
    split = routes("H100", "ib:400", strategy="fsdp", gpus=16, tensor_parallel=2, shard_size=4)
    assert (split.data_network, split.replica_network) == (0, 50e9)


def test_shards_within_nodes_are_faster_on_a_slow_network(monkeypatch):
    """400 GB/s inside, 5 between: all gathers and reductions cross, or an eighth of the gradients do.

    A message that crosses takes two hops of 20 µs, in a ring of two nodes or in a tree.
    """
    monkeypatch.setattr(module.STEP, "network_overlap", 0.0)
    settings = {"strategy": "fsdp", "gpus": 16, "precision": "bf16"}

    def sent_s(**more):
        counts = count_step(experiment(**settings, **more), gpus.find("H100"), link("ib:40"))
        found = parts(counts, replace(IDEAL, overlap=0.0))
        return found.all_gather_s + found.reduce_scatter_s, found.all_reduce_s

    every, none = sent_s()
    inside, between = sent_s(shard_size=8)
    gathered = PSI * (2 * 2 + 4)
    latencies_s = 3 * 24 * 20e-6
    hops_s = 2 * latencies_s
    assert every == pytest.approx(gathered * 15 / 16 / (8 * 5e9) + latencies_s + hops_s, rel=1e-3)
    assert inside == pytest.approx(gathered * 7 / 8 / 450e9 + latencies_s, rel=1e-3)
    assert between == pytest.approx(PSI / 8 * 4 / 5e9 + 24 * 3 * 20e-6, rel=1e-3)
    assert none == 0


def test_a_setting_has_at_least_the_nodes_that_were_asked_for_and_8_gpus_on_each():
    sizes = ((8, 2), (8, 1), (9, 1), (16, 1))
    recorded = [Experiment.recorded({"gpus": gpus, "nodes": nodes}) for gpus, nodes in sizes]
    assert [link("ib:400").nodes(one) for one in recorded] == [2, 1, 2, 2]


def test_links_that_are_not_understood_or_lack_a_network():
    for text in ("ib", "ib:0", "ib:400/rack", "ethernet"):
        with pytest.raises(SettingsError, match=r"link is '.*': use nvlink, pcie, ib:400"):
            link(text)
    with pytest.raises(SettingsError, match="gpus is 16, on 2 nodes: say how these are connected"):
        count_step(experiment(gpus=16), gpus.find("H100"), link("nvlink"))


def test_gpus_by_the_names_of_publications_and_drivers():
    names = {
        "NVIDIA H200": "H200",
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA A100-SXM4-80GB": "A100",
        "V100-32GB": "V100",
        "MI150X": "MI250X",
    }
    assert {name: gpus.find(name).name for name in names} == names
    with pytest.raises(SettingsError, match="unknown GPU 'Z9': `dsnb recommend --list`"):
        gpus.find("Z9")
    rates = [gpus.find("H200").peak_flops(name) / 1e12 for name in ("fp32", "tf32", "fp16", "bf16")]
    assert rates == [67, 494, 989, 989]
    assert gpus.find("V100").peak_flops("tf32") == 15.7e12  # it has no tf32


BLANK = StepCounts(
    **{
        **{field.name: 0.0 for field in fields(StepCounts)},
        **dict.fromkeys(("peak_flops", "attention_flops_per_s", "memory_bytes_per_s"), 1e12),
        **{f"{group}_inside": 1e9 for group in ("data", "tensor", "pipeline", "replica")},
        "host_link": 1e9,
    }
)
"""A step without any work on a GPU of 1 TFLOP/s and 1 TB/s, with links of 1 GB/s."""
SHARES = Constants(
    matmul_efficiency=0.5,
    unaligned_efficiency=0.25,
    attention_efficiency=0.4,
    memory_efficiency=0.8,
    kernel_us=3.0,
    host_launch_us=5.0,
    host_parameter_us=7.0,
    host_gather_us=11.0,
    link_efficiency=0.5,
    network_efficiency=0.25,
    host_link_efficiency=0.2,
    overlap=0.9,
    cpu_parameter_ns=2.0,
)


@pytest.mark.parametrize(
    ("part", "counts", "expected"),
    [
        ("matmul_s", {"matmul_flops": 1e12}, 1 / 0.5),
        ("matmul_s", {"matmul_bytes": 1e12}, 1 / 0.8),
        ("matmul_s", {"unaligned_flops": 1e12}, 1 / 0.25),
        ("attention_s", {"attention_flops": 1e12}, 1 / 0.4),
        ("memory_bound_s", {"elementwise_bytes": 1e12}, 1 / 0.8),
        ("memory_bound_s", {"kernels": 1e6}, 3),
        ("optimizer_s", {"optimizer_bytes": 1e12}, 1 / 0.8),
        ("offload_s", {"to_host": 1e9}, 1 / 0.2),
        ("offload_s", {"offloaded_activation_bytes": 1e9}, 1 / 0.2),
        ("offload_s", {"cpu_parameters": 1e9}, 2),
        ("host_s", {"host_launches": 1e6}, 5),
        ("host_s", {"host_launches": 1e6, "pipeline_fill": 0.5}, 5 * 1.5),
        ("host_s", {"host_gathers": 1e6}, 11),
        ("host_s", {"host_parameters": 1e6}, 7),
        ("pipeline_bubble_s", {"matmul_flops": 1e12, "pipeline_fill": 0.5}, 2 * 0.5),
        ("all_reduce_s", {"replica_all_reduce": 1e9}, 1 / 0.5),
        ("all_reduce_s", {"all_reduce": 1e9}, 1 / 0.5),
        ("reduce_scatter_s", {"reduce_scatter": 1e9, "data_network": 1e9}, 1 / 0.25),
        ("all_gather_s", {"all_gather": 1e9, "data_network": 8e9}, 1 / 0.5),
        ("tensor_all_reduce_s", {"tensor_all_reduce": 1e9, "tensor_messages": 1e5}, 2 + 2),
        ("point_to_point_s", {"point_to_point": 1e9, "pipeline_messages": 1e5}, 2 + 2),
        ("all_to_all_s", {"all_to_all": 1e9, "data_messages": 1e5}, 2 + 2),
    ],
)
def test_each_count_takes_its_time(part, counts, expected, monkeypatch):
    """Shares of a TFLOP/s, a TB/s or a GB/s; microseconds of a million; 20 us of latency."""
    monkeypatch.setattr(module.STEP, "latency_s", 20e-6)
    found = parts(replace(BLANK, **counts), SHARES)
    assert getattr(found, part) == pytest.approx(expected)


def test_only_what_overlaps_is_hidden_beside_the_passes():
    """An all-reduce and an all-gather of 2 s each, and passes of 1 or 8 s; 0.9 of them can be hidden."""

    def exposed(passes_s, **overlaps):
        work = {"matmul_flops": passes_s * 0.5e12, "all_reduce": 1e9, "all_gather": 1e9}
        found = parts(replace(BLANK, **work, **overlaps), SHARES)
        return found.all_reduce_s, found.all_gather_s

    both = {"reduction_overlaps": 1.0, "gather_overlaps": 1.0}
    assert exposed(8.0) == pytest.approx((2, 2))
    assert exposed(8.0, reduction_overlaps=1.0) == pytest.approx((0.2, 2))
    assert exposed(8.0, gather_overlaps=1.0) == pytest.approx((2, 0.2))
    assert exposed(8.0, **both) == pytest.approx((0.2, 0.2))
    assert exposed(1.0, gather_overlaps=1.0) == pytest.approx((2, 1))
    assert exposed(1.0, **both) == pytest.approx((1.5, 1.5))


def test_what_waits_for_the_network_is_hidden_behind_the_passes(monkeypatch):
    """2 s inside a node, 0.9 of them hidden, and 8 - 2 s of waiting, 0.5 of them hidden; at most the passes."""
    monkeypatch.setattr(module.STEP, "network_overlap", 0.5)
    work = {"all_gather": 1e9, "data_network": 0.5e9, "gather_overlaps": 1.0}

    def exposed(passes_s):
        counts = replace(BLANK, **work, matmul_flops=passes_s * 0.5e12)
        return parts(counts, SHARES).all_gather_s

    assert exposed(10.0) == pytest.approx(8 - 0.9 * 2 - 0.5 * 6)
    assert exposed(3.0) == pytest.approx(8 - 3)


def test_a_collective_takes_a_hop_for_each_node_of_a_ring_and_two_for_each_level_of_a_tree(
    monkeypatch,
):
    """Ten messages over 16 nodes: 16 hops each in a ring; an all-reduce goes up and down a tree of 4 levels."""
    monkeypatch.setattr(module.STEP, "latency_s", 0.0)
    monkeypatch.setattr(module.STEP, "hop_s", 1.0)
    route = {"data_network": 1e30, "data_inside": 1e30, "data_messages": 10.0}

    def seconds(nodes, **sent):
        times = parts(replace(BLANK, **route, nodes=nodes, **sent), SHARES)
        return times.all_reduce_s + times.all_gather_s

    assert seconds(16.0, all_gather=1e3) == pytest.approx(160)
    assert seconds(16.0, all_reduce=2e3) == pytest.approx(80)
    assert seconds(16.0, all_reduce=2e3, all_gather=1e3) == pytest.approx((80 + 160) / 2)
    assert seconds(2.0, all_reduce=2e3) == pytest.approx(20)  # there and back
    assert seconds(2.0, all_gather=1e3) == pytest.approx(20)


def test_passes_wait_for_the_slowest_of_the_nodes(monkeypatch):
    """A delay of 0.1 on average: 1 + 0.1 ln(n) times as long on n nodes, but not the optimizer."""
    monkeypatch.setattr(module.STEP, "node_delay", 0.1)
    work = {"matmul_flops": 0.5e12, "attention_flops": 0.4e12, "elementwise_bytes": 0.8e12}
    one = parts(replace(BLANK, **work, optimizer_bytes=0.8e12, nodes=1.0), SHARES)
    many = parts(replace(BLANK, **work, optimizer_bytes=0.8e12, nodes=100.0), SHARES)
    slower = 1 + 0.1 * 4.60517
    assert (one.matmul_s, one.attention_s, one.memory_bound_s) == pytest.approx((1, 1, 1))
    passes = (many.matmul_s, many.attention_s, many.memory_bound_s)
    assert passes == pytest.approx((slower, slower, slower))
    assert many.optimizer_s == pytest.approx(1)


def test_speed_per_gpu_falls_with_the_number_of_nodes():
    def per_gpu(gpus):
        settings = {"gpus": gpus, "strategy": "fsdp", "precision": "bf16"}
        counts = count_step(experiment(**settings), module.gpus.find("H100"), link("ib:400"))
        return 1 / parts(counts, module.DEFAULT).step_time_s

    speeds = [per_gpu(gpus) for gpus in (64, 256, 1024)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] / speeds[-1] > 1.02


def test_the_gpu_does_not_wait_for_the_host_while_it_communicates(monkeypatch):
    """Launches of 5 s beside 2 s of communication: 5 x (1 + 0.4^5)^(1/5) - 2."""
    monkeypatch.setattr(module.STEP, "overlap_power", 5)
    counts = {"host_launches": 1e6, "all_reduce": 1e9, "reduction_overlaps": 1.0}
    assert parts(replace(BLANK, **counts), SHARES).host_s == pytest.approx(3.0102, abs=5e-5)
    counts["reduction_overlaps"] = 0.0
    assert parts(replace(BLANK, **counts), SHARES).host_s == pytest.approx(5)


def test_a_slow_host_is_slow_in_all_its_python():
    slow = SHARES.on_host(2.0)
    times_us = (slow.host_launch_us, slow.host_parameter_us, slow.host_gather_us)
    assert times_us == (10, 14, 22)
    assert slow.kernel_us == SHARES.kernel_us


def test_rates_of_a_gpu_by_precision_and_gains(monkeypatch):
    """H200: 67 TFLOP/s in fp32, 494 in tf32, 989 in bf16, 4.8 TB/s."""
    monkeypatch.setattr(module.STEP, "fp32_attention", 3.0)
    monkeypatch.setattr(module.STEP, "tf32_products", 2.0)
    monkeypatch.setattr(module, "ATTENTION_GAINS", {"H200": [1.5]})
    gpu = replace(gpus.find("H200"), product_gain=0.5, memory_gain=0.25)

    def rates(precision):
        counts = count_step(experiment(precision=precision), gpu, link())
        assert counts.memory_bytes_per_s == 4.8e12 * 0.25
        return counts.peak_flops / 1e12, counts.attention_flops_per_s / 1e12

    assert rates("bf16") == pytest.approx((989 / 2, 1.5 * 989 / 2))
    assert rates("fp32") == pytest.approx((67 / 2, 1.5 * 3 * 67 / 2))
    assert rates("tf32") == pytest.approx((494 / 2 / 2, 1.5 * 3 * 67 / 2))


def test_products_in_fp32_beside_half_precision_take_as_long_as_fp32_does(monkeypatch):
    counted = {**module.work(experiment()), "matmul_flops": 100.0, "fp32_flops": 67.0}
    monkeypatch.setattr(module, "work", lambda *_: counted)
    found = count_step(experiment(), gpus.find("H200"), link())
    assert found.matmul_flops == pytest.approx(100 + 989)


def test_tensor_parallel_ranks_reduce_after_each_layer_of_their_stage():
    """OPT reduces for six layers of each of 24 blocks, and for two where the block is recomputed.

    With torch's strategies queries, keys and values, which read one input, are one of four.
    """
    hidden_states = 4 * 1024 * 2048 * 2
    settings = {"gpus": 4, "tensor_parallel": 4, "grad_accum": 3, "zero_stage": 1}
    for name in ("fsdp", "plain"):
        by_torch = traffic(**{**settings, "zero_stage": 0}, strategy=name)
        assert by_torch.tensor_messages == 3 * 4 * 24
        assert by_torch.tensor_all_reduce == 3 * 4 * 24 * hidden_states * 2 * 3 / 4
    for again, of_block in (({}, 6), ({"activation_checkpointing": True}, 8)):
        found = traffic(**settings, **again)
        assert found.tensor_messages == 3 * of_block * 24
        assert found.tensor_all_reduce == 3 * of_block * 24 * hidden_states * 2 * 3 / 4
    stage = traffic(**{**settings, "gpus": 8}, pipeline_parallel=2)
    assert stage.tensor_messages == 3 * 6 * 12
    assert (stage.point_to_point, stage.pipeline_messages) == (6 * hidden_states, 6)


def test_weights_in_full_precision_are_not_cast_on_the_host():
    found = traffic(gpus=2, zero_stage=3, offload="optimizer-cpu", precision="fp32")
    assert found.cpu_parameters == PSI
