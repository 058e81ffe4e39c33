"""The explanation of a recommended setting and its alternatives, with made-up figures."""

import re

import pandas as pd
import pytest

from dsnb.prediction import explanation as explained
from dsnb.prediction.explanation import LIMITS, explanation, out_of_reach
from tests.prediction.made_up import given, searching, trace_nothing


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def said(search):
    return [str(sentence) for sentence in explanation(search, search.best())]


STAGES = [given(zero_stage=stage, gpus=8) for stage in (0, 1, 3)]


def test_the_largest_part_of_a_step_is_told_first():
    """Of ten seconds the GPU waits six for the host; three are products, and one attention."""
    nothing = {part: 0.0 for parts in LIMITS.values() for part in parts}
    times = {**nothing, "host_s": 6.0, "matmul_s": 3.0, "attention_s": 1.0, "step_time_s": 10.0}
    search = searching(STAGES, [100.0, 80.0, 60.0], **times)
    sentence = next(one for one in said(search) if one.startswith("A step takes 10 s"))
    shares = re.findall(r"(\d+) % ", sentence)
    assert list(map(int, shares)) == sorted(map(int, shares), reverse=True)
    assert shares[0] == "60"


def test_alternatives_are_compared_with_the_recommended_one():
    """The simplest of the tied settings is recommended: the second is 1 % faster, which counts as equal."""
    search = searching(STAGES, [100.0, 101.01, 80.0], tight=[False, False, True])
    alternatives = [one for one in said(search) if one.startswith("Alternative: ")]
    assert alternatives == [
        "Alternative: ZeRO 1: equal within 2 %, 50 GiB.",
        "Alternative: ZeRO 3: 25.0 % longer, 50 GiB, memory is tight.",
    ]


def test_a_recommended_setting_without_room_for_the_reserve_is_told():
    search = searching(STAGES[:1], [100.0], tight=True, peak_reserved_gib=139.0, headroom_gib=88.0)
    (words,) = [one for one in said(search) if "139.0" in one]
    assert "138.0" in words
    roomy = searching(STAGES[:1], [100.0], peak_reserved_gib=139.0, headroom_gib=88.0)
    assert not any("139.0" in one for one in said(roomy))


def test_the_room_is_what_the_context_and_nccl_leave():
    """Of 139.8 GiB a rank of several has 137.6; 50 are needed."""
    first = said(searching(STAGES[:1], [100.0]))[0]
    assert "GPU memory 50 of 138 GiB" in first
    assert ", 87.6 GiB left." in first


def test_fragmentation_of_the_default_allocator_is_told():
    words = "fragmentation"
    usual = said(searching(STAGES[:1], [100.0]))
    default = said(searching([given(zero_stage=0, gpus=8, allocator="default")], [100.0]))
    assert [any(words in one for one in found) for found in (usual, default)] == [False, True]


@pytest.mark.parametrize(("gpus", "is_each"), [(8, False), (16, True)])
def test_host_memory_is_that_of_each_node(gpus, is_each):
    asked = [given(zero_stage=2, gpus=gpus, offload="optimizer-cpu")]
    sentences = said(searching(asked, [100.0], link="ib:400"))
    (host,) = [one for one in sentences if one.startswith("Host memory: ")]
    assert ("on each node" in host) == is_each


@pytest.mark.parametrize(("error_pct", "words"), [(5.0, "more than"), (15.0, "within")])
def test_memory_is_compared_within_the_error_of_memory(error_pct, words):
    """10 % more memory is more than an error of 5 %, whatever the error of the rate is."""
    asked = [given(zero_stage=stage, gpus=8) for stage in (1, 3)]
    errors = {"peak_allocated_error_pct": error_pct, "tokens_per_s_error_pct": 50.0}
    sizes = {"memory_gib": [50.0, 55.0], "peak_allocated_gib": [50.0, 55.0]}
    search = searching(asked, [100.0, 100.0], "memory", **errors, **sizes)
    (second,) = [one for one in said(search) if one.startswith("Runner-up: ")]
    assert f"10.0 % more memory, {words} the error of {error_pct} %" in second


def test_a_way_of_sharing_is_out_of_reach_if_its_smallest_setting_is():
    """ZeRO 0 needs 140 of 137.6 GiB at least, ZeRO 1 has a setting that fits."""
    asked = [
        given(zero_stage=stage, gpus=8, micro_batch_size=size)
        for stage in (0, 1)
        for size in (1, 2)
    ]
    search = searching(asked, 100.0, peak_allocated_gib=[140.0, 150.0, 130.0, 150.0])
    assert str(out_of_reach(search)) == "Out of reach: ZeRO 0 needs at least 140 of 138 GiB."


def test_a_step_takes_as_long_as_the_speed_that_is_shown():
    """A speed of 120 where the range ends at 100: a step of 10 s is shown as one of 12."""
    best = pd.Series({"tokens_per_s": 120.0, "tokens_per_s_high": 100.0, "step_time_s": 10.0})
    best["matmul_s"] = 10.0
    assert str(explained._limits(best)).startswith("A step takes 12")
    assert str(explained._limits(best.replace(100.0, 130.0))).startswith("A step takes 10")
