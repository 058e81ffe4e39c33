"""What the repository shows of the data set is what it says."""

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
    assert set(gone[gone["status"] == "ok"]["model"]) == {"gpt2", "gpt2-xl", "opt-1.3b"}
    assert (left["status"] == "ok").all()


def test_a_row_by_hand():
    published = dsnb.published("lambda_1cc_opt").query("gpus == 8 and model == 'opt-13b'").iloc[0].to_dict()
    ours = headline.sound(dsnb.published("h200"))
    row = ours[ours["experiment"].str.startswith("opt-13b_zs0_fp16")]["tokens_per_s"].median() / 2
    assert str(headline.compared(published, ours)).startswith(
        f"| opt-13b, LoRA 128, ZeRO 0, fp16 | 4,672 (8 H100-SXM-80GB) | {row:,.0f} (2 GPUs, n = 1) | {row / 4672:.2f} |"
    )


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
