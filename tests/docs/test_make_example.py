"""The open example and the figures of the data set: real, complete, and what the README says."""

import json
import re

import pandas as pd

import dsnb
from benchmarks import dataset, distance, edges, headline, todays_models
from benchmarks.prediction_errors import by_launch_time, by_probe
from docs import make_example
from dsnb.prediction.calibration import ELSEWHERE, PEAK_ERRORS, TIME_ERRORS
from dsnb.runs.load import load_runs, load_steps
from dsnb.settings.params_file import read_params
from dsnb.sweep.params import load_sweep
from tests import ROOT

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
    experiments = [run.experiment for run in load_sweep(make_example.PARAMS, {"device": "cpu"}).runs if run.repeat == 1]
    zero = [one for one in experiments if one.strategy == "deepspeed"]
    usual = [one for one in zero if one.grad_accum == 1 and not one.activation_checkpointing]
    assert {one.zero_stage for one in usual} == {0, 1, 2, 3}
    batches = {(one.micro_batch_size, one.grad_accum) for one in zero if one.zero_stage == 1}
    assert batches == {(8, 1), (4, 2), (2, 4)}
    assert len({one.global_batch_size for one in zero}) == 1
    assert [one.zero_stage for one in zero if one.activation_checkpointing] == [1]
    plain = [one for one in experiments if one.strategy == "plain"]
    assert {one.precision for one in plain if one.compile == "off"} == {"fp32", "bf16"}
    assert len({one.precision for one in (*zero, *(one for one in plain if one.compile != "off"))}) == 1


def test_the_example_names_no_machine_user_or_path():
    files = [path for path in RUNS.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert len(files) == RUNS_OF_EXAMPLE * len(make_example.RECORDS) + 4
    for path in files:
        assert not PRIVATE.search(path.read_text()), path
        if path.name == "environment.json":
            machine = json.loads(path.read_text())
            assert (machine["host"], machine["os"]) == (make_example.HOST, "Linux")
    assert make_example.HOST in (RUNS / "report.html").read_text()


README = (ROOT / "README.md").read_text()
EXPLANATION = ROOT / "docs" / "explanation"


def test_readme_and_documentation_have_the_tables_of_the_data_set():
    assert "\n".join([*headline.RESULTS_HEADER, *headline.results()]) in README
    runs, fast = edges.measured(), (ROOT / "docs" / "how-to" / "fast.md").read_text()
    for header, rows in (
        (distance.HEADER, distance.rows()),
        (edges.HEADER, edges.edges(runs)),
        (todays_models.HEADER, todays_models.rows()),
    ):
        assert "\n".join([*header, *rows]) in fast
    assert (
        "\n".join([*edges.ANCHORS_HEADER, *edges.anchors(runs)]) in (ROOT / "docs" / "how-to" / "noise.md").read_text()
    )
    assert "\n".join(by_probe()) in (ROOT / "docs" / "how-to" / "probe.md").read_text()
    table = "\n".join([*headline.HEADER, *map(str, headline.comparisons())])
    assert table in (EXPLANATION / "published.md").read_text()
    runs = f"{len(dsnb.published('h200')):,}"
    assert re.findall(r"([\d,]+)\s+runs\b(?= of GPT|, with)", README) == [runs, runs]
    assert f"{runs} runs</h1>" in dataset.PAGE.read_text()
    assert "\n".join(dataset.counts()) in (ROOT / "dsnb" / "runs" / "literature" / "README.md").read_text()
    assert dataset.PAGE.stat().st_size < 3_000_000


def test_the_errors_that_the_readme_names_are_those_of_the_documentation():
    text = " ".join(README.split())
    peaks, node, every = PEAK_ERRORS["all"], ELSEWHERE["H100, one node"], ELSEWHERE["all"]
    peak_words = (
        f"{peaks.mean_pct:.1f} % off on average over {peaks.settings} measured settings, {peaks.worst_pct:.1f} %"
    )
    assert peak_words in text
    assert f"{node.mean_pct:.0f} % off on one node of H100 and {every.mean_pct:.0f} %" in text
    tasks, mean, worst = regret_of((EXPLANATION / "prediction.md").read_text())
    assert f"on {tasks} tasks" in text
    assert f"{mean} % longer than the fastest one on average, {worst} % at worst" in text


def regret_of(text):
    """Return number of tasks, mean and worst regret as the page has them; tests/test_regret.py recomputes them."""
    (tasks, mean), (_, worst) = re.findall(r"^\| (?:mean|worst) of (\d+) tasks \| \| \| ([\d.]+) %", text, re.M)
    return tasks, mean, worst


def test_two_rows_by_hand():
    ours = headline.sound()
    runs = ours.query("model == 'bloom-560m' and seq_len == 1024 and gpus == 1 and lora_rank == 0")
    speeds = max((group["tokens_per_s"] for _, group in runs.groupby("experiment")), key=pd.Series.median)
    (row,) = [row for row in headline.results() if "BLOOM-560M" in row]
    assert f"| {speeds.median():,.0f} | {speeds.min():,.0f} to {speeds.max():,.0f} | {len(speeds)} |" in row

    published = next(row for row in headline.published_rows("lambda_1cc_opt") if row["model"] == "opt-13b")
    again = ours[ours["experiment"].str.startswith("opt-13b_zs0_fp16_gpus2")]["tokens_per_s"].median() / 2
    assert str(headline.compared(published, ours)).startswith(
        "| opt-13b, LoRA 128, ZeRO 0, fp16, micro-batch 16, recomputed | 4,672 (8 H100-SXM-80GB) "
        f"| {again:,.0f} (2 GPUs, n = 1) | {again / 4672:.2f} |"
    )
    assert headline.compared({**published, "micro_batch_size": 3}, ours) is None


def test_the_picture_has_the_figures_of_the_table():
    drawn = headline.picture()
    figures = [value for one in headline.comparisons() for value in (one.again, one.fastest)]
    assert [text.get_text() for text in drawn.figure.axes[0].texts] == [f"{value:,.0f}" for value in figures]
    assert headline.PICTURE.read_text() == drawn.svg


def test_the_summary_of_errors_is_that_of_its_tables():
    text = (EXPLANATION / "prediction.md").read_text()
    by_gpu, by_cpu = TIME_ERRORS["limited by the GPU"], TIME_ERRORS["limited by the CPU"]
    (known, of_host), (tasks, *regret) = by_launch_time()[-1][1:3], regret_of(text)
    rows = {
        f"... with the launch time measured with each run | {known.settings} of such settings": known[1:3],
        "... with that of the host's other runs | the same": of_host[1:3],
        f"peak memory | {PEAK_ERRORS['all'].settings} settings": PEAK_ERRORS["all"][1:3],
        f"step time, limited by the GPU | {by_gpu.settings} settings": by_gpu[1:3],
        f"step time, limited by the CPU | {by_cpu.settings} such": by_cpu[1:3],
        f"step time on a GPU without a measured run | {ELSEWHERE['all'].settings} ": ELSEWHERE["all"][1:3],
        f"time lost by the recommended setting | {tasks} tasks": regret,
    }
    for words, (mean, worst) in rows.items():
        row = rf"\| {re.escape(words)}.* \| {float(mean):.1f} % \| {float(worst):.1f} % \|"
        assert re.search(row, text), words
    pairs = re.search(r"\| that are both limited by the GPU \| (\d+) \| ([\d.]+) \| ([\d.]+) \|", text).groups()
    assert "| ratio of two step times, both limited by the GPU | {} pairs, H200 | {} % | {} % |".format(*pairs) in text
