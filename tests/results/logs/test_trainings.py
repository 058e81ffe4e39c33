"""The folder of a training: its checkpoints, final figures, saved arguments and console log are one run."""

import json
import pickle
import zipfile

import pandas as pd
import pytest

import dsnb
from dsnb.base.formulas.model_shapes import PRESETS

ENTRIES = [
    {"step": step, "loss": loss, "train_runtime": time_s, "num_input_tokens_seen": 1000 * step}
    for step, loss, time_s in ((2, 5.0, 40.0), (4, 4.0, 60.0), (6, 3.123456, 80.0))
]
"""The first two steps took 40 s with compilation, each two after them 20 s."""
FINAL = {
    "train_loss": 4.04, "train_runtime": 90.5, "train_samples_per_second": 8.5, "train_steps_per_second": 0.066,
}  # fmt: skip
CONSOLE = """\
***** Running training *****
  Instantaneous batch size per device = 4
  Total train batch size (w. parallel, distributed & accumulation) = 64
  Gradient Accumulation steps = 2
  Total optimization steps = 6
{'loss': '5', 'grad_norm': '1.2', 'epoch': '0.1', 'train_runtime': '40'}
{'loss': '4', 'grad_norm': '1.2', 'epoch': '0.2', 'train_runtime': '60'}
{'loss': '3.123', 'grad_norm': '1.2', 'epoch': '0.3', 'train_runtime': '80'}
"""
END = (
    "{'train_runtime': '90.5', 'train_samples_per_second': '8.5', 'train_steps_per_second': '0.066', "
    "'train_loss': '4.04'}\n"
)
OUT_OF_MEMORY = """\
Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
"""
ARGUMENTS = {
    "model": "Qwen/Qwen2.5-7B", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "bf16": True,
    "gradient_checkpointing": True, "max_length": 2048, "global_world_size": 8, "optim": "adamw_torch_fused",
    "deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}, "lora_rank": 8, "train_type": "lora",
}  # fmt: skip


class TrainingArguments:
    """Stands for the objects in saved arguments."""

    def __init__(self, **state):
        self.__dict__.update(state)


def save(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / name).write_text(text)


def save_arguments(folder, **state):
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "training_args.bin", "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(TrainingArguments(**state)))


def history(entries, *more, **fields):
    return {"max_steps": 6, "global_step": 6, "log_history": [*entries, *more], **fields}


def only(runs):
    assert len(runs) == 1, runs[["experiment", "status", "run_dir"]].to_string()
    return runs.iloc[0]


def test_entries_with_the_time_are_not_the_end(tmp_path):
    """With `include_num_input_tokens_seen`, every entry has the time and the tokens since the start."""
    save(tmp_path, "trainer_state.json", history(ENTRIES[:2], global_step=4))
    row = only(dsnb.load_runs(tmp_path))
    assert row["cause"] == "the log ends at step 4 of 6"
    assert (row["step_time_mean_s"], row["tokens_per_s"]) == (10.0, 100.0)
    save(tmp_path / "console", "a.log", CONSOLE)
    row = only(dsnb.load_runs(tmp_path / "console"))
    assert row["cause"] == "the log ends without final figures, after 3 logged losses"


def test_final_figures_alone_are_a_run(tmp_path):
    for name in ("train_results.json", "all_results.json"):
        save(tmp_path, name, {"epoch": 1.0, **FINAL, "num_input_tokens_seen": 9050})
    row = only(dsnb.load_runs(tmp_path))
    assert (row["status"], row["train_runtime_s"], row["samples_per_s"], row["tokens_per_s"]) == (
        "ok", 90.5, 8.5, 100.0,
    )  # fmt: skip
    save(tmp_path, "eval_results.json", {"eval_loss": 2.0, "eval_runtime": 3.0})
    assert len(dsnb.load_runs(tmp_path)) == 1


@pytest.mark.parametrize("log", ["out/train.log", "train.log"])
def test_all_files_of_a_training_are_one_run(tmp_path, log):
    out = tmp_path / "out"
    save(out / "checkpoint-4", "trainer_state.json", history(ENTRIES[:2], global_step=4))
    save(out / "checkpoint-6", "trainer_state.json", history(ENTRIES))
    save(out, "trainer_state.json", history(ENTRIES, {"step": 6, **FINAL}))
    for name in ("train_results.json", "all_results.json"):
        save(out, name, FINAL)
    (tmp_path / log).write_text(CONSOLE + END)
    row = only(dsnb.load_runs(tmp_path))
    assert (row["status"], row["train_runtime_s"], row["loss_last"]) == ("ok", 90.5, 3.123456)
    assert (row["gpus"], row["micro_batch_size"], row["grad_accum"]) == (8, 4, 2)
    steps = dsnb.load_steps(tmp_path)
    assert steps["t_s"].tolist() == [40.0, 60.0, 80.0]
    assert pd.isna(steps["tokens"].iloc[0]) or steps["tokens"].tolist() == [1000.0] * 3


def test_the_console_says_how_a_record_ended(tmp_path):
    save(tmp_path / "checkpoint-4", "trainer_state.json", history(ENTRIES[:2], global_step=4))
    save(tmp_path, "train.log", CONSOLE.rpartition("{'loss'")[0] + OUT_OF_MEMORY)
    row = only(dsnb.load_runs(tmp_path))
    assert (row["status"], row["gpus"]) == ("oom", 8)


def test_the_log_of_another_training_stays_a_run_of_its_own(tmp_path):
    save(tmp_path, "trainer_state.json", history(ENTRIES, {"step": 6, **FINAL}))
    save(tmp_path, "other.log", CONSOLE.replace("'5'", "'5.5'") + END.replace("90.5", "91.5"))
    runs = dsnb.load_runs(tmp_path)
    assert sorted(runs["train_runtime_s"]) == [90.5, 91.5]
    assert sorted(runs["gpus"].isna()) == [False, True]


def test_ms_swift_rounds_the_losses_of_its_record(tmp_path):
    record = [
        {"loss": round(entry["loss"], 8), "global_step/max_steps": f"{entry['step']}/6", "memory(GiB)": 20.0,
         "train_speed(iter/s)": 0.05, "elapsed_time": f"{entry['step'] * 20}s"}
        for entry in ENTRIES
    ]  # fmt: skip
    save(tmp_path, "logging.jsonl", "".join(json.dumps(line) + "\n" for line in record))
    exact = [{**entry, "loss": entry["loss"] + 1e-9} for entry in ENTRIES]
    save(tmp_path / "checkpoint-6", "trainer_state.json", history(exact))
    save(tmp_path, "args.json", ARGUMENTS)
    row = only(dsnb.load_runs(tmp_path))
    assert (row["source"], row["peak_reserved_gib"], row["gpus"]) == ("ms-swift log", 20.0, 8)
    assert (row["model"], row["parallelism"], row["precision"]) == ("Qwen2.5-7B", "ZeRO 3", "bf16")
    assert (row["global_batch_size"], row["lora_rank"]) == (64, 8)


def test_a_mean_rate_tells_the_time_in_more_digits(tmp_path):
    lines = [
        {"current_steps": step, "total_steps": 20, "loss": 2.0, "elapsed_time": time_s, "throughput": rate,
         "total_tokens": 1000 * step}
        for step, time_s, rate in ((10, "0:00:04", 2500.0), (20, "0:00:06", "3200.0"))
    ]  # fmt: skip
    save(tmp_path, "trainer_log.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    assert dsnb.load_steps(tmp_path)["t_s"].tolist() == [4.0, 6.25]
    entries = [
        {"global_step/max_steps": "1/21", "train_speed(s/it)": 1.25, "elapsed_time": "1s"},
        {"global_step/max_steps": "20/21", "train_speed(iter/s)": 1.6, "elapsed_time": "12s"},
        {"global_step/max_steps": "21/21", "train_speed(iter/s)": 9.0, "elapsed_time": "13s"},
    ]
    json_lines = "".join(json.dumps({"loss": 2.0, **entry}) + "\n" for entry in entries)
    console = "".join(f"{ {'loss': 2.0, **entry} }\n" for entry in entries)
    save(tmp_path / "swift", "logging.jsonl", json_lines)
    save(tmp_path / "console", "train.log", console)
    for folder in ("swift", "console"):  # the last rate contradicts the clock
        assert dsnb.load_steps(tmp_path / folder)["t_s"].tolist() == [1.25, 12.5, 13.0]


def test_settings_of_saved_arguments_and_the_models_configuration(tmp_path):
    save(tmp_path, "trainer_state.json", history(ENTRIES, {"step": 6, **FINAL}))
    state = TrainingArguments(num_processes=4, distributed_type="MULTI_GPU")
    save_arguments(
        tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=4, bf16=True, optim="adafactor",
        max_grad_norm=1.0, distributed_state=state, gradient_checkpointing=False,
    )  # fmt: skip
    save(tmp_path, "config.json", PRESETS["gpt2"].config())
    row = only(dsnb.load_runs(tmp_path))
    assert (row["model"], row["gpus"], row["global_batch_size"]) == ("gpt2", 4, 32)
    assert pd.isna(row["strategy"])  # MULTI_GPU may also be FSDP by accelerate's configuration
    assert (row["optimizer"], row["gradient_clipping"]) == ("adafactor", 1.0)
    assert not row["activation_checkpointing"]
    assert pd.isna(row["seq_len"])


def test_arguments_of_one_of_several_trainings_are_nobodys(tmp_path):
    save(tmp_path / "checkpoint-4", "trainer_state.json", history(ENTRIES[:2]))
    save_arguments(tmp_path / "checkpoint-4", per_device_train_batch_size=2)
    other = [{"step": 2, "loss": 9.0}]
    save(tmp_path / "checkpoint-2", "trainer_state.json", history(other))
    save_arguments(tmp_path, per_device_train_batch_size=3)
    runs = dsnb.load_runs(tmp_path)
    sizes = {
        name.split("/")[-2]: size
        for name, size in zip(runs["run_dir"], runs["micro_batch_size"], strict=True)
    }
    assert sizes["checkpoint-4"] == 2
    assert pd.isna(sizes["checkpoint-2"])


@pytest.mark.parametrize("odd", ["4", -1, 2.5, [], {"a": 1}, True])
def test_odd_values_of_arguments_are_left_out(tmp_path, odd):
    save(tmp_path, "trainer_state.json", history(ENTRIES, {"step": 6, **FINAL}))
    for name in ARGUMENTS:
        save(tmp_path, "args.json", {**ARGUMENTS, name: odd})
        assert only(dsnb.load_runs(tmp_path))["train_runtime_s"] == 90.5


def test_damaged_arguments_are_noted(tmp_path):
    save(tmp_path, "trainer_state.json", history(ENTRIES, {"step": 6, **FINAL}))
    (tmp_path / "training_args.bin").write_bytes(b"no pickle")
    assert (
        "training_args.bin cannot be read as saved arguments"
        in only(dsnb.load_runs(tmp_path))["note"]
    )


@pytest.mark.parametrize(("packing", "rate"), [(True, 8.5 * 2048), (False, None)])
def test_the_most_tokens_of_a_sample_are_no_length(tmp_path, packing, rate):
    entries = [{"step": entry["step"], "loss": entry["loss"]} for entry in ENTRIES]
    save(tmp_path, "trainer_state.json", history(entries, {"step": 6, **FINAL}))
    save(tmp_path, "args.json", {**ARGUMENTS, "packing": packing})
    row = only(dsnb.load_runs(tmp_path))
    assert row["seq_len"] == 2048
    if rate:
        assert row["tokens_per_s"] == rate
    else:
        assert pd.isna(row["tokens_per_s"])
        assert row["note"] == (
            "seq_len is the most that a sample may have: tokens/s do not follow from samples/s"
        )


def test_the_parts_of_a_step_by_deepspeeds_breakdown(tmp_path):
    """The first step compiles; micro-batches, and zeros of a profiler, are not parts of a step."""
    said = "[2024-04-21 02:45:20,651] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | "
    lines = [
        "fwd_microstep: 900.0 | bwd_microstep: 900.0 | bwd_inner_microstep: 1.0 | step_microstep: 90.0",
        "fwd: 900.0 | bwd: 900.0 | bwd_inner: 800.0 | bwd_allreduce: 100.0 | step: 90.0",
        "fwd: 100.0 | bwd: 200.0 | bwd_inner: 150.0 | bwd_allreduce: 50.0 | step: 20.0",
        "forward: 120.0 | backward: 220.0 | backward_inner: 150.0 | backward_allreduce: 50.0 | step: 30.0",
        "forward: 0.00 | backward: 0.00 | backward_inner: 0.00 | backward_allreduce: 0.00 | step: 0.0",
    ]
    save(tmp_path, "a.log", "".join(f"{said}{line}\n" for line in lines))
    row = only(dsnb.load_runs(tmp_path))
    assert (row["status"], row["source"]) == ("ok", "DeepSpeed log")
    times_s = [row[name] for name in ("forward_s", "backward_s", "optimizer_s", "step_time_mean_s")]
    assert times_s == pytest.approx([0.110, 0.210, 0.025, 0.345])
    assert row["note"].startswith("the step time is the sum of its parts")


def test_nemo_prints_peaks_of_memory(tmp_path):
    line = (
        "Training epoch 0, iteration {}/99 | lr: 6e-06 | global_batch_size: 128 | global_step: {} | "
        "max_memory_reserved: 53687091200 | max_memory_allocated: 42949672960 | reduced_train_loss: 11.96 | "
        "train_step_timing in s: 6.08 | TFLOPS_per_GPU: 1.249e+03 | consumed_samples: 5888\n"
    )
    save(tmp_path, "a.log", "".join(line.format(step, step) for step in (45, 46)))
    row = only(dsnb.load_runs(tmp_path))
    assert (row["peak_reserved_gib"], row["peak_allocated_gib"]) == (50.0, 40.0)
    assert row["tflops_per_gpu"] == 1249.0
