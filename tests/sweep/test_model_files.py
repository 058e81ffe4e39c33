"""Sweeps over models that are given as files: their names, and files that change."""

import json

import pytest

from dsnb.cli.sweep import CHANGED, FINISHED, plan_lines
from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.sweep import job
from dsnb.sweep.params import load_sweep
from dsnb.sweep.run import is_finished, with_inputs
from tests.run_folder.test_result import make

SHAPE = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE |= {"intermediate_size": 64, "max_position_embeddings": 64}
LLAMA = {"model_type": "llama", **SHAPE}
QWEN = {"model_type": "qwen2", **SHAPE, "num_key_value_heads": 1}
NEOX = {"model_type": "gpt_neox", **SHAPE}
PARAMS = """
name: files
order: listed
defaults: {precision: fp32, device: cpu, micro_batch_size: 1, seq_len: 16, warmup_steps: 1, steps: 2}
grid: {model: [models/llama.json, models/qwen/config.json, other/llama.json]}
repeats: 2
"""
NAME = "zs0_fp32_gpus1_bs1_sl16"
NAMES = [f"models-llama_{NAME}", f"qwen_{NAME}", f"other-llama_{NAME}"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Give a folder with three configurations, and be in it."""
    files = {"models/llama.json": LLAMA, "models/qwen/config.json": QWEN, "other/llama.json": NEOX}
    for name, config in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "files.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made(home):
    """Give a sweep whose first repeats are made, by hand."""
    sweep = with_inputs(load_sweep("files.yaml", output=home / "out"))
    for run in sweep.runs[:3]:
        job.initialize(run)
        make(run)
    return sweep


def test_models_of_one_file_name_stay_apart(made):
    assert [run.name for run in made.runs] == NAMES * 2
    recorded = [records.read_json(run.paths.experiment)["model_name"] for run in made.runs[:3]]
    assert recorded == ["models-llama", "qwen", "other-llama"]


def test_a_sweep_does_not_go_on_with_an_edited_file(made, home):
    name = "models/qwen/config.json"
    (home / name).write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    with pytest.raises(SettingsError, match=f"^{name} has changed since .*: restore it, or choose another --output"):
        [is_finished(run) for run in with_inputs(load_sweep("files.yaml", output=home / "out")).runs]
    before = sorted(home.glob("out/*/run*"))
    with pytest.raises(SettingsError, match=f"^{name} has changed since the sweep began"):
        [job.initialize(run) for run in made.runs[3:]]
    assert len(sorted(home.glob("out/*/run*"))) <= len(before) + 1  # nothing was begun with the edited file


def test_a_dry_run_does_not_call_such_runs_finished(made, home):
    def states():
        found = list(plan_lines(load_sweep("files.yaml", output=home / "out")))
        return [sum(line.endswith(f"  {state}") for line in found) for state in (FINISHED, CHANGED)]

    assert states() == [3, 0]
    (home / "models/llama.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    assert states() == [2, 1]
    records.write_json(made.runs[0].paths.result, {"status": "failed", "cause": "bad configuration"})
    now = with_inputs(load_sweep("files.yaml", output=home / "out")).runs[0]
    assert not is_finished(now, retry=True)  # with the corrected file
    with pytest.raises(SettingsError, match="has changed"):
        is_finished(now)
