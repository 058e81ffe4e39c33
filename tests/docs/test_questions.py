"""The measured figures of the questions are those of the data sets, and the predicted ones those of the model."""

import re

import pytest

import dsnb
from benchmarks import headline
from docs import pictures
from dsnb.prediction.calibration import ELSEWHERE
from tests import ROOT

PAGE = (ROOT / "docs" / "questions.md").read_text()
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## ")[1:])
USUAL = "micro_batch_size == 8 and seq_len == 1024 and allocator == 'expandable' and compile == 'off'"
LARGE = "model == 'opt-6.7b' and lora_rank == 0"
TWO_GPUS = f"{USUAL} and model == 'opt-1.3b' and gpus == 2 and offload == 'none'"
SMALL = "model == 'opt-350m' and micro_batch_size == 24 and seq_len == 512"
OUT_OF_MEMORY = "model == 'opt-1.3b' and micro_batch_size == 68 and allocator =="
MEASURED = {
    "How many GPUs do I need?": [
        (f"{LARGE} and zero_stage == 1", "{gib:.1f} GiB at {speed:,.0f} tokens/s (n = {n})"),
        (f"{LARGE} and zero_stage == 0", "needed {needed:.1f} GiB"),
    ],
    "Why is ZeRO 3 slower than ZeRO 2?": [
        (f"{TWO_GPUS} and zero_stage == 2", "ZeRO 2 {speed:,.0f} tokens/s (n = {n})"),
        (f"{TWO_GPUS} and zero_stage == 3", "ZeRO 3 {speed:,.0f} (n = {n})"),
    ],
    "A higher stage takes more memory": [
        (f"{TWO_GPUS} and zero_stage == 2", "ZeRO 2 {gib:.1f} GiB (n = {n})"),
        (f"{TWO_GPUS} and zero_stage == 3", "ZeRO 3 {gib:.1f} GiB (n = {n})"),
    ],
    "Memory does not fall with more GPUs": [
        (f"{SMALL} and zero_stage == 1 and compile == 'off' and gpus == 1", "{gib:.1f} GiB on one H200"),
        (f"{SMALL} and zero_stage == 1 and compile == 'off' and gpus == 2", "{gib:.1f} GiB on two"),
    ],
    "Out of memory with memory free": [
        (f"{OUT_OF_MEMORY} 'expandable'", "{speed:,.0f} tokens/s in {gib:.1f} GiB with expandable segments (n = {n})"),
    ],
    "Which setting for 1B, 7B, 70B?": [
        (
            "model == 'opt-1.3b' and seq_len == 2048 and gpus == 2 and zero_stage == 1 and micro_batch_size == 8",
            "{speed:,.0f} tokens/s (n = {n}); BLOOM",
        ),
        ("sweep == 'h200_headline' and model == 'bloom-7b1'", "compiled, {speed:,.0f} tokens/s (n = {n})"),
    ],
    "How slow is offload, and how much host memory does it take?": [
        (
            f"{USUAL} and model == 'opt-1.3b' and offload == 'optimizer-cpu' and gpus == 1",
            "{speed:,.0f} tokens/s, {gib:.1f} GiB of GPU and {host:.1f} GiB of host memory (n = {n})",
        )
    ],
    "Does compilation work with ZeRO?": [
        (f"{SMALL} and zero_stage == 3 and gpus == 2 and compile == 'off'", "{speed:,.0f} tokens/s eager"),
        (f"{SMALL} and zero_stage == 3 and gpus == 2 and compile == 'default'", "{speed:,.0f} compiled (n = {n} each)"),
    ],
    "Is my MFU right?": [
        (
            "model == 'opt-1.3b' and strategy == 'plain' and compile == 'reduce-overhead' and allocator != 'default'",
            "{speed:,.0f} tokens/s, MFU {mfu:.1f} %, and {matmul:.1f} % of the best",
        )
    ],
}


@pytest.fixture(scope="module")
def table():
    return dsnb.published("h200")


@pytest.mark.parametrize("question", MEASURED)
def test_measured_figures(question, table):
    for query, words in MEASURED[question]:
        runs = table.query(query)
        assert runs["experiment"].nunique() == 1, query
        ok = runs[runs["status"] == "ok"].median(numeric_only=True)
        figures = {"speed": ok["tokens_per_s"], "gib": ok["peak_allocated_gib"], "host": ok["host_memory_gib"]}
        figures |= {"mfu": 100 * ok["mfu"], "matmul": 100 * ok["mfu_of_matmul"], "needed": runs["needed_gib"].median()}
        expected = words.format(**figures, n=(runs["status"] == "ok").sum())
        assert expected in " ".join(SECTIONS[question].split())


def test_figures_of_whole_data_sets(table):
    assert f"in {len(table):,} runs, and {table['skipped_steps'].sum():.0f} skipped" in SECTIONS["NaN and overflow"]
    assert not (table["status"] == "nan").any()
    out = table.query(f"{OUT_OF_MEMORY} 'default' and sweep == 'h200_allocator'")
    assert out["status"].tolist() == ["oom"] * 3
    (three,) = [row for row in headline.results() if row.startswith("| OPT-1.3B")]
    assert re.search(r"ZeRO 1, compiled, ([\d,]+)", PAGE)[1] in three
    detail = (ROOT / "docs" / "explanation" / "prediction_memory.md").read_text()
    row = re.search(r"\| all \| (\d+) \| ([\d.]+), .*? \| ([\d.]+), .*?\((\d+)\)", detail)
    words = "over {3} settings on H200 and H100, DeepSpeed's estimators are {2} % off on average; "
    words += "dsnb is {1} % off over {0}"
    assert words.format(*row.groups()) in PAGE


def test_the_network_a_stage_needs():
    question = SECTIONS["Two nodes are slower than one: which network do I need?"]
    for network, times in pictures.network_times().iterrows():
        name = network if network == "one node" else f"{network} Gbit/s"
        columns = " . ".join(f"{time:.2f} s" for time in times)
        assert re.search(rf"^\| {name}[^|]* \| {columns} \|$", question, re.M), network
    error = ELSEWHERE["H100, several nodes"]
    assert f"{error.mean_pct} % off on average ({error.settings} settings)" in question
    lambda_ = dsnb.published("lambda_1cc_opt").query("model == 'opt-13b'").set_index("gpus")["tokens_per_s_per_gpu"]
    words = "on one node {:,.0f}, on two nodes {:,.0f}, on 64 nodes {:,.0f}"
    assert words.format(*lambda_[[8, 16, 512]]) in question
