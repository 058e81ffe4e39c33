"""Tables of runs, by task: medians and spreads known in advance, nothing ranked across tasks, and hostile text."""

import math
import re

import pandas as pd
import pytest

from dsnb.base.errors import DsnbWarning
from dsnb.cli import summary_table
from dsnb.results.statistics.summary import summarize
from dsnb.show.render import answer, by_task, tables
from tests.results.statistics.test_comparisons import runs_of
from tests.support import made_up


def test_medians_and_spreads_are_exact_and_failed_runs_only_counted():
    runs = runs_of(a=[50.0, 100, 200, None], b=[None])
    summary = summarize(runs, metrics="all")
    assert summary["n"].to_dict() == {"a": 3, "b": 0}
    assert summary["n_failed"].to_dict() == {"a": 1, "b": 1}
    squares = [(rate - 350 / 3) ** 2 for rate in (50, 100, 200)]
    assert summary["tokens_per_s_median"]["a"] == 100
    assert summary["tokens_per_s_std"]["a"] == pytest.approx(math.sqrt(sum(squares) / 2))
    assert pd.isna(summary["tokens_per_s_median"]["b"])
    by_stage = summarize(runs.assign(zero_stage=[0, 0, 3, 3, 3]), by="zero_stage")
    assert by_stage["tokens_per_s_median"].to_dict() == {0: 75, 3: 200}


def test_a_summary_names_the_settings_and_hardware_in_which_pooled_runs_differ():
    runs = runs_of(a=[1.0, 2.0, 3.0], b=[4.0, 5.0], c=[6.0], d=[7.0, 8.0, 9.0]).assign(
        strategy="deepspeed",
        compile=["off", "default", "off", "off", "off", "off", "off", "off", "off"],
        grad_accum=[1, 1, 1, 2, 2, 2, 2, 2, None],  # of one run of d, it is unknown
        gpu_name=["H100", "H100", "H200", "H100", "H100", "H100", "H100", "H100", "H100"],
        host=["x", "y", "x", "x", "y", "x", "x", "x", "x"],  # repeats on several hosts are repeats
        steps=[20, 20, 20, 20, 40, 20, 20, 20, 20],  # and those that were measured longer
    )
    summary = summarize(runs, metrics="all")
    assert summary["varies"].to_dict() == {
        "a": "compile, gpu_name",
        "b": "",
        "c": "",
        "d": "grad_accum",
    }
    assert summarize(runs, by="compile")["varies"].to_dict() == {
        "off": "grad_accum, gpu_name",
        "default": "",
    }
    assert summarize(runs, by=["compile", "grad_accum", "gpu_name"])["varies"].tolist() == [""] * 5
    assert summarize(runs, by=["grad_accum"]).loc[2, "varies"] == ""
    unfinished = runs.assign(status=["ok"] * 8 + ["interrupted"])
    assert summarize(unfinished)["varies"]["d"] == ""

    assert tables.format_summary(summary)[tables.VARIES].tolist() == [
        "compile, gpu_name",
        "",
        "",
        "grad_accum",
    ]
    assert tables.VARIES not in tables.format_summary(summary.loc[["b", "c"]])
    said = "The medians of 2 settings are over runs that differ: a in compile, gpu_name; d in grad_accum."
    assert said in answer.remarks(runs)
    assert answer.mixed_settings(runs[runs["experiment"].isin(["b", "c"])]) == []
    assert "compile, gpu_name" in str(by_task.medians(runs))
    shown = "\n".join(line for _, _, lines in summary_table.blocks(runs) for line in lines)
    assert said in shown


def test_hostile_text_stays_text():
    hostile = "</script><script>alert(1)</script>\"'&<b>"
    runs = runs_of(a=[None]).assign(cause=hostile, model=hostile, gpu_name=hostile)
    for table in (by_task.failures, tables.settings, tables.environment):
        shown = str(table(runs))
        assert "&lt;b&gt;" in shown
        assert "<script" not in shown
        assert "<b>" not in shown


def test_names_of_rows_and_columns_stay_text():
    table = pd.DataFrame({"<b>column": ["<b>cell"]}, index=pd.Index(["<b>row"], name="<b>rows"))
    shown = str(tables.to_html(table))
    assert "<b>" not in shown
    assert [shown.count(f"&lt;b&gt;{name}") for name in ("rows", "column", "row<", "cell")] == [
        1
    ] * 4


def test_the_environment_says_when_and_how_it_was_measured():
    runs = runs_of(a=[1.0, 2.0]).assign(
        gpu_name=["H200", None], date_utc=["2026-11-24T09:00", "2026-11-22T10:00"]
    )
    runs = runs.assign(
        timed_steps=[40, 20], timed_s=[12.5, 0.4], warmup_steps=5, variables=["A=1", "A=2"]
    )
    text = str(tables.environment(runs))
    for name, value in {
        "GPU": "H200",
        "dates": "2026-11-22 to 2026-11-24",
        "measured": "20 to 40 steps (0.4 to 12.5 s) after 5 warm-up steps",
    }.items():
        assert re.search(
            rf'<th scope="row"[^>]*>{name}</th><td class="text"[^>]*>{re.escape(value)}</td>', text
        )
    assert "variables" not in text  # they differ
    bare = str(tables.environment(pd.DataFrame({"experiment": ["a"], "timed_steps": [None]})))
    assert not {"measured", "dates", "driver", "nan"} & set(re.findall(r"\w+", bare))


def test_settings_say_where_they_are_unknown():
    runs = runs_of(a=[1.0, 2.0, 3.0]).assign(
        strategy=["plain", "deepspeed", "deepspeed"],
        zero_stage=[None, 1, None],
        grad_accum=[None, 2, 4],
        compile="off",
    )
    text = str(tables.settings(runs))
    for name, value in {
        "strategy": "plain, deepspeed",
        "zero_stage": "1; unknown in 1 run",  # the plain loop has none
        "grad_accum": "2, 4; unknown in 1 run",
        "compile": "off",
    }.items():
        assert re.search(
            rf'<th scope="row"[^>]*>{name}</th><td class="text"[^>]*>{re.escape(value)}</td>', text
        )


@pytest.mark.parametrize("content", [b"question: 2024-99-99", b"\xff"])
def test_the_heading_reads_a_params_file_as_a_sweep_does(tmp_path, content):
    (tmp_path / "params.yaml").write_bytes(content)
    with pytest.warns(
        DsnbWarning, match=r"the question of the sweep is left out: params file '.*params\.yaml'"
    ):
        assert "Which of these settings should I train with here?" in str(tables.heading(tmp_path))
    (tmp_path / "params.yaml").unlink()
    (tmp_path / "params.yaml").write_text("question: Is <it>?\nfrom_a_newer_version: 1")
    assert '<p class="question">Is &lt;it&gt;?</p>' in str(tables.heading(tmp_path))


def test_few_runs_show_their_range_and_four_a_deviation():
    rates = [100.0, 50, 25, 20]
    runs = runs_of(one=rates[:1], two=rates[:2], three=rates[:3], four=rates, same=[100, 100])
    runs["tokens_per_s_per_gpu"] = runs["tokens_per_s"]
    summary = summarize(runs, metrics="all")
    shown = tables.format_summary(summary)
    spread = math.sqrt(sum((rate - 48.75) ** 2 for rate in rates) / 3)
    assert shown["tokens/s/GPU"].tolist() == [
        "100",
        "50 to 100",
        "25 to 100",
        f"38 ± {spread:.0f}",
        "100",
    ]
    assert "tokens/s" not in shown  # the same on one GPU
    row = summary.loc["three"]
    assert [row[f"tokens_per_s_{name}"] for name in ("min", "median", "max", "n")] == [
        25,
        50,
        100,
        3,
    ]
    assert summary["peak_allocated_gib_n"].eq(0).all()
    assert "utilization" not in str(by_task.medians(runs))


def test_figures_are_shown_in_the_unit_of_their_heading():
    """Seconds as milliseconds, shares as per cent, kWh as Wh; GiB, watts and hours as they are."""
    stored = {
        "step_time_mean_s": 0.0125, "forward_s": 0.0025, "mfu": 0.375, "step_skew": 0.0125, "run_energy_kwh": 0.0625,
        "peak_allocated_gib": 12.5, "power_w": 412.0, "samples_per_s": 12.5, "cost": 1.25,
    }  # fmt: skip
    shown = tables.format_summary(
        summarize(runs_of(a=[None]).assign(status="ok", **stored), metrics="all")
    )
    texts = {
        "step time (ms)": "12.5", "forward (ms)": "2.5", "MFU (%)": "37.5", "step skew (%)": "1.2",
        "energy of the run (Wh)": "62.5", "peak memory allocated (GiB)": "12.50", "power (W)": "412",
        "samples/s": "12.5", "cost of the run": "1.25",
    }  # fmt: skip
    assert shown.loc["a", list(texts)].to_dict() == texts


FAST, SLOW = "gpt2, sequence 512", "bloom-560m, sequence 512"


def two_tasks():
    """Give a small model at 1,000 and 2,000 tokens/s and a large one at 10 and 30, and a failed run of the latter."""
    table = made_up.runs(5, repeats=1, model=["gpt2"], gpus=[1]).assign(status="ok", cause=None)
    names = ["a", "b", "c", "d", "e"]
    table = table.assign(
        experiment=names, model=["gpt2"] * 2 + ["bloom-560m"] * 3, loss_first=[1, 1, 2, 2, 2.1]
    )
    table = table.assign(tokens_per_s=[1000.0, 2000, 10, 30, 20], seed=0, global_batch_size=8)
    return table.assign(status=["ok"] * 4 + ["oom"], cause=[None] * 4 + ["no <room>"])


def parts(html, heading="h3"):
    """Give each task's part of the HTML by its title."""
    found = re.split(rf"<{heading}>(.*?)</{heading}>", str(html))
    return dict(zip(found[1::2], found[2::2], strict=True))


def names(html):
    return re.findall(r'<th scope="row"[^>]*>(.*?)</th>', str(html))


def test_medians_are_ranked_within_a_task():
    found = parts(by_task.medians(two_tasks()))
    assert {title: names(part) for title, part in found.items()} == {
        SLOW: ["d", "c", "e"],
        FAST: ["b", "a"],
    }
    one = str(by_task.medians(two_tasks().head(2)))
    assert "<h3>" not in one
    assert names(one) == ["b", "a"]
    disagreeing = (
        two_tasks().iloc[[0, 1, 1]].assign(repeat=[1, 1, 2], tokens_per_s=[1000.0, 2000, 9000])
    )
    assert names(by_task.medians(disagreeing)) == ["a", "b"]  # comes last


def test_failures_remarks_and_unusual_runs_are_below_their_task():
    found = parts(by_task.failures(two_tasks()))
    assert list(found) == [SLOW]
    assert "no &lt;room&gt;" in found[SLOW]
    assert str(by_task.failures(two_tasks().head(4))) == "<p>None: all runs succeeded.</p>"
    noted = two_tasks().assign(status="ok", dropout=0.0, note=["odd", None, None, None, None])
    found = parts(by_task.runs_to_look_at(noted), "h4")
    assert list(found) == [SLOW, FAST]
    assert "first loss +5.0 %" in found[SLOW]
    assert "odd" in found[FAST]


def test_what_a_report_leaves_out_is_counted(monkeypatch):
    monkeypatch.setattr(by_task, "MAX_TASKS", 1)
    assert "<p>1 more task not shown here.</p>" in str(by_task.medians(two_tasks()))
    table = pd.DataFrame({"x": range(1234)})
    assert "Only the first 100 of 1,234 rows; the explorer has all." in str(tables.to_html(table))
    assert tables.first_of(list("abcde"), 3) == "a; b; c; and 2 more"


def test_flagged_runs_count_and_the_masked_share_of_flops_is_said():
    noted = two_tasks().assign(status="ok", note=["odd", None, None, None, None])
    assert "They count in every figure: if it is a disturbance, repeat the run" in str(
        by_task.runs_to_look_at(noted)
    )
    rated = two_tasks().head(2).assign(tflops_per_gpu=[100.0, 200.0], masked_flops_pct=[12.34, 5.0])
    assert "It is 5.0 to 12.3 % of the values here." in str(by_task.meanings(rated))


def test_missing_numbers_are_empty_and_negative_ones_keep_their_sign():
    assert tables.format_column([-1234.5, math.nan, 0.25], ",.1f") == [
        "\N{MINUS SIGN}1,234.5",
        "",
        "0.2",
    ]
    timing = pd.DataFrame({"build": [1.5], "wall": [12.25]}, index=["a"])
    assert tables.format_timing(timing).loc["a"].to_dict() == {
        "wall (s)": "12.25",
        "build (s)": "1.50",
    }
    assert list(tables.format_timing(timing)) == ["wall (s)", "build (s)"]


def test_small_figures_and_deviations_keep_digits():
    """A share of 0.375 % has three decimals, a deviation below 10 has one."""
    runs = runs_of(a=[100.0, 102, 98, 100]).assign(mfu=0.00375)
    shown = tables.format_summary(summarize(runs, metrics="all")).loc["a"]
    assert shown["tokens/s"] == "100 ± 1.6"  # the root of (4 + 4) / 3
    assert shown["MFU (%)"].startswith("0.375")


def test_metrics_that_another_one_replaces_are_left_out_and_others_are_not():
    runs = runs_of(a=[100.0]).assign(
        gpus=2, tokens_per_s_per_gpu=50.0, samples_per_s=0.5, peak_allocated_gib=7.0, peak_reserved_gib=8.0
    )  # fmt: skip
    shown = tables.format_summary(summarize(runs, metrics="all"))
    assert shown.loc["a", ["n", "not ok", "tokens/s", "tokens/s/GPU"]].tolist() == [
        "1",
        "0",
        "100",
        "50",
    ]
    assert "peak memory allocated (GiB)" in shown
    assert not {"samples/s", "peak memory reserved (GiB)"} & set(shown)
    assert "tokens/s/rank" in tables.format_summary(summarize(runs, metrics="all"), "rank")
    beside = runs_of(a=[100.0], b=[100.0]).assign(gpus=[1, 2], tokens_per_s_per_gpu=[100.0, 50.0])
    both = tables.format_summary(summarize(beside, metrics="all"))
    assert both["tokens/s"].tolist() == ["100", "100"]  # equal for a alone
    assert both["tokens/s/GPU"].tolist() == ["100", "50"]


def test_a_heading_says_only_the_unit_in_which_its_numbers_are():
    """Numbers of plain tables are not multiplied: a share is no percentage."""
    shown = str(tables.number_table(pd.DataFrame({"mfu": [0.375], "peak_allocated_gib": [1.5]})))
    assert ">mfu<" in shown
    assert "%" not in shown
    assert "GiB" in shown
    shown = str(tables.to_html(pd.DataFrame({"x": ["12 to 15"]})))
    assert "12\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}15" in shown
