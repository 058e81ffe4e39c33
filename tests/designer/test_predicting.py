"""Predictions beside the form: it answers at once, says that it predicts, and shows the answer to the latest change."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pandas as pd
import pytest

import dsnb
from tests.support.waiting import WAIT_S

SETTINGS = {"model": "gpt2-tiny", "device": "cpu", "gpus": 1, "precision": "fp32", "zero_stage": [0, 3], "seq_len": 32}
WORD = "Predicting memory and speed ..."


class Slow:
    """A prediction that is held up until it may answer: ZeRO 3 does not fit, and speed is the sequence length."""

    def __init__(self):
        self.asked, self.may_answer, self.fails = [], threading.Event(), False

    def __call__(self, experiments):
        self.asked.append(experiments[0].seq_len)
        assert self.may_answer.wait(WAIT_S)
        if self.fails:
            raise ValueError("no idea")
        return pd.DataFrame(
            {
                "experiment": [one.name for one in experiments],
                "fits": [one.zero_stage == 0 for one in experiments],
                "peak_allocated_gib": 1.0,
                "tokens_per_s": [float(one.seq_len) for one in experiments],
                "step_time_s": 1.0,
            }
        )


@pytest.fixture
def slow():
    return Slow()


@pytest.fixture
def in_a_kernel(tmp_path, slow):
    """Give a function that runs a coroutine with a form in an event loop, as a kernel does."""

    async def kernel(user):
        await user(dsnb.design(SETTINGS, name="small", folder=tmp_path / "params", outputs=tmp_path, predict=slow))

    def run(user):
        with ThreadPoolExecutor(1) as pool:  # a browser of another test may have an event loop in this thread
            pool.submit(asyncio.run, kernel(user)).result()

    return run


async def until(true):
    async with asyncio.timeout(WAIT_S):
        while not true():
            await asyncio.sleep(0.005)


def test_the_form_answers_while_it_predicts(in_a_kernel, slow):
    async def user(form):
        assert WORD in form.plan_view.value
        assert "8 runs: 2 experiments x 4" in form.plan_view.value
        form.write()
        slow.may_answer.set()
        await until(lambda: WORD not in form.plan_view.value)
        assert "Predicted not to fit: 1" in form.plan_view.value
        assert "(32 tokens/s, 1 GiB)" in form.plan_view.value
        assert "Written." in form.message.value
        form.form.objective.value = "memory"
        assert "Predicted least memory" in form.plan_view.value

    in_a_kernel(user)
    assert slow.asked == [32]


def test_the_latest_change_wins(in_a_kernel, slow):
    async def user(form):
        await until(lambda: slow.asked == [32])
        for length in ("64", "128"):
            form.form.rows["seq_len"].field.value = length
            assert WORD in form.plan_view.value
        seen = []
        form.plan_view.observe(lambda change: seen.append(change["new"]), "value")
        slow.may_answer.set()
        await until(lambda: WORD not in form.plan_view.value)
        assert ["(128 tokens/s, 1 GiB)" in text for text in seen] == [True]

    in_a_kernel(user)
    assert slow.asked == [32, 128]


def test_nothing_is_written_before_it_is_known_what_to_leave_out(in_a_kernel, slow):
    async def user(form):
        form.form.leave_out_unfit.value = True
        assert form.write_button.disabled
        form.write()
        assert "wait until it is predicted what will not fit" in form.message.value
        slow.may_answer.set()
        await until(lambda: not form.write_button.disabled)
        form.write()
        assert "zero_stage: 3" in form.path.read_text()
        assert {run.experiment.zero_stage for run in form.plan.sweep.runs} == {0}

    in_a_kernel(user)


def test_a_prediction_that_fails_is_a_note(in_a_kernel, slow):
    async def user(form):
        slow.fails = True
        slow.may_answer.set()
        await until(lambda: WORD not in form.plan_view.value)
        assert "Nothing is predicted: ValueError: no idea" in form.plan_view.value

    in_a_kernel(user)


def test_without_an_event_loop_the_form_waits(tmp_path, slow):
    slow.may_answer.set()
    with ThreadPoolExecutor(1) as pool:
        form = pool.submit(dsnb.design, SETTINGS, folder=tmp_path, outputs=tmp_path, predict=slow).result()
    assert "Predicted not to fit: 1" in form.plan_view.value
