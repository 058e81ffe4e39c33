"""What the repository shows of the data set is what it says."""

import pandas as pd
import pytest

import dsnb
from benchmarks import dataset, headline
from tests import ROOT


def test_the_readme_has_the_table_of_the_data_set():
    table = "\n".join([*headline.HEADER, *map(str, headline.comparisons())])
    assert table in (ROOT / "README.md").read_text()
    assert f"All {len(dsnb.published('h200'))} runs" in (ROOT / "README.md").read_text()


def test_runs_that_compute_something_else_are_not_in_it():
    runs = dsnb.published("h200")
    left = headline.sound(runs)
    gone = runs.drop(left.index)
    assert {"gpt2", "gpt2-xl"} <= set(gone[gone["status"] == "ok"]["model"])
    assert (left["status"] == "ok").all()


def test_a_row_by_hand():
    published = next(row for row in headline.published_rows("lambda_1cc_opt") if row["model"] == "opt-13b")
    ours = headline.sound(dsnb.published("h200"))
    row = ours[ours["experiment"].str.startswith("opt-13b_zs0_fp16_gpus2")]["tokens_per_s"].median() / 2
    assert str(headline.compared(published, ours)).startswith(
        "| opt-13b, LoRA 128, ZeRO 0, fp16, micro-batch 16, recomputed | 4,672 (8 H100-SXM-80GB) "
        f"| {row:,.0f} (2 GPUs, n = 1) | {row / 4672:.2f} |"
    )


def test_runs_beside_others_count_only_where_there_are_no_others():
    runs = pd.DataFrame({"note": [None, "another run at the same time", "no power"]})
    assert list(headline.alone(runs).index) == [0, 2]
    assert list(headline.alone(runs.loc[[1]]).index) == [1]


def test_a_published_setting_that_was_not_measured_again_is_left_out():
    [row] = [one for one in headline.published_rows("bigscience_1b3") if one["pipeline_parallel"] == 2][:1]
    ours = headline.sound(dsnb.published("h200"))
    assert headline.compared(row, ours)
    assert headline.compared({**row, "micro_batch_size": 3}, ours) is None


def test_the_page_has_all_runs_of_the_data_set():
    assert f"{len(dsnb.published('h200'))} runs</h1>" in dataset.PAGE.read_text()
    assert dataset.PAGE.stat().st_size < 3_000_000


def test_the_picture_has_the_figures_of_the_table():
    drawn = headline.picture().figure.axes[0]
    found = headline.comparisons()
    ratios = [value / one.published for one in found for value in (one.again, one.fastest)]
    assert [text.get_text() for text in drawn.texts] == [f"{v:,.0f}" for one in found for v in (one.again, one.fastest)]
    assert [bar.get_width() for bar in drawn.patches] == pytest.approx(ratios)
    assert headline.PICTURE.read_text() == headline.picture().svg
