"""Sweeps over a user's script: the example with transformers' Trainer, and what a killed sweep repeats."""

import subprocess
import sys

import psutil
import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.measure.sweep.params import load_sweep
from dsnb.settings.records.paths import RunPaths
from tests import ROOT
from tests.support.small_sweep import light_server
from tests.support.waiting import wait_until, wait_until_ended

pytestmark = pytest.mark.process
TINY = ROOT / "tests" / "workers" / "script.py"
SHORT = {"device": "cpu", "gpus": 2, "steps": 3, "warmup_steps": 1, "repeats": 1}


@pytest.mark.timeout(600)
def test_the_example_runs_with_what_it_was_asked_for(tmp_path):
    """On two CPU ranks, with DeepSpeed."""
    example = (ROOT / "params" / "own_script.yaml").read_text()
    content = example.replace("params/train_trainer.py", str(ROOT / "tests/workers/own_trainer.py"))
    (tmp_path / "own.yaml").write_text(content)
    changes = {**SHORT, "zero_stage": 2, "script.attn": "eager"}
    asked = load_sweep(tmp_path / "own.yaml", changes).runs[0].experiment
    paths = RunPaths(tmp_path / "out" / "run1")
    result = dsnb.launch(asked, paths.dir, progress=False)
    assert (result.status, result.cause) == ("ok", None)
    (run,) = dsnb.load_runs(tmp_path / "out").to_dict("records")
    assert run["program"].startswith("transformers Trainer ")
    assert run["model"].startswith("gpt2-")  # its kind and size
    shown = {
        "strategy": "deepspeed", "zero_stage": 2, "micro_batch_size": 4, "grad_accum": 1, "seq_len": 64, "gpus": 2,
        "precision": "bf16", "attention": "eager", "script.attn": "eager", "timed_steps": 3,
    }  # fmt: skip
    assert {name: run[name] for name in shown} == shown
    assert run["tokens_per_s"] == pytest.approx(2 * 4 * 64 / run["step_time_mean_s"])
    settings = json_files.read_json(paths.experiment)
    assert settings["weights"] is None  # neither stated nor shown
    config = json_files.read_json(paths.dir / "deepspeed_auto.json")
    assert config["zero_optimization"]["stage"] == 2
    assert config["train_micro_batch_size_per_gpu"] == "auto"


def test_a_killed_sweep_repeats_only_what_is_unfinished(tmp_path):
    wait = tmp_path / "wait"
    wait.touch()
    params = tmp_path / "tiny.yaml"
    params.write_text(f"""
name: tiny
command: python '{TINY}' --batch {{micro_batch_size}} --steps {{total_steps}} {{script.wait?--wait-for={wait}}}
defaults: {{device: cpu, steps: 4, warmup_steps: 1, time_limit_s: 100}}
include: [{{micro_batch_size: 1, script.wait: false}}, {{micro_batch_size: 2, script.wait: true}}]
order: listed
""")
    out = tmp_path / "out"
    words = [sys.executable, "-m", "dsnb", "sweep", str(params), "--output", str(out)]
    options = {"cwd": tmp_path, "env": light_server(), "stderr": subprocess.DEVNULL}
    sweep = psutil.Popen(words, stdout=subprocess.DEVNULL, **options)
    first, second = (out / name / "run1" for name in ("gpus1_bs1_wait-off", "gpus1_bs2_wait-on"))
    wait_until((second / "pids").exists, "the second run has started")
    left = json_files.parse_json((second / "pids").read_bytes())
    family = [process.pid for process in sweep.children(recursive=True)]
    sweep.kill()
    sweep.wait()
    wait_until_ended([*left, *family])
    before = (first / "result.json").stat().st_mtime_ns
    assert not (second / "result.json").exists()
    wait.unlink()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=200, **options)
    assert done.returncode == 0
    assert (first / "result.json").stat().st_mtime_ns == before
    runs = dsnb.load_runs(out)
    assert list(runs["status"]) == ["ok", "ok"]
    assert sorted(runs["micro_batch_size"]) == [1, 2]
