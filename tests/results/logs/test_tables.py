"""Anybody's CSV file with dsnb's column names."""

import re

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import DsnbWarning, LogError

HEADER = (
    "model,gpus,micro_batch_size,seq_len,zero_stage,precision,tokens_per_s,step_time_mean_s,mfu"
)
ROWS = (
    "llama-3.1-8b,8,2,2048,3,bf16,41000,0.8,0.41",
    "llama-3.1-8b,8,4,2048,3,bf16,45000,1.456,",
    "llama-3.1-8b,8,4,2048,3,bf16,45100,1.453,nan",
)


def write(tmp_path, *rows, header=HEADER, name="mine.csv"):
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_rows_are_runs_and_those_with_equal_settings_repeats(tmp_path):
    runs = dsnb.load_runs(write(tmp_path, *ROWS))
    assert runs["experiment"].tolist() == [
        "mine_micro_batch_size-2", "mine_micro_batch_size-4", "mine_micro_batch_size-4",
    ]  # fmt: skip
    assert runs["repeat"].tolist() == [1, 1, 2]
    assert runs["tokens_per_s"].tolist() == [41000, 45000, 45100]
    assert runs["tokens_per_s_per_gpu"].tolist() == [5125.0, 5625.0, 5637.5]
    assert runs["mfu"].isna().tolist() == [False, True, True]
    assert set(runs["status"]) == {"ok"}
    assert set(runs["source"]) == {"csv"}
    assert (
        runs["provenance"]
        .iloc[0]
        .startswith("as logged: tokens_per_s, step_time_mean_s, mfu; derived: ")
    )
    assert set(runs["parameters"]) == {8_030_261_248}
    assert runs["grad_accum"].isna().all()  # not said


def test_texts_and_names_are_taken_over(tmp_path):
    header = "program,experiment,status,cause,gpu_name,note,activation_checkpointing,compile,tokens_per_s"
    row = "torchtitan,mine,oom,out of memory,NVIDIA H100,by hand,yes,off,"
    run = dsnb.load_runs(write(tmp_path, row, header=header)).iloc[0]
    assert run["experiment"] == "mine"
    assert (run["status"], run["cause"]) == ("oom", "out of memory")
    assert (run["source"], run["gpu_name"], run["note"]) == ("torchtitan", "NVIDIA H100", "by hand")
    assert (run["activation_checkpointing"], run["compile"]) == (True, "off")
    assert pd.isna(run["tokens_per_s"])


def test_columns_that_are_unknown_are_named(tmp_path):
    path = write(tmp_path, "8,41000,1,2", header="gpus,tokens_per_s,tokens_per_sec,colour")
    sentence = "columns that dsnb does not know are left out: tokens_per_sec (did you mean tokens_per_s?), colour"
    with pytest.warns(DsnbWarning, match=re.escape(sentence)):
        dsnb.load_runs(path)


WRONG = {
    "llama-3.1-8b,8,4,2048,3,bf16,-45000,,": "tokens_per_s is -45000: it must be at least 0",
    "llama-3.1-8b,8,4,2048,3,bf16,45k,,": "tokens_per_s is '45k': give a plain number, without a unit",
    "llama-3.1-8b,8,4,2048,7,bf16,45000,,": "zero_stage is 7: allowed are 0, 1, 2 or 3",
    "llama-3.1-8b,8.5,4,2048,3,bf16,45000,,": "gpus is 8.5: give a whole number, or 'auto'",
    "llama-3.1-8b,8,4,2048,3,bfloat,45000,,": "precision is 'bfloat': allowed are",
    "llama-3.1-8b,8,4,2048,3,bf16,45000,,44": "mfu is 44: it is a share, such as 0.41 for 41 %",
    "llama-3.1-8b,8,4,2048,3,bf16,45000,1456,": (
        "tokens_per_s is 45000 and step_time_mean_s is 1456, but a step has 65,536 tokens: give the step time"
    ),
}


@pytest.mark.parametrize("row", WRONG)
def test_a_wrong_value_is_refused_with_its_row(tmp_path, row):
    path = write(tmp_path, ROWS[0], row)
    with pytest.raises(LogError) as caught:
        dsnb.load_runs(path)
    assert str(caught.value).startswith(f"{path}, line 3 is refused: {WRONG[row]}")


def test_rates_of_all_gpus_and_of_one_agree(tmp_path):
    path = write(tmp_path, "8,41000,41000", header="gpus,tokens_per_s,tokens_per_s_per_gpu")
    with pytest.raises(LogError, match="tokens_per_s is that of all GPUs"):
        dsnb.load_runs(path)


def test_a_table_of_dsnb_itself_can_be_read_again(tmp_path):
    runs = dsnb.load_runs("outputs/examples/quickstart")
    path = tmp_path / "runs.csv"
    runs.to_csv(path)
    again = dsnb.load_runs(path)
    for name in (
        "experiment",
        "repeat",
        "tokens_per_s",
        "zero_stage",
        "compile",
        "peak_allocated_gib",
        "status",
    ):
        pd.testing.assert_series_equal(again[name], runs[name], check_dtype=False)


def test_other_csv_files_of_a_folder_are_passed_over(tmp_path):
    write(tmp_path, *ROWS)
    write(tmp_path, "1,2", header="step,loss", name="curve.csv")
    write(tmp_path, "a,-3", header="model,tokens_per_s", name="wrong.csv")
    with pytest.warns(DsnbWarning, match="wrong.csv, line 2 is refused"):
        assert len(dsnb.load_runs(tmp_path)) == len(ROWS)


def test_a_column_that_stands_twice_is_refused(tmp_path):
    path = write(tmp_path, "gpt2,1,8,1000", header="model,gpus,gpus,tokens_per_s")
    with pytest.raises(LogError, match="has the column gpus twice: remove one"):
        dsnb.load_runs(path)
