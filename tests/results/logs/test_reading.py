"""A logged run as readers fill it in: divergence, failures, steps of several ranks, sizes that follow from others."""

import pytest

from dsnb.results.logs import deepspeed, parallel
from dsnb.results.logs.reading import CONSEQUENCE, READERS, SHORTAGE, LoggedRun


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([("2.0", "inf"), ("1.9", "1.0")], ""),
        ([("2.0", "1.0"), ("1.9", "inf")], ""),  # may be an overflow
        ([("2.0", "1.0"), ("1.9", "inf"), ("1.8", "-inf")], "the gradient norm is inf from step 2 on"),
        ([("2.0", "nan")], "the gradient norm is nan from step 1 on"),
        ([("2.0", "1.0"), ("NaN", "1.0"), ("nan", "1.0")], "the loss is nan from step 2 on"),
        ([("nan", "1.0"), ("2.0", "1.0")], ""),
    ],
)  # fmt: skip
def test_a_training_has_diverged_if_its_last_lines_are_no_numbers(lines, says):
    health = LoggedRun().health
    for step, (loss, norm) in enumerate(lines, 1):
        health.read(loss, norm, step)
    assert health.has_diverged == bool(says)
    if says:
        assert health.says == says


def test_a_skipped_step_has_an_infinite_norm_and_goes_on():
    health = LoggedRun().health
    for step in (1, 2, 3):
        health.read("2.0", "inf", step, skipped=True)
    assert not health.has_diverged
    health.read("inf", "inf", 4, skipped=True)
    assert health.has_diverged


def test_the_first_of_the_failures_that_say_most_counts():
    run = LoggedRun()
    run.fail("failed", "ended", CONSEQUENCE)
    run.fail("oom", "out of memory on rank 0", SHORTAGE)
    run.fail("oom", "out of memory on rank 1", SHORTAGE)
    run.fail("failed", "ended again", CONSEQUENCE)
    assert run.failure == ("oom", "out of memory on rank 0")
    run.add_step(1)  # another rank's
    assert run.has_failed
    run.add_step(2)
    assert not run.has_failed


def test_other_ranks_complete_a_step_and_change_nothing():
    run = LoggedRun()
    run.add_step(1, loss=3.0)
    run.add_step(2, loss=2.0, t_s=None)
    run.add_step(2, loss=9.0, t_s=5.0)
    run.add_step(1, loss=9.0)
    assert run.steps == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0, "t_s": 5.0}]


def test_a_peak_is_the_largest_and_other_figures_the_last():
    run = LoggedRun()
    for peak, loss in ((3.0, 2.0), (5.0, 1.0), (4.0, None)):
        run.record(peak_allocated_gib=peak, loss_last=loss)
    assert run.figures == {"peak_allocated_gib": 5.0, "loss_last": 1.0}


def test_seconds_since_the_first_stamp():
    run = LoggedRun()
    assert run.clock("2026-01-01 10:00:00,500 a") == 0
    assert run.clock("[2026-01-01 10:01:00.750] b") == 60.25
    assert run.clock("2026-01-01 09:00:00 of an earlier run") is None
    assert run.clock("no stamp") is None


@pytest.mark.parametrize(
    ("settings", "facts", "expected"),
    [
        ({"gpus": 8, "data_parallel": 2, "tensor_parallel": 2}, {}, {"pipeline_parallel": 2}),
        ({"gpus": 8, "data_parallel": 2, "tensor_parallel": 2}, {"splits": {"context": 2}}, {"pipeline_parallel": 1}),
        ({"gpus": 8, "data_parallel": 3, "tensor_parallel": 2}, {}, {"pipeline_parallel": None}),  # a remainder
        ({"gpus": 4, "data_parallel": 4}, {}, {"tensor_parallel": 1, "pipeline_parallel": 1}),
        ({"gpus": 4, "data_parallel": 4}, {"has_stages": True}, {"tensor_parallel": None}),
        ({"gpus": 1}, {}, {"tensor_parallel": 1, "pipeline_parallel": 1, "data_parallel": 1}),
        ({"data_parallel": 4}, {"has_engine_world": True}, {"gpus": 4, "tensor_parallel": 1}),
        ({"data_parallel": 4}, {"has_engine_world": True, "is_megatron": True}, {"gpus": None}),
        ({"global_batch_size": 64, "micro_batch_size": 2, "grad_accum": 4}, {"has_trainer_total": True}, {"gpus": 8}),
        ({"global_batch_size": 64, "micro_batch_size": 2, "grad_accum": 4},
         {"has_trainer_total": True, "splits": {"sequence": 2}}, {"gpus": None}),
        ({"micro_batch_size": 2, "data_parallel": 4, "grad_accum": 3}, {}, {"global_batch_size": 24}),
        ({"micro_batch_size": 2, "data_parallel": 4, "global_batch_size": 24}, {}, {"grad_accum": 3}),
        ({}, {"slots": {"a": 8, "b": 4}}, {"nodes": 2, "gpus": 12}),
        ({}, {"launchers": 1}, {"nodes": None}),  # maybe one of several
        ({}, {"launchers": 3}, {"nodes": 3}),
    ],
)  # fmt: skip
def test_sizes_follow_from_others_or_stay_unknown(settings, facts, expected):
    run = LoggedRun(**facts)
    run.settings.update(settings)
    parallel.derive(run)
    assert {name: run.settings[name] for name in expected} == expected


def test_flushes_of_the_allocator_are_added_up():
    run = LoggedRun()
    readers = [read for needle, read in READERS if "allocator" in needle]
    assert readers
    for number in (2, 13):
        line = f"[WARNING] [stage3.py:1939:step] {number} pytorch allocator cache flushes since last step."
        for read in readers:
            read(run, line)
    assert run.figures["alloc_retries"] == 15
    assert deepspeed.cache_flushes
