"""Errors on runs that were left out of the calibration, as the documentation and every prediction state them."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from benchmarks import prediction_errors
from dsnb.prediction.constants import PRIOR
from dsnb.prediction.measured import measured
from dsnb.prediction.step_time import step_times
from dsnb.prediction.time_errors import (
    ALL,
    DEFAULT_ERRORS,
    ELSEWHERE,
    WAITING,
    TimeError,
    by_kind,
    expected_error,
    host_share,
    kind,
    left_out,
)
from dsnb.settings.experiment import Experiment
from tests import ROOT
from tests.prediction.made_up import TRACE

OFFLOADED = Experiment(zero_stage=2, offload="optimizer-cpu", device="cuda")


def runs(*settings):
    """Return made-up runs that take exactly as long as the default constants say."""
    common = {"gpu_name": "NVIDIA H200", "step_time_s": 1.0, "model": "opt-1.3b", "micro_batch_size": 8, "seq_len": 512}
    found = measured(pd.DataFrame([{**common, **one} for one in settings]))
    times = step_times([one.setting for one in found]).step_time_s
    return [replace(one, step_time_s=float(seconds)) for one, seconds in zip(found, times, strict=True)]


def assert_rounded_alike(found, printed):
    """Another machine's linear algebra may round the last digit to the other side."""
    assert found.keys() == printed.keys()
    for name, errors in found.items():
        assert vars(errors) == pytest.approx(vars(printed[name]), abs=0.11)


def test_models_on_h200_that_were_left_out():
    found = prediction_errors.h200_runs()
    errors = left_out(found, PRIOR)
    assert_rounded_alike(by_kind(found, errors), DEFAULT_ERRORS)
    assert DEFAULT_ERRORS[ALL].settings == len(found)
    gpu_bound = [one for name, one in DEFAULT_ERRORS.items() if name not in {ALL, WAITING, kind(OFFLOADED)}]
    assert sum(one.settings for one in gpu_bound) > 75
    assert sum(one.settings * one.mean_pct for one in gpu_bound) / sum(one.settings for one in gpu_bound) < 7
    assert max(one.worst_pct for one in gpu_bound) < 26  # OPT-125M at ZeRO 2 took 1.19 times as long as at ZeRO 1
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    assert "\n".join(prediction_errors.lines(DEFAULT_ERRORS)) in page


def test_published_tables_of_gpus_that_nothing_was_calibrated_on(monkeypatch):
    found = prediction_errors.elsewhere()
    assert_rounded_alike({ALL: found[ALL]}, {ALL: ELSEWHERE[1]})
    assert sum(found[name].settings for name in prediction_errors.PUBLISHED) == found[ALL].settings
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    assert "\n".join(prediction_errors.lines(found)) in page
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE for _ in experiments])
    table = dsnb.predict([Experiment(model="gpt2", precision="bf16")], "A100")
    assert table["step_time_error_on"].tolist() == ["82 settings, on other GPUs"]
    assert table["tokens_per_s_error_pct"].tolist() == [ELSEWHERE[1].mean_pct]


def test_a_run_has_no_part_in_its_own_prediction():
    """A model that takes twice as long than the others foretell is predicted in half its time."""
    made = runs({}, {"micro_batch_size": 16}, {"model": "gpt2-xl"})
    made[2] = replace(made[2], step_time_s=2 * made[2].step_time_s)
    errors = left_out(made)
    assert errors[2] == pytest.approx(-50)
    assert errors[0] > 5  # predicted from the slow one


def test_runs_of_one_model_are_left_out_by_setting():
    made = runs({"micro_batch_size": 4}, {}, {"micro_batch_size": 16})
    made[1] = replace(made[1], step_time_s=2 * made[1].step_time_s)
    assert left_out([*made, made[1]])[1] == pytest.approx(-50)  # its repeat is left out with it


def test_errors_by_kind_by_hand():
    made = runs({"strategy": "ddp"}, {"strategy": "ddp", "gpus": 2}, {"zero_stage": 2, "micro_batch_size": 64})
    assert by_kind(made, [-10, 4, 30.04]) == {
        "DDP": TimeError(2, 7.0, 10.0, -3.0),
        "ZeRO 2": TimeError(1, 30.0, 30.0, 30.0),
        ALL: TimeError(3, 14.7, 30.0, 8.0),
    }


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"zero_stage": 3, "gpus": 2}, "ZeRO 3"),
        ({"zero_stage": 2, "offload": "optimizer-cpu"}, "offload to the CPU"),
        ({"zero_stage": 1, "tensor_parallel": 2, "gpus": 2}, "tensor and pipeline parallel"),
        ({"lora_rank": 8}, "LoRA"),
        ({"strategy": "plain"}, "plain loop"),
    ],
)
def test_kinds(settings, name):
    one = Experiment(**settings, device="cuda")
    assert kind(one) == name
    few = DEFAULT_ERRORS[name].settings < 3
    assert expected_error(one, 0.1) == ((ALL, DEFAULT_ERRORS[ALL]) if few else (name, DEFAULT_ERRORS[name]))


def test_a_gpu_that_waits_for_the_host_has_an_error_of_its_own(monkeypatch):
    one = Experiment(model="gpt2", seq_len=128, device="cuda")
    assert expected_error(one, 0.21) == (WAITING, DEFAULT_ERRORS[WAITING])
    assert expected_error(OFFLOADED, 0.9)[0] != WAITING  # what it waits for is the optimizer's own work
    made = runs({"model": "gpt2", "micro_batch_size": 1, "seq_len": 128}, {"micro_batch_size": 64})
    assert list(host_share(step_times([run.setting for run in made])) > 0.2) == [True, False]
    assert by_kind(made, [30, 2]) == {
        "ZeRO 0": TimeError(1, 2.0, 2.0, 2.0),
        WAITING: TimeError(1, 30.0, 30.0, 30.0),
        ALL: TimeError(2, 16.0, 30.0, 16.0),
    }
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE for _ in experiments])
    table = dsnb.predict([one, one.model_copy(update={"micro_batch_size": 512})], "H200")
    words = [text.partition(", ")[2] for text in table["step_time_error_on"]]
    assert words == [WAITING, "ZeRO 0"]


def test_a_kind_that_was_not_measured_has_the_error_of_all():
    known = by_kind(runs({}, {"gpus": 2}, {"gpus": 4}), [1, 2, 3])
    assert expected_error(Experiment(strategy="ddp", device="cuda"), 0.0, known) == (ALL, TimeError(3, 2.0, 3.0, 2.0))
