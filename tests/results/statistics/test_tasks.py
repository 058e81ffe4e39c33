"""Tasks, which are never compared with each other, choices, and numbers as text."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import fixed, significant, span
from dsnb.results.runs.templates import fill
from dsnb.results.statistics.setting_axes import (
    named_by_setting,
    split,
    variants,
    varying,
    with_setting_axes,
)
from dsnb.results.statistics.tasks import is_fine_tuning, parameters, tasks
from dsnb.show.explorer import data
from tests.support import made_up


def test_a_task_is_model_length_data_and_what_is_trained():
    titles = {task.title: len(task.runs) for task in tasks(dsnb.published("lambda_1cc_opt"))}
    assert titles == {"opt-350m, sequence 512": 8, "opt-13b, sequence 512, LoRA adapters": 8}


def test_a_title_tells_what_is_unusual_or_what_other_tasks_do_not_tell():
    runs = made_up.runs(9, model=["gpt2"], seq_len=[512])
    runs["data"] = ["synthetic"] * 3 + ["stdlib"] * 3 + [None] * 3
    titles = [
        "gpt2, sequence 512, synthetic data",
        "gpt2, sequence 512, stdlib text",
        "gpt2, sequence 512",
    ]
    assert sorted(task.title for task in tasks(runs)) == sorted(titles)
    assert [task.title for task in tasks(runs[:6])] == [
        "gpt2, sequence 512",
        "gpt2, sequence 512, stdlib text",
    ]


def test_tasks_with_few_settings_come_last():
    many = made_up.runs(5, repeats=1, seq_len=[128]).assign(status="ok", experiment=list("abcde"))
    few = made_up.runs(8, repeats=8, seq_len=[512]).assign(status="ok", experiment="f")
    found = tasks(pd.concat([few, many]))
    assert [(task.settings, len(task.runs)) for task in found] == [(5, 5), (1, 8)]


def test_the_task_with_the_most_runs_comes_first():
    few, many = (
        made_up.runs(6, seq_len=[128], model=["gpt2"]),
        made_up.runs(12, seq_len=[512], model=["gpt2"]),
    )
    found = tasks(pd.concat([few, many]))
    assert [task.title for task in found] == ["gpt2, sequence 512", "gpt2, sequence 128"]
    assert [len(task.runs) for task in found] == [12, 6]
    assert (
        many.drop(columns=["model", "seq_len"]).nunique().max() > 3
    )  # everything else is a way to do it
    pd.testing.assert_frame_equal(found[0].runs, many)


SHARED = pd.DataFrame(
    [
        {"strategy": "plain", "zero_stage": 0},
        {"strategy": "ddp", "zero_stage": 0},
        {"strategy": "fsdp", "zero_stage": 0},
        {"strategy": "deepspeed", "zero_stage": 3},
        {"strategy": "deepspeed", "zero_stage": 1, "tensor_parallel": 2, "pipeline_parallel": 4},
        {"strategy": "deepspeed", "zero_stage": None},
        {"strategy": "another", "zero_stage": None},
    ]
).fillna({"tensor_parallel": 1, "pipeline_parallel": 1})


def test_how_a_training_is_shared_is_one_choice():
    known = with_setting_axes(SHARED)
    names = known["parallelism"].map(labels.text).to_list()
    assert names == ["plain", "DDP", "FSDP", "ZeRO 3", "TP 2 x PP 4 x ZeRO 1", "-", "another"]
    assert known["strategy"].to_list() == SHARED["strategy"].to_list()
    assert varying(known) == ["parallelism"]


def test_variants_differ_in_more_than_parallelism_and_precision():
    runs = SHARED.assign(
        seq_len=[100] * 6 + [200], gpus=[1, *[2] * 6], device="cpu", seed=range(7), steps=range(7)
    )
    parts = variants(runs)
    assert list(parts) == ["2 ranks, sequence 100"]  # the others have one setting each
    assert list(parts["2 ranks, sequence 100"]["strategy"]) == [
        "ddp",
        "fsdp",
        "deepspeed",
        "deepspeed",
        "deepspeed",
    ]
    assert list(variants(runs[runs["strategy"].isin(["plain", "another"])])) == [
        "1 rank, sequence 100",
        "2 ranks, sequence 200",
    ]
    pair = runs.iloc[1:3]
    many = pd.concat(
        [runs, *(pair.assign(seq_len=length) for length in (300, 400, 500, 600))],
        ignore_index=True,
    )
    assert list(variants(many)) == [f"2 ranks, sequence {n}" for n in (100, 300, 400, 500)]
    assert list(variants(SHARED)) == [""]
    on_gpus = variants(runs.assign(device="cuda", gpu_name="H200"))
    assert "2 GPUs, sequence 100" in on_gpus


def test_settings_are_named_by_what_tells_them_apart_and_equal_ones_share_a_name():
    run = {"strategy": "deepspeed", "zero_stage": 1, "precision": "bf16", "gpus": 2, "sweep": "a"}
    other = run | {"zero_stage": 3, "allocator": "default"}
    runs = pd.DataFrame([run, run | {"sweep": "b"}, other, other | {"allocator": "expandable"}])
    runs = runs.assign(experiment=["a", "b", "c", "d"])
    one, same, *allocators = named_by_setting(runs)["experiment"]
    assert one == same == "ZeRO 1"
    assert allocators[0].startswith("ZeRO 3")
    assert allocators[0] != allocators[1]
    assert set(named_by_setting(runs, ["allocator"])["experiment"]) == {"ZeRO 1", "ZeRO 3"}
    assert named_by_setting(runs.head(0)).empty


def test_numbers_as_text():
    """Three digits count, or all before the point; a half is rounded up, and only an exact one is a half."""
    numbers = {
        0: "0",
        0.045678: "0.0457",
        1.905: "1.91",
        26: "26",
        99.96: "100",
        408_529.4: "408,529",
    }
    assert {value: significant(value) for value in numbers} == numbers
    assert [fixed(value, 2) for value in (0.125, 0.375, 1.005, 26.975)] == [
        "0.13",
        "0.38",
        "1.00",
        "26.98",
    ]
    assert fixed(1234567.5, 0) == "1,234,568"
    assert significant(2.5, 1) == "3"
    ranges = {
        (31.2, 56.4): "30 to 60",
        (12.312, 12.441): "12.31 to 12.45",
        (math.nan, math.nan): "",
        (5.0, 5.0): "5",
    }
    assert {ends: span(*ends) for ends in ranges} == ranges


@pytest.mark.parametrize(
    ("template", "facts", "text"),
    [
        ("Train [{model} ]on {place}.", {"model": "", "place": "1 GPU"}, "Train on 1 GPU."),
        ("[{a}[ of {b}] GiB]", {"a": 1}, "1 GiB"),
        ("{n} {n:setting is|settings are} out", {"n": 1}, "1 setting is out"),
        ("{name}", {"name": "[{other}]"}, "[{other}]"),  # what is filled in is no template
    ],
)
def test_a_template_leaves_out_what_is_unknown(template, facts, text):
    assert fill(template, facts) == text


def test_the_page_assumes_few_tokens_for_tasks_that_adapt_a_trained_model():
    runs = dsnb.published("lambda_1cc_opt")
    page = data.prepared(runs)
    tokens = {title: task.tokens for title, task in page.tasks.items()}
    # 331 million parameters x 20, to two digits, and the convention for LoRA
    assert tokens == {"opt-350m, sequence 512": 6.6e9, "opt-13b, sequence 512, LoRA adapters": 50e6}
    lora = runs[runs["model"] == "opt-13b"]
    assert is_fine_tuning(lora)
    assert not is_fine_tuning(runs)  # not of all of them
    assert not is_fine_tuning(lora.drop(columns=["lora_rank"]))  # unknown
    assert is_fine_tuning(runs.assign(weights="pretrained"))


def test_the_size_of_a_model_is_measured_or_published_or_unknown():
    runs = pd.DataFrame({"model": "gpt2", "parameters": [None, 124e6, 125e6]})
    assert parameters(runs) == 125e6
    assert parameters(runs.head(1)) == 124_439_808
    assert parameters(runs.head(1).assign(model="unheard of")) == 0


def test_parts_whose_unusual_settings_are_the_same_have_whole_titles():
    runs = pd.DataFrame(
        {"model": "gpt2", "optimizer": "adafactor", "offload": ["none", None, "all-cpu"]}
    )
    titles = [
        title for title, _ in split(runs.assign(optimizer=["adafactor", "adafactor", "adamw"]), ())
    ]
    assert len(set(titles)) == 3
