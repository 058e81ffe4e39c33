"""What readers of results refuse: the whole message, and neighbours that are accepted."""

import json
import math

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import LogError, PublishedError, SettingsError
from dsnb.results.answers.decide import Question
from dsnb.results.literature import tables
from dsnb.results.logs import console, step_csv, trainer
from dsnb.results.runs.load import find_runs, no_runs_message
from dsnb.results.statistics.comparisons import Rules, rules_of
from tests.support.refusals import message_of

RUNS = pd.DataFrame(
    {
        "sweep": "s",
        "experiment": ["a", "a", "b", "b"],
        "status": "ok",
        "tokens_per_s": [1.0, 1.1, 2.0, 2.1],
        "losses": [1.0, 1.1, 2.0, 2.1],
    }
)
RAMPUP = {"first": 8, "last": 32, "gpus_per_node": 2}


def refusal(call):
    return message_of(call, SettingsError)


@pytest.mark.parametrize("relevance", [-0.01, 1, 1.5, math.nan])
def test_relevances(relevance):
    words = f"relevance is {relevance!r}: must be 0 or more and less than 1 (0.02 is 2 %)"
    assert refusal(lambda: Rules(relevance=relevance)) == words
    words = f"relevance is {relevance!r}: give 0 or more and less than 1, such as 0.02 for 2 %"
    assert refusal(lambda: Question(relevance=relevance)) == words
    assert Rules(relevance=0).relevance == 0
    assert Question(relevance=0.99).relevance == 0.99


@pytest.mark.parametrize("confidence", [0, 1, math.nan])
def test_confidences(confidence):
    words = f"confidence is {confidence!r}: must be between 0 and 1 (0.95 is 95 %)"
    assert refusal(lambda: Rules(confidence=confidence)) == words
    assert Rules(confidence=0.01).confidence == 0.01


def test_comparisons():
    words = "fewest_runs is 1: must be 2 or more, a single run has no spread"
    assert refusal(lambda: Rules(fewest_runs=1)) == words
    assert Rules(fewest_runs=2).fewest_runs == 2
    words = "runs have no column 'speed': choose one such as 'tokens_per_s' or 'step_time_mean_s'"
    assert refusal(lambda: rules_of(RUNS, "speed")) == words
    words = "baseline 'c' is not among the settings: a, b"
    assert refusal(lambda: dsnb.differences(RUNS, baseline="c")) == words
    words = "neither direction of 'losses' is better: give a baseline, or say which is (better=...)"
    assert refusal(lambda: dsnb.differences(RUNS, figure="losses")) == words
    assert len(dsnb.differences(RUNS, figure="losses", better="lower")) == 1
    assert len(dsnb.differences(RUNS, figure="losses", baseline="a")) == 1


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"objective": "speed"},
            "objective is 'speed': choose one of time, gpu_hours, cost, memory",
        ),
        (
            {"prices": 2.5},
            "prices is 2.5: give the price of a GPU-hour by GPU, as in {'H200': 2.5}",
        ),
        ({"prices": {"H200": -1}}, "prices['H200'] is -1: give a finite number of 0 or more"),
        ({"assumed_price": math.inf}, "assumed_price is inf: give a finite number of 0 or more"),
        ({"tokens": -1}, "tokens is -1: give a finite number of more than 0"),
        ({"gpus": 1.0}, "gpus is 1.0: give the number of GPUs at hand, or 0 for any"),
        ({"gpus": -1}, "gpus is -1: give the number of GPUs at hand, or 0 for any"),
        ({"global_batch": True}, "global_batch is True: give sequences per step, or 0 for any"),
    ],
    ids=str,
)
def test_questions(asked, words):
    assert refusal(lambda: Question(**asked)) == words
    assert Question(gpus=0, global_batch=0, prices={"H200": 0}).gpus == 0


@pytest.mark.parametrize(
    "name", ["first", "last", "gpus_per_node", "micro_batch_size", "replica_gpus", "increment"]
)
def test_numbers_of_a_ramp(name):
    asked = {**RAMPUP, "micro_batch_size": 4, name: 0}
    words = f"{name} is 0: give a whole number of at least 1"
    assert refusal(lambda: dsnb.rampup(**asked)) == words


def test_ramps():
    sizes = {**RAMPUP, "micro_batch_size": 4}
    for least in (0, 1.01, -1):
        words = f"least_efficiency is {least}: give a number above 0, at most 1"
        assert refusal(lambda n=least: dsnb.rampup(**sizes, least_efficiency=n)) == words
    assert len(dsnb.rampup(**sizes, least_efficiency=1)) == 3
    words = (
        "give either micro_batch_size, the largest that fits, with replica_gpus, or measured runs"
    )
    assert refusal(lambda: dsnb.rampup(**RAMPUP)) == words
    assert refusal(lambda: dsnb.rampup(**sizes, runs=RUNS)) == words
    words = "no run is ok with a throughput and a micro-batch size: measure some sizes first"
    assert refusal(lambda: dsnb.rampup(**RAMPUP, runs=RUNS)) == words
    words = "last is 33, but the batch doubles from 8 on: choose 32 or 64, or another increment"
    assert refusal(lambda: dsnb.rampup(**{**sizes, "last": 33})) == words
    words = "last is 33, but the batch grows by 8 from 8 on: choose 32 or 40, or another increment"
    assert refusal(lambda: dsnb.rampup(**{**sizes, "last": 33}, increment=8)) == words


def test_published_tables():
    names = ", ".join((*tables.FOREIGN, *tables.OWN))
    words = f"unknown published table 'lambda': choose one of {names}"
    assert message_of(lambda: dsnb.published("lambda"), PublishedError) == words


def test_folders(tmp_path):
    gone = str(tmp_path / "gone")
    words = (
        f"{gone!r} is not a folder or a file: choose a folder of outputs, "
        "such as outputs/quickstart, or a log"
    )
    assert refusal(lambda: find_runs(gone)) == words
    assert refusal(lambda: dsnb.load_runs(gone)) == words
    assert find_runs(tmp_path) == ([], [])
    (tmp_path / "notes.txt").write_text("nothing")
    words = (
        f"{str(tmp_path)!r} contains no runs: none of 1 file is a run of dsnb "
        f"or a log that it can read; supported are {console.KINDS}"
    )
    assert no_runs_message(tmp_path) == words
    assert refusal(lambda: dsnb.write_report(tmp_path)) == words


def test_a_file_that_is_no_log(tmp_path):
    file = tmp_path / "notes.log"
    file.write_text("nothing")
    words = f"{file} is not a log that dsnb can read: supported are {console.KINDS}"
    assert message_of(lambda: dsnb.load_runs(file), LogError) == words


def test_states_of_the_trainer(tmp_path, monkeypatch):
    file = tmp_path / "trainer_state.json"

    def failure():
        return message_of(lambda: trainer.read_state(file), LogError)

    file.write_text('{"log_history":\n[}')
    words = f"{file}, line 2 is cut off or damaged JSON: use the console log instead"
    assert failure() == words
    for content in ([], {"log_history": {}}, {"steps": 3}):
        file.write_text(json.dumps(content))
        words = f"{file} is not a trainer_state.json: it must have a list 'log_history'"
        assert failure() == words
    file.write_text('{"log_history": []}')
    assert len(trainer.read_state(file)) == 1
    monkeypatch.setattr(trainer, "MAX_STATE_BYTES", 18)
    words = (
        f"{file} is larger than 256 MiB, too large for a trainer_state.json: "
        "use the console log instead"
    )
    assert failure() == words
    monkeypatch.setattr(trainer, "MAX_STATE_BYTES", 19)
    assert len(trainer.read_state(file)) == 1


def test_tables_of_steps(tmp_path):
    file = tmp_path / "steps.csv"
    names = "timestamp,global_step,step_time_s,loss,tokens_per_sec"
    file.write_text(f"{names}\n1,1,0,2,3\n")
    words = (
        f"{file}, line 2 holds no complete row: every row needs numbers for "
        "timestamp, global_step, step_time_s, loss, tokens_per_sec"
    )
    assert message_of(lambda: step_csv.read(file), LogError) == words
    file.write_text(f"{names}\n1,1,0.5,2,3\n")
    assert len(step_csv.read(file)) == 1
