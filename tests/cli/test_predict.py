"""`dsnb predict`: how tokens are written, and which settings come first."""

import csv
import io

import pytest
import typer

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.cli.predict import parse_tokens
from dsnb.prediction import gpus, traces
from tests.cli.test_app import dsnb
from tests.prediction.made_up import of_record, trace_nothing

PARAMS = """
name: sizes
defaults: {model: opt-1.3b, gpus: 1, precision: bf16, seq_len: 2048, device: cuda, strategy: plain}
grid: {micro_batch_size: [2048, 8, 4]}
"""


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("8K", 8e3), ("50M", 50e6), ("300B", 300e9), ("300b", 300e9), ("1.5T", 1.5e12), ("20e9", 20e9), ("7", 7.0)],
)  # fmt: skip
def test_tokens_are_written_with_their_size(text, tokens):
    assert parse_tokens(text) == tokens


def test_tokens_that_are_no_number_are_refused():
    with pytest.raises(
        typer.BadParameter, match=r"'Bn': write a number such as 300e9, 300B or 1.5T"
    ):
        parse_tokens("Bn")


def test_settings_that_fit_come_first_the_fastest_of_them_at_the_top(monkeypatch, tmp_path):
    """A micro-batch of 2,048 sequences would be the fastest, but needs 200 GiB."""
    trace_nothing(monkeypatch)
    monkeypatch.setattr(traces, "attempts", of_record)
    (tmp_path / "sizes.yaml").write_text(PARAMS)
    words = ("predict", tmp_path / "sizes.yaml", "--gpu", "H200", "--no-probe", "--format", "csv")
    code, out, _ = dsnb(monkeypatch, *words)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["fits"] for row in rows] == ["True", "True", "False"]
    assert [row["experiment"].split("_")[-2] for row in rows] == ["bs8", "bs4", "bs2048"]
    days = [float(row["days"]) for row in rows]
    assert days[2] < days[0] < days[1]


def test_models_and_gpus_are_listed_in_aligned_columns(monkeypatch):
    code, out, _ = dsnb(monkeypatch, "recommend", "--list")
    assert code == 0
    models, cards, remarks = out.strip().split("\n\n")
    for table, names in ((models, PRESETS), (cards, gpus.known())):
        heading, *rows = table.splitlines()
        assert [row.split("  ")[0] for row in rows] == [*names]
        assert {len(row) for row in rows} == {len(heading)}
    assert max(map(len, out.splitlines())) <= 100
    assert "a GPU a CSV file" in remarks
    row = next(row.split() for row in cards.splitlines() if row.startswith("RTX 4090 "))
    assert row == ["RTX", "4090", "23.6", "165", "1,008", "PCIe", "450", "1"]
    row = next(row.split() for row in cards.splitlines() if row.startswith("H100 "))
    assert min(int(row[-2]), int(row[-1])) > 40


@pytest.mark.parametrize(
    ("gpu", "measured_on", "is_told_apart"),
    [("H100", "H100: ", True), ("A100", "of other programs, A100, one node", False)],
)
def test_what_a_range_was_measured_on_is_said(
    monkeypatch, tmp_path, gpu, measured_on, is_told_apart
):
    trace_nothing(monkeypatch)
    monkeypatch.setattr(traces, "attempts", of_record)
    (tmp_path / "sizes.yaml").write_text(PARAMS)
    _, out, _ = dsnb(monkeypatch, "predict", tmp_path / "sizes.yaml", "--gpu", gpu, "--no-probe")
    (said,) = [line for line in out.splitlines() if line.startswith("ranges of tokens/s and time")]
    assert measured_on in said
    others = [line for line in out.splitlines() if "own training loop" in line]
    assert bool(others) == is_told_apart
    assert (
        len([line for line in out.splitlines() if line.startswith("nearest run, measured ")]) <= 3
    )
