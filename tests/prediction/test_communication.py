"""Bytes of communication against the ZeRO paper and DeepSpeed's source, bandwidths by route, and GPUs by name."""

import pytest

from dsnb.errors import SettingsError
from dsnb.formulas.model_shapes import PRESETS
from dsnb.prediction import gpus
from dsnb.prediction.communication import routes, traffic
from dsnb.prediction.gpus import link
from dsnb.settings.experiment import Experiment

PSI = PRESETS["opt-1.3b"].parameters
MANY = 1000
"""Ranks, so that (n - 1) / n is nearly 1."""


def experiment(**settings):
    common = {"model": "opt-1.3b", "micro_batch_size": 2, "seq_len": 1024, "device": "cuda", "gpus": MANY}
    return Experiment(**{**common, **settings})


def elements(**settings):
    """Return what a rank sends in numbers of 2 bytes, over the number of parameters."""
    sent = traffic(experiment(**settings))
    return (sent.all_reduce + sent.reduce_scatter + sent.all_gather) / 2 / PSI


def test_volumes_of_the_zero_paper():
    """Rajbhandari et al. 2020, section 7: plain data parallelism 2 psi, partitioned weights 3 psi."""
    assert elements(zero_stage=0) == pytest.approx(2, rel=0.01)
    kept_nothing = {
        f"deepspeed.zero_optimization.stage3_max_{name}": 1 for name in ("live_parameters", "reuse_distance")
    }
    assert elements(zero_stage=3, **kept_nothing) == pytest.approx(3, rel=0.01)


def test_zero_1_and_2_all_reduce_where_the_paper_scatters():
    """Its reduce-scatter and all-gather are 2 psi; DeepSpeed 0.19.8 all-reduces buckets by default: 3 psi."""
    for stage in (1, 2):
        sent = traffic(experiment(zero_stage=stage))
        assert sent.all_reduce == pytest.approx(2 * 2 * PSI, rel=0.01)
        assert sent.all_gather == pytest.approx(2 * PSI, rel=0.01)


def test_what_an_accumulated_micro_batch_sends():
    reductions = {}
    for stage in (0, 1, 2, 3):
        once, eight = (traffic(experiment(zero_stage=stage, grad_accum=count)) for count in (1, 8))
        reductions[stage] = (eight.all_reduce + eight.reduce_scatter) / (once.all_reduce + once.reduce_scatter)
    assert reductions == {0: 1, 1: 1, 2: 8, 3: 8}
    for strategy in ("ddp", "fsdp"):
        once, eight = (traffic(experiment(strategy=strategy, grad_accum=count)) for count in (1, 8))
        assert (eight.all_reduce, eight.reduce_scatter) == (once.all_reduce, once.reduce_scatter)
    assert eight.all_gather == 8 * once.all_gather  # FSDP gathers weights for each


def test_widths_of_gradients():
    native, autocast = (traffic(experiment(mixed_precision=kind)).all_reduce for kind in ("native", "autocast"))
    assert autocast == 2 * native
    ddp = {name: traffic(experiment(strategy="ddp", gradient_compression=name)).all_reduce for name in ("none", "bf16")}
    assert ddp == {"none": autocast, "bf16": native}
    small = traffic(experiment(strategy="ddp", gradient_compression="powersgd")).all_reduce
    assert small < native / 100


def test_zeropp_quantizes_weights_to_one_byte_and_gradients_to_half():
    full, quantized = (
        traffic(experiment(zero_stage=3).model_copy(update={"zeropp": what})) for what in ("none", "all")
    )
    assert quantized.all_gather == full.all_gather / 2
    assert quantized.reduce_scatter == 0
    assert quantized.all_to_all == full.reduce_scatter / 2


def test_lora_sends_its_adapters_only():
    sent = traffic(experiment(lora_rank=64))
    assert sent.all_reduce == pytest.approx(2 * 2 * 24 * 64 * 18 * 2048, rel=0.01)


def test_one_rank_sends_nothing():
    alone = traffic(experiment(gpus=1, zero_stage=3))
    assert set(vars(alone).values()) == {0.0}


def test_tensor_parallel_ranks_reduce_each_blocks_activations():
    """OPT's three column layers and the MLP's one reduce the gradients of their inputs, two row layers the outputs."""
    message = 2 * 1024 * 2048 * 2
    split = traffic(experiment(gpus=4, tensor_parallel=4))
    assert (split.tensor_messages, split.tensor_all_reduce) == (24 * 6, 24 * 6 * message * 2 * 3 / 4)
    assert traffic(experiment(gpus=4, tensor_parallel=4, model="gpt-1.3b")).tensor_messages == 24 * 4
    again = traffic(experiment(gpus=4, tensor_parallel=4, activation_checkpointing=True))
    assert again.tensor_messages == 24 * 8


def test_pipeline_stages_send_activations_and_their_gradients():
    sent = traffic(experiment(gpus=4, pipeline_parallel=4, grad_accum=8))
    assert (sent.pipeline_messages, sent.point_to_point) == (16, 16 * 2 * 1024 * 2048 * 2)


def test_offload_moves_gradients_down_and_weights_up():
    one = traffic(experiment(gpus=2, zero_stage=1, offload="optimizer-cpu", grad_accum=2))
    assert (one.host, one.cpu_parameters) == (PSI / 2 * (2 + 2), PSI / 2)
    two = traffic(experiment(gpus=2, zero_stage=2, offload="optimizer-cpu", grad_accum=2))
    assert two.host == PSI / 2 * (2 * 2 + 2)
    everything = traffic(experiment(gpus=2, zero_stage=3, offload="all-cpu", grad_accum=2))
    assert everything.host == PSI / 2 * (2 * 2 + 2 + 2 * 2 * 2)


def test_routes_inside_a_node_and_between_nodes():
    h100 = gpus.find("H100")
    inside = routes(experiment(gpus=8), h100, link("ib:400"))
    assert (inside.data_inside, inside.data_network) == (450e9, 0)
    across = routes(experiment(gpus=16), h100, link("ib:400"))
    assert (across.data_inside, across.data_network) == (450e9, 8 * 50e9)  # a ring uses all adapters of a node
    shared = routes(experiment(gpus=16), h100, link("ib:100/node"))
    assert shared.data_network == pytest.approx(12.5e9)
    split = routes(experiment(gpus=16, tensor_parallel=8), h100, link("ib:400"))
    assert (split.data_network, split.tensor_network) == (50e9, 0)
    stages = routes(experiment(gpus=16, pipeline_parallel=2, grad_accum=2), h100, link("ib:400"))
    assert (stages.data_network, stages.pipeline_network) == (0, 50e9)


def test_pairs_share_links_without_a_switch():
    """Two of four V100 have two of the six links; all four have all of them."""
    v100, four = gpus.find("V100"), {"gpus": 4, "precision": "fp16", "model": "gpt-1.3b"}
    assert routes(experiment(**four, tensor_parallel=2), v100, link()).tensor_inside == pytest.approx(50e9)
    assert routes(experiment(**four), v100, link()).data_inside == 150e9
    assert routes(experiment(**four), v100, link("pcie")).data_inside == 16e9


def test_links_that_are_not_understood():
    for text in ("ib", "ib:0", "ib:400/rack", "ethernet"):
        with pytest.raises(SettingsError, match=r"link is '.*': use nvlink, pcie, ib:400"):
            link(text)


def test_several_nodes_need_a_network():
    with pytest.raises(SettingsError, match="gpus is 16, on 2 nodes: say how these are connected"):
        routes(experiment(gpus=16), gpus.find("H100"), link("nvlink"))


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


def test_the_rate_is_that_of_the_precision():
    gpu = gpus.find("H200")
    assert [gpu.peak_flops(name) / 1e12 for name in ("fp32", "tf32", "fp16", "bf16")] == [67, 494, 989, 989]
    assert gpus.find("V100").peak_flops("tf32") == 15.7e12  # it has no tf32
