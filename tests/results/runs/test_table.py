"""The door for tables: former names of columns, the plain loop's speed, short runs; settings in words."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.results.runs import labels, number_text
from dsnb.results.runs.table import (
    ALIASES,
    as_runs,
    json_numbers,
    named_runs,
    timed_seconds,
    timed_steps,
    with_plain_ratio,
    without_noise,
)
from dsnb.results.statistics.memory_use import savings
from dsnb.results.statistics.scaling import scaling
from dsnb.results.statistics.summary import summarize
from dsnb.settings.experiment import DEFAULTS
from dsnb.settings.records.columns import RUN_COLUMNS
from dsnb.show.explorer.data import prepared
from tests.support import made_up


def table(*rows, **columns):
    """Return runs of (experiment, strategy, tokens/s a GPU) that are equal but for some columns."""
    common = {
        "sweep": "s",
        "repeat": 1,
        "status": "ok",
        "model": "gpt2",
        "micro_batch_size": 8,
        "seq_len": 128,
    }
    runs = pd.DataFrame(
        rows, columns=["experiment", "strategy", "tokens_per_s_per_gpu"], dtype=object
    )
    return runs.assign(**{**common, "precision": "bf16", **columns})


def test_the_fastest_plain_setting_is_the_yardstick():
    runs = table(
        ("eager", "plain", 50),
        ("graphs", "plain", 99),
        ("graphs", "plain", 101),
        ("graphs", "plain", 900),
        ("zs0", "deepspeed", 80),
        ("zs0 long", "deepspeed", 80),
        ("zs1", "deepspeed", math.nan),
        status=["ok", "ok", "ok", "failed", "ok", "ok", "oom"],
        repeat=[1, 1, 2, 3, 1, 1, 1],
        seq_len=[128] * 5 + [256, 128],
    )
    with_ratio = with_plain_ratio(runs)
    expected = [0.5, 0.99, 1.01, 9.0, 0.8, math.nan, math.nan]
    assert with_ratio["of_plain"].tolist() == pytest.approx(expected, nan_ok=True)
    assert summarize(runs).loc["zs0", "of_plain_median"] == pytest.approx(0.8)
    assert "of_plain" not in runs
    kept = with_ratio[with_ratio["strategy"] != "plain"]
    for unchanged in (
        kept,
        table(("zs0", "deepspeed", 80)),
        pd.DataFrame({"experiment": ["a"]}),
        pd.DataFrame(),
    ):
        pd.testing.assert_frame_equal(with_plain_ratio(unchanged), unchanged)  # without a plain run


def test_zero_stage_is_missing_where_there_is_no_zero_and_parallelism_names_every_way():
    runs = table(
        ("a", "plain", 1),
        ("b", "ddp", 2),
        ("c", "fsdp", 3),
        ("d", "deepspeed", 4),
        ("e", "deepspeed", 5),
    )
    runs = runs.assign(zero_stage=[0, 0, 0, 0, 3], tensor_parallel=[1, 1, 1, 1, 2])
    known = as_runs(runs)
    assert known["zero_stage"].fillna(-1).tolist() == [-1, -1, -1, 0, 3]
    assert known["parallelism"].tolist() == ["plain", "DDP", "FSDP", "ZeRO 0", "TP 2 x ZeRO 3"]
    assert known["strategy"].tolist() == runs["strategy"].tolist()
    pd.testing.assert_frame_equal(as_runs(known), known)
    assert known.query("zero_stage == 0 and strategy == 'deepspeed'")["experiment"].tolist() == [
        "d"
    ]
    assert known.query("zero_stage == 0")["experiment"].tolist() == ["d"]
    megatron = as_runs(
        table(("m", "megatron-deepspeed", 1), ("o", None, 1)).assign(zero_stage=[1, 0])
    )
    assert megatron["zero_stage"].tolist() == [
        1,
        0,
    ]  # it has ZeRO; where the strategy is unknown, the stage is kept
    assert megatron["parallelism"].tolist() == ["ZeRO 1", "ZeRO 0"]


def test_an_unknown_size_is_not_grouped_with_a_known_one():
    runs = table(
        ("a", "deepspeed", 1),
        ("b", "deepspeed", 2),
        ("c", "plain", 3),
        ("d", "deepspeed", 4),
        ("e", None, 5),
    )
    runs = runs.assign(zero_stage=[2, 2, None, 2, None], tensor_parallel=[None, 1, None, 2, None])
    known = as_runs(runs)["parallelism"].map(labels.text).tolist()
    assert known == ["TP ? x ZeRO 2", "ZeRO 2", "plain", "TP 2 x ZeRO 2", "-"]
    assert [
        as_runs(runs.iloc[[row]])["parallelism"].map(labels.text).item() for row in range(5)
    ] == known
    without = as_runs(runs.drop(columns="tensor_parallel"))  # a table without such sizes
    assert without["parallelism"].map(labels.text).tolist() == [
        "ZeRO 2",
        "ZeRO 2",
        "plain",
        "ZeRO 2",
        "-",
    ]


def test_groups_of_a_missing_stage_are_neither_dropped_nor_merged_with_stage_0():
    gpt2 = dsnb.published("h200").query("model == 'gpt2' and precision == 'bf16'")
    groups = summarize(gpt2, by=["zero_stage", "precision"])
    assert groups["n"].sum() == (gpt2["status"] == "ok").sum()
    stage_0 = groups.loc[(0.0, "bf16")]
    assert (stage_0["n"], stage_0["tokens_per_s_median"]) == (
        69,
        106_980,
    )  # 117 and 164,826 with the plain loop
    shared = summarize(gpt2, by="parallelism")
    assert shared["n"].to_dict() == {
        "plain": 42, "DDP": 5, "FSDP": 1, "ZeRO 0": 69, "ZeRO 1": 28, "ZeRO 2": 17, "ZeRO 3": 19,
    }  # fmt: skip
    assert shared["tokens_per_s_median"]["plain"] == 401_658


WORK = [
    "model", "seq_len", "data", "lora_rank", "micro_batch_size", "grad_accum", "precision", "optimizer", "dropout",
    "gradient_clipping", "loss", "activation_checkpointing", "checkpoint_every", "gpu_name",
]  # fmt: skip
ATTENTION = {
    "attention": ["auto", "eager"],
    "attention_used": ["sdpa", "eager"],
    "attention_kernel": ["flex", "math"],
}
COMPARED = {
    "zero_stage": [0, 3], "offload": ["none", "all-cpu"], "gpus": [1, 8], "compile": ["reduce-overhead", "off"],
    "overlap_comm": ["auto", "on"], "mixed_precision": ["autocast", "native"], "grad_accum_dtype": ["auto", "fp32"],
    "attention_used": ["flex with ALiBi", "sdpa with ALiBi"], "attention_kernel": ["flex", "cudnn"],
    "attention": ["auto", "sdpa"], "checkpoint_offload": [False, True], "cores": [16, 32],
}  # fmt: skip


def ratios(**columns):
    """Return `of_plain` of a plain run of 100 tokens/s a GPU and one of ZeRO 1 of 80, equal but for some columns.

    0 stands for a missing one.
    """
    runs = table(("plain", "plain", 100), ("zs1", "deepspeed", 80), **columns)
    return with_plain_ratio(runs)["of_plain"].fillna(0).round(9).tolist()


def test_a_plain_run_of_other_work_is_no_yardstick():
    assert ratios() == ratios(**COMPARED) == [1, 0.8]
    for name, values in ({name: ["a", "b"] for name in WORK} | ATTENTION).items():
        assert ratios(**{name: values}) == [1, 0], name


def test_ranks_on_a_cpu_share_the_cores_of_the_plain_process():
    here = {"gpu_name": None, "tokens_per_s": [100.0, 90.0], "cpu": "Xeon", "cores": [2, 2]}
    assert ratios(**here, device="cpu") == [1, 0.9]
    assert ratios(**here, device="cuda") == [1, 0.8]
    for other in ({"cores": [64, 2]}, {"cpu": ["EPYC", "Xeon"]}):
        assert ratios(**here | other, device="cpu") == [1, 0]


def test_less_than_five_seconds_of_timed_steps_have_no_utilization(tmp_path):
    timings = [
        (4.99, None, None),
        (5, None, None),
        (None, 20, 0.02),
        (6, 20, 0.02),
        (None, 20, None),
    ]
    runs = pd.DataFrame(
        timings, columns=["timed_s", "timed_steps", "step_time_mean_s"], dtype=float
    )
    cleaned = without_noise(runs.assign(gpu_util_pct=80.0, sm_clock_mhz=1980.0))
    assert cleaned["gpu_util_pct"].notna().tolist() == [False, True, False, True, True]
    assert (cleaned["sm_clock_mhz"] == 1980).all()  # a clock is a momentary reading
    table = made_up.runs(2, repeats=1).assign(
        status="ok", cause=None, gpu_util_pct=80.0, step_time_mean_s=0.1
    )
    made_up.write_folders(table.assign(timed_steps=[49, 50]), tmp_path / "s")
    loaded = dsnb.load_runs(tmp_path).set_index("timed_steps")["gpu_util_pct"]
    assert loaded.notna().to_dict() == {49: False, 50: True}


@pytest.fixture(scope="module")
def runs():
    table = made_up.runs(12).reindex(columns=RUN_COLUMNS)
    names = table["zero_stage"].map({0: "H200", 1: "H200"}).fillna("A100")
    return table.assign(gpu_name=names, host="h", provenance="as logged: tokens_per_s")


@pytest.mark.parametrize("reader", [summarize, savings, scaling, lambda runs: prepared(runs).runs])
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
        (
            {"mixed_precision": "autocast", "grad_accum": 4},
            "ZeRO 0, bf16 autocast, micro-batch 8, 4 accumulated",
        ),
        (
            {"strategy": "plain", "compile": "reduce-overhead"},
            "the plain loop, bf16, compiled with CUDA graphs",
        ),
        (
            {"strategy": "fsdp", "activation_checkpointing": True, "checkpoint_every": 2},
            "FSDP, bf16, one block in two recomputed, micro-batch 8",
        ),
        (
            {"tensor_parallel": 2, "pipeline_parallel": 4, "zero_stage": 1},
            "TP 2 x PP 4 x ZeRO 1, bf16",
        ),
        (
            {
                "strategy": None,
                "zero_stage": None,
                "precision": None,
                "micro_batch_size": None,
                "compile": None,
            },
            "",
        ),
    ],
    ids=str,
)
def test_a_setting_is_said_as_an_engineer_would(settings, words):
    assert labels.setting({**DEFAULTS, "precision": "bf16", **settings}).startswith(words)


@pytest.mark.parametrize(
    ("run", "name", "expected"),
    [
        ({"precision": "bf16"}, "mixed_precision", True),
        ({"precision": "fp32"}, "mixed_precision", False),
        ({"precision": "tf32"}, "mixed_precision", False),
        ({"precision": None}, "mixed_precision", True),  # unknown
        ({"activation_checkpointing": False}, "checkpoint_every", False),
        ({"activation_checkpointing": True}, "checkpoint_every", True),
        ({"compile": "off"}, "compile_unit", False),
        ({}, "micro_batch_size", True),
    ],
    ids=str,
)
def test_a_setting_has_an_effect_or_not(run, name, expected):
    assert labels.has_effect(run, name) is expected


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"gpus": 4, "gpu_name": "NVIDIA H200"}, "4 NVIDIA H200"),
        ({"gpus": 2.0, "device": "cpu"}, "2 CPU ranks"),
        ({"gpus": 512}, "512 GPUs"),
        ({"gpus": float("nan")}, "an unknown number of GPUs"),
        ({"memory_limit_gib": 79.5}, "memory limit 79.5 GiB"),
        ({"bucket_elements": None}, "unknown bucket size"),
        ({"bucket_elements": 100_000_000}, "buckets of 100,000,000 elements"),
        ({"offload": "all-nvme"}, "parameters and optimizer on NVMe"),
        ({"checkpoint_offload": False}, "checkpoints on the GPU"),
        ({"deepspeed.zero_optimization.reduce_scatter": None}, "default reduce_scatter"),
    ],
    ids=str,
)
def test_a_place_or_a_value_is_said_by_what_it_means(run, words):
    assert (labels.place(run) if "gpus" in run else labels.choice(run, *run)) == words


def test_steps_and_seconds_are_as_recorded_or_follow_from_settings():
    runs = pd.DataFrame({"steps": [10, 10], "timed_steps": [8, None], "step_time_mean_s": 2.0})
    assert timed_steps(runs).tolist() == [8, 10]
    assert timed_seconds(runs).tolist() == [16, 20]
    assert timed_seconds(runs.assign(timed_s=[15.5, None])).tolist() == [15.5, 20]


def test_numbers_that_json_has_not_are_missing():
    numbers = json_numbers([math.inf, -math.inf, math.nan, 2.0, 1.23456], digits=4)
    assert numbers == [None, None, None, 2, 1.235]


@pytest.mark.parametrize(
    ("text_of", "given", "expected"),
    [
        (number_text.significant, (9.996,), "10"),
        (number_text.significant, (0.04567,), "0.0457"),
        (number_text.supported, (55.46, 0.29), "55"),
        (number_text.supported, (162_558, 0.132), "163,000"),
        (number_text.supported, (162_558, math.nan), "162,600"),
        (number_text.supported, (162_558, 3), "200,000"),
        (number_text.fixed, (0.125, 2), "0.13"),  # exact in binary: away from zero
        (number_text.fixed, (-0.125, 2), "-0.13"),
        (number_text.fixed, (math.nan,), ""),
        (number_text.signed, (9.96,), "+10.0 %"),
        (number_text.signed, (99.94,), "+99.9 %"),
        (number_text.signed, (99.96,), "+100 %"),
        (number_text.signed, (-0.04,), "0 %"),
        (number_text.duration, (20, 30), "0.8 to 1.3 days"),
        (number_text.duration, (1,), "1 hour"),
        (number_text.duration, (0.5,), "30 minutes"),
        (number_text.duration, (24,), "1 day"),
        (number_text.amount, (2e9,), "2 billion"),
        (number_text.amount, (999e6,), "999 million"),
        (number_text.span, (31.2, 56.4), "30 to 60"),
        (number_text.span, (3, 90), "3 to 90"),
        (number_text.span, (0, 1234.6), "1,235"),
        (number_text.span, (1, math.nan), ""),
    ],
)
def test_numbers_are_rounded_as_readers_expect(text_of, given, expected):
    assert text_of(*given) == expected
