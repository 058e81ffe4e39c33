"""Theory of memory: the examples that its papers print, settings by hand, and the published runs on H200."""

import pandas as pd
import pytest

import dsnb
from dsnb.base.formulas import memory
from dsnb.base.formulas.memory import AUTOCAST, FULL, MASTERS, MemoryParts
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.base.system.hardware import GIB
from dsnb.results.statistics import memory_use
from dsnb.settings.experiment import DEFAULTS, Experiment

GB = 1e9


def test_a_gib_is_2_to_the_30_bytes():
    assert MemoryParts(weights=2**30, activations=2**29).gib == 1.5


def test_zeros_own_examples():
    """Rajbhandari et al. 2020: 1.5 billion parameters (section 3.1), and 7.5 billion on 64 GPUs (figure 1)."""
    assert memory.model_states(1.5e9).total == 24 * GB
    for stage, gigabytes in ((0, 120), (1, 31.4), (2, 16.6), (3, 1.9)):
        states = memory.model_states(7.5e9, MASTERS, stage, data_parallel=64)
        assert states.total / GB == pytest.approx(gigabytes, abs=0.05)


def test_what_each_number_format_and_strategy_keeps():
    assert [each.total - each.copies for each in (MASTERS, FULL, AUTOCAST)] == [16] * 3
    kept = {
        ("deepspeed", "fp32", "native"): FULL,
        ("deepspeed", "bf16", "native"): MASTERS,
        ("deepspeed", "bf16", "autocast"): AUTOCAST,
        ("ddp", "tf32", "native"): FULL,
        ("ddp", "fp16", "native"): AUTOCAST,
        ("fsdp", "bf16", "native"): FULL,
        ("fsdp", "bf16", "autocast"): AUTOCAST,
    }
    for (strategy, precision, mixed), states in kept.items():
        experiment = Experiment(
            strategy=strategy, precision=precision, mixed_precision=mixed, device="cuda"
        )
        assert experiment.states.each == states


def test_offload_by_hand():
    def states(stage, offload):
        return memory.model_states(100, MASTERS, stage, data_parallel=2, offload=offload)

    assert states(1, "optimizer-cpu") == memory.MemoryParts(200, 200, 0)
    assert states(2, "optimizer-cpu") == memory.MemoryParts(
        200, 0, 0
    )  # ZeRO-Offload: 2 bytes a parameter on the GPU
    assert states(3, "optimizer-nvme") == memory.MemoryParts(100, 0, 0)
    assert states(3, "all-cpu").total == 0
    whole, part = (
        memory.model_states(1000, AUTOCAST, frozen=400, model_parallel=count) for count in (1, 4)
    )
    assert part.total == whole.total / 4


def test_lora_keeps_frozen_weights_alone_and_adafactor_the_moments_that_are_given():
    states = memory.model_states(10, MASTERS, frozen=2 * 1000)
    assert states == memory.MemoryParts(2 * 10 + 2 * 1000, 2 * 10, 12 * 10)
    assert memory.model_states(1000, MASTERS, moments=40).optimizer == 4 * 1000 + 40
    assert memory.lora_parameters(layers=2, hidden=10, rank=3) == 2 * 3 * (
        (10 + 30) + (10 + 10) + (10 + 40) + (40 + 10)
    )
    three = 3 * (10 + 10) + (10 + 10) + (10 + 40) + (40 + 10)
    assert memory.lora_parameters(layers=2, hidden=10, rank=3, fused=False) == 2 * 3 * three


def test_a_block_as_the_paper_counts_it():
    """Korthikanti et al. 2022, equation 1, and the 80 and 64 that it gives for 5 a s / h of GPT-3 and MT-NLG."""
    for hidden, heads, scores, saved_pct in ((12288, 96, 80, 70), (20480, 128, 64, 65)):
        whole = memory.block_activations(2048, hidden, heads, 2048)
        assert whole == 2048 * hidden * (34 + scores)
        fused = memory.block_activations(2048, hidden, heads, 2048, fused=True)
        assert fused == 2048 * hidden * 34
        assert 100 * (1 - fused / whole) == pytest.approx(
            saved_pct, abs=0.5
        )  # section 5, selective recomputation
        eighth = memory.block_activations(2048, hidden, heads, 2048, tensor_parallel=8)
        assert eighth == 2048 * hidden * (10 + 24 / 8 + scores / 8)
    # Without dropout, in fp32, and with ReLU.
    assert memory.block_activations(1, 100, 5, 20, dropout=False) == 100 * 32 + 2 * 5 * 20
    assert (
        memory.block_activations(1, 100, 5, 20, width=4)
        == 100 * (16 * 4 + 2) + (4 + 4 + 1) * 5 * 20
    )
    assert memory.block_activations(1, 100, 5, 20, fused=True, relu=True) == 100 * (34 - 8)


def test_recomputed_blocks_keep_their_inputs():
    assert memory.kept_activations(24, 100, 2) == (2400, 0)
    assert memory.kept_activations(24, 100, 2, checkpoint_every=1) == (48, 100)
    assert memory.kept_activations(24, 100, 2, checkpoint_every=2) == (12 * 100 + 12 * 2, 100)
    assert memory.kept_activations(5, 100, 2, checkpoint_every=2) == (2 * 100 + 3 * 2, 100)
    assert memory.kept_activations(24, 100, 2, checkpoint_every=1, offloaded=True) == (0, 100)


def test_a_pipelines_first_stage_keeps_a_micro_batch_for_each_stage():
    assert memory.activations(1000, 0, 30) == (1000, 30)
    assert memory.activations(1000, 50, 30) == (1000, 50)
    assert memory.activations(1000, 0, 30, stages=4, micro_batches=8) == (1000, 0)
    assert memory.activations(1000, 0, 30, stages=4, micro_batches=2) == (500, 0)
    assert memory.activations(1000, 0, 900, stages=4, micro_batches=1) == (250, 900)
    assert memory.output_activations(10, 100, 500) == 10 * 4 * 100 * (1 + 500 / 100)


def test_moments_of_adafactor_by_hand():
    """Two blocks of hidden size 10: 29 x 10 numbers each; embeddings 100 + 10 and 20 + 10; the last norm's 20."""
    assert memory.adafactor_moments(2, 10, 100, 20) == 4 * (2 * 290 + 110 + 30 + 20)
    assert memory.adafactor_moments(2, 10, 100) == 4 * (2 * 290 + 110 + 20)


def test_partitioned_weights_are_not_copied_as_a_whole():
    assert memory.model_states(1000, AUTOCAST, zero_stage=2, data_parallel=4).copies == 2000
    assert memory.model_states(1000, AUTOCAST, zero_stage=3, data_parallel=4).copies == 0


def theory(**settings):
    return memory_use.theory({**DEFAULTS, **settings})


def test_a_runs_settings_become_the_formulas_numbers():
    settings = {
        "zero_stage": 1,
        "gpus": 4,
        "tensor_parallel": 2,
        "micro_batch_size": 2,
        "seq_len": 1024,
    }
    parts = theory(model="opt-1.3b", grad_accum=2, grad_accum_dtype="bf16", **settings)
    own = PRESETS["opt-1.3b"].parameters / 2 / GIB
    assert parts["weights"] == parts["gradients"] == pytest.approx(2 * own)
    assert parts["optimizer"] == pytest.approx(12 * own / 2)
    block = 2048 * 2048 * (8 + (24 - 8) / 2)
    assert parts["activations"] == pytest.approx(24 * block / GIB)
    assert theory(model="opt-1.3b", strategy="fsdp", gpus=4)["optimizer"] == pytest.approx(
        8 * own * 2 / 4
    )
    eager = theory(model="gpt2", attention="eager", attention_used=float("nan"))
    assert eager["activations"] > theory(model="gpt2")["activations"]
    assert theory(model="gpt2", attention_used="eager") == eager
    assert theory(model="facebook/opt-1.3b") == theory(model="opt-1.3b")
    counted = theory(model="gpt2", precision="bf16", parameters=2.0**30)  # as the run counted them
    assert (counted["weights"], counted["optimizer"]) == (2, 12)
    adapters = theory(
        model="gpt2", precision="bf16", lora_rank=8, parameters=5e8, trainable_parameters=2.0**20
    )
    assert adapters["optimizer"] == 12 / 2**10
    frozen = 2 * PRESETS["gpt2"].parameters / GIB
    assert adapters["weights"] == pytest.approx(frozen + 2 / 2**10)
    assert theory(model="someone/other") == theory(model="gpt2", micro_batch_size=None) == {}


def test_accumulation_keeps_gradients_through_the_next_backward_pass():
    states = memory.MemoryParts(200, 200, 1200)
    assert memory.peak(states, kept=500, output=70).total == 200 + 1200 + 500 + 70
    assert (
        memory.peak(states, kept=500, output=70, accumulated=200).total
        == 200 + 1200 + 500 + 70 + 200
    )
    small = memory.peak(
        states, kept=50, output=70
    )  # all gradients, in the optimizer's step, are more than activations
    assert (small.gradients, small.activations, small.total) == (200, 0, 1600)
    once, often = (
        theory(model="opt-350m", micro_batch_size=32, grad_accum=count) for count in (1, 8)
    )
    gradients = 2 * PRESETS["opt-350m"].parameters / GIB
    assert sum(often.values()) - sum(once.values()) == pytest.approx(gradients)
    assert theory(model="opt-350m", micro_batch_size=32, grad_accum=2) == often
    in_fp32 = theory(
        model="opt-350m", zero_stage=1, micro_batch_size=32, grad_accum=2, grad_accum_dtype="fp32"
    )
    assert sum(in_fp32.values()) - sum(often.values()) == pytest.approx(gradients)
    sharded = {"strategy": "fsdp", "gpus": 4, "micro_batch_size": 32}
    whole, shares = (
        theory(model="opt-350m", grad_accum=2, reduce_gradients=how, **sharded)["gradients"]
        for how in ("step", "micro-batch")
    )
    assert whole == pytest.approx(2 * gradients)  # fp32, kept whole until they are sent
    assert shares == pytest.approx(2 * gradients / 4)


def test_what_the_published_1b3_benchmark_saved_by_recomputing():
    """27 GB without and 16 GB with activation checkpointing, printed in whole GB: theory says 10.5."""
    changes = memory_use.savings(dsnb.published("bigscience_1b3"))
    (row,) = changes[changes["change"] == "blocks recomputed → nothing recomputed"].to_dict(
        "records"
    )
    assert row["measured_gib"] == 11
    assert row["theory_gib"] == pytest.approx(11, abs=1)


FIXED = {"sweep": "s", "status": "ok", "model": "gpt2", "gpus": 4}


def test_one_row_an_experiment():
    columns = {"experiment": list("aabcd"), "peak_allocated_gib": [5.0, 7.0, 4.0, None, 1.0]}
    columns |= {"zero_stage": [0, 0, 2, 3, 3], "status": ["ok", "ok", "ok", "ok", "oom"]}
    runs = pd.DataFrame(FIXED | columns)
    table = memory_use.footprint(runs).set_index("experiment")
    assert table["n"].to_dict() == {"a": 2, "b": 1}
    assert list(table["measured_gib"]) == [6, 4]
    assert list(table["where"]) == ["allocated", "allocated"]
    assert list(table["rest_gib"]) == list(table["measured_gib"] - table["theory_gib"])
    assert table["theory_gib"]["a"] == pytest.approx(sum(theory(model="gpt2", gpus=4).values()))


def test_one_change_at_a_time():
    columns = {"experiment": ["e0", "e1", "e2", "e3", "e4"], "peak_allocated_gib": [10, 9, 8, 7, 6]}
    columns |= {"zero_stage": [0, 1, 2, 2, 0], "offload": [*["none"] * 3, "optimizer-cpu", "none"]}
    runs = pd.DataFrame(
        FIXED | columns | {"seed": range(5), "activation_checkpointing": [*[False] * 4, True]}
    )
    table = memory_use.savings(runs)
    assert list(table["base"].unique()) == ["e0"]
    assert list(table["change"]) == [
        "ZeRO 0 → ZeRO 1",
        "ZeRO 0 → ZeRO 2",
        "nothing recomputed → blocks recomputed",
    ]
    assert list(table["measured_gib"]) == [-1, -2, -4]
    parameters = PRESETS["gpt2"].parameters
    # When its backward pass begins, a step without accumulation has no gradients that ZeRO 2 could share out.
    assert list(table["theory_gib"])[:2] == pytest.approx([-9 * parameters / GIB] * 2)
    accumulated = memory_use.savings(runs.assign(grad_accum=2))
    assert list(accumulated["theory_gib"])[:2] == pytest.approx(
        [-9 * parameters / GIB, -10.5 * parameters / GIB]
    )
    assert list(memory_use.savings(runs, base="e3")["change"]) == [
        "optimizer on the CPU → no offload"
    ]
    assert memory_use.savings(runs, base="unknown").equals(table)


def test_the_figure_closest_to_theory_counts_and_others_are_not_compared_with_it():
    columns = {"experiment": ["e0", "e1", "e2"], "zero_stage": [0, 1, 2]}
    columns |= {"peak_allocated_gib": [10.0, None, 8.0], "peak_reserved_gib": [12.0, 11.0, 10.0]}
    runs = pd.DataFrame(FIXED | columns)
    table = memory_use.footprint(runs)
    assert list(table["where"]) == ["allocated", "reserved", "allocated"]
    assert list(table["measured_gib"]) == [10, 11, 8]
    assert list(memory_use.savings(runs, base="e0")["change"]) == ["ZeRO 0 → ZeRO 2"]


def test_more_than_two_micro_batches_do_not_change_memory():
    columns = {"experiment": ["e0", "e1", "e2"], "grad_accum": [1, 2, 4]}
    runs = pd.DataFrame(FIXED | columns | {"peak_allocated_gib": [8.0, 9.0, 9.0]})
    assert list(memory_use.savings(runs, base="e0")["experiment"]) == ["e1", "e2"]
    assert list(memory_use.savings(runs, base="e1")["experiment"]) == ["e0"]


def test_an_unknown_setting_is_no_default_in_theory_nor_equal_to_a_known_one():
    """The published GPT-2 table does not say whether blocks were recomputed."""
    assert memory_use.footprint(dsnb.published("dist_training_gpt2"))["theory_gib"].isna().all()
    columns = {
        "experiment": ["e0", "e1", "e2"],
        "peak_allocated_gib": [10, 9, 8],
        "zero_stage": [0, 1, 2],
    }
    runs = pd.DataFrame(FIXED | columns).assign(
        strategy="deepspeed", activation_checkpointing=[False, None, False]
    )
    table = memory_use.footprint(runs).set_index("experiment")
    assert table["theory_gib"].notna().to_dict() == {"e0": True, "e1": False, "e2": True}
    changes = memory_use.savings(runs, base="e0")
    assert list(changes["change"]) == ["ZeRO 0 → ZeRO 2"]  # e1 may differ in checkpointing, too
    plain = pd.DataFrame(
        FIXED | {"experiment": ["p"], "peak_allocated_gib": [4.0], "gpus": 1}
    ).assign(strategy="plain")
    assert (
        memory_use.footprint(plain)["theory_gib"].notna().all()
    )  # it has no stage that could be unknown


def test_measured_memory_on_h200_is_near_what_theory_says():
    """Peaks of states and activations need not come together, so states alone are the bound."""
    table = memory_use.footprint(dsnb.published("h200_memory")).set_index("experiment")
    states = table[["weights_gib", "gradients_gib", "optimizer_gib"]].sum(axis=1)
    assert list(table[table["measured_gib"] < 0.97 * states].index) == []
    recomputed = table.loc[
        [
            f"opt-350m_zs0_bf16_gpus1_bs32_sl1024_ga2{part}"
            for part in ("", "_ac2", "_ac", "_ac-cpu")
        ]
    ]
    saved = -recomputed[["measured_gib", "theory_gib"]].diff().iloc[1:]
    assert (saved > 0).all(axis=None)
    assert saved["measured_gib"].tolist() == pytest.approx(saved["theory_gib"].tolist(), rel=0.15)
    for stage in (1, 2, 3):
        base = f"opt-1.3b_zs{stage}_bf16_gpus2_bs8_sl1024_ga2"
        offloaded = (
            table["measured_gib"][base] - table["measured_gib"][f"{base}_offload-optimizer-cpu"]
        )
        assert offloaded == pytest.approx(table["optimizer_gib"][base], rel=0.35)
