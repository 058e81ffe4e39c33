"""The measured figures of the questions are those of the data sets, and the predicted ones those of the model."""

import re

import pandas as pd
import pytest

import dsnb
from benchmarks import headline
from docs import pictures
from dsnb.prediction.calibration import ELSEWHERE
from tests import ROOT

PAGE = (ROOT / "docs" / "questions.md").read_text()
FAST = (ROOT / "docs" / "how-to" / "fast.md").read_text()
SECTIONS = dict(part.split("\n", 1) for page in (PAGE, FAST) for part in page.split("\n## ")[1:])
USUAL = "micro_batch_size == 8 and seq_len == 1024 and allocator == 'expandable' and compile == 'off'"
LARGE = "model == 'opt-6.7b' and lora_rank == 0"
TWO_GPUS = f"{USUAL} and model == 'opt-1.3b' and gpus == 2 and offload == 'none'"
SMALL = "model == 'opt-350m' and micro_batch_size == 24 and seq_len == 512"
OUT_OF_MEMORY = "model == 'opt-1.3b' and micro_batch_size == 68 and allocator =="
LOOP = "model == 'gpt2' and seq_len == 128 and strategy == 'plain' and precision == 'bf16' and micro_batch_size == 32"
LONG = "model == 'opt-1.3b' and seq_len == 2048 and precision == 'bf16'"
XL = "model == 'gpt2-xl' and gpus == 2 and micro_batch_size == 24 and compile == 'default'"
KEPT = "`deepspeed.zero_optimization.stage3_max_live_parameters` > 0"
BLOOM = "model == 'bloom-560m' and seq_len == 1024 and micro_batch_size == 32 and activation_checkpointing"
MEDIUM = "model == 'gpt2-medium' and seq_len == 1024 and micro_batch_size == 8 and compile == 'off'"
GRAPHS = "model == 'gpt2' and seq_len == 1024 and host == 'h200-2026-11-27-ac' and strategy == 'plain'"
LLAMA = "sweep == 'h200_fp8' and model == 'llama-3.1-8b'"
THRESHOLD = "`deepspeed.zero_optimization.stage3_param_persistence_threshold` == 100000"
MEASURED = {
    "The settings that matter most": [
        (f"{LOOP} and compile == 'off'", "{speed:,.0f} tokens/s eager (n = {n})"),
        (f"{LOOP} and compile == 'default'", "{speed:,.0f} compiled (n = {n})"),
        (f"{LOOP} and compile == 'reduce-overhead'", "{speed:,.0f} with CUDA graphs (n = {n})"),
        (f"{BLOOM} and loss == 'chunked'", "{gib:.1f} GiB instead of 40.7, {speed:,.0f} tokens/s instead of"),
        (f"{BLOOM} and loss == 'whole'", "instead of {gib:.1f}, 104,102 tokens/s instead of {speed:,.0f}"),
        (f"{MEDIUM} and loss == 'chunked'", "{speed:,.0f} tokens/s instead of"),
        (f"{MEDIUM} and loss == 'whole' and pad_vocab != 64", "84,014 tokens/s instead of {speed:,.0f}"),
        (f"{LONG} and zero_stage == 1 and gpus == 2 and micro_batch_size == 8", "8 x 2048, {each:,.0f} (n = {n})"),
        (
            f"{LONG} and strategy == 'plain' and compile == 'default' and micro_batch_size == 8",
            "on one GPU reaches {speed:,.0f} (n = {n})",
        ),
        (f"{SMALL} and bucket_elements == 100000000", "OPT-350M, 24 x 512, {each:,.0f}; the plain"),
        (f"{SMALL} and strategy == 'plain' and compile == 'reduce-overhead'", "has {speed:,.0f} (single runs)."),
        (f"{LONG} and strategy == 'fsdp' and gpus == 2", "OPT-1.3B {each:,.0f}; GPT-2 XL"),
        (f"{XL} and strategy == 'fsdp'", "24 x 1024, {each:,.0f} (ZeRO 1"),
        (f"{XL} and zero_stage == 1", "(ZeRO 1: {each:,.0f})"),
        (f"{LONG} and {THRESHOLD} and not ({KEPT})", "(OPT-1.3B {each:,.0f}, GPT-2 XL"),
        (f"{XL} and {THRESHOLD} and not ({KEPT})", "GPT-2 XL {each:,.0f})"),
        (f"{LONG} and {THRESHOLD} and {KEPT}", "to spare (OPT-1.3B {each:,.0f})"),
        (f"{LONG} and zero_stage == 3 and micro_batch_size == 16", "it then reaches {each:,.0f}"),
        (f"{LONG} and zero_stage == 1 and micro_batch_size == 16", "ZeRO 1 {each:,.0f}"),
        ("model == 'opt-13b' and gpus == 2 and checkpoint_every == 2", "16 x 512, {each:,.0f} instead of"),
        (
            "model == 'opt-13b' and gpus == 2 and checkpoint_every == 1 and precision == 'bf16'",
            "instead of {each:,.0f}.",
        ),
    ],
    "Padded vocabulary": [
        (f"{MEDIUM} and pad_vocab == 64", "{speed:,.0f} tokens/s (one run"),
        (f"{MEDIUM} and sweep == 'h200_pad_vocab' and pad_vocab == 0", "instead of {speed:,.0f} (n = {n})"),
        (f"{GRAPHS} and pad_vocab == 64", "{gib:.1f} GiB instead of 18.1, with {speed:,.0f} tokens/s"),
        (f"{GRAPHS} and pad_vocab == 0", "GiB instead of {gib:.1f}, with 503,829 tokens/s instead of {speed:,.0f}"),
    ],
    "Products in fp8": [
        (f"{LLAMA} and matmul == 'fp8'", "{speed:,.0f} tokens/s instead of"),
        (f"{LLAMA} and matmul == 'fp8'", "and {gib:.1f} GiB instead of"),
        (f"{LLAMA} and matmul == 'auto'", "instead of {speed:,.0f}, and 74.5 GiB instead of {gib:.1f} (n = {n})"),
        ("sweep == 'h200_fp8' and data == 'stdlib' and matmul == 'fp8'", "no speed: {speed:,.0f} tokens/s (one run)"),
        ("sweep == 'h200_fp8' and data == 'stdlib' and matmul == 'auto'", "in bf16 {speed:,.0f} (n = {n})"),
    ],
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
        figures |= {"each": ok["tokens_per_s_per_gpu"]}
        figures |= {"mfu": 100 * ok["mfu"], "matmul": 100 * ok["mfu_of_matmul"], "needed": runs["needed_gib"].median()}
        expected = words.format(**figures, n=(runs["status"] == "ok").sum())
        assert expected in " ".join(SECTIONS[question].split())


def test_the_yardstick_is_that_of_its_benchmark():
    medians = pd.read_csv(ROOT / "benchmarks" / "h200_bars.csv", index_col="experiment")["tokens_per_s_median"]
    works = {"gpt2-short": "32 x 128", "gpt2-long": "32 x 1024", "opt-350m": "24 x 512", "opt-1.3b": "8 x 2048"}
    for work, words in works.items():
        plain, zero = (medians.filter(regex=f"^{work}/{way}").item() for way in ("plain", "zs0"))
        assert re.search(
            rf"{words}, `[\w-]+` \| {plain:,.0f} tokens/s \| {zero:,.0f} \({100 * zero / plain:.1f} %\)", FAST
        )


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
