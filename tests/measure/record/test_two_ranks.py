"""Trainings on two ranks, recorded one after another by the same processes."""

import math

import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.cli.app import app
from dsnb.measure.execute import notebook
from dsnb.settings.records.paths import RunPaths
from tests.support.notebooks import execute
from tests.support.ranks import run_ranks

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
SEEN_OF_TRAINER = {"micro_batch_size": 2, "grad_accum": 2, "gpus": 2, "seq_len": 16, "steps": 3}
SEEN = {
    "trainer_ddp": {**SEEN_OF_TRAINER, "strategy": "ddp", "gradient_clipping": 1.0, "seed": 42},
    **{
        f"trainer_zero{stage}": {**SEEN_OF_TRAINER, "strategy": "deepspeed", "zero_stage": stage}
        for stage in range(4)
    },
    "ddp": {"micro_batch_size": 2, "grad_accum": 1, "seq_len": 16, "strategy": "ddp", "steps": 3},
    "padded": {"micro_batch_size": 2, "seq_len": None, "strategy": "ddp", "steps": 3},
    "fsdp": {"micro_batch_size": 2, "grad_accum": 1, "strategy": "fsdp", "shard_size": 0},
    "engine": {
        "micro_batch_size": 2, "grad_accum": 2, "strategy": "deepspeed", "zero_stage": 1,
        "gradient_clipping": 0.5, "learning_rate": 1e-3, "optimizer": "adamw", "steps": 3,
    },
    "accelerate": {"micro_batch_size": 2, "grad_accum": 2, "strategy": "ddp", "optimizer": None},
}  # fmt: skip
"""Run -> what its settings must be."""
UNKNOWN = ("weights", "loss", "allocator", "data", "tokenizer", "leaf_modules", "pad_vocab")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return a folder with a run of each training."""
    folder = tmp_path_factory.mktemp("recorded")
    run_ranks("tests.workers.recorded", folder)
    return folder / "out"


def paths_of(recorded, name):
    return RunPaths(recorded / name / "run1")


@pytest.mark.parametrize("name", SEEN)
def test_settings_are_those_that_the_training_shows(recorded, name):
    run = paths_of(recorded, name)
    settings = json_files.read_json(run.experiment)
    assert {key: settings[key] for key in SEEN[name]} == SEEN[name]
    assert [key for key in UNKNOWN if settings[key] is not None] == []
    assert settings["precision"] == "fp32"
    assert settings["program"].startswith("transformers Trainer") == name.startswith("trainer")
    result = json_files.read_json(run.result)
    assert (result["status"], result["summary"]["timed_steps"]) == ("ok", 3)


def test_stated_settings_are_not_observed(recorded):
    observed = json_files.read_json(paths_of(recorded, "ddp").observed)
    assert observed["program"] == "own"
    assert "optimizer" not in observed["settings"]
    assert observed["settings"]["strategy"] == "ddp"


@pytest.mark.parametrize("name", SEEN)
def test_tokens_are_the_sum_over_ranks(recorded, name):
    rows = json_files.read_lines(paths_of(recorded, name).steps)
    a_pass = 2 * 2 * 16  # two ranks, two sequences
    expected = [a_pass * SEEN[name].get("grad_accum", 1)] * len(rows)
    if name == "padded":
        expected = [2 * (16 + step) + 2 * (16 + step + 4) for step in range(5)]
    assert [row["tokens"] for row in rows] == expected
    assert all(math.isfinite(row["loss"]) for row in rows if name != "accelerate")


def test_the_same_training_has_the_same_losses_however_it_is_shared(recorded):
    """The Trainer's data are the same in each case: its losses prove that every step is there once."""
    curves = []
    for stage in range(4):
        rows = json_files.read_lines(paths_of(recorded, f"trainer_zero{stage}").steps)
        curves.append([row["loss"] for row in rows])
    for curve in curves[1:]:
        assert curve == pytest.approx(curves[0], abs=1e-3)


def test_what_all_ranks_measured_is_together(recorded):
    for name in SEEN:
        worker = json_files.read_json(paths_of(recorded, name).worker)
        assert len(worker["rank_step_s"]) == 2
        assert worker["parameters"] == 8128  # also of shards
        assert 0 < worker["steps_from_s"] < worker["timed_from_s"] < worker["timed_to_s"]


def test_only_what_differs_between_launches_is_left_out_of_the_environment(recorded):
    machine = json_files.read_json(paths_of(recorded, "ddp").environment)
    assert not [name for name in machine["variables"] if name.startswith("TORCHELASTIC")]


def test_summary_and_report_read_such_runs(recorded, monkeypatch):
    monkeypatch.setattr(notebook, "execute", execute)
    runs = dsnb.load_runs(recorded)
    assert len(runs) == len(SEEN)
    assert set(runs["status"]) == {"ok"}
    for command in ("summary", "report"):
        assert app([command, str(recorded)], standalone_mode=False) is None
