"""The params files of the published benchmarks, row by row against the tables, and their small versions."""

import functools
import re
import shlex

import pandas as pd
import pytest

import dsnb
from dsnb.cli.sweep import parse_overrides
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import unsupported
from dsnb.settings.experiment import Experiment
from tests import ROOT

PARAMS = ROOT / "params"
TABLES = {
    "opt_scaling": "lambda_1cc_opt",
    "gpt1b3_parallelism": "bigscience_1b3",
    "bloom7b_strategies": "jean_zay_bloom7b",
    "gpt2_zero_precision": "dist_training_gpt2",
}
COMPARED = {*Experiment.model_fields, "data_parallel", "global_batch_size"} - {"nodes"}
GPU_GIB = {"V100-32GB": 32, "V100-16GB": 16}


@functools.cache
def published(table):
    """Return the settings of each row: those that its publication tells, strategies by dsnb's names."""
    rows = []
    for row in dsnb.published(table).to_dict("records"):
        settings = {name: row[name] for name in COMPARED & {*row} if pd.notna(row[name])}
        settings["strategy"] = settings["strategy"].removeprefix("megatron-")
        rows.append(
            settings
            | ({"memory_limit_gib": GPU_GIB[row["gpu_name"]]} if row["gpu_name"] in GPU_GIB else {})
        )
    return rows


@functools.cache
def experiments(name):
    return {run.name: run.experiment for run in load_sweep(PARAMS / f"{name}.yaml").runs}


def agree(experiment, settings):
    return all(getattr(experiment, name) == value for name, value in settings.items())


@pytest.mark.parametrize("name", TABLES)
def test_every_published_row_is_one_experiment_and_the_other_way_round(name):
    rows = published(TABLES[name])
    for settings, rate in zip(rows, dsnb.published(TABLES[name])["tokens_per_s"], strict=True):
        (experiment,) = [
            experiment for experiment in experiments(name).values() if agree(experiment, settings)
        ]
        assert rate != rate or 2 * experiment.tokens_per_step / rate < experiment.step_timeout_s, (
            experiment.name
        )
    if name == "gpt2_zero_precision":  # asks for more than was published
        return
    times = {
        run.name: sum(agree(run, settings) for settings in rows)
        for run in experiments(name).values()
    }
    assert min(times.values()) == 1
    twice = [run for run in experiments(name).values() if times[run.name] > 1]
    assert [(run.zero_stage, run.gpus, run.grad_accum) for run in twice] == [(3, 32, 16)] * (
        name[:5] == "bloom"
    )


@pytest.mark.parametrize(
    "name", ["opt_scaling", "gpt1b3_parallelism", "bloom7b_strategies", "memory"]
)
def test_the_small_version_can_run_here(name, monkeypatch):
    """By the command that its own comment says runs on a laptop."""
    monkeypatch.setattr("dsnb.base.system.hardware.gpus", tuple)
    (command,) = re.findall(
        r"^# +dsnb sweep params/\w+.yaml (.*)$", (PARAMS / f"{name}.yaml").read_text(), re.M
    )
    words = shlex.split(command)
    options = list(zip(words[::2], words[1::2], strict=True))
    assert {option for option, _ in options} <= {"--set", "--only"}
    settings = parse_overrides([value for option, value in options if option == "--set"])
    sweep = load_sweep(PARAMS / f"{name}.yaml", settings, dict(options).get("--only"))
    assert unsupported(sweep) == []
    assert 4 <= len(sweep.runs) <= 12
    assert all(run.experiment.gpus <= 2 for run in sweep.runs)
