"""What the repository shows of the data set is what it says."""

import dsnb
from benchmarks import dataset, headline
from tests import ROOT


def test_the_readme_has_the_table_of_the_data_set():
    table = "\n".join([*headline.HEADER, *map(str, headline.comparisons())])
    assert table in (ROOT / "README.md").read_text()
    runs = len(dsnb.published("h200"))
    assert f"All {runs} runs" in (ROOT / "README.md").read_text()
    assert f"{runs} runs</h1>" in dataset.PAGE.read_text()
    assert dataset.PAGE.stat().st_size < 3_000_000


def test_a_row_by_hand():
    ours = headline.sound(dsnb.published("h200"))
    published = next(row for row in headline.published_rows("lambda_1cc_opt") if row["model"] == "opt-13b")
    row = ours[ours["experiment"].str.startswith("opt-13b_zs0_fp16_gpus2")]["tokens_per_s"].median() / 2
    assert str(headline.compared(published, ours)).startswith(
        "| opt-13b, LoRA 128, ZeRO 0, fp16, micro-batch 16, recomputed | 4,672 (8 H100-SXM-80GB) "
        f"| {row:,.0f} (2 GPUs, n = 1) | {row / 4672:.2f} |"
    )
    assert headline.compared({**published, "micro_batch_size": 3}, ours) is None


def test_the_picture_has_the_figures_of_the_table():
    drawn = headline.picture()
    figures = [value for one in headline.comparisons() for value in (one.again, one.fastest)]
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == [f"{value:,.0f}" for value in figures]
    assert headline.PICTURE.read_text() == drawn.svg
