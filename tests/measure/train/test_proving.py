"""A run trains without what its small model disproves, on all ranks, and says so in its note."""

import pytest

from dsnb.base.files import json_files
from dsnb.measure.launcher import figures
from tests.support import lazy

torch = lazy.Module("torch")
proving = lazy.Module("dsnb.measure.train.proving")


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)


def test_settings_that_are_proved_stay(alone, small, monkeypatch):
    experiment = small(loss="chunked")
    monkeypatch.setattr("dsnb.models.proof.differing", lambda *_: [])
    assert proving.proved(experiment, torch.device("cpu")) == (experiment, None)


def test_what_is_disproved_is_dropped(alone, small, monkeypatch):
    experiment = small(loss="chunked", activation_checkpointing=True, checkpoint_every=2)
    monkeypatch.setattr(
        "dsnb.models.proof.differing", lambda *_: ["loss", "activation_checkpointing"]
    )
    changed, words = proving.proved(experiment, torch.device("cpu"))
    unlike = {name for name, value in experiment if getattr(changed, name) != value}
    assert unlike == {"loss", "activation_checkpointing", "checkpoint_every"}
    assert (changed.loss, changed.activation_checkpointing) == ("whole", False)
    assert words == (
        "loss was 'whole' instead of 'chunked', activation_checkpointing was False instead of True: a small model of "
        "the same kind had another loss or gradient than transformers' own"
    )


def test_what_cannot_be_proved_stays_and_is_said(alone, small, monkeypatch):
    def fails(*_):
        raise MemoryError("none left\nat all")

    experiment = small(loss="chunked")
    monkeypatch.setattr("dsnb.models.proof.differing", fails)
    assert proving.proved(experiment, torch.device("cpu")) == (
        experiment,
        "attention, loss: not compared with transformers' computation before the run (none left)",
    )


def test_other_ranks_do_as_rank_0_says(small, monkeypatch):
    experiment = small(loss="chunked", gpus=2)

    def receive(answer, device):
        assert answer == [None]
        answer[:] = [(["loss"], "why")]

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", receive)
    changed, words = proving.proved(experiment, torch.device("cpu"))
    assert (changed.loss, words) == ("whole", "why")


def test_the_note_of_a_run_says_what_was_not_proved(small):
    worker = {"unproved": "loss: not compared"}
    note = figures._note(small(), [], {"power_w": None}, worker, [])
    assert note == "loss: not compared"


@pytest.mark.process
def test_ranks_train_without_what_is_disproved(trained):
    result, run = trained("disproved", strategy="ddp", gpus=2, loss="chunked")
    words = "loss was 'whole' instead of 'chunked': a small model of the same kind had another loss or gradient"
    assert words in json_files.read_json(run.result)["summary"]["note"]
    assert result.status == "ok"
