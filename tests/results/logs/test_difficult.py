"""Logs that are easily read wrongly: failures, unknown settings, several engines, pairs, and lines of fields."""

import json
import math
import time
import warnings
from pathlib import Path

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import DsnbWarning
from dsnb.cli import summary_table
from dsnb.results.answers.decide import global_batch
from dsnb.results.statistics.memory_use import footprint
from dsnb.results.statistics.tasks import tasks
from tests.support.difficult_logs import LOGS

GIB_PER_MB = 1 / 1024
LLAMA_8B = (
    32 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096) + 4096 + 2 * 128256 * 4096
)
"""Queries, keys of 8 of 32 heads, three matrices of an MLP, two norms a block; the last norm, two embeddings."""
RIGHT = {
    # The end-to-end line and the time stamps (10 steps in 40 s) agree; 88 samples/s are those of one of two engines.
    "rlhf_step3": {
        "status": "ok", "samples_per_s": 16.0, "step_time_mean_s": 4.0, "samples_per_s_running": None,
        "zero_stage": 2, "micro_batch_size": 4, "skipped_steps": 0, "peak_allocated_gib": 20.0,
    },
    "gpus_not_logged": {
        "samples_per_s": 216.0, "tokens_per_s": 216.0 * 512, "gpus": None, "nodes": None, "tensor_parallel": None,
        "data_parallel": None, "global_batch_size": None, "tokens_per_s_per_gpu": None, "tflops_per_gpu": None,
        "activation_checkpointing": None,
    },
    "eight_gpus": {"gpus": 8, "nodes": 1, "tokens_per_s_per_gpu": 46.0 * 512 / 8, "tensor_parallel": None},
    # 500 steps in 200 s; 4,096,000 tokens.
    "bars_without_words": {
        "status": "ok", "cause": None, "steps": 500, "step_time_mean_s": 0.4, "tokens_per_s": 20480.0,
        "samples_per_s": 20.0, "loss_last": 2.0,
    },
    "out_of_memory": {"status": "oom", "source": "console log"},
    # 32 x 8,192 tokens in 8 s on 8 GPUs; the last line has the peaks.
    "megatron_swiglu": {
        "status": "ok", "parameters": LLAMA_8B, "tokens_per_s_per_gpu": 4096.0, "samples_per_s": 4.0,
        "peak_allocated_gib": 40960 * GIB_PER_MB, "peak_reserved_gib": 51200 * GIB_PER_MB,
        "activation_checkpointing": None, "hardware_tflops_per_gpu": None, "tensor_parallel": 1, "data_parallel": 8,
    },
    "no_bars": {
        "status": "ok", "cause": "the log ends without final figures, after 2 logged losses", "gpus": 4, "steps": 1000,
        "loss_first": 2.1, "loss_last": 2.0, "tensor_parallel": None, "step_time_mean_s": None,
    },
    "nan_gradient": {"status": "nan", "cause": "the gradient norm is nan from logged line 2 on", "loss_last": 0.0},
    # 32 x 2,048 tokens in 2 s on 4 GPUs.
    "neox": {
        "status": "ok", "source": "GPT-NeoX log", "strategy": "megatron-deepspeed", "gpus": 4, "data_parallel": 4,
        "tensor_parallel": 1, "pipeline_parallel": 1, "micro_batch_size": 4, "grad_accum": 2, "global_batch_size": 32,
        "seq_len": 2048, "precision": "fp16", "zero_stage": 1, "activation_checkpointing": True,
        "samples_per_s": 16.0, "tokens_per_s_per_gpu": 8192.0, "hardware_tflops_per_gpu": 60.5, "loss_last": 8.0,
    },
    "swift_json": {
        "status": "ok", "cause": None, "source": "ms-swift log", "steps": 2, "step_time_mean_s": 60.0,
        "loss_first": 3.0, "loss_last": 2.5, "peak_reserved_gib": 20.0, "parameters": 7_000_000_000,
    },
    "killed_9": {"status": "failed", "source": "DeepSpeed log", "gpus": 2},
    "batch_assertion": {
        "status": "failed", "source": "DeepSpeed log",
        "cause": "train_batch_size is 64, but micro-batch 4 x 8 accumulated x 1 ranks is 32: correct one of them, or "
        "leave one out of DeepSpeed's configuration",
    },
    # The first step is warm-up. 16.4K / 8.2K is two GPUs.
    "nanotron": {
        "status": "ok", "cause": "the log ends at step 2 of 20", "source": "nanotron log", "gpus": 2,
        "tokens_per_s": 16400.0, "tokens_per_s_per_gpu": 8200.0, "step_time_mean_s": 1.0, "samples_per_s": 8.0,
        "tflops_per_gpu": 20.0, "loss_first": 9.0, "loss_last": 8.0,
    },
    "nemo": {
        "status": "ok", "cause": "the log ends at step 2 of 10", "source": "NeMo log", "global_batch_size": 8,
        "step_time_mean_s": 2.0, "samples_per_s": 4.0, "loss_first": 3.0, "loss_last": 2.5, "gpus": None,
    },
    "torchtitan": {
        "status": "ok", "source": "torchtitan log", "tokens_per_s_per_gpu": 10000.0, "tokens_per_s": None, "gpus": None,
        "step_time_mean_s": 1.0, "tflops_per_gpu": 10.0, "peak_reserved_gib": 2.0, "loss_last": 8.0,
    },
    # 10 steps and 390,000 tokens in 30 s.
    "factory_json": {
        "status": "ok", "cause": None, "source": "LLaMA-Factory log", "steps": 20, "tokens_per_s": 13000.0,
        "step_time_mean_s": 3.0, "loss_first": 2.2, "loss_last": 2.1,
    },
    "veomni": {
        "status": "ok", "source": "VeOmni log", "global_batch_size": 32, "step_time_mean_s": 1.9,
        "samples_per_s": 32 / 1.9, "loss_last": 2.4,
    },
    "swift_out_of_memory": {
        "status": "oom", "source": "ms-swift log", "model": "Qwen2.5-7B-Instruct", "lora_rank": 8, "precision": "bf16",
        "micro_batch_size": 4, "grad_accum": 16, "seq_len": 2048, "zero_stage": 3, "gpus": 4, "nodes": None,
        "parameters": 7_635_801_100, "trainable_parameters": 20_185_100,
    },
    "swift_exception": {"status": "failed", "cause": "ValueError: The model's dtype is not supported"},
    # 10 steps in 100 s, from 34 to 134.
    "swift_console": {
        "status": "ok", "cause": "the log ends at step 11 of 560", "step_time_mean_s": 10.0, "peak_reserved_gib": 12.5,
    },
    "word_before_bar": {
        "status": "ok", "cause": "the log ends at step 20 of 500", "step_time_mean_s": 2.0, "gpus": 8,
        "samples_per_s": 8.0,
    },
    "rendezvous": {"status": "failed"},
    "torchrun_killed": {"status": "failed"},
    "bash_killed": {"status": "failed"},
    "megatron_nan_gradient": {"status": "nan", "cause": "the gradient norm is nan from step 2 on"},
    "megatron_overflow": {"status": "ok", "skipped_steps": 1.0},
    # 4 pairs a second.
    "dpo": {"status": "ok", "samples_per_s": 8.0, "step_time_mean_s": 4.0, "gpus": 4},
    "reward": {"samples_per_s": 40.0, "tokens_per_s": 40.0 * 512, "samples_per_s_running": 20.0, "gpus": 2},
    # 4,096 tokens/s on each of 8 GPUs; 8 x 8,192 tokens a step.
    "torchtitan_settings": {
        "status": "ok", "cause": None, "strategy": "fsdp", "gpus": 8, "data_parallel": 8, "tensor_parallel": 1,
        "micro_batch_size": 1, "global_batch_size": 8, "seq_len": 8192, "steps": 1000, "warmup_steps": 200,
        "activation_checkpointing": True, "parameters": LLAMA_8B, "tokens_per_s_per_gpu": 4096.0,
        "tokens_per_s": 32768.0, "step_time_mean_s": 2.0, "peak_reserved_gib": 48.86, "loss_last": 9.2713,
    },
    "torchtitan_copies": {
        "strategy": "fsdp", "shard_size": 8, "gpus": 32, "data_parallel": 16, "tensor_parallel": 2,
        "parallelism": "TP 2 x HSDP 8",
    },
    "torchtitan_old": {"status": "ok", "steps": 644, "tokens_per_s_per_gpu": 52142.0, "loss_last": 6.2116},
    "nemo_bars": {"status": "ok", "source": "NeMo log", "step_time_mean_s": 3.13, "loss_last": 0.0172},
    # 10 steps in 10 s of the first of two epochs of 100 steps.
    "veomni_bars": {
        "status": "ok", "cause": "the log ends at step 110 of 200", "step_time_mean_s": 1.0, "loss_last": 2.3,
    },
}  # fmt: skip
"""By log, what a correct reader returns; None is unknown."""
IN_CAUSE = {
    "out_of_memory": "CUDA out of memory",
    "swift_out_of_memory": "CUDA out of memory",
    "killed_9": "a rank was killed with return code -9: most often the host's memory ran out; start fewer ranks",
    "torchrun_killed": "a rank was killed with return code -9: most often the host's memory ran out",
    "bash_killed": "a rank was killed with return code -9: most often the host's memory ran out",
    "rendezvous": "the ranks did not find each other in time: start them on every host",
}


def write(folder, name, text):
    folder.mkdir(exist_ok=True)
    path = folder / (f"{name}.jsonl" if name.endswith("_json") else f"{name}.log")
    path.write_text(text)
    return path


def only(runs):
    assert len(runs) == 1
    return runs.iloc[0]


@pytest.mark.parametrize("name", LOGS)
def test_what_is_right(tmp_path, name):
    row = only(dsnb.load_runs(write(tmp_path, name, LOGS[name])))
    for column, value in RIGHT[name].items():
        if value is None:
            assert pd.isna(row[column]), (column, row[column])
        else:
            expected = pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            assert row[column] == expected, column
    assert IN_CAUSE.get(name, "") in (row["cause"] or "")


def test_steps_of_new_programs(tmp_path):
    def steps(name, *columns):
        table = dsnb.load_steps(write(tmp_path, name, LOGS[name]))
        return table[["step", "phase", *columns]].to_numpy().tolist()

    assert steps("nanotron", "step_time_s", "loss") == [
        [1, "warmup", 2.0, 9.0],
        [2, "timed", 1.0, 8.0],
    ]
    assert steps("nemo", "step_time_s", "loss") == [[1, "warmup", 5.0, 3.0], [2, "timed", 2.0, 2.5]]
    assert steps("torchtitan", "t_s", "loss") == [[1, "warmup", 0.0, 9.0], [2, "timed", 1.0, 8.0]]
    assert steps("veomni", "step_time_s") == [[1, "warmup", 2.0], [2, "timed", 1.9]]
    assert steps("factory_json", "t_s", "tokens") == [
        [10, "timed", 30, 39000],
        [20, "timed", 60, 39000],
    ]
    assert steps("swift_json", "t_s", "loss") == [[1, "timed", 60, 3.0], [2, "timed", 120, 2.5]]
    assert steps("swift_console", "t_s", "loss") == [
        [1, "timed", 34, 2.58519292],
        [11, "timed", 134, 2.0],
    ]


def test_an_unknown_number_of_gpus_is_not_ranked_against_a_known_one(tmp_path):
    for name in ("gpus_not_logged", "eight_gpus"):
        write(tmp_path, name, LOGS[name])
    runs = dsnb.load_runs(tmp_path)
    assert {task.title: list(task.runs["experiment"]) for task in tasks(runs)} == {
        "opt-350m, sequence 512": ["eight_gpus"],
        "opt-350m, sequence 512, an unknown number of GPUs": ["gpus_not_logged"],
    }
    assert all("vs best" not in table for _, table, _ in summary_table.blocks(runs))
    assert [title for title, _, _ in summary_table.blocks(runs)] == [
        "opt-350m, sequence 512, on 8 GPUs",
        "opt-350m, sequence 512, an unknown number of GPUs",
    ]
    two = pd.concat(
        [runs, runs.assign(experiment=runs["experiment"] + "_again", tokens_per_s=1.0)],
        ignore_index=True,
    )
    ranked = {title: table for title, table, _ in summary_table.blocks(two)}
    assert list(ranked["opt-350m, sequence 512, on 8 GPUs"]["vs best"]) == [
        "best",
        "\N{MINUS SIGN}100.0 %",
    ]
    assert (
        "vs best" not in ranked["opt-350m, sequence 512, an unknown number of GPUs"]
    )  # not even each other


def test_no_theory_of_memory_without_the_settings_that_it_needs(tmp_path):
    for name in ("gpus_not_logged", "torchtitan_settings"):
        write(tmp_path, name, LOGS[name])
    others = {
        "zero_stage": 3,
        "precision": "bf16",
        "optimizer": "adamw",
        "offload": "none",
        "lora_rank": 0,
        "mixed_precision": "native",
        "attention": "sdpa",
        "compile": "off",
    }
    runs = dsnb.load_runs(tmp_path).assign(model="opt-350m", **others)
    theory_gib = footprint(runs).set_index("experiment")["theory_gib"]
    assert theory_gib.notna().to_dict() == {"gpus_not_logged": False, "torchtitan_settings": True}
    assert global_batch(runs).isna().tolist() == [True, False]


def test_sizes_by_arguments(tmp_path):
    """Without the printed number; with two tensor-parallel ranks, of which one printed its number."""
    text = LOGS["megatron_swiglu"].replace(
        "  swiglu .", "  normalization ................................... RMSNorm\n  swiglu ."
    )
    printed = next(
        line for line in text.splitlines(keepends=True) if "number of parameters" in line
    )
    row = only(dsnb.load_runs(write(tmp_path, "formula", text.replace(printed, ""))))
    assert row["parameters"] == LLAMA_8B
    split = text.replace("data-parallel size: 8", "data-parallel size: 4").replace(
        "model-parallel size: 1", "x"
    )
    split = split.replace("tensor-x", "tensor-model-parallel size: 2").replace(
        "pipeline-x", "pipeline-model-parallel size: 1"
    )
    one = printed.replace(str(LLAMA_8B), "4000000000")
    row = only(dsnb.load_runs(write(tmp_path, "half", split.replace(printed, one))))
    assert (row["parameters"], row["tensor_parallel"]) == (LLAMA_8B, 2)
    both = one + one.replace("(0, 0)", "(1, 0)").replace("4000000000", "9000000000")
    row = only(dsnb.load_runs(write(tmp_path, "other", split.replace(printed, both))))
    assert row["parameters"] == 13_000_000_000  # a model that its arguments do not describe
    stages = text.replace("data-parallel size: 8", "data-parallel size: 4").replace(
        "pipeline-model-parallel size: 1", "pipeline-model-parallel size: 2"
    )
    tied = stages.replace("untie_embeddings_and_output_weights ............. True", "x ... y")
    both = one + one.replace("(0, 0)", "(0, 1)")
    more = both.replace("(0, 1): 4000000000", "(0, 1): 6000000000")
    row = only(dsnb.load_runs(write(tmp_path, "stages", tied.replace(printed, more))))
    # The last stage has a copy of the embedding, 128,256 x 4,096.
    assert row["parameters"] == 10_000_000_000 - 128_256 * 4096
    row = only(dsnb.load_runs(write(tmp_path, "untied", stages.replace(printed, both))))
    assert row["parameters"] == LLAMA_8B  # as printed, but for norms
    latent = "  multi_latent_attention .......................... True\n  swiglu ."
    row = only(
        dsnb.load_runs(
            write(tmp_path, "latent", text.replace(printed, "").replace("  swiglu .", latent))
        )
    )
    assert math.isnan(row["parameters"])  # other matrices than the formula's
    bias = text.replace(printed, "").replace(
        "add_bias_linear ................................. False", "x ... y"
    )
    row = only(dsnb.load_runs(write(tmp_path, "bias", bias)))
    assert row["parameters"] == LLAMA_8B + 32 * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)


def state(steps, ended=False, shift=0.0):
    history = [
        {"step": step, "epoch": step / 1000, "loss": 5 - step / 500 + shift} for step in steps
    ]
    history += (
        [{"step": steps[-1], "train_runtime": 1000.0, "train_samples_per_second": 8.0}]
        if ended
        else []
    )
    return json.dumps({"max_steps": 1000, "train_batch_size": 2, "log_history": history})


def test_copies_in_checkpoints_are_one_training(tmp_path):
    def save(folder, text):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "trainer_state.json").write_text(text)

    save("out/checkpoint-500", state([250, 500]))
    save("out/checkpoint-1000", state([250, 500, 750, 1000]))
    save("out", state([250, 500, 750, 1000], ended=True))
    row = only(dsnb.load_runs(tmp_path))
    assert (row["sweep"], row["train_runtime_s"], row["loss_last"]) == ("out", 1000.0, 3.0)
    assert len(dsnb.load_steps(tmp_path)) == 4
    save("stopped/checkpoint-250", state([250], shift=0.5))
    save("stopped/checkpoint-500", state([250, 500], shift=0.5))
    save("again/checkpoint-250", state([250], shift=0.1))  # another training in the same folder
    save("again/checkpoint-500", state([250, 500], shift=0.2))
    runs = dsnb.load_runs(tmp_path)
    folders = [Path(run_dir).parent.relative_to(tmp_path).as_posix() for run_dir in runs["run_dir"]]
    causes = dict(zip(folders, runs["cause"], strict=True))
    assert pd.isna(causes.pop("out"))
    assert causes == {
        "stopped/checkpoint-500": "the log ends at step 500 of 1000",
        "again/checkpoint-250": "the log ends at step 250 of 1000",
        "again/checkpoint-500": "the log ends at step 500 of 1000",
    }


def test_both_records_of_a_training_are_one_run(tmp_path):
    """LLaMA-Factory's own and the Trainer's; the last step, 25 of 25, is in an entry without a loss."""
    ends = ('"total_steps": 20', '"total_steps": 25')
    last = '{"current_steps": 25, "total_steps": 25, "epoch": 1.0, "elapsed_time": "0:01:15"}\n'
    (tmp_path / "trainer_log.jsonl").write_text(LOGS["factory_json"].replace(*ends) + last)
    history = [{"step": 10, "loss": 2.2}, {"step": 20, "loss": 2.1}]
    final = {
        "step": 25,
        "train_runtime": 75.0,
        "train_samples_per_second": 4.0,
        "train_steps_per_second": 0.3,
    }
    state = {"max_steps": 25, "train_batch_size": 2, "log_history": [*history, final]}
    row = only(dsnb.load_runs(write_state(tmp_path, state).parent))
    assert (row["status"], row["steps"], row["micro_batch_size"]) == ("ok", 25, 2)
    assert pd.isna(row["cause"])
    assert (row["train_runtime_s"], row["samples_per_s"], row["tokens_per_s"]) == (
        75.0,
        4.0,
        13000.0,
    )
    (tmp_path / "trainer_state.json").unlink()
    assert pd.isna(only(dsnb.load_runs(tmp_path))["cause"])


def write_state(folder, state):
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(state))
    return path


@pytest.mark.parametrize(
    ("losses", "norms", "status", "last"),
    [
        ([3.0, 2.0], [1.0, 1.0], "ok", 2.0),
        ([3.0, 2], [1.0, "1.0"], "ok", 2.0),  # not only plain numbers
        ([3.0, float("nan")], [1.0, 1.0], "nan", 3.0),
        ([3.0, 0.0], [1.0, float("nan")], "nan", 0.0),
        ([3.0, float("inf")], [1.0, 1.0], "nan", 3.0),
        ([3.0, 2.0], [1.0, float("inf")], "ok", 2.0),  # a single overflow of fp16
        ([3.0, 2.0, 2.0], [1.0, float("inf"), float("inf")], "nan", 2.0),
        ([float("nan"), 2.0], [float("nan"), 1.0], "ok", 2.0),  # it has recovered
    ],
)
def test_divergence_in_a_trainer_state(tmp_path, losses, norms, status, last):
    history = [
        {"step": 10 * number, "loss": loss, "grad_norm": norm}
        for number, (loss, norm) in enumerate(zip(losses, norms, strict=True), 1)
    ]
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"log_history": history}))
    row = only(dsnb.load_runs(path))
    assert (row["status"], row["loss_last"]) == (status, last)


def test_a_long_history_takes_little_more_time_than_its_json(tmp_path):
    """It took fifteen times as long when every number was parsed as text."""
    history = [
        {"step": n, "loss": 5 - n / 1e5, "grad_norm": 1.5, "learning_rate": 5e-5}
        for n in range(1, 100_001)
    ]
    path = write_state(tmp_path, {"max_steps": 100_000, "log_history": history})
    began_s = time.process_time()
    json.loads(path.read_bytes())
    json_s = time.process_time() - began_s
    row = only(dsnb.load_runs(path))
    assert time.process_time() - began_s - json_s < 6 * json_s
    assert (row["status"], row["loss_first"], row["loss_last"]) == ("ok", 5 - 1e-5, 4.0)


def test_files_that_are_not_read_are_named(tmp_path):
    """By names that logs have, unless they are empty; other files are passed over."""
    write(tmp_path, "dpo", LOGS["dpo"])
    for name in ("served.log", "job.o123", "notes.txt", "code.py", "picture.png"):
        (tmp_path / name).write_text("2026-01-01 hello\n")
    (tmp_path / "final.json").write_text('{"step": 9, "epoch": 1.0, "loss": 2.0}\n')
    (tmp_path / "texts.jsonl").write_text('{"text": "hello", "id": 1}\n')
    (tmp_path / "empty.err").write_text("")
    (tmp_path / "train.sh").write_text("torchrun train.py --bf16 --seed 7\n")
    with pytest.warns(DsnbWarning) as caught:
        only(dsnb.load_runs(tmp_path))
    names = ", ".join(
        str(tmp_path / name) for name in ("job.o123", "notes.txt", "served.log", "texts.jsonl")
    )
    assert [str(warning.message) for warning in caught] == [
        f"not read: {names} are not logs that dsnb can read (see docs/how-to/foreign_logs.md)"
    ]
    for number in range(20):
        (tmp_path / f"x{number}.log").write_text("nothing")
    with pytest.warns(DsnbWarning, match="and 16 more are not logs"):
        dsnb.load_runs(tmp_path)


def test_records_of_dsnb_itself_are_no_logs_of_others(tmp_path):
    """Nor is the output of a Slurm job that has not started."""
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "steps.jsonl").write_text('{"step": 1, "loss": 2.0, "grad_norm": 1.0}\n')
    (tmp_path / "run2").mkdir()
    (tmp_path / "run2" / "slurm.json").write_text("{}")
    (tmp_path / "run2" / "job.log").write_text(LOGS["swift_exception"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dsnb.load_runs(tmp_path).empty


def test_two_attempts_without_a_launcher_are_two_runs(tmp_path):
    """The first ran out of memory after three losses; an exception that was caught before them is no attempt."""
    lost = "".join(
        f"{{'loss': {loss}, 'grad_norm': 1.0, 'epoch': 0.1}}\n" for loss in (2.2, 2.1, 2.0)
    )
    caught = (
        "Traceback (most recent call last):\nModuleNotFoundError: No module named 'flash_attn'\n"
    )
    begins = "***** Running training *****\n  Total optimization steps = 100\n"
    runs = dsnb.load_runs(
        write(tmp_path, "a", caught + begins + lost + LOGS["out_of_memory"] + begins + lost)
    )
    assert runs[["repeat", "status", "loss_last"]].to_numpy().tolist() == [
        [1, "oom", 2.0],
        [2, "ok", 2.0],
    ]


PPO = "epoch: 0|step: {}|ppo_ep: 1|act_loss: {}|cri_loss: {}|unsuper_loss: 0.0\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Without an end-to-end line, the time stamps tell: 10 steps in 40 s.
        (
            "".join(line for line in LOGS["rlhf_step3"].splitlines(keepends=True) if "E2E" not in line),
            {"step_time_mean_s": 4.0, "samples_per_s": None},
        ),
        # Newer versions: 16 samples in 4 s, then 16 in 2 s.
        (
            LOGS["rlhf_step3"].replace("|E2E", "|x")
            + "End-to-End => Latency: 4.00s, TFLOPs: 3.29, Samples/sec: 4.00, Time/seq 0.25s, Batch Size: 16\n"
            + "End-to-End => Latency: 2.00s, TFLOPs: 3.29, Samples/sec: 8.00, Time/seq 0.12s, Batch Size: 16\n",
            {"step_time_mean_s": 3.0, "samples_per_s": 32 / 6},
        ),
        (LOGS["rlhf_step3"] + PPO.format(20, "nan", "0.1"), {"status": "nan"}),
        (
            LOGS["nanotron"].replace("global_batch_size: 8", "global_batch_size: 1.02K").replace(
                "grad_norm: 1\n", "grad_norm: 1 | cuda_max_memory_reserved: 2.15B | eta: 0:01\n"
            ),
            {"global_batch_size": None, "tokens_per_s": 16400.0, "peak_reserved_gib": 2.15e9 / 2**30},
        ),
        (LOGS["nanotron"] + "[0]: Memory usage: 9.00MiB. Peak allocated 1024.00MiB. Peak reserved: 2048.00MiB\n",
         {"peak_allocated_gib": 1.0, "peak_reserved_gib": 2.0}),
        # 8 GPUs: 2 ranks share a sequence, so 4 have their own.
        (
            LOGS["megatron_swiglu"]
            .replace("data-parallel size: 8, context", "context")
            .replace("l size: 1, h", "l size: 2, h"),
            {"gpus": 8, "data_parallel": 4, "grad_accum": 8, "tensor_parallel": 1},
        ),
        (
            "+ torchrun train.py --sequence_parallel_size 2\n" + LOGS["no_bars"],
            {"gpus": None, "global_batch_size": 64},
        ),
        # Arguments alone are a log, on several lines or on one.
        (
            "Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\ngradient_accumulation_steps=4,\n"
            "gradient_checkpointing=True,\nper_device_train_batch_size=2,\n)\n",
            {
                "status": "interrupted", "cause": "the log ends before the first step", "source": "console log",
                "micro_batch_size": 2, "grad_accum": 4, "activation_checkpointing": True,
            },
        ),
        (
            "[INFO:swift] args: SftArguments(model='x', per_device_train_batch_size=1, gradient_checkpointing=False)\n",
            {"micro_batch_size": 1, "activation_checkpointing": False, "source": "ms-swift log"},
        ),
        ("cmd = deepspeed main.py --zero_stage 3 --seed 7\n", {"status": "interrupted", "zero_stage": 3, "seed": 7}),
        ("Num processes: 4\nProcess index: 0\n" + LOGS["no_bars"], {"gpus": 4, "nodes": None}),
        (
            LOGS["out_of_memory"].replace("torch.cuda.OutOf", ""),
            {"status": "oom", "cause": "the host's memory was not enough"},
        ),
        (LOGS["neox"].replace("True........................updated", "False"), {"activation_checkpointing": False}),
        (
            "".join(line for line in LOGS["neox"].splitlines(keepends=True) if "checkpoint" not in line),
            {"activation_checkpointing": None, "gpus": 4},
        ),
        (LOGS["swift_out_of_memory"].replace("--train_type lora --lora_rank 8", "--train_type full"), {"lora_rank": 0}),
        (LOGS["swift_out_of_memory"].replace("--train_type lora --lora_rank 8", ""), {"lora_rank": None}),
    ],
)  # fmt: skip
def test_other_forms(tmp_path, text, expected):
    row = only(dsnb.load_runs(write(tmp_path, "a", text)))
    for column, value in expected.items():
        assert pd.isna(row[column]) if value is None else row[column] == pytest.approx(value), (
            column
        )


def test_standard_error_belongs_to_standard_output(tmp_path):
    """Beside its output, a failure is the run's; alone, it is a run."""
    losses = "".join(f"{{'loss': {loss}, 'grad_norm': 1.0, 'epoch': 0.1}}\n" for loss in (2.1, 2.0))
    (tmp_path / "job.out").write_text(losses)
    (tmp_path / "job.err").write_text(LOGS["out_of_memory"])
    (tmp_path / "other.err").write_text(LOGS["swift_exception"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = dsnb.load_runs(tmp_path)
    assert runs[["experiment", "status", "loss_last"]].fillna(0).to_numpy().tolist() == [
        ["job", "oom", 2.0],
        ["other", "failed", 0.0],
    ]


@pytest.mark.parametrize(
    ("lines", "status", "cause"),
    [
        ("exits with return code = 1\ntorch.OutOfMemoryError: CUDA out of memory\n", "oom", "CUDA out of memory"),
        ("exits with return code = -11\n", "failed", "a rank crashed with return code -11 (SIGSEGV)"),
        ("exits with return code = -15\n", "failed", "a rank ended with exit code -15"),
        ("  exitcode  : -9 (pid: 4242)\n", "failed", "return code -9: most often the host's memory"),
        ("Process finished with exit code 137\n", "failed", "return code 137: most often the host's memory"),
        ("exits with return code = 137\n", "failed", "return code 137: most often the host's memory"),
        ("Signal 9 (SIGKILL) received by PID 7\n", "failed", "return code -9: most often the host's memory"),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=1.0\n", "oom", "too much of the host's memory"),
        ("Traceback (most recent call last):\nRuntimeError: a\nBoomError: b\n", "failed", "RuntimeError: a"),
        (
            "Traceback (most recent call last):\ntorch.distributed.DistBackendError: peer\nValueError: mine\n",
            "failed", "ValueError: mine",
        ),
        ("TimeoutError: The client socket has timed out after 60s\n", "failed", "did not find each other in time"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n", "failed", "did not find each other"),
    ],
)  # fmt: skip
def test_the_line_that_says_most_is_the_cause(tmp_path, lines, status, cause):
    """Behind the launcher's own line, and after it."""
    ended = (
        "[2024-07-08 05:17:33,201] [INFO] [launch.py:318:sigkill_handler] Killing subprocess 80\n"
    )
    for name, text in {"before": ended + lines, "after": lines + ended}.items():
        row = only(dsnb.load_runs(write(tmp_path, name, text)))
        assert row["status"] == status
        assert cause in row["cause"]
