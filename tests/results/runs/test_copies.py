"""The same run in several folders counts once; different sweeps whose folders have one name stay apart."""

import shutil

import pytest

import dsnb
from dsnb.base.errors import DsnbWarning
from dsnb.base.files import json_files
from dsnb.measure.launcher.folder import begin
from dsnb.results.runs.copies import shared_contents
from dsnb.results.runs.names import sweep_names
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.records.result import Result
from tests import ROOT

EXAMPLE = ROOT / "outputs" / "examples" / "quickstart"
PLAIN = "plain_fp32_gpus1_bs8_sl128_stdlib"
ZS0 = next(EXAMPLE.glob("zs0_*_gpus2_bs8_sl128_stdlib")).name


def write_sweep(folder, rates, date="2026-11-27T10:00:00+00:00"):
    """Write a run with an identity for each rate in tokens/s: 1,024 tokens a step, two steps."""
    experiment = Experiment(model="gpt2-tiny", device="cpu", precision="fp32", steps=2)
    for repeat, rate in enumerate(rates, 1):
        run = SweepPaths(folder).run(experiment.name, repeat)
        begin(run, experiment, {})
        json_files.write_json(run.environment, {"host": "h", "gpus": [], "date_utc": date})
        steps = [
            {"step": k, "phase": "timed", "step_time_s": 1024 / rate, "tokens": 1024}
            for k in (1, 2)
        ]
        json_files.write_lines(run.steps, steps)
        Result("ok", None, {0: 0}, {"wall": 3.5}, {"tokens_per_s": rate}, run.dir).write()
    return folder / experiment.name


def without_identity(folder):
    """Make the runs below a folder those of a version that gave runs no identity."""
    for path in folder.rglob("experiment.json"):
        settings = json_files.read_json(path)
        settings.pop("run_id", None)
        json_files.write_json(path, settings)


def copied(tmp_path):
    """Copy the published runs of two settings, as if made before runs had an identity, into two folders."""
    for name in (PLAIN, ZS0):
        shutil.copytree(EXAMPLE / name, tmp_path / "x" / "quickstart" / name)
    without_identity(tmp_path)
    shutil.copytree(tmp_path / "x", tmp_path / "backup")


def test_a_sweep_and_its_copy_are_one_sweep_with_and_without_identities(tmp_path):
    copied(tmp_path)
    with pytest.warns(
        DsnbWarning, match=r"is left out: it is a copy of .*, and so are 3 more copies of runs"
    ):
        runs = dsnb.load_runs(tmp_path)
    assert dsnb.summarize(runs)["n"].to_dict() == {PLAIN: 2, ZS0: 2}
    assert set(runs["sweep"]) == {"quickstart"}
    assert (
        runs["note"].str.startswith("counted once: ") & runs["note"].str.endswith(" is a copy")
    ).all()
    assert runs["note"].str.contains(str(tmp_path / "x" / "quickstart")).all()
    with pytest.warns(DsnbWarning, match="is left out"):
        assert len(dsnb.load_steps(tmp_path)) == sum(
            len(dsnb.load_steps(EXAMPLE / name)) for name in (PLAIN, ZS0)
        )
    write_sweep(tmp_path / "new", [1000.0, 1010.0])
    shutil.copytree(tmp_path / "new", tmp_path / "old" / "new")
    with pytest.warns(DsnbWarning):
        assert dsnb.load_runs(tmp_path)["sweep"].value_counts().to_dict() == {
            "quickstart": 4,
            "new": 2,
        }


@pytest.mark.parametrize("has_identity", [True, False])
def test_copies_of_one_run_do_not_move_the_median(tmp_path, has_identity):
    folder = write_sweep(tmp_path / "sweep", [1000.0, 2000.0])
    for number in (3, 4, 5):
        shutil.copytree(folder / "run1", folder / f"run{number}")
    if not has_identity:
        without_identity(folder)
    with pytest.warns(
        DsnbWarning, match=f"{folder}/run3 is left out: it is a copy of {folder}/run1, and so are 2"
    ):
        runs = dsnb.load_runs(tmp_path)
    assert runs["repeat"].tolist() == [1, 2]
    assert (
        runs["note"].tolist()[0]
        == f"counted once: {folder}/run3, {folder}/run4, {folder}/run5 are copies"
    )
    assert dsnb.summarize(runs)["tokens_per_s_median"].tolist() == [1500.0]


def test_repeats_that_are_equal_to_the_last_digit_are_repeats(tmp_path, recwarn):
    write_sweep(tmp_path / "sweep", [1000.0, 1000.0, 1000.0])
    assert dsnb.summarize(dsnb.load_runs(tmp_path))["n"].tolist() == [3]
    assert not recwarn.list


def test_a_copy_made_before_the_run_had_ended_is_left_out(tmp_path):
    folder = write_sweep(tmp_path / "sweep", [1000.0])
    shutil.copytree(folder / "run1", tmp_path / "backup" / folder.name / "run1").joinpath(
        "result.json"
    ).unlink()
    with pytest.warns(DsnbWarning, match="is a copy of"):
        assert dsnb.load_runs(tmp_path)["status"].tolist() == ["ok"]


def test_a_changed_copy_is_a_run_of_its_own_and_is_named(tmp_path):
    folder = write_sweep(tmp_path / "sweep", [1000.0])
    copy = shutil.copytree(folder / "run1", folder / "run2")
    changed = json_files.read_json(copy / "result.json")
    json_files.write_json(copy / "result.json", {**changed, "status": "failed", "cause": "by hand"})
    with pytest.warns(
        DsnbWarning, match="run2 and .*run1 have the same run_id but different records"
    ):
        assert dsnb.load_runs(tmp_path)["status"].tolist() == ["ok", "failed"]


def test_different_sweeps_of_one_folder_name_stay_apart(tmp_path):
    write_sweep(tmp_path / "a" / "quickstart", [1000.0, 1010.0])
    write_sweep(tmp_path / "b" / "quickstart", [2000.0, 2020.0])
    (tmp_path / "b" / "logs").mkdir()
    runs, steps = dsnb.load_runs(tmp_path), dsnb.load_steps(tmp_path)
    assert runs["sweep"].unique().tolist() == ["a/quickstart", "b/quickstart"]
    assert dsnb.summarize(runs)["tokens_per_s_median"].to_dict() == {
        "a/quickstart/zs0_fp32_gpus1_bs8_sl128": 1005.0,
        "b/quickstart/zs0_fp32_gpus1_bs8_sl128": 2010.0,
    }
    assert steps["sweep"].unique().tolist() == ["a/quickstart", "b/quickstart"]


def test_a_sweep_is_named_with_as_many_parents_as_tell_it_from_its_namesakes():
    assert sweep_names(["/o/x/q", "/o/y/q", "/o/z", "/o/x/q"]) == {
        "/o/x/q": "x/q",
        "/o/y/q": "y/q",
        "/o/z": "z",
    }
    assert sweep_names(["/o/a/q", "/o/b/a/q"]) == {"/o/a/q": "o/a/q", "/o/b/a/q": "b/a/q"}


LOG = """\
{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.1}}
{{'train_runtime': {seconds}, 'train_samples_per_second': 20.0, 'train_steps_per_second': 2.0, 'epoch': 1.0}}
"""


def test_a_log_and_its_copy_are_one_run_and_other_logs_of_its_name_are_not(tmp_path):
    for folder, seconds in (("a/logs", 100), ("b/logs", 100), ("c/logs", 200)):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "train.log").write_text(LOG.format(seconds=seconds))
    with pytest.warns(DsnbWarning) as caught:
        runs = dsnb.load_runs(tmp_path)
    assert [str(warning.message) for warning in caught] == [
        f"{tmp_path}/b/logs/train.log is left out: it is a copy of {tmp_path}/a/logs/train.log"
    ]
    assert runs[["sweep", "experiment"]].values.tolist() == [
        ["a/logs", "train"],
        ["c/logs", "train"],
    ]


@pytest.mark.parametrize("elsewhere", ["a_few/EXPERIMENT", "sweep/a_move"])
def test_of_copies_the_one_in_its_sweep_and_experiment_is_kept(tmp_path, elsewhere):
    """The other one comes first: in a folder with fewer runs, or in that of another experiment."""
    own = write_sweep(tmp_path / "sweep", [1000.0, 1010.0])
    copy = tmp_path / elsewhere.replace("EXPERIMENT", own.name) / "run1"
    shutil.copytree(own / "run1", copy)
    with pytest.warns(DsnbWarning, match="it is a copy of"):
        runs = dsnb.load_runs(tmp_path)
    assert list(runs["run_dir"]) == [str(own / "run1"), str(own / "run2")]
    assert runs["note"][0] == f"counted once: {copy} is a copy"


def test_empty_files_are_no_copies_of_each_other(tmp_path):
    paths = [str(tmp_path / name) for name in ("a", "b", "c", "d")]
    for path, content in zip(paths, ("", "", "same", "same"), strict=True):
        (tmp_path / path).write_text(content)
    assert list(shared_contents(paths)) == paths[2:]
