"""The summary of a terminal: columns are left out, never digits, never what tells settings apart."""

import re

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.cli import printing, summary_table
from dsnb.cli.printing import Format
from dsnb.cli.summary_table import FASTEST
from dsnb.run_folder.columns import RUN_COLUMNS
from tests.support import made_up


@pytest.fixture(scope="module")
def runs():
    return dsnb.published("h200_gpt2_zero_precision")


def test_the_fastest_is_first_and_marked_and_what_names_have_in_common_stands_above(runs):
    ((title, table, _),) = summary_table.blocks(runs)
    assert title == "gpt2, sequence 128, stdlib text, on 1 NVIDIA H200, in every name: gpus1_bs32_sl128_stdlib"
    order = [name[2:].removesuffix(" !") for name in table.index]
    assert sorted(order) == sorted(
        f"zs{stage}_{precision}" for stage in range(4) for precision in ("bf16", "fp16", "fp32")
    )
    medians = runs.groupby("experiment")["tokens_per_s"].median()
    rates = [medians[f"zs{name[2]}_{name[4:]}_gpus1_bs32_sl128_stdlib"] for name in order]
    assert rates == sorted(rates, reverse=True)
    assert all(re.fullmatch(r"[\d,]+ to [\d,]+", text) for text in table["tokens/s"])  # three runs each
    assert [name.startswith("* ") for name in table.index] == [True] + [False] * 11
    worst = f"{100 * (medians.min() / medians.max() - 1):+.1f} %".replace("-", "\N{MINUS SIGN}")
    assert list(table["vs best"].iloc[[0, -1]]) == ["best", worst]
    assert float(table["days/2.5 B tokens"].iloc[0]) == pytest.approx(2.5e9 / medians.max() / 86_400, rel=0.01)


def test_names_that_would_clash_stay_whole():
    assert summary_table.short_names(["a_x", "a_y"]) == ("a", ["x", "y"])
    for names in (["a_x", "a"], ["a_b_c", "c_a_b", "a_b_c_d"], ["a_x"]):
        assert summary_table.short_names(names) == ("", names)


def test_runs_that_are_not_ok_are_counted_last_and_say_why(capsys):
    runs = made_up.runs(12, model=["gpt2"], seq_len=[128], gpus=[1], micro_batch_size=[8], grad_accum=[1])
    worst = runs["experiment"] == runs["experiment"].iloc[0]
    runs.loc[worst, [name for name in runs if runs[name].dtype == float]] = np.nan
    runs.loc[worst, ["status", "cause"]] = ["oom", "[red]no room[/]\x1b[31m"]
    ((_, table, _),) = summary_table.blocks(runs)
    assert table["runs"].iloc[-1] == f"0, {worst.sum()} not ok"
    assert set(table.iloc[-1, 1:]) == {""}
    names = [f"zs{stage}_bf16" for stage in range(5)]
    bad = pd.concat([runs[worst].iloc[:1].assign(experiment=name, repeat=1) for name in names])
    printing.print_summary(bad, Format.table)
    shown = capsys.readouterr().out
    assert "* zs" not in shown  # nothing is best
    assert shown.splitlines()[-4:] == [
        *(f"not ok: {name} run 1: oom, [red]no room[/]?[31m" for name in names[:3]),
        "not ok: 2 more; `dsnb report` lists every cause",
    ]


def test_unusual_runs_have_a_mark_and_a_footnote(runs):
    calm = runs.assign(slow_steps=0, recompilations=0, sm_clock_mhz=1980, step_time_median_s=runs["step_time_s"])
    calm["tokens_per_s"] = calm.groupby("experiment")["tokens_per_s"].transform("median")
    ((_, _, lines),) = summary_table.blocks(calm)
    assert lines == [FASTEST]
    odd = calm.assign(recompilations=[2, *[0] * 35])
    ((_, table, lines),) = summary_table.blocks(odd)
    name = odd["experiment"].iloc[0]
    assert [name.startswith(each[2:-2]) for each in table.index if each.endswith(" !")] == [True]
    assert lines == [FASTEST, f"! {name} run 1: 2 graphs compiled during the timed steps"]
    ((_, _, lines),) = summary_table.blocks(calm.assign(recompilations=1))
    assert lines[-1] == "! and 28 more runs: see the report"


def test_unstable_settings_are_last_not_ranked_and_explained():
    one = {"sweep": "s", "status": "ok", "model": "gpt2", "gpus": 1, "device": "cpu"}
    rates = {"zs0": [21097.0, 2296.0], "zs1": [9000.0, 9100.0], "zs2": [8000.0, 8200.0]}
    rows = [
        {**one, "experiment": name, "repeat": place, "tokens_per_s": rate}
        for name, own in rates.items()
        for place, rate in enumerate(own, 1)
    ]
    ((_, table, lines),) = summary_table.blocks(pd.DataFrame(rows).reindex(columns=RUN_COLUMNS))
    assert list(table.index) == ["* zs1", "  zs2", "  zs0 !"]
    assert list(table["vs best"]) == ["best", "\N{MINUS SIGN}10.5 %", "unstable"]  # of 9,050 and 8,100
    assert list(table["tokens/s"]) == ["9,000 to 9,100", "8,000 to 8,200", "2,296 to 21,097"]
    assert not list(table.filter(like="days/")), "nobody trains it on a CPU"
    assert lines == [
        FASTEST,
        "1 setting is unstable and not ranked: its repeats differ by more than 1.5 times in tokens/s (zs0: 2,296 to "
        "21,097). Measure it again while nothing else uses the machine (see docs/how-to/noise.md).",
    ]
