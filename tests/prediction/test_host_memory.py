"""Host memory: the rules against known answers and measured runs, and how it decides what fits."""

import math

import pytest

import dsnb
from benchmarks import host_memory as benchmark
from dsnb.base.errors import SettingsError
from dsnb.base.formulas.memory import MemoryParts
from dsnb.base.system import hardware
from dsnb.base.system.hardware import InstalledGpu
from dsnb.prediction import host_memory
from dsnb.prediction.accuracy import HOST_ERRORS
from dsnb.prediction.gpus import find, link
from dsnb.prediction.host_memory import of_node, of_rank, pinned
from dsnb.prediction.shapes import shape
from tests.prediction.made_up import given, trace_nothing

GIB = 2**30
P = shape("opt-1.3b").parameters


def bloom(**settings):
    return given(model="bloom-7b1", seq_len=1024, activation_checkpointing=True, **settings)


def test_torch_pins_powers_of_two():
    assert [pinned(size) for size in (1, 2, 3, 4 * GIB, 4 * GIB + 1)] == [1, 2, 4, 4 * GIB, 8 * GIB]
    assert pinned(0) == 0


def test_zero_2_pins_masters_gradients_and_half_weights_of_bloom_7b1():
    """7.069 billion parameters are 26.3 GiB in fp32 and 13.2 in bf16, pinned 32 and 16; 136.1 GiB were measured."""
    need = of_rank(bloom(zero_stage=2, offload="optimizer-cpu"))
    assert need.optimizer / GIB == pytest.approx(32 + 8 * 7.069e9 / GIB, abs=0.02)
    assert (
        need.gradients == (32 + 2) * GIB
    )  # and a buffer for the embedding, 250,880 x 4,096 x 2 bytes
    assert need.weights == 16 * GIB
    assert need.gib == pytest.approx(136.1, rel=0.005)


def test_ranks_of_a_node_add_up_and_each_pins_its_share():
    one, eight = (
        of_rank(bloom(zero_stage=2, offload="optimizer-cpu", gpus=gpus)) for gpus in (1, 8)
    )
    assert eight.weights == one.weights / 8
    assert of_node(bloom(zero_stage=2, offload="optimizer-cpu", gpus=8), link()) == 8 * eight.gib
    uneven = bloom(zero_stage=2, offload="optimizer-cpu", gpus=9)
    assert of_node(uneven, link("ib:400")) == 5 * of_rank(uneven).gib  # and four on the other node
    two_nodes = bloom(zero_stage=2, offload="optimizer-cpu", gpus=16)
    assert of_node(two_nodes, link("ib:400")) == 8 * of_rank(two_nodes).gib


def test_zero_3_keeps_gradients_twice_and_offloaded_weights():
    """Two sub-groups of a billion and 0.316 billion parameters: 4 + 2 GiB; flat gradients in bf16: 4 GiB."""
    weights_on_gpu = of_rank(given(zero_stage=3, offload="optimizer-cpu"))
    assert weights_on_gpu.optimizer == 12 * P
    assert weights_on_gpu.gradients == (4 + 2 + 4) * GIB
    assert weights_on_gpu.weights == 2e9  # a sub-group is cast on the host
    everything = of_rank(given(zero_stage=3, offload="all-cpu"))
    # Sizes that are rounded up to powers of two are 1 / ln(2) = 1.4427 times as large on average.
    assert everything.weights == pytest.approx(4 * GIB + 1.4427 * 2 * P, rel=1e-5)
    assert (
        of_rank(given(zero_stage=3, offload="all-cpu", grad_accum=2)).gradients == (4 + 2 + 8) * GIB
    )  # in fp32


def test_adapters_have_small_gradients_and_weights_in_full_precision_need_no_cast():
    """24 blocks x rank 8 x 18 x 2,048 are 7,077,888 adapters: 27 MiB in fp32, pinned in 32."""
    adapters = of_rank(given(zero_stage=2, offload="optimizer-cpu", lora_rank=8))
    assert adapters.gradients == 32 * 2**20
    everything = of_rank(given(zero_stage=3, offload="all-cpu", lora_rank=8))
    # 13.5 MiB of adapters in bf16 are pinned in 16; frozen weights are offloaded with them.
    assert everything.weights == pytest.approx(16 * 2**20 + 1.4427 * 2 * P, rel=1e-5)
    assert of_rank(given(zero_stage=3, offload="optimizer-cpu", precision="fp32")).weights == 0


def test_accumulated_gradients_and_inputs_of_recomputed_blocks_count(monkeypatch):
    once, twice = (
        of_rank(given(zero_stage=2, offload="optimizer-cpu", grad_accum=count)) for count in (1, 2)
    )
    assert twice.gradients - once.gradients == pytest.approx(1.4427 * 2 * P, rel=1e-4)
    inputs = of_rank(
        given(
            zero_stage=1, micro_batch_size=3, activation_checkpointing=True, checkpoint_offload=True
        )
    )
    assert inputs.activations == 24 * 32 * 2**20  # 3 x 2,048 x 2,048 x 2 bytes are 24 MiB
    offloaded = {"micro_batch_size": 3, "checkpoint_offload": True}
    every_fifth = given(**offloaded, activation_checkpointing=True, checkpoint_every=5)
    assert of_rank(every_fifth).activations == 5 * 32 * 2**20  # of blocks 0, 5, 10, 15 and 20
    cast = given(**offloaded, activation_checkpointing=True, mixed_precision="autocast")
    assert of_rank(cast).activations == 24 * 64 * 2**20  # in fp32
    assert of_rank(given(micro_batch_size=3)).activations == 0
    monkeypatch.setattr(host_memory, "PROCESS_GIB", 1.5)
    assert of_rank(given(strategy="plain")) == MemoryParts(buffers=1.5 * 2**30)


def test_every_measured_setting_with_offload_is_predicted_within_4_pct_and_the_errors_are_kept():
    errors = benchmark.errors()
    assert errors["with offload"].settings >= 25
    assert errors["with offload"].worst_pct < 4
    assert errors == HOST_ERRORS


def test_a_host_that_is_unknown_is_never_a_yes(monkeypatch):
    trace_nothing(monkeypatch)
    asked = [given(zero_stage=2, offload=offload) for offload in ("none", "optimizer-cpu")]
    monkeypatch.setattr(host_memory.hardware, "gpus", lambda: ())
    assert list(dsnb.predict(asked, "H200")["fits"]) == [True, None]
    need = dsnb.predict(asked, "H200")["host_memory_gib"][1]
    assert list(dsnb.predict(asked, "H200", host_memory=need / 0.94)["fits"]) == [True, True]
    assert list(dsnb.predict(asked, "H200", host_memory=need / 0.96)["fits"]) == [True, False]
    with pytest.raises(
        SettingsError, match="host_memory is -1: give the GiB of one host, such as 512"
    ):
        dsnb.predict(asked, "H200", host_memory=-1)


def test_this_machine_is_the_host_only_for_its_own_gpus(monkeypatch):
    card = InstalledGpu(0, "NVIDIA H200", "GPU-0", 140.4, (9, 0))
    monkeypatch.setattr(host_memory.hardware, "gpus", lambda: (card,))
    monkeypatch.setattr(host_memory.hardware, "memory_gib", lambda: 64.0)
    assert host_memory.known_gib(find("H200")) == 64
    assert math.isnan(host_memory.known_gib(find("A100")))
    assert host_memory.known_gib(find("A100"), 256) == 256


@pytest.mark.parametrize(
    ("written", "is_limited"), [(f"{GIB}\n", True), ("max\n", False), (None, False)]
)
def test_a_container_has_the_memory_that_its_limit_leaves(
    written, is_limited, tmp_path, monkeypatch
):
    whole = hardware.psutil.virtual_memory().total / GIB
    limit = tmp_path / "memory.max"
    if written is not None:
        limit.write_text(written)
    monkeypatch.setattr(hardware, "CONTAINER_MEMORY", ((str(limit), ""),))
    assert hardware.memory_gib() == (1 if is_limited else whole)


def test_nvme_has_no_rule(tmp_path):
    nvme = given(zero_stage=3, offload="optimizer-nvme", nvme_path=str(tmp_path))
    assert math.isnan(of_node(nvme, link()))
    assert host_memory.fits(nvme, math.nan, 512) is None
