"""Figures: one category for each way to share a training, every axis with its unit; the card of one run."""

import re
import warnings

import pandas as pd
import pytest

from dsnb.base.files import json_files
from dsnb.results.statistics.memory_use import PARTS
from dsnb.results.statistics.scaling import scaling
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.show.render import nodes, plots
from dsnb.show.render.run_card import card

ROWS = [
    ("deepspeed", 3, 1, "bf16", 10.0), ("deepspeed", 3, 1, "bf16", 30.0), ("deepspeed", 0, 1, "bf16", 40.0),
    ("fsdp", 0, 1, "bf16", 50.0), ("ddp", 0, 1, "fp32", 60.0), ("plain", 0, 1, "bf16", 70.0),
    ("deepspeed", 1, 2, "bf16", 80.0), ("deepspeed", None, 1, "bf16", 90.0),
]  # fmt: skip
NAMES = ["plain", "DDP", "FSDP", "ZeRO 0", "ZeRO 3", "TP 2 x ZeRO 1"]


@pytest.fixture
def runs():
    names = ["strategy", "zero_stage", "tensor_parallel", "precision", "tokens_per_s"]
    table = pd.DataFrame(ROWS, columns=names).astype({"zero_stage": "Int64"})
    figures = {
        "tokens_per_s_per_gpu": table["tokens_per_s"] / 2,
        "gpu_util_pct": None,
        "device": "cuda",
    }
    memory = dict.fromkeys(
        ("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib"), 1.0
    )
    names = {
        "sweep": "s",
        "experiment": [f"e{row}" for row in range(len(ROWS))],
        "repeat": 1,
        "status": "ok",
    }
    return table.assign(**figures, **memory, **names, step_time_mean_s=0.25)


def ticks(axis):
    return [text.get_text().replace("\n", " ") for text in axis.get_xticklabels()]


def test_each_parallelism_is_a_category_of_its_own_and_the_dots_of_many_runs_are_one_bitmap(
    runs, monkeypatch
):
    picture = plots.overview(runs)
    speed, step_time, *_ = picture.figure.axes
    assert ticks(speed) == ticks(step_time) == NAMES
    assert (speed.get_xlabel(), speed.get_ylabel()) == ("parallelism", "tokens/s/GPU")
    bars = {
        round(bar.get_x() + bar.get_width() / 2): bar.get_height()
        for bar in speed.patches
        if bar.get_width()
    }
    assert bars == dict(enumerate([35, 30, 25, 20, 10, 40]))  # ZeRO 3: the median of 5 and 15
    ranges = [[float(end) for end in line.get_ydata()] for line in speed.get_lines()]
    assert [5, 15] in ranges  # from the lowest to the highest of ZeRO 3
    assert step_time.patches[0].get_height() == 250
    assert "<image" not in picture.svg
    monkeypatch.setattr(plots, "MAX_SHAPES", 2)
    picture = plots.overview(runs)
    assert (
        picture.svg.count("<image") == len(picture.figure.axes) == 3
    )  # utilization is not measured
    speed, *others = plots.overview(runs.assign(status="failed")).figure.axes
    assert [text.get_text() for text in speed.texts] == ["no run succeeded"]
    assert others == []


def labels(picture):
    return [(axis.get_xlabel(), axis.get_ylabel()) for axis in picture.figure.axes]


def scaled(model, rates):
    one = {"sweep": "s", "status": "ok", "model": model, "source": "x"}
    return pd.DataFrame(
        [
            {**one, "experiment": f"{n}", "gpus": n, "tokens_per_s": rate}
            for n, rate in rates.items()
        ]
    )


def test_scaling_has_units_ideals_and_remarks():
    both = pd.concat([scaled("a" * 200, {1: 100, 2: 180}), scaled("a" * 199, {2: 50, 4: 90})])
    table = scaling(both, base_gpus=1)
    gpus, share = "number of GPUs", "efficiency (% of tokens/s/GPU at the base)"
    for shown in (table, table[:0]):
        assert labels(nodes.throughput(shown)) == [(gpus, "tokens/s of all GPUs"), (gpus, share)]
    lines = nodes.throughput(table).figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines if line.get_linestyle() == ":"] == [
        [50, 100],
        [100, 200],
    ]
    legend = nodes.throughput(table).figure.legends[0].get_texts()
    whole = [text.get_text().replace("\n", "") for text in legend]
    assert whole == [f"{'a' * 199}, base 2 GPUs", f"{'a' * 200}, base 1 GPU"]


def test_only_the_workloads_on_the_most_gpus_are_drawn():
    sizes = range(1, nodes.MAX_LINES + 2)
    runs = pd.concat([scaled(f"model{n}", {n: 100, 2 * n: 180}) for n in sizes])
    figure = nodes.throughput(scaling(runs, base_gpus=1)).figure
    named = " ".join(text.get_text() for text in figure.legends[0].get_texts())
    assert "model1," not in named
    assert all(f"model{n}," in named for n in sizes[1:])


def test_bars_and_dots_of_memory_are_those_of_their_rows():
    long = "h200_zero3/gpt2-xl_zs3_bf16_gpus2_bs24_sl1024_compile_stage3_max_live_parameters-10000000000_{}"
    names = [*(long.format(f"{middle}{'b' * 200}") for middle in "xy"), "zs0", "zs0"]
    parts = {f"{part}_gib": [1.0] * 4 for part in PARTS}
    table = pd.DataFrame({"experiment": names, "measured_gib": [0.0, 1.0, 2.0, 3.0], **parts})
    with warnings.catch_warnings(action="error"):
        picture = plots.memory_parts(table)
    assert labels(picture) == [("GPU memory (GiB)", "setting")]
    axis = picture.figure.axes[0]
    shown = [name.get_text().replace("\n", "") for name in axis.get_yticklabels()]
    whole = names[1].removeprefix("h200_zero3/")
    half = plots.MAX_LENGTH * plots.MAX_LINES // 2
    assert shown[1:] == [f"{whole[:half]}…{whole[1 - half :]}", "zs0", "zs0"]
    (dots,) = axis.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert sorted({bar.get_y() + bar.get_height() / 2 for bar in axis.patches}) == [0, 1, 2, 3]
    change = {
        "change": ["a"],
        "base": ["b"],
        "experiment": ["e"],
        "measured_gib": [1.0],
        "theory_gib": [2.0],
    }
    (changed,) = labels(plots.memory_changes(pd.DataFrame(change)))
    assert changed == ("difference in GPU memory (GiB) to\nb", "changed setting")


def test_the_steps_of_one_run(tmp_path):
    run = RunPaths(tmp_path / "e" / "run1")
    run.dir.mkdir(parents=True)
    json_files.write_json(run.experiment, {"model": "gpt2"})
    json_files.write_json(run.result, {"status": "ok"})
    json_files.write_lines(
        run.steps, [{"step": 1, "phase": "timed", "loss": 2.5, "step_time_s": 0.25, "t_s": 1.0}]
    )
    steps = plots.run_steps(run.dir)
    assert labels(steps) == [("optimizer step", "loss"), ("optimizer step", "step time (ms)")]
    assert list(steps.figure.axes[1].get_lines()[0].get_ydata()) == [250.0]
    run.steps.unlink()
    assert [list(axis.get_xticks()) for axis in plots.run_steps(run.dir).figure.axes] == [
        [],
        [],
    ]  # no invented scale


def shown(status, folder, cause=None, **summary):
    return card(
        Result(status, cause, {0: 1}, {"wall": 3.0}, summary, folder / "zs<1>" / "run1")
    ).text


def rows(text):
    return re.findall(r"<tr><th[^>]*>(.*?)</th><td>(.*?)</td></tr>", text)


def test_an_ok_run_begins_with_its_most_important_figures(tmp_path):
    figures = {
        "tokens_per_s": 2000.0,
        "tokens_per_s_per_gpu": 1000.0,
        "step_time_mean_s": 0.125,
        "mfu": 0.4567,
    }
    text = shown("ok", tmp_path, **figures, peak_allocated_gib=1.5, loss_first=6.0, note="a <note>")
    assert text.startswith("<h3>zs&lt;1&gt;: ok</h3><table>")
    top, folded = text.split("<details><summary>All figures</summary>")
    assert rows(top) == [
        ("tokens/s", "2,000"), ("tokens/s/GPU", "1,000"), ("step time (ms)", "125.0"),
        ("peak memory allocated (GiB)", "1.50"), ("MFU (%)", "45.7"),
    ]  # fmt: skip
    assert "a &lt;note&gt;" in top
    assert ("loss_first", "6") in rows(folded)
    assert ("wall time: wall (s)", "3.0") in rows(folded)
    one_rank = shown("ok", tmp_path, tokens_per_s=10.0, tokens_per_s_per_gpu=10.0).split(
        "<details>"
    )[0]
    assert rows(one_rank) == [("tokens/s", "10")]


def test_a_run_out_of_memory_shows_what_it_lacked_and_other_failures_have_advice_alone(tmp_path):
    run = RunPaths(tmp_path / "zs<1>" / "run1")
    run.dir.mkdir(parents=True)
    json_files.write_json(
        run.experiment, {"model": "gpt2", "device": "cuda", "micro_batch_size": 8, "seq_len": 1024}
    )
    json_files.write_json(run.environment, {"gpus": [{"name": "A", "memory_gib": 80.0}]})
    run.console.write_text("line <1>\n")
    found = {
        "oom_phase": "optimizer",
        "oom_step": 1,
        "oom_allocated_gib": 70.125,
        "oom_requested_gib": 12.0,
    }
    text = shown("oom", tmp_path, "rank 0: <i>", **found)
    top, _ = text.split("<details><summary>All figures</summary>")
    assert rows(top) == [
        ("allocated (GiB)", "70.12"), ("requested on top (GiB)", "12.00"), ("memory of the GPU (GiB)", "80.00"),
        ("phase", "optimizer step"),
    ]  # fmt: skip
    assert "rank 0: &lt;i&gt;" in top
    assert "line &lt;1&gt;" in top
    assert "raise zero_stage" not in top  # on one GPU it changes nothing
    assert "use several GPUs with zero_stage 3" in top
    text = shown("nan", tmp_path / "other", "the loss was not a finite number at step 3")
    assert "lower learning_rate" in text
    assert "GiB" not in text


def test_a_limit_that_was_set_and_an_unknown_gpu_are_named(tmp_path):
    run = RunPaths(tmp_path / "zs<1>" / "run1")
    run.dir.mkdir(parents=True)
    settings = {"model": "gpt2", "device": "cuda", "micro_batch_size": 8, "seq_len": 1024}
    json_files.write_json(run.experiment, {**settings, "memory_limit_gib": 20.0})
    json_files.write_json(run.environment, {"gpus": [{"name": "Strange <1>", "memory_gib": 80.0}]})
    text = shown("oom", tmp_path, "no memory", oom_allocated_gib=19.0, oom_requested_gib=2.0)
    found = dict(rows(text.split("<details>")[0]))
    assert (found["memory_limit_gib"], found["allocated (GiB)"]) == ("20.00", "19.00")
    assert "memory of the GPU (GiB)" not in found
    json_files.write_json(run.worker, {"gpu_name": "Strange <1>"})
    told = "<p>Note: The peak rate of Strange &lt;1&gt; is unknown, and with it the MFU.</p>"
    assert told in shown("ok", tmp_path, tokens_per_s=10.0)


def test_a_bar_is_the_median_of_ok_runs_and_its_line_joins_the_lowest_and_the_highest(runs):
    own = runs.iloc[[0] * 4].assign(
        experiment="e", repeat=[1, 2, 3, 4], tokens_per_s_per_gpu=[5.0, 6.0, 40.0, 999.0],
        status=["ok", "ok", "ok", "failed"],
    )  # fmt: skip
    speed, *others = plots.overview(own).figure.axes
    assert [bar.get_height() for bar in speed.patches if bar.get_width()] == [6]
    (line,) = [line for line in speed.get_lines() if len(line.get_ydata())]
    assert sorted(line.get_ydata()) == [5, 40]
    assert {axis.get_legend() for axis in (speed, *others)} == {None}  # one for all


def test_warm_up_steps_are_shaded_and_rows_begin_at_the_top(tmp_path):
    run = RunPaths(tmp_path / "e" / "run1")
    run.dir.mkdir(parents=True)
    json_files.write_json(run.experiment, {"model": "gpt2"})
    json_files.write_json(run.result, {"status": "ok"})
    phases = ["warmup", "warmup", "timed"]
    figures = {"loss": 2.5, "step_time_s": 0.25, "t_s": 1.0}
    steps = [{**figures, "step": at, "phase": phase} for at, phase in enumerate(phases, 1)]
    json_files.write_lines(run.steps, steps)
    (shade,) = plots.run_steps(run.dir).figure.axes[0].patches
    assert (shade.get_x(), shade.get_x() + shade.get_width()) == (0.5, 2.5)
    change = {"change": ["a", "b"], "base": ["c", "c"], "experiment": ["e", "f"], "measured_gib": [1.0, -2.0],
              "theory_gib": [3.0, 4.0]}  # fmt: skip
    (axis,) = plots.memory_changes(pd.DataFrame(change)).figure.axes
    assert axis.get_ylim() == (1.5, -0.5)
    drawn = {bars.get_label(): [bar.get_width() for bar in bars] for bars in axis.containers}
    assert drawn == {"measured": [1, -2], "theory": [3, 4]}
    names = {"experiment": ["one/a", "two/a"], "measured_gib": [1.0, 2.0]}
    parts = {f"{part}_gib": [1.0] * 2 for part in PARTS}
    (axis,) = plots.memory_parts(pd.DataFrame({**names, **parts})).figure.axes
    assert [name.get_text() for name in axis.get_yticklabels()] == ["one/a", "two/a"]
