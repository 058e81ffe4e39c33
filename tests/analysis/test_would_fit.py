"""What would fit where nothing does, with a made-up trace: which changes are tried, their order, their words."""

import pytest

import dsnb
from dsnb.analysis import would_fit
from dsnb.prediction import predict
from dsnb.prediction.traces import Trace
from tests.prediction.made_up import RECORD


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setattr(predict, "traces", lambda asked: [Trace.of(RECORD, int(one.micro_batch_size)) for one in asked])


def given(**settings):
    common = {"model": "opt-1.3b", "precision": "bf16", "seq_len": 2048, "device": "cuda", "gpus": 8}
    return dsnb.Experiment(**{**common, **settings})


def changes(*asked, gpu="H200"):
    found = dsnb.predict(list(asked), gpu)
    assert not found["fits"].any()
    return would_fit._would_fit(asked, found, gpu)


def test_a_smaller_micro_batch_at_zero_3_is_named_with_its_memory_and_speed():
    """Half of a micro-batch does not fit, a quarter does; ZeRO cannot go higher."""
    quarter, half = (dsnb.predict([given(zero_stage=3, micro_batch_size=size)], "H200") for size in (16, 32))
    limit = (quarter["peak_allocated_gib"][0] + half["peak_allocated_gib"][0]) / 2
    one = given(zero_stage=3, micro_batch_size=64, grad_accum=2, memory_limit_gib=limit)
    found, _ = changes(one)
    row = found.iloc[0]
    assert row["change"] == "micro-batch 16, accumulation 8"
    assert row["peak_allocated_gib"] == pytest.approx(quarter["peak_allocated_gib"][0], rel=0.05)  # accumulated in fp32
    said = would_fit.sentences([one], dsnb.predict([one], "H200"), "H200")
    assert said[0].startswith(f"no setting fits: the smallest, {one.name_with_model}, needs ")
    assert f" of {limit:.1f} GiB" in said[0]
    assert said[1].startswith(
        f"predicted to fit, the smallest change first: {one.name_with_model} with micro-batch 16, accumulation 8 "
        f"({row['peak_allocated_gib']:.1f} GiB, {row['tokens_per_s']:,.0f} tokens/s)"
    )


KINDS = ("gpus", *would_fit.HERE)


def changed(asked, kinds):
    return [one for number in range(1, len(kinds) + 1) for *_, one in would_fit.variants(asked, kinds, number)]


def test_every_change_keeps_the_task_and_the_sequences_of_a_step():
    every = changed(given(zero_stage=1, micro_batch_size=24, grad_accum=2), KINDS)
    assert len(every) > 40
    assert {one.global_batch_size for one in every} == {24 * 2 * 8}
    assert {(one.model, one.seq_len, one.gpus) for one in every} == {
        ("opt-1.3b", 2048, gpus) for gpus in (8, 16, 32, 64)
    }


def test_the_fewest_steps_of_each_change_are_named_and_more_gpus_come_last(monkeypatch):
    """Memory is what it is without ZeRO: stage 1 is enough where stage 2 and 3 would do as well."""
    whole = dsnb.predict([given(zero_stage=0)], "H200")["peak_allocated_gib"][0]
    found, _ = changes(given(zero_stage=0, memory_limit_gib=whole - 1))
    words = found["change"].tolist()
    assert [one for one in words if "ZeRO" in one] == ["ZeRO 1"]
    rates = [rate for rate, one in zip(found["tokens_per_s"], words, strict=True) if "GPUs" not in one]
    assert rates == sorted(rates, reverse=True)
    assert all("GPUs" not in one for one in words[: len(rates)])
    assert found["fits"].all()


def test_two_changes_are_tried_where_one_is_too_small():
    """An optimizer of 12 B a parameter: ZeRO 1 alone shares nothing on one GPU, and ZeRO 0 cannot offload."""
    found, _ = changes(given(gpus=1, zero_stage=0), gpu="T4")
    assert found["change"].tolist()[0] == "ZeRO 1, optimizer on the CPU"


def test_what_the_rules_refuse_is_not_offered():
    """A pipeline has neither offload nor ZeRO above 1, and DDP has no ZeRO at all."""
    for settings in ({"pipeline_parallel": 2, "zero_stage": 1}, {"strategy": "ddp"}):
        asked = given(micro_batch_size=64, memory_limit_gib=1, **settings)
        every = changed(asked, would_fit.HERE)
        assert every
        assert {one.zero_stage for one in every} == {asked.zero_stage}
        assert {one.offload for one in every} == {"none"}


def test_where_nothing_would_fit_the_least_need_is_said():
    one = given(zero_stage=3, micro_batch_size=2, memory_limit_gib=0.1)
    found, tried = changes(one)
    assert found.empty
    said = would_fit.sentences([one], dsnb.predict([one], "H200"), "H200")
    least = tried.loc[tried["peak_allocated_gib"].idxmin()]
    assert least["peak_allocated_gib"] < dsnb.predict([one], "H200")["peak_allocated_gib"][0]
    assert said[1].startswith("none would with smaller micro-batches, chunked loss, activation checkpointing, ZeRO, ")
    assert said[1].endswith(f": the least, {least['experiment']}, needs {least['peak_allocated_gib']:.1f} of 0.1 GiB")
