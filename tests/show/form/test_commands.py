"""Settings of a command: predicted with defaults, and measured as they are."""

import pytest

from dsnb.base.errors import SettingsError
from dsnb.measure.sweep.params import load_sweep
from dsnb.prediction.target import Target
from dsnb.settings.experiment import Experiment
from dsnb.show.form import measure
from dsnb.show.form.recommend import as_predicted

WORDS = "torchrun train.py --batch {micro_batch_size} {activation_checkpointing?--checkpointing}"
STATED = {"command": WORDS, "model": "gpt2", "seq_len": 128, "device": "cpu", "zero_stage": 0}


def test_unknown_settings_of_a_command_have_defaults_in_predictions():
    asked = Experiment(**STATED, micro_batch_size=2)
    predicted = as_predicted(asked)
    assert (predicted.optimizer, predicted.micro_batch_size) == ("adamw", 2)
    assert asked.optimizer is None
    own = Experiment(device="cpu")
    assert as_predicted(own) is own
    unknown = Experiment(command=WORDS, device="cpu")
    with pytest.raises(SettingsError) as caught:
        as_predicted(unknown)
    words = "predictions need model and seq_len: state what your script has below 'defaults:'"
    assert caught.value.problems == [words]


def test_the_runs_of_a_command_know_what_it_knew_before():
    """A default that is stated, as `zero_stage` here, is not the same as unknown."""
    asked = [Experiment(**STATED, activation_checkpointing=on) for on in (True, False)]
    file = measure.params_of("again", "Which?", asked)
    again = [run.experiment for run in load_sweep(file).runs]
    assert {one.name for one in again} == {one.name for one in asked}
    assert sorted(again, key=lambda one: one.name) == sorted(asked, key=lambda one: one.name)


def test_a_command_keeps_its_accumulation():
    asked = Experiment(**STATED, grad_accum=512, gpus=1)
    candidate = measure.candidate(asked, Target("H100").hardware, {})
    assert (candidate.run.grad_accum, candidate.factor) == (512, 1.0)
    assert candidate.run.optimizer is None
    assert candidate.run.warmup_steps == measure.WARMUP_STEPS
