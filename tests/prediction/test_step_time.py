"""The parts of a step, bytes of communication, bandwidths by route; more resources never slow a step down.

`test_calibration` compares whole steps with measured ones: no part can change unnoticed there.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus
from dsnb.prediction import step_time as module
from dsnb.prediction.gpus import link
from dsnb.prediction.step_time import DEFAULT, Constants, count_step, parts, step_times
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
    assert [routes("V100", path, **four).data_inside for path in ("nvlink", "pcie")] == [
        150e9,
        16e9,
    ]


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
    with pytest.raises(SettingsError, match="unknown GPU 'Z9': choose one of B200, H200, "):
        gpus.find("Z9")
    rates = [gpus.find("H200").peak_flops(name) / 1e12 for name in ("fp32", "tf32", "fp16", "bf16")]
    assert rates == [67, 494, 989, 989]
    assert gpus.find("V100").peak_flops("tf32") == 15.7e12  # it has no tf32
