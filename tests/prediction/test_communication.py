"""Bytes of communication against the ZeRO paper and DeepSpeed's source, bandwidths by route, and GPUs by name."""

from types import SimpleNamespace

import pytest

from dsnb.errors import SettingsError
from dsnb.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus, step_time
from dsnb.prediction.gpus import link
from dsnb.settings.experiment import Experiment

PSI = PRESETS["opt-1.3b"].parameters
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")
MANY = 1000
"""Ranks, so that (n - 1) / n is nearly 1."""


def experiment(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 2, "seq_len": 1024, "device": "cuda", "gpus": MANY}
    return Experiment(**{**common, **settings})


def traffic(**settings):
    sent = step_time.traffic(experiment(**settings))
    return SimpleNamespace(**{**dict.fromkeys(KINDS, 0.0), **sent})


def routes(gpu, path, **settings):
    return SimpleNamespace(**step_time.routes(experiment(**settings), gpus.find(gpu), link(path)))


def test_volumes_of_the_zero_paper():
    """Rajbhandari et al. 2020, section 7: plain data parallelism 2 psi, partitioned weights 3 psi.

    Its reduce-scatter and all-gather of ZeRO 1 and 2 are 2 psi; DeepSpeed 0.19.8 all-reduces buckets by default: 3 psi.
    """
    nothing = {f"deepspeed.zero_optimization.stage3_max_{name}": 1 for name in ("live_parameters", "reuse_distance")}
    for settings, reduced, gathered in (
        ({"zero_stage": 0}, 2, 0),
        ({"zero_stage": 1}, 2, 1),
        ({"zero_stage": 2}, 2, 1),
        ({"zero_stage": 3, **nothing}, 1, 2),
    ):
        sent = traffic(**settings)
        assert (sent.all_reduce + sent.reduce_scatter) / 2 / PSI == pytest.approx(reduced, rel=0.01)
        assert sent.all_gather / 2 / PSI == pytest.approx(gathered, rel=0.01)
    assert traffic(lora_rank=64).all_reduce == pytest.approx(2 * 2 * 24 * 64 * 18 * 2048, rel=0.01)  # adapters only
    assert step_time.traffic(experiment(gpus=1, zero_stage=3)) == {}


def test_fsdp_gathers_for_each_micro_batch_and_reduces_once():
    once, eight = (traffic(strategy="fsdp", grad_accum=count) for count in (1, 8))
    assert (eight.all_gather, eight.reduce_scatter) == (8 * once.all_gather, once.reduce_scatter)


def test_widths_of_compressed_gradients():
    whole, half, low_rank = (
        traffic(strategy="ddp", gradient_compression=name).all_reduce for name in ("none", "bf16", "powersgd")
    )
    assert half == whole / 2
    assert low_rank < half / 100
    one = experiment(zero_stage=3)
    full, quantized = (
        SimpleNamespace(**step_time.traffic(one.model_copy(update={"zeropp": what}))) for what in ("none", "all")
    )
    assert (quantized.all_gather, quantized.reduce_scatter) == (full.all_gather / 2, 0)  # weights in one byte
    assert quantized.all_to_all == full.reduce_scatter / 2


def test_offload_moves_gradients_down_and_weights_up():
    one, two, everything = (
        traffic(gpus=2, zero_stage=stage, offload=offload, grad_accum=2)
        for stage, offload in ((1, "optimizer-cpu"), (2, "optimizer-cpu"), (3, "all-cpu"))
    )
    assert (one.to_host, one.cpu_parameters) == (PSI / 2 * (2 + 2), PSI / 2)
    assert two.to_host == PSI / 2 * (2 * 2 + 2)
    assert everything.to_host == PSI / 2 * (2 * 2 + 2 + 2 * 2 * 2)


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
    assert [routes("V100", path, **four).data_inside for path in ("nvlink", "pcie")] == [150e9, 16e9]


def test_links_that_are_not_understood_or_lack_a_network():
    for text in ("ib", "ib:0", "ib:400/rack", "ethernet"):
        with pytest.raises(SettingsError, match=r"link is '.*': use nvlink, pcie, ib:400"):
            link(text)
    with pytest.raises(SettingsError, match="gpus is 16, on 2 nodes: say how these are connected"):
        routes("H100", "nvlink", gpus=16)


def test_gpus_by_the_names_of_publications_and_drivers():
    names = {
        "NVIDIA H200": "H200",
        "H200 NVL": "H200 NVL",
        "H100-SXM-80GB": "H100",
        "H100-NVL": "H100 NVL",
        "NVIDIA A100-SXM4-40GB": "A100-40GB",
        "NVIDIA A100-SXM4-80GB": "A100",
        "V100-32GB": "V100",
        "V100-16GB": "V100-16GB",
        "MI150X": "MI250X",
    }
    assert {name: gpus.find(name).name for name in names} == names
    with pytest.raises(SettingsError, match="unknown GPU 'Z9': choose one of B200, H200, "):
        gpus.find("Z9")
    rates = [gpus.find("H200").peak_flops(name) / 1e12 for name in ("fp32", "tf32", "fp16", "bf16")]
    assert rates == [67, 494, 989, 989]
    assert gpus.find("V100").peak_flops("tf32") == 15.7e12  # it has no tf32
