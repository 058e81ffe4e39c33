"""GPUs that a user adds by their data sheets."""

import pytest

import dsnb
from docs.code_blocks import blocks
from dsnb.base.errors import SettingsError
from dsnb.prediction import gpus
from tests import ROOT
from tests.prediction.made_up import given, trace_nothing

PAGE = ROOT / "docs" / "how-to" / "predict.md"
EXAMPLE = next(block.text for block in blocks(PAGE) if block.text.startswith("name,"))
HEADER, RTX_5080 = EXAMPLE.splitlines()


@pytest.fixture
def given_gpus(tmp_path, monkeypatch):
    """Return a function that makes a user's file of rows the one that is read."""

    def write(*rows):
        file = tmp_path / "gpus.csv"
        file.write_text("\n".join([HEADER, *rows]))
        monkeypatch.setenv("DSNB_GPUS", str(file))
        forget()
        return file

    yield write
    monkeypatch.undo()
    forget()


def forget():
    gpus.known.cache_clear()
    gpus.known_gpu.cache_clear()


def test_a_gpu_of_the_users_file_is_predicted_by_its_data_sheet(given_gpus, monkeypatch):
    given_gpus(RTX_5080)
    spec = gpus.find("NVIDIA GeForce RTX 5080")
    assert (spec.name, spec.memory_gib, spec.switched) == ("RTX 5080", 15.5, True)
    assert spec.peak_flops("bf16") == 112.6e12
    assert gpus.find("H200").memory_gib == 139.8
    trace_nothing(monkeypatch)
    (row,) = dsnb.predict([given()], "rtx-5080").to_dict("records")
    assert row["tokens_per_s"] < dsnb.predict([given()], "4090")["tokens_per_s"][0]
    assert row["step_time_error_on"].endswith("of other programs, other GPUs, one node")
    with pytest.raises(SettingsError, match=r"unknown GPU 'RTX 5081': the nearest are RTX 5080"):
        gpus.find("RTX 5081")


def test_a_file_takes_the_place_of_a_name(tmp_path, monkeypatch):
    file = tmp_path / "mine.csv"
    file.write_text(f"{HEADER}\n{RTX_5080}\n")
    assert gpus.find(str(file)).memory_gb_per_s == 960
    assert "RTX 5080" not in gpus.known()
    trace_nothing(monkeypatch)
    (row,) = dsnb.predict([given()], str(file)).to_dict("records")
    assert row["tokens_per_s"] > 0


@pytest.mark.parametrize("rows", [[], [RTX_5080, "H100,,,,94.5,3350,450,64,0"]])
def test_a_file_in_place_of_a_name_has_one_gpu(tmp_path, rows):
    file = tmp_path / "mine.CSV"
    file.write_text("\n".join([HEADER, *rows]))
    words = (
        f"{file} has {len(rows)} GPUs: give one with its data sheet, or name the file in DSNB_GPUS"
    )
    with pytest.raises(SettingsError) as caught:
        gpus.find(str(file))
    assert str(caught.value) == words


def test_columns_of_a_file_are_checked(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("gpu,half_tflops\nX1,1\n")
    with pytest.raises(SettingsError) as caught:
        gpus.find(str(file))
    assert caught.value.problems[:2] == [
        f"{file}, line 1: it has no column 'name'",
        f"{file}, line 1: unknown column 'gpu'",
    ]
    assert caught.value.problems[2].startswith(
        "the columns of a file of GPUs are name, fp32_tflops,"
    )


def test_a_row_of_the_users_file_replaces_the_gpu_of_its_name_and_rates_may_be_empty(given_gpus):
    given_gpus("H100,,,,94.5,3350,450,64,0")
    spec = gpus.find("NVIDIA H100 80GB HBM3")
    assert (spec.memory_gib, spec.half_tflops, spec.switched) == (94.5, 989, False)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("X1,1,1,1,lots,1,1,1,1", "memory_gib is 'lots': give the value of its data sheet"),
        ("X1,,1,1,1,1,1,1,1", "fp32_tflops is '': give the value of its data sheet"),
        ("X1,1,1,1,1,0,1,1,1", "memory_gb_per_s is '0': give the value of its data sheet"),
        ("X1,1,1,1,1,1,-1,1,1", "nvlink_gb_per_s is '-1': give the value of its data sheet"),
        ("X1,1,nan,1,1,1,1,1,1", "tf32_tflops is 'nan': give the value of its data sheet"),
        ("X1,1,1", "half_tflops is '': give the value of its data sheet"),
        (",1,1,1,1,1,1,1,1", "name is '': give the value of its data sheet"),
        ("X1,1,1,989e12,1,1,1,1,1", "half_tflops is '989e12': give the value of its data sheet"),
        ("X1,1,1,1,1,1,1,1,maybe", "switched is 'maybe': give the value of its data sheet"),
        ("X1,1,1,1,1,1,1,1,1,1", "it has more values than there are columns"),
        (RTX_5080, "name is 'RTX 5080', as in a line before"),
    ],
)
def test_a_wrong_row_is_refused_in_one_sentence(given_gpus, row, why):
    file = given_gpus(RTX_5080, row)
    with pytest.raises(SettingsError) as caught:
        gpus.find("H200")
    assert str(caught.value) == f"{file}, line 3: {why}"


def test_a_file_that_cannot_be_read_is_named(given_gpus, monkeypatch, tmp_path):
    given_gpus()
    monkeypatch.setenv("DSNB_GPUS", str(tmp_path / "none.csv"))
    with pytest.raises(SettingsError, match=r"none.csv cannot be read: .*; it lists GPUs"):
        gpus.find("H200")


def test_the_file_in_the_folder_of_the_configuration_is_read_where_it_exists(monkeypatch, tmp_path):
    monkeypatch.delenv("DSNB_GPUS", raising=False)
    monkeypatch.setattr(gpus.platformdirs, "user_config_path", lambda *_, **__: tmp_path)
    assert gpus.user_file() is None
    (tmp_path / "gpus.csv").write_text(HEADER)
    assert gpus.user_file() == tmp_path / "gpus.csv"
