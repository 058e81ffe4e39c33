"""Predictions of recorded runs: none where a setting is unknown that speed depends on, and no pooling of loops."""

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction import calibration, gpus, predicted
from dsnb.prediction.predict import on_gpu
from dsnb.prediction.recommend import runs_on
from dsnb.results.statistics.memory_use import footprint
from dsnb.settings import known
from dsnb.settings.experiment import OF_TRAINING, Experiment
from tests.support.recorded import SEEN, TRAINER


@pytest.fixture(scope="module")
def own():
    """Some of dsnb's own runs."""
    return (
        dsnb.published("h200")
        .query("model == 'gpt2-medium' and compile == 'off' and lora_rank == 0")
        .head(12)
    )


@pytest.fixture(scope="module")
def recorded(own):
    """The same as a recorder of another loop writes them, a tenth slower."""
    hidden = [name for name in OF_TRAINING if name in own and name not in {*SEEN, "offload"}]
    runs = own.assign(program=TRAINER, source=TRAINER, **dict.fromkeys(hidden))
    times = 1.1 * runs["step_time_mean_s"]
    return runs.assign(
        attention="sdpa", step_time_mean_s=times, tokens_per_s=runs["tokens_per_s"] / 1.1
    )


def test_what_few_programs_change_may_be_unknown(own, recorded):
    before = calibration.measured(own)
    after = calibration.measured(recorded)
    assert len(after) == len(before) > 0
    assert {run.loop for run in after} == {"transformers Trainer"}
    assert {run.experiment.loss for run in after} == {"whole"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"precision": None}, "precision"),
        ({"strategy": None}, "strategy"),
        ({"compile": None, "seq_len": None}, "compilation, sequence length"),
        ({"attention": "sage"}, "attention 'sage'"),
        ({"optimizer": "lion"}, "optimizer 'lion'"),
        ({"strategy": "DataParallel"}, "strategy 'DataParallel'"),
    ],
)
def test_nothing_is_predicted_where_a_needed_setting_is_unknown(recorded, changed, words):
    runs = recorded.assign(**changed)
    assert calibration.measured(runs) == []
    assert predicted.by_setting(runs, gpus.link("nvlink")) == []
    assert footprint(runs)["theory_gib"].isna().all()
    experiment = Experiment.of_row(runs.iloc[0].to_dict())
    problem = f"unknown to the model of time: {words}"
    with pytest.raises(SettingsError) as refused:
        dsnb.predict([experiment], "H200")
    assert str(refused.value) == problem
    with pytest.raises(SettingsError) as uncalibrated:
        on_gpu("H200", "nvlink", runs)
    assert str(uncalibrated.value) == (
        f"no run to calibrate with: give successful runs on known GPUs; {problem}"
    )


def test_settings_without_effect_need_no_value():
    plain = {"program": "own", "strategy": "plain", "lora_rank": 0, "precision": "fp32"}
    words = known.unknown(Experiment.recorded(plain))
    assert not {"ZeRO stage", "offload", "LoRA targets", "frozen weights", "mixed precision"} & {
        *words
    }
    assert "mixed precision" in known.unknown(Experiment.recorded({**plain, "precision": "bf16"}))


def test_loops_are_calibrated_apart(own, recorded):
    both = pd.concat([own, recorded], ignore_index=True)
    alone = on_gpu("H200", "nvlink", own)
    assert on_gpu("H200", "nvlink", both).constants == alone.constants
    assert on_gpu("H200", "nvlink", recorded).constants != alone.constants
    others = pd.concat([recorded, recorded.assign(program="own")], ignore_index=True)
    with pytest.raises(SettingsError) as error:
        on_gpu("H200", "nvlink", others)
    assert str(error.value) == (
        "runs of several programs (own, transformers Trainer) cannot calibrate one loop: give those of one"
    )


def test_another_loops_speed_is_no_measurement_of_a_setting(own, recorded):
    spec = gpus.find("H200")
    assert len(runs_on(recorded, spec)) == 0
    assert len(runs_on(own, spec)) == len(own)
