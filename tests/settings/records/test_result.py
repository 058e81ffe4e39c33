"""Finished runs, which have complete records; advice for runs that are not ok."""

import shutil
import subprocess
import sys

import pytest

import dsnb
from dsnb.base.errors import DsnbWarning
from dsnb.base.files import json_files
from dsnb.measure.launcher.folder import prepare
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import is_finished
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import STATUSES
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.records.shortage import Shortage
from tests import ROOT
from tests.support import whole
from tests.support.waiting import WAIT_S, wait_until

PARAMS = """
name: t
defaults: {model: gpt2-tiny, precision: fp32, device: cpu, steps: 3}
grid: {zero_stage: [0, 3]}
repeats: 3
"""
ZS0, ZS3 = "zs0_fp32_gpus1_bs8_sl128", "zs3_fp32_gpus1_bs8_sl128"


@pytest.fixture
def sweep(tmp_path):
    """Give a sweep whose runs are all made, by hand."""
    (tmp_path / "t.yaml").write_text(PARAMS)
    sweep = load_sweep(tmp_path / "t.yaml", output=tmp_path / "out")
    for run in sweep.runs:
        make(run)
    return sweep


def make(run):
    prepare(run.paths, run.experiment)
    whole.leave(run.paths, run.experiment.steps)
    Result(
        "ok", None, {0: 0}, {"wall": 1.0}, {"tokens_per_s": 100.0 * run.repeat}, run.paths.dir
    ).write()


def change(path, **fields):
    json_files.write_json(path, {**json_files.read_json(path), **fields})


DAMAGE = {
    "experiment.json is missing or empty": lambda run: run.experiment.write_text("{}"),
    "environment.json is missing or empty": lambda run: run.environment.unlink(),
    "steps.jsonl is missing": lambda run: run.steps.unlink(),
    "steps.jsonl has 2 of 3 timed steps": lambda run: run.steps.write_text(
        run.steps.read_text().rpartition('{"')[0]
    ),
    "result.json: status is {'ok': 1}: allowed are 'ok', 'oom', 'nan', 'untrained', 'failed', 'timeout' or "
    "'interrupted'": lambda run: change(run.result, status={"ok": 1}),
}


@pytest.mark.parametrize("problem", DAMAGE)
def test_a_run_whose_record_is_not_whole_is_made_again_and_a_row_says_why(sweep, problem):
    run = sweep.runs[0]
    assert is_finished(run)
    DAMAGE[problem](run.paths)
    with pytest.warns(DsnbWarning) as caught:
        assert not is_finished(run)
    assert str(caught[-1].message) == f"{run.paths.dir}: {problem}; the run is repeated"
    runs = dsnb.load_runs(sweep.paths.dir)
    row = runs.set_index("run_dir").loc[str(run.paths.dir)]
    assert (row["status"], row["cause"]) == ("interrupted", f"{problem}; start the sweep again")
    assert (runs["status"] == "ok").sum() == len(sweep.runs) - 1


HAS_ENDED = {
    "ok": True, "oom": True, "nan": True, "untrained": True, "failed": True, "timeout": True, "interrupted": False,
}  # fmt: skip


@pytest.mark.parametrize("status", STATUSES)
def test_a_run_is_repeated_if_it_was_interrupted_and_on_request_if_it_is_not_ok(sweep, status):
    run = sweep.runs[0]
    change(run.paths.result, status=status, cause=None if status == "ok" else "it says why")
    assert is_finished(run) == HAS_ENDED[status]
    assert RunRecord(run.paths).is_finished() == HAS_ENDED[status]
    assert is_finished(run, retry=True) == (status == "ok")


def test_misplaced_runs_go_by_their_settings_and_a_renamed_experiment_keeps_its_name(
    sweep, recwarn
):
    folder = sweep.paths.dir
    (folder / ZS0).rename(folder / "old")
    assert set(dsnb.load_runs(folder)["experiment"]) == {"old", ZS3}
    assert not recwarn.list
    (folder / "old").rename(folder / ZS0)
    moved = (folder / ZS0 / "run1").rename(folder / ZS3 / "run4")
    name = f"{ZS3}_gpt2-tiny_{ZS0}"
    with pytest.warns(DsnbWarning) as caught:
        runs, steps = dsnb.load_runs(folder), dsnb.load_steps(folder)
    assert {str(warning.message) for warning in caught} == {
        f"{moved} has the settings of gpt2-tiny_{ZS0}, unlike other runs of {ZS3}: it is listed as {name}; "
        "move it to its own experiment's folder"
    }
    assert dsnb.summarize(runs)["n"].to_dict() == {ZS0: 2, ZS3: 3, name: 1}
    assert runs.set_index("experiment").loc[name, "repeat"] == 4
    assert steps["experiment"].value_counts().to_dict() == {ZS0: 6, ZS3: 9, name: 3}


@pytest.mark.process
def test_a_launch_whose_folder_is_removed_ends_at_once(tmp_path, small):
    """A real launch in a separate process, with ranks that would hang forever."""
    code = (
        "from dsnb.settings.experiment import Experiment\nfrom dsnb.measure.launcher.run import launch\n"
        "experiment = Experiment(model='gpt2-tiny', device='cpu', precision='fp32')\n"
        f"launch(experiment, {str(tmp_path / 'run1')!r}, progress=False, worker='tests.workers.hanger')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    wait_until(
        lambda: list(tmp_path.glob("run1/pids*")) or process.poll() is not None, "the rank hangs"
    )
    assert process.poll() is None
    shutil.rmtree(tmp_path / "run1")
    _, output = process.communicate(timeout=WAIT_S)
    assert "LaunchError: " in output.splitlines()[-1]
    assert "was removed during the run" in output.splitlines()[-1]
    assert not (tmp_path / "run1").exists()


@pytest.mark.parametrize(
    ("phase", "settings", "given", "not_given"),
    [
        ("forward", {"micro_batch_size": 8}, "lower micro_batch_size (8)", "set loss"),
        ("loss", {}, "set loss to chunked", "micro_batch_size"),
        (
            "build",
            {"micro_batch_size": 8},
            "zero_stage 1, offload optimizer-cpu",
            "micro_batch_size",
        ),
        (
            "optimizer",
            {"gpus": 4, "zero_stage": 1},
            "raise zero_stage (1) to 3: 4 ranks",
            "seq_len",
        ),
        (
            "optimizer",
            {"gpus": 1, "zero_stage": 1},
            "use several GPUs with zero_stage 3",
            "raise zero_stage",
        ),
        (
            "optimizer",
            {"gpus": 8, "strategy": "fsdp", "shard_size": 2},
            "leave shard_size (2) out: 8 ranks",
            "raise zero_stage",
        ),
        # Ranks that share a model have no states of their own to share.
        (
            "optimizer",
            {"gpus": 4, "zero_stage": 1, "tensor_parallel": 2},
            "raise zero_stage (1) to 2: 2 ranks",
            "use several GPUs",
        ),
        (
            "optimizer",
            {"gpus": 4, "zero_stage": 1, "tensor_parallel": 2, "pipeline_parallel": 2},
            "use several GPUs with zero_stage 3",
            "raise zero_stage",
        ),
        (
            "optimizer",
            {"gpus": 2, "zero_stage": 3, "offload": "optimizer-cpu"},
            "zero_stage 3, offload all-cpu",
            "offload optimizer-cpu",
        ),
        (
            "backward",
            {"loss": "chunked"},
            "activation_checkpointing on | lower seq_len",
            "set loss",
        ),
        ("loss", {"micro_batch_size": 4}, "lower micro_batch_size (4)", "free memory"),
        (
            "backward",
            {"activation_checkpointing": True, "checkpoint_every": 2},
            "lower checkpoint_every (2)",
            "turn",
        ),
        ("forward", {"memory_limit_gib": 2.5}, "raise memory_limit_gib (2.5)", "free memory"),
        ("", {"device": "cpu", "gpus": 2}, "offload less, or start fewer ranks", "zero_stage"),
    ],
)
def test_advice_after_running_out_of_memory_fits_the_cause(phase, settings, given, not_given):
    recorded = Experiment.recorded(
        {"model": "gpt2", "micro_batch_size": 1, "device": "cuda", **settings}
    )
    advice = " | ".join(Shortage(recorded, phase, recorded.device == "cpu").advice())
    assert given in advice
    assert not_given not in advice


@pytest.mark.parametrize(
    ("exit_code", "settings", "expected"),
    [
        (1, {}, 40.0),
        (-9, {}, 500.0),  # the kernel kills for the machine's memory, never for a GPU's
        (1, {"device": "cpu"}, 500.0),
        (1, {"memory_limit_gib": 2.0}, 2.0),
    ],
)
def test_the_memory_at_hand(tmp_path, exit_code, settings, expected):
    run = RunPaths(tmp_path)
    gpus = [{"name": "A", "memory_gib": 80.0}, {"name": "B", "memory_gib": 40.0}]
    json_files.write_json(run.environment, {"memory_gib": 500.0, "gpus": gpus})
    json_files.write_json(run.experiment, {"device": "cuda", **settings})
    result = Result("oom", None, {0: exit_code}, {}, {}, tmp_path)
    assert result.shortage().capacity_gib == expected
    # The launcher has killed the peers of a rank that recorded where its GPU's memory ran out.
    peers = Result("oom", None, {0: 1, 1: -9}, {}, {"oom_phase": "backward"}, tmp_path)
    assert peers.shortage().of_host == (settings.get("device") == "cpu")
    run.environment.unlink()
    assert result.shortage().capacity_gib == settings.get("memory_limit_gib")


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("ok", None),
        ("oom", "use several GPUs with zero_stage 3: on one, there is nothing to share the model states with"),
        ("nan", "lower learning_rate, or use precision bf16 or fp32"),
        ("untrained", "raise learning_rate, or, in fp16, warmup_steps until the loss scale has settled; "
                      "use bf16 or fp32"),
        ("failed", "read the log; `dsnb doctor` says what this machine can run"),
        ("timeout", "raise the limit that it names, or lower steps or grad_accum"),
        ("interrupted", "start it again; a sweep repeats only its unfinished runs"),
    ],
)  # fmt: skip
def test_what_to_do_after_each_status(tmp_path, status, sentence):
    run = RunPaths(tmp_path)
    json_files.write_json(run.experiment, {"device": "cuda", "gpus": 1})
    result = Result(status, None, {}, {}, {"oom_phase": "optimizer"}, tmp_path)
    assert (result.shortage() is not None) is (status == "oom")
    assert result.advice()[:1] == ([sentence] if sentence else [])
