"""Runs -> tables, with figures known in advance, and damaged folders."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.analysis.summary import summarize, timing
from dsnb.errors import DsnbWarning
from dsnb.files import records
from dsnb.launcher.outcome import run_status, summarize_run
from dsnb.render import answer, by_task, tables
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.settings.experiment import Experiment


@pytest.fixture
def make_run(tmp_path):
    """Write a run folder by hand: 100 tokens a step, the given step times."""

    def make(name, repeat, step_times_s, status=None, cause=None, **settings):
        run = RunPaths(tmp_path / "out" / "s" / name / f"run{repeat}")
        defaults = {"model": "gpt2-tiny", "micro_batch_size": 1, "seq_len": 100, "warmup_steps": 1, "device": "cpu"}
        experiment = Experiment(**{**defaults, "steps": len(step_times_s) or 1, **settings})
        records.write_json(run.experiment, experiment.model_dump())
        records.write_json(run.environment, {"host": "h", "gpus": [{"name": "G", "memory_gib": 1}]})
        rows = [
            {"step": number, "phase": "timed" if number > 1 else "warmup", "t_s": number, "step_time_s": seconds,
             "loss": 5.0 - number, "tokens": 100, "skipped": False}
            for number, seconds in enumerate([9.0, *step_times_s], start=1)
        ]  # fmt: skip
        records.write_lines(run.steps, rows)
        records.write_json(run.worker, {"phases_s": {"timed": sum(step_times_s)}})
        verdict = (status, cause) if status else run_status(experiment, run, {0: 0}, 0)
        Result(*verdict, {0: 0}, {"wall": 1.0}, summarize_run(experiment, run), run.dir).write()
        return run

    return make


def test_throughput_median_and_spread_are_exact(make_run, tmp_path):
    make_run("a", 1, [1.0, 3.0])  # 200 tokens in 4 s; the mean of the rates would be 66.7
    make_run("a", 2, [1.0, 1.0])  # 100 tokens/s
    make_run("a", 3, [0.5, 0.5])  # 200 tokens/s
    summary = summarize(dsnb.load_runs(tmp_path / "out"))
    row = summary.loc["a"]
    assert (row["n"], row["n_failed"]) == (3, 0)
    assert row["tokens_per_s_median"] == 100.0
    squares = [(rate - 350 / 3) ** 2 for rate in (50, 100, 200)]
    assert row["tokens_per_s_std"] == pytest.approx(math.sqrt(sum(squares) / 2))
    assert row["step_time_s_median"] == 1.0
    assert row["loss_last_median"] == 2.0


def test_runs_that_are_not_ok_are_rows_but_not_figures(make_run, tmp_path):
    make_run("a", 1, [1.0])
    make_run("a", 2, [99.0], status="oom", cause="rank 0: out of memory")
    make_run("b", 1, [], status="failed", cause="never began")
    runs = dsnb.load_runs(tmp_path / "out")
    summary = summarize(runs)
    assert summary["n"].to_dict() == {"a": 1, "b": 0}
    assert summary["n_failed"].to_dict() == {"a": 1, "b": 1}
    assert summary.loc["a", "tokens_per_s_median"] == 100.0
    assert pd.isna(summary.loc["b", "tokens_per_s_median"])
    assert "rank 0: out of memory" in str(by_task.failures(runs))
    assert "2 of 3 runs are not ok: 1 out of memory, 1 failed." in str(answer.answer(runs))


def test_grouping_by_a_setting(make_run, tmp_path):
    for stage, seconds in ((0, 1.0), (0, 2.0), (3, 4.0)):
        make_run(f"e{stage}{seconds}", 1, [seconds], zero_stage=stage)
    summary = summarize(dsnb.load_runs(tmp_path / "out"), by="zero_stage")
    assert summary["tokens_per_s_median"].to_dict() == {0: 75.0, 3: 25.0}


def test_an_empty_folder(tmp_path):
    runs = dsnb.load_runs(tmp_path)
    assert runs.empty
    assert summarize(runs).empty
    assert "There are no runs here yet" in str(answer.answer(runs))
    assert timing(runs).empty


def test_hostile_text_stays_text(make_run, tmp_path):
    make_run("a", 1, [1.0], status="failed", cause="</script><script>alert(1)</script>\"'&<b>")
    for table in (by_task.failures, tables.settings, tables.environment):
        shown = str(table(dsnb.load_runs(tmp_path / "out")))
        assert "<script" not in shown
        assert "<b>" not in shown


@pytest.mark.timeout(20)
@pytest.mark.parametrize("content", [b"question: 2024-99-99", b"\xff"])
def test_the_heading_reads_a_params_file_as_a_sweep_does(tmp_path, content):
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.warns(DsnbWarning, match=r"the question of the sweep is left out: params file '.*params\.yaml'"):
        assert "Which of these settings should I train with here?" in str(tables.heading(tmp_path))
    (tmp_path / "params.yaml").unlink()
    (tmp_path / "params.yaml").write_text("question: Is <it>?\nfrom_a_newer_version: 1")
    assert '<p class="question">Is &lt;it&gt;?</p>' in str(tables.heading(tmp_path))


def test_few_runs_show_their_range_and_four_a_deviation(make_run, tmp_path):
    """Of 100 tokens in 1, 2, 4 and 5 s: 100, 50, 25 and 20 tokens/s; median 37.5, deviation 36.6 by hand."""
    for name, times in {"one": [1], "two": [1, 2], "three": [1, 2, 4], "four": [1, 2, 4, 5], "same": [1, 1]}.items():
        for repeat, time in enumerate(times, 1):
            make_run(name, repeat, [float(time)])
    runs = dsnb.load_runs(tmp_path / "out")
    summary = summarize(runs)
    shown = tables.format_summary(summary)["tokens/s/GPU"]
    spread = math.sqrt(sum((rate - 48.75) ** 2 for rate in (100, 50, 25, 20)) / 3)
    texts = shown[["one", "two", "three", "four", "same"]].tolist()
    assert texts == ["100", "50 to 100", "25 to 100", f"38 ± {spread:.0f}", "100"]
    row = summary.loc["three"]
    assert [row[f"tokens_per_s_{name}"] for name in ("min", "median", "max", "n")] == [25, 50, 100, 3]
    assert summary["peak_allocated_gib_n"].eq(0).all()
    assert "utilization" not in str(by_task.medians(runs))
