"""What an answer rests on, its speed-up, and untried larger micro-batches; expected values are worked out by hand."""

import math

import pandas as pd
import pytest

from dsnb.results.answers import evidence
from dsnb.results.answers.card import card
from dsnb.results.answers.decide import Question, candidates, global_batch, of_runs
from tests.results.answers.test_card import runs

ONE = {"precision": ["bf16"], "zero_stage": [0]}


def two():
    """Give two settings that are the same."""
    return runs(2, precision=["bf16"], zero_stage=[0, 1]).assign(zero_stage=0, strategy="deepspeed")


def said(table):
    """Give what is known of each setting by its name."""
    options = candidates(table)
    return evidence.evidence(table, options, options.index)


@pytest.mark.parametrize(
    ("repeats", "other", "sentence"),
    [  # 1,000 to 1,006 tokens/s: a standard deviation of 2.58; 1,000 to 1,002: half a range of 1
        (4, {"steps": 40, "timed_s": 0.4, "host": ["a", "b", "c", "d"]},
         "the median of 4 runs of 40 steps (0.4 s each) on 4 hosts, spread ±0.3 %. Only 0.4 s were timed in each run: "
         "measure longer before you rely on it. Time"),
        (1, {"steps": 7, "step_time_mean_s": 0.1, "host": "a"},
         "one run of 7 steps (0.7 s). Only 0.7 s were timed: measure longer before you rely on it."),
        (2, {"timed_s": 4.0, "host": ["a", None], "step_time_mean_s": None},
         "the median of 2 runs (4 s each), spread ±0.1 %. Only 4 s were timed in each run: measure longer before"),
        (1, {"timed_s": 1.0, "steps": 4, "source": "published: elsewhere"},
         "published, not measured here, one run of 4 steps (1 s). Time"),
    ],
)  # fmt: skip
def test_what_speed_rests_on(repeats, other, sentence):
    assert (
        sentence
        in card(of_runs(runs(repeats, repeats=repeats, **ONE).assign(**other), Question()))["basis"]
    )


@pytest.mark.parametrize(
    ("other", "gain"),
    [
        ({}, "5.8 times as fast as ZeRO 0 in bf16, uncompiled."),
        ({"optimizer": ["adamw", "adafactor"]},
         "5.8 times as fast as ZeRO 0 in bf16, uncompiled (changes the training: optimizer Adafactor instead of "
         "AdamW)."),
        ({"strategy": ["ddp", "fsdp"]}, "5.8 times as fast as DDP in bf16, uncompiled."),
        ({"attention": ["eager", "auto"]}, ""),  # no common starting point
        ({"gpu_name": ["A", "B"]}, ""),
    ],
)  # fmt: skip
def test_speed_up_over_the_usual_start(other, gain):
    own = two().assign(
        experiment=["start", "best"],
        compile=["off", "default"],
        tokens_per_s=[1000.0, 5800.0],
        **other,
    )
    found = said(own)
    assert (found["best"]["gain"], found["start"]["gain"]) == (gain, "")
    assert card(of_runs(own, Question()))["gain"] == gain


def test_a_small_speed_up_is_never_one_time_as_fast():
    own = two().assign(experiment=["start", "best"], compile=["off", "default"])
    own = own.assign(tokens_per_s=[1000.0, 1030.0])
    assert said(own)["best"]["gain"] == "1.03 times as fast as ZeRO 0 in bf16, uncompiled."


def sized(**other):
    """Give a setting that uses 30 of 140 GiB at micro-batch 8, and one at 4."""
    own = two().assign(
        micro_batch_size=[8, 4], peak_allocated_gib=[30.0, 20.0], gpu_memory_gib=140.0
    )
    own = own.assign(gpu_name="unheard of", experiment=["s/zs0_bs8_sl512", "s/zs0_bs4_sl512"])
    return own.assign(**{"tokens_per_s": [1000.0, 900.0], **other})


LARGEST = "Micro-batch 8 is the largest measured and 110 GiB are free: a larger one may be faster."


@pytest.mark.parametrize(
    ("other", "edge"),
    [
        ({}, LARGEST),
        ({"tokens_per_s": [900.0, 1000.0]}, ""),  # the best setting has a smaller one
        ({"peak_allocated_gib": [71.0, 20.0]}, ""),  # twice as much may not fit
        (
            {"micro_batch_size": [8, 16], "status": ["ok", "oom"]},
            "",
        ),  # a larger one ran out of memory
        ({"micro_batch_size": [8, 16], "status": ["ok", "oom"], "zero_stage": [0, 3]}, LARGEST),
        ({"source": "published: elsewhere"}, ""),
    ],
)
def test_whether_a_larger_micro_batch_is_untried(other, edge):
    assert card(of_runs(sized(**other), Question()))["edge"] == edge


def test_a_runner_up_that_trains_otherwise_is_marked_and_the_batch_can_be_held():
    own = sized(optimizer=["adafactor", "adamw"], lora_rank=[0, None])
    said = card(of_runs(own, Question()))
    assert (
        "(changes the training: global batch 4 instead of 8, optimizer AdamW instead of Adafactor)"
        in said["following"]
    )
    assert (
        "Global batch: 8 sequences, 4,096 tokens."
        in card(of_runs(own, Question(tokens=1e9)))["costs"]
    )
    held = card(of_runs(own, Question(tokens=1e9, global_batch=4)))
    assert "micro-batch 4" in held["headline"]
    assert "changes the training" not in held["following"]
    none = card(of_runs(own, Question(global_batch=5)))
    assert none["headline"] == "No setting was measured with a global batch of 5 sequences."
    none = card(of_runs(own.assign(gpus=2), Question(global_batch=16, gpus=1)))
    assert (
        none["headline"]
        == "No setting was measured with a global batch of 16 sequences on 1 GPU or fewer."
    )


@pytest.mark.parametrize("rate", [950.0, 999.0, 500.0])
def test_what_is_twice_as_fast_needs_no_doubt(rate):
    said = card(
        of_runs(sized(tokens_per_s=[1000.0, rate], optimizer=["adamw", "adafactor"]), Question())
    )
    assert ("too few to be sure" in said["following"]) == (rate > 500)


def test_parallel_sizes_share_a_batch():
    own = pd.DataFrame(
        {
            "gpus": 8,
            "tensor_parallel": [2, None, 1],
            "micro_batch_size": 4,
            "grad_accum": [3, 1, None],
        }
    )
    assert list(global_batch(own)) == pytest.approx(
        [48, math.nan, math.nan], nan_ok=True
    )  # unknown is not 1
    recorded = global_batch(own.assign(global_batch_size=[50, None, None]))
    assert recorded.fillna(0).tolist() == [50, 0, 0]
    assert list(global_batch(pd.DataFrame({"gpus": [8], "micro_batch_size": 4}))) == [
        32
    ]  # a table without the settings
