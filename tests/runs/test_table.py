"""The door for tables: former names of columns, the plain loop's speed, short runs; settings in words."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.analysis.memory_use import savings
from dsnb.analysis.scaling import scaling
from dsnb.analysis.summary import summarize
from dsnb.explorer.data import read
from dsnb.run_folder.columns import RUN_COLUMNS
from dsnb.runs import labels
from dsnb.runs.table import ALIASES, as_runs, named_runs, with_plain_ratio, without_noise
from dsnb.settings.experiment import DEFAULTS
from tests.support import made_up

COLUMNS = ["sweep", "experiment", "repeat", "status", "strategy", "model", "micro_batch_size", "seq_len", "precision"]


def table(*rows):
    made = [
        ("s", name, repeat, status, strategy, "gpt2", 8, length, "bf16")
        for name, repeat, status, strategy, length, _ in rows
    ]
    runs = pd.DataFrame(made, columns=COLUMNS)
    return runs.assign(tokens_per_s_per_gpu=[float(row[-1]) for row in rows])


def test_the_fastest_plain_setting_is_the_yardstick():
    runs = table(
        ("eager", 1, "ok", "plain", 128, 50),
        ("graphs", 1, "ok", "plain", 128, 99),
        ("graphs", 2, "ok", "plain", 128, 101),
        ("graphs", 3, "failed", "plain", 128, 900),
        ("zs0", 1, "ok", "deepspeed", 128, 80),
        ("zs0 long", 1, "ok", "deepspeed", 256, 80),
        ("zs1", 1, "oom", "deepspeed", 128, math.nan),
    )
    ratios = with_plain_ratio(runs)["of_plain"]
    assert ratios.tolist()[:6] == pytest.approx([0.5, 0.99, 1.01, 9.0, 0.8, math.nan], nan_ok=True)
    assert math.isnan(ratios.iloc[6])
    assert summarize(runs).loc["zs0", "of_plain_median"] == pytest.approx(0.8)
    assert "of_plain" not in runs
    kept = with_plain_ratio(runs)
    kept = with_plain_ratio(kept[kept["strategy"] != "plain"])
    assert kept["of_plain"].tolist()[0] == pytest.approx(0.8)

    for runs in (table(("zs0", 1, "ok", "deepspeed", 128, 80)), pd.DataFrame({"experiment": ["a"]}), pd.DataFrame()):
        pd.testing.assert_frame_equal(with_plain_ratio(runs), runs)  # without a plain run


WORK = {
    "data": "synthetic", "lora_rank": 0, "grad_accum": 1, "optimizer": "adamw", "gradient_clipping": 0.0,
    "dropout": 0.0, "loss": "whole", "attention": "auto", "attention_used": "causal_sdpa", "attention_kernel": "cudnn",
    "activation_checkpointing": False, "checkpoint_every": 1, "gpu_name": "H200",
}  # fmt: skip
OTHER = {
    "model": "bloom-560m", "seq_len": 256, "data": "stdlib", "lora_rank": 8, "micro_batch_size": 4, "grad_accum": 2,
    "precision": "fp32", "optimizer": "adafactor", "gradient_clipping": 1.0, "dropout": 0.1, "loss": "chunked",
    "attention": "eager", "attention_used": "eager", "attention_kernel": "math", "activation_checkpointing": True,
    "checkpoint_every": 2, "gpu_name": "A100",
}  # fmt: skip
COMPARED = {
    "zero_stage": [0, 3], "offload": ["none", "all-cpu"], "gpus": [1, 8], "compile": ["reduce-overhead", "off"],
    "overlap_comm": ["auto", "on"], "mixed_precision": ["autocast", "native"], "grad_accum_dtype": ["auto", "fp32"],
    "attention_used": ["flex with ALiBi", "sdpa with ALiBi"], "attention_kernel": ["flex", "cudnn"],
    "attention": ["auto", "sdpa"], "checkpoint_offload": [False, True], "cores": [16, 32],
}  # fmt: skip


def one_each(**columns):
    """Give a plain run of 100 tokens/s a GPU and one of ZeRO 1 of 80, equal but for some columns."""
    runs = table(("plain", 1, "ok", "plain", 128, 100), ("zs1", 1, "ok", "deepspeed", 128, 80))
    return runs.assign(**{**WORK, **columns})


def test_a_plain_run_of_other_work_is_no_yardstick():
    same = one_each()
    for columns in ({}, COMPARED):
        assert with_plain_ratio(one_each(**columns))["of_plain"].tolist() == pytest.approx([1, 0.8])
    for name, value in OTHER.items():
        ratios = with_plain_ratio(one_each(**{name: [value, same[name].iloc[1]]}))["of_plain"].tolist()
        assert ratios == pytest.approx([1, math.nan], nan_ok=True), name


def test_ranks_on_a_cpu_share_the_cores_of_the_plain_process():
    runs = one_each(device="cpu", gpu_name=None, tokens_per_s=[100.0, 90.0], cpu="Xeon", cores=[2, 2])
    assert with_plain_ratio(runs)["of_plain"].tolist() == pytest.approx([1, 0.9])
    assert with_plain_ratio(runs.assign(device="cuda"))["of_plain"].tolist() == pytest.approx([1, 0.8])
    for other in ({"cores": [64, 2]}, {"cpu": ["EPYC", "Xeon"]}):
        assert with_plain_ratio(runs.assign(**other))["of_plain"].tolist() == pytest.approx([1, math.nan], nan_ok=True)


def test_less_than_five_seconds_of_timed_steps_have_no_utilization(tmp_path):
    timings = [(4.99, None, None), (5, None, None), (None, 20, 0.02), (None, 20, 0.25), (6, 20, 0.02), (None, 20, None)]
    runs = pd.DataFrame(timings, columns=["timed_s", "timed_steps", "step_time_s"], dtype=float)
    cleaned = without_noise(runs.assign(gpu_util_pct=80.0, sm_clock_mhz=1980.0))
    assert cleaned["gpu_util_pct"].notna().tolist() == [False, True, False, True, True, True]
    assert (cleaned["sm_clock_mhz"] == 1980).all()  # a clock is a momentary reading
    table = made_up.runs(4, repeats=1).assign(status="ok", cause=None, gpu_util_pct=80.0, step_time_s=0.1)
    made_up.write_folders(table.assign(timed_steps=[4, 40, 49, 50]), tmp_path / "s")
    loaded = dsnb.load_runs(tmp_path).set_index("timed_steps")["gpu_util_pct"]
    assert loaded.notna().to_dict() == {4: False, 40: False, 49: False, 50: True}


@pytest.fixture(scope="module")
def runs():
    table = made_up.runs(12).reindex(columns=RUN_COLUMNS)
    names = table["zero_stage"].map({0: "H200", 1: "H200"}).fillna("A100")
    return table.assign(gpu_name=names, host="h", provenance="as logged: tokens_per_s")


@pytest.mark.parametrize("reader", [summarize, savings, scaling, lambda runs: read(runs).runs])
def test_tables_with_former_names_of_columns_give_the_same_tables(runs, reader):
    old = runs.rename(columns={new: old for old, new in ALIASES.items()})
    assert {"gpu", "origins"} <= set(old)
    pd.testing.assert_frame_equal(reader(old), reader(runs))


def test_a_table_that_has_passed_the_door_passes_it_unchanged(runs):
    named = named_runs(runs.assign(sweep=["a", "b"] * 6))
    pd.testing.assert_frame_equal(named_runs(named), named)
    both = pd.DataFrame({"gpu": [0], "gpu_name": ["H200"], "n": [1]})
    pd.testing.assert_frame_equal(as_runs(both), both)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"precision": "bf16"}, "ZeRO 0, bf16, micro-batch 8"),
        (
            {"zero_stage": 1, "mixed_precision": "autocast", "compile": "default", "grad_accum": 4},
            "ZeRO 1, bf16 autocast, compiled, micro-batch 8, 4 accumulated",
        ),
        ({"strategy": "plain", "compile": "reduce-overhead"}, "the plain loop, bf16, compiled with CUDA graphs"),
        ({"strategy": "fsdp", "activation_checkpointing": True, "checkpoint_every": 2}, "FSDP, bf16, checkpointing"),
        ({"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 1}, "TP 2 x PP 4 x ZeRO 1, bf16"),
        ({"strategy": None, "zero_stage": None, "precision": None, "micro_batch_size": None, "compile": None}, ""),
    ],
    ids=str,
)
def test_a_setting_is_said_as_an_engineer_would(settings, words):
    assert labels.setting({**DEFAULTS, "precision": "bf16", **settings}).startswith(words)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"gpus": 4, "gpu_name": "NVIDIA H200"}, "4 NVIDIA H200"),
        ({"gpus": 2.0, "device": "cpu"}, "2 CPU ranks"),
        ({"gpus": 1, "device": "cpu"}, "1 CPU rank"),
        ({"gpus": 512}, "512 GPUs"),
        ({"gpus": float("nan")}, "an unknown number of GPUs"),
        ({"checkpoint_every": 3}, "one block of 3 recomputed"),
        ({"memory_limit_gib": 79.5}, "memory limit 79.5 GiB"),
        ({"overlap_comm": "auto"}, "default overlapped communication"),
        ({"bucket_elements": None}, "unknown bucket size"),
        ({"bucket_elements": 100_000_000}, "buckets of 100,000,000 elements"),
        ({"offload": "all-nvme"}, "parameters and optimizer on NVMe"),
        ({"gradient_compression": "powersgd"}, "gradients compressed by PowerSGD"),
        ({"checkpoint_offload": False}, "checkpoints on the GPU"),
        ({"deepspeed.zero_optimization.reduce_scatter": None}, "default reduce_scatter"),
    ],
    ids=str,
)
def test_a_place_or_a_value_is_said_by_what_it_means(run, words):
    assert (labels.place(run) if "gpus" in run else labels.choice(run, *run)) == words
