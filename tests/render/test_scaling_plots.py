"""Figures: every axis of every panel says what it shows, with its unit; a legend names the base of each workload."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from dsnb.analysis.scaling import scaling
from dsnb.files import records
from dsnb.render import memory_plots, plots, scaling_plots
from dsnb.run_folder.paths import RunPaths


def runs(model, rates):
    return pd.DataFrame(
        [
            {"sweep": "s", "status": "ok", "model": model, "source": "x", "experiment": f"{gpus}", "gpus": gpus}
            | {"tokens_per_s": rate}
            for gpus, rate in rates.items()
        ]
    )


@pytest.fixture
def table():
    return scaling(pd.concat([runs("a" * 200, {1: 100, 2: 180}), runs("a" * 199, {2: 50, 4: 90})]), base_gpus=1)


def labels(picture):
    return [(axis.get_xlabel(), axis.get_ylabel()) for axis in picture.figure.axes]


def test_every_axis_of_scaling_has_its_unit(table):
    gpus, share = "number of GPUs", "efficiency (% of tokens/s/GPU at the base)"
    for shown in (table, table[:0]):
        assert labels(scaling_plots.throughput(shown)) == [(gpus, "tokens/s of all GPUs"), (gpus, share)]
        assert labels(scaling_plots.days(shown, 3e9)) == [(gpus, "days for 3 billion tokens")]


@pytest.mark.parametrize(("low", "high"), [(130, 150), (99, 101), (20, 1999), (3, 1e6), (7, 7)])
def test_a_logarithmic_axis_has_more_than_one_label(low, high):
    figure, axis = plt.subplots()
    axis.set(yscale="log", ylim=(low / 2, high * 2))
    scaling_plots._label_decades(axis, low, high)
    bottom, top = axis.get_ylim()
    assert bottom <= low <= high <= top
    assert len([mark for mark in axis.get_yticks() if bottom <= mark <= top]) >= 2
    plt.close(figure)


def test_remarks_on_scaling(table):
    assert "No workload was measured on two numbers of GPUs" in scaling_plots.remarks([]).text
    assert "No workload is more efficient on more GPUs" in scaling_plots.remarks([table]).text
    assert "super-linear" in scaling_plots.remarks([scaling(runs("a", {1: 100, 2: 280}))]).text


def test_every_axis_of_memory_and_steps_has_its_unit(tmp_path):
    parts = {f"{part}_gib": [1.0] for part in memory_plots.PARTS}
    assert labels(memory_plots.parts(pd.DataFrame({"experiment": ["e"], "measured_gib": [2.0], **parts}))) == [
        ("GPU memory (GiB)", "experiment")
    ]
    change = {"change": ["a"], "base": ["b"], "experiment": ["e"], "measured_gib": [1.0], "theory_gib": [2.0]}
    assert labels(memory_plots.changes(pd.DataFrame(change))) == [
        ("difference in GPU memory (GiB) to b", "changed setting")
    ]
    run = RunPaths(tmp_path / "e" / "run1")
    run.dir.mkdir(parents=True)
    records.write_json(run.experiment, {"model": "gpt2"})
    records.write_json(run.result, {"status": "ok"})
    records.write_lines(run.steps, [{"step": 1, "phase": "timed", "loss": 2.5, "step_time_s": 0.25, "t_s": 1.0}])
    steps = plots.run_steps(run.dir)
    assert labels(steps) == [("optimizer step", "loss"), ("optimizer step", "step time (ms)")]
    assert list(steps.figure.axes[1].get_lines()[0].get_ydata()) == [250.0]
    run.steps.unlink()
    assert [list(axis.get_xticks()) for axis in plots.run_steps(run.dir).figure.axes] == [[], []]  # no invented scale
