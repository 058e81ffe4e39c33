"""`skip_oom`: which settings a sweep leaves out, what it says of them, and what it records."""

import pytest

from dsnb.cli.sweep import plan_lines
from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.prediction import calibration, fit
from dsnb.run_folder.result import Result
from dsnb.runs.load import left_out, planned_runs
from dsnb.sweep import run as sweep_run
from dsnb.sweep.params import load_sweep, without_unfit
from dsnb.sweep.run import run_sweep
from tests.prediction.made_up import TRACE

PARAMS = """
name: large
order: listed
defaults: {model: opt-1.3b, precision: fp32, device: cpu, gpus: 1, memory_limit_gib: 20, micro_batch_size: 1}
grid: {zero_stage: [1, 3]}
include: [{strategy: plain}, {micro_batch_size: auto}]
repeats: 2
skip_oom: true
"""
LARGE, PLAIN, AUTO = (
    f"{name}_sl128_limit20gib" for name in ("zs1_fp32_gpus1_bs1", "plain_fp32_gpus1_bs1", "zs0_fp32_gpus1_bsauto")
)


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setattr(fit, "attempts", lambda experiments: [TRACE] * len(experiments))
    monkeypatch.setattr("dsnb.system.hardware.gpus", tuple)


@pytest.fixture
def load(tmp_path):
    path = tmp_path / "large.yaml"
    path.write_text(PARAMS)
    return lambda **overrides: load_sweep(path, overrides, output=tmp_path / "out")


def names(sweep):
    return list(dict.fromkeys(run.name for run in sweep.runs))


def test_what_is_predicted_not_to_fit_is_left_out_with_its_margin(load):
    said = []
    sweep = without_unfit(load(), said.append)
    assert names(load()) == [LARGE, LARGE.replace("zs1", "zs3"), PLAIN, AUTO]
    assert names(sweep) == [PLAIN, AUTO]
    why = sweep.left_out[LARGE]
    assert why.startswith("needs 22.4")  # 24 bytes of each of a billion parameters, and 0.07 GiB of workspaces
    error = calibration.PEAK_ERRORS["ZeRO 1"]
    assert why.endswith(
        f"GiB of 20.0 (error of such predictions {error.mean_pct:.1f} %, at worst {error.worst_pct:.1f} %)"
    )
    counted = "left out 2 of 4 settings{}: predicted not to fit into memory"
    assert said == ["predicting the memory of 4 settings", counted.format(" (names with -v)")]
    said.clear()
    without_unfit(load(), said.append, in_full=True)
    assert said[1:] == [counted.format(""), *(f"  {name} {why}" for name, why in sweep.left_out.items())]


def test_a_setting_that_has_run_is_kept_whatever_is_predicted(load):
    sweep = load()
    sweep.runs[0].paths.dir.mkdir(parents=True)
    Result("ok", None, {}, {}, {}, sweep.runs[0].paths.dir).write()
    assert LARGE in names(without_unfit(sweep, lambda _: None))


def test_unknown_memory_and_an_empty_sweep_are_refused(load):
    with pytest.raises(SettingsError, match="skip_oom needs the memory of the GPUs, which is not known here"):
        without_unfit(load(memory_limit_gib=0, micro_batch_size=1), pytest.fail)
    with pytest.raises(SettingsError) as caught:
        without_unfit(load(memory_limit_gib=1, micro_batch_size=1), lambda _: None)
    assert str(caught.value).startswith("skip_oom leaves nothing to run: the smallest setting, plain_fp32_")
    assert "GiB of 1.0 (error" in str(caught.value)


def test_the_sweep_records_what_it_left_out_and_a_dry_run_shows_it(load, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(sweep_run, "_run_here", lambda todo, *_: asked.extend(todo))
    sweep = load(skip_oom=False)
    run_sweep(sweep, skip_oom=True, verbose=True)
    assert f"  {LARGE} needs 22.4" in capsys.readouterr().err
    assert LARGE not in {run.name for run in asked}
    assert len(asked) == 4
    folder = sweep.paths.dir
    assert set(left_out(folder)) == {LARGE, LARGE.replace("zs1", "zs3")}
    assert {name for name, _ in planned_runs(folder)} == {run.name for run in asked}
    assert "skip_oom: true" in sweep.paths.params.read_text()
    run_sweep(sweep, progress=False)
    assert records.read_json(sweep.paths.planned)["left_out"] == {}
    planned = without_unfit(load(), lambda _: None)
    shown = list(plan_lines(planned))
    assert shown[-2] == "  left out 2 of 4 settings (names with -v): predicted not to fit into memory"
    assert shown[-1] == "4 runs, 4 to run; nothing was started"
