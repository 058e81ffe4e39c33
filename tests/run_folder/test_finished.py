"""Which runs are finished: all of their record, of the same settings, in the folder that is theirs."""

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest

import dsnb
from dsnb.errors import DsnbWarning, LaunchError, SettingsError
from dsnb.explorer import payload
from dsnb.explorer.data import read
from dsnb.files import records
from dsnb.launcher import auto_batch_size
from dsnb.launcher.folder import prepare, write_experiment
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.sweep.params import load_sweep
from dsnb.sweep.run import is_finished
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
    write_experiment(run.paths, run.experiment)
    whole.leave(run.paths, run.experiment.steps)
    figures = {"tokens_per_s": 100.0 * run.repeat, "loss_last": 2.0}
    Result("ok", None, {0: 0}, {"wall": 1.0}, figures, run.paths.dir).write()


def change(path, **fields):
    records.write_json(path, {**records.read_json(path), **fields})


def cut(path, lines):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines]))


def huge(run):
    run.result.write_text(run.result.read_text().replace("100.0", "1" + "0" * 19))


DAMAGE = {
    "experiment.json is missing or empty": lambda run: run.experiment.write_text("{}"),
    "environment.json is missing or empty": lambda run: run.environment.unlink(),
    "steps.jsonl is missing": lambda run: run.steps.unlink(),
    "steps.jsonl has 0 of 3 timed steps": lambda run: run.steps.write_text(""),
    "steps.jsonl has 2 of 3 timed steps": lambda run: cut(run.steps, 2),
    "result.json: exit_codes.a is 'a': give a whole number": lambda run: change(run.result, exit_codes={"a": 0}),
    "result.json: status is {'ok': 1}: allowed are 'ok', 'oom', 'nan', 'untrained', 'failed', 'timeout' or "
    "'interrupted'": lambda run: change(run.result, status={"ok": 1}),
    "experiment.json: precision is ['fp16']: give a text": lambda run: change(run.experiment, precision=["fp16"]),
    "result.json: summary.tokens_per_s is 10000000000000000000: it must be at most 1e+18": huge,
    "result.json: phases_s.wall is -1.5: it must be at least 0.0": lambda run: change(
        run.result, phases_s={"wall": -1.5}
    ),
    "environment.json: cores is 'many': give a whole number": lambda run: change(run.environment, cores="many"),
}


@pytest.mark.parametrize("told", DAMAGE)
def test_a_run_whose_record_is_not_whole_is_made_again_and_a_row_says_why(sweep, told):
    run = sweep.runs[0]
    assert is_finished(run)
    DAMAGE[told](run.paths)
    with pytest.warns(DsnbWarning) as caught:
        assert not is_finished(run)
    assert str(caught[-1].message) == f"{run.paths.dir}: {told}; the run is repeated"
    runs = dsnb.load_runs(sweep.paths.dir)
    ended = "ok" if "timed steps" in told else "interrupted"  # tables do not count the steps of thousands of runs
    row = runs.set_index("run_dir").loc[str(run.paths.dir)]
    assert (row["status"], row["cause"]) == (ended, None if ended == "ok" else f"{told}; start the sweep again")
    assert (runs["status"] == "ok").sum() == len(sweep.runs) - (ended != "ok")


def test_a_run_that_failed_needs_no_steps(sweep):
    run = sweep.runs[0]
    Result("oom", "rank 0: no room", {0: 1}, {}, {}, run.paths.dir).write()
    run.paths.steps.unlink()
    assert is_finished(run)
    assert not is_finished(run, retry=True)


def test_settings_that_an_old_folder_does_not_name_had_their_defaults(sweep):
    run = sweep.runs[0]
    known = records.read_json(run.paths.experiment)
    records.write_json(run.paths.experiment, {key: value for key, value in known.items() if key != "grad_accum"})
    assert is_finished(run)
    other = replace(run, experiment=run.experiment.model_copy(update={"grad_accum": 4}))
    with pytest.raises(SettingsError, match=r"finished with other settings \(grad_accum was 1 and is 4\)"):
        is_finished(other)


@pytest.mark.process
def test_probes_and_launches_go_on_where_a_record_is_not_whole(tmp_path, small):
    probe, folder = small(micro_batch_size=2, steps=2), RunPaths(tmp_path / "auto_probe-bs2" / "run1")
    prepare(folder, probe)
    whole.leave(folder, 2)
    Result("ok", None, {}, {}, {}, folder.dir).write()
    assert auto_batch_size.recorded_status(probe, folder) == "ok"
    with pytest.raises(SettingsError, match="it holds a finished run; choose another folder"):
        prepare(folder, probe)
    cut(folder.steps, 1)
    assert auto_batch_size.recorded_status(probe, folder) is None
    prepare(folder, probe)
    assert not folder.result.exists()


def test_a_run_copied_into_another_experiment_is_no_repeat_of_it(sweep):
    folder = sweep.paths.dir
    shutil.copytree(folder / ZS0 / "run1", folder / ZS3 / "run4")
    with pytest.warns(DsnbWarning) as caught:
        runs = dsnb.load_runs(folder)
    said = f"{folder / ZS3 / 'run4'} belongs to {ZS0}, not to {ZS3}, by its settings: it is listed as a run of {ZS0}"
    assert [str(one.message) for one in caught] == [said]
    assert len(runs) == 7
    stranger = runs[runs["run_dir"] == str(folder / ZS3 / "run4")].iloc[0]
    assert (stranger["experiment"], stranger["repeat"], stranger["zero_stage"]) == (ZS0, 4, 0)
    assert dsnb.summarize(runs)["n"].to_dict() == {ZS0: 4, ZS3: 3}
    with pytest.warns(DsnbWarning):
        steps = dsnb.load_steps(folder)
    assert steps.groupby(["experiment", "repeat"]).size().to_dict() == dict.fromkeys(
        [*((ZS0, number) for number in (1, 2, 3, 4)), *((ZS3, number) for number in (1, 2, 3))], 3
    )
    for path in folder.glob("*/run*"):
        (path / "run.ipynb").touch()
    links = payload._files(read(runs), [ZS0, ZS3], folder)
    assert links["parents"] == [None, None]
    assert links["kinds"][0]["available"] == [int(place != str(folder / ZS3 / "run4")) for place in runs["run_dir"]]


def test_an_experiment_that_was_renamed_as_a_whole_keeps_its_new_name(sweep, recwarn):
    name = f"{ZS0}_old"
    (sweep.paths.dir / ZS0).rename(sweep.paths.dir / name)
    runs = dsnb.load_runs(sweep.paths.dir)
    assert set(runs["experiment"]) == {name, ZS3}
    assert not recwarn.list


def test_copies_go_by_their_settings_under_numbers_of_their_own(sweep):
    folder = sweep.paths.dir
    other = shutil.copytree(folder / ZS0 / "run1", folder / ZS0 / "run7")
    change(other / "experiment.json", model="opt-tiny")
    shutil.copytree(folder / ZS3 / "run2", folder / ZS0 / "run9")
    shutil.copytree(folder / ZS3 / "run2", folder / ZS3 / "run9")
    with pytest.warns(DsnbWarning, match=f"belongs to opt-tiny_{ZS0}, not to {ZS0}"):
        runs = dsnb.load_runs(folder)
    assert dsnb.summarize(runs)["n"].to_dict() == {ZS0: 3, f"opt-tiny_{ZS0}": 1, ZS3: 5}
    assert sorted(runs.loc[runs["experiment"] == ZS3, "repeat"]) == [1, 2, 3, 9, 10]


def test_a_result_is_not_written_into_a_folder_that_is_gone(tmp_path):
    with pytest.raises(LaunchError, match="was removed during the run"):
        Result("ok", None, {}, {}, {}, tmp_path / "run1").write()
    assert not (tmp_path / "run1").exists()


@pytest.mark.process
def test_a_launch_whose_folder_is_removed_ends_at_once(tmp_path, small):
    """A real launch, in a process of its own, whose ranks would hang for ever."""
    code = (
        "from dsnb.settings.experiment import Experiment\nfrom dsnb.launcher.run import launch\n"
        "experiment = Experiment(model='gpt2-tiny', device='cpu', precision='fp32')\n"
        f"launch(experiment, {str(tmp_path / 'run1')!r}, progress=False, worker='tests.workers.hanger')"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    wait_until(lambda: list(tmp_path.glob("run1/pids*")) or process.poll() is not None, "the rank hangs")
    assert process.poll() is None
    shutil.rmtree(tmp_path / "run1")
    _, said = process.communicate(timeout=WAIT_S)
    assert "LaunchError: " in said.splitlines()[-1]
    assert "was removed during the run" in said.splitlines()[-1]
    assert not (tmp_path / "run1").exists()
