"""The open example and the rows of the README's table: real and complete."""

import json
import re

import pandas as pd

import dsnb
from benchmarks import dataset, headline
from docs import make_example
from dsnb.measure.sweep.params import load_sweep
from dsnb.results.runs.load import load_runs, load_steps
from dsnb.settings.params_file import read_params

RUNS = make_example.TARGET
RUNS_OF_EXAMPLE = 20
PRIVATE = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var|mnt|opt|srv)/[\w.-]+")


def test_the_example_is_the_whole_quickstart():
    """`make example` was run after the last change of the params file."""
    recorded, current = (read_params(path) for path in (RUNS / "params.yaml", make_example.PARAMS))
    assert recorded == current
    runs = load_runs(RUNS)
    assert len(runs) == RUNS_OF_EXAMPLE
    assert runs[["status", "device"]].drop_duplicates().to_numpy().tolist() == [["ok", "cpu"]]
    assert len(load_steps(RUNS)) == (runs["warmup_steps"] + runs["steps"]).sum()


def test_the_quickstart_asks_every_question_once():
    experiments = [
        run.experiment
        for run in load_sweep(make_example.PARAMS, {"device": "cpu"}).runs
        if run.repeat == 1
    ]
    zero = [one for one in experiments if one.strategy == "deepspeed"]
    usual = [one for one in zero if one.grad_accum == 1 and not one.activation_checkpointing]
    assert {one.zero_stage for one in usual} == {0, 1, 2, 3}
    batches = {(one.micro_batch_size, one.grad_accum) for one in zero if one.zero_stage == 1}
    assert batches == {(8, 1), (4, 2), (2, 4)}
    assert len({one.global_batch_size for one in zero}) == 1
    assert [one.zero_stage for one in zero if one.activation_checkpointing] == [1]
    plain = [one for one in experiments if one.strategy == "plain"]
    assert {one.precision for one in plain if one.compile == "off"} == {"fp32", "bf16"}
    assert (
        len({one.precision for one in (*zero, *(one for one in plain if one.compile != "off"))})
        == 1
    )


def test_the_example_names_no_machine_user_or_path():
    files = [path for path in RUNS.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len(files) == RUNS_OF_EXAMPLE * len(make_example.RECORDS) + 4
    for path in files:
        assert not PRIVATE.search(path.read_text()), path
        if path.name == "environment.json":
            machine = json.loads(path.read_text())
            assert (machine["host"], machine["os"]) == (make_example.HOST, "Linux")
    assert make_example.HOST in (RUNS / "report.html").read_text()


def test_the_page_of_the_data_set_is_whole():
    assert f"{len(dsnb.published('h200')):,} runs</h1>" in dataset.PAGE.read_text()
    assert dataset.PAGE.stat().st_size < 3_000_000


def test_two_rows_by_hand():
    ours = headline.sound()
    runs = ours.query("model == 'bloom-560m' and seq_len == 1024 and gpus == 1 and lora_rank == 0")
    speeds = max(
        (group["tokens_per_s"] for _, group in runs.groupby("experiment")), key=pd.Series.median
    )
    (row,) = [row for row in headline.results() if "BLOOM-560M" in row]
    assert (
        f"| {speeds.median():,.0f} | {speeds.min():,.0f} to {speeds.max():,.0f} | {len(speeds)} |"
        in row
    )

    published = next(
        row for row in headline.published_rows("lambda_1cc_opt") if row["model"] == "opt-13b"
    )
    again = (
        ours[ours["experiment"].str.startswith("opt-13b_zs0_fp16_gpus2")]["tokens_per_s"].median()
        / 2
    )
    assert str(headline.compared(published, ours)).startswith(
        "| opt-13b, LoRA 128, ZeRO 0, fp16, micro-batch 16, recomputed | 4,672 (8 H100-SXM-80GB) "
        f"| {again:,.0f} (2 GPUs, n = 1) | {again / 4672:.2f} |"
    )
    assert headline.compared({**published, "micro_batch_size": 3}, ours) is None


def test_the_picture_has_the_figures_of_the_table():
    drawn = headline.picture()
    figures = [value for one in headline.comparisons() for value in (one.again, one.fastest)]
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == [
        f"{value:,.0f}" for value in figures
    ]
    assert headline.PICTURE.read_text() == drawn.svg
