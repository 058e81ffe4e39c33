"""Logs of other programs: what a correct reader returns, from small logs whose answer one can work out by hand."""
# ruff: noqa: E501  (programs print lines as long as they like)

import json
import os
import tracemalloc
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.errors import LogError, SettingsError
from dsnb.run_folder.columns import RUN_COLUMNS, STEP_COLUMNS
from dsnb.runs.logs import console
from tests.support import collected_logs
from tests.support import foreign_logs as logs


def read(tmp_path, text, name="a.log"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text) if isinstance(text, str) else path.write_bytes(text)
    return dsnb.load_runs(path)


def only(runs):
    assert len(runs) == 1
    return runs.iloc[0]


def check(row, **expected):
    for name, value in expected.items():
        if value is None:
            assert pd.isna(row[name]), (name, row[name])
        else:
            assert row[name] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), name


def kinds(row):
    """Give the figures of a row by where they come from."""
    return {
        kind: set(names.split(", ")) for kind, names in (part.split(": ") for part in row["provenance"].split("; "))
    }


CHAT = {
    "status": "ok", "source": "DeepSpeed-Chat log", "model": "opt-350m", "zero_stage": 2, "precision": "bf16",
    "micro_batch_size": 4, "grad_accum": 2, "seq_len": 256, "gpus": 8, "nodes": 2, "data_parallel": 8,
    "global_batch_size": 64, "activation_checkpointing": True, "offload": "optimizer-cpu", "optimizer": "FusedAdam",
    "learning_rate": 1e-5, "gradient_clipping": 1.0, "seed": 7, "lora_rank": 0, "strategy": "deepspeed",
    "deepspeed": "0.14.4", "samples_per_s": 640.0, "samples_per_s_running": 650.25, "tokens_per_s": 640.0 * 256,
    "tokens_per_s_per_gpu": 640.0 * 32, "step_time_s": 0.1, "peak_allocated_gib": 33.78, "skipped_steps": 3,
    "timed_steps": 20, "timed_s": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("text", [logs.chat(), logs.with_hosts(logs.chat()), logs.chat().replace("\n", "\r\n")])
def test_deepspeed_chat(tmp_path, text):
    row = only(read(tmp_path, text))
    check(row, **CHAT)
    provenance = kinds(row)
    assert {"samples_per_s", "samples_per_s_running", "peak_allocated_gib", "skipped_steps"} <= provenance["as logged"]
    assert {"tokens_per_s", "tokens_per_s_per_gpu", "step_time_s", "tflops_per_gpu"} <= provenance["derived"]
    assert "secret" not in str(dict(row))


def test_the_steps_of_a_deepspeed_log(tmp_path):
    read(tmp_path, logs.chat())
    steps = dsnb.load_steps(tmp_path / "a.log")
    assert list(steps.columns) == ["sweep", "experiment", "repeat", *STEP_COLUMNS]
    assert list(steps["step"]) == [10, 20]
    assert list(steps["step_time_s"]) == pytest.approx([64 / 512, 64 / 640])
    assert list(steps["tokens"]) == [64 * 256] * 2
    assert list(steps["skipped"]) == [True, False]
    assert steps["t_s"].diff().iloc[1] == 2.0
    assert steps["loss"].isna().all()


def test_plain_deepspeed_takes_its_running_average(tmp_path):
    text = logs.chat(final=False).replace(logs.CHAT_COMMAND, "")
    row = only(read(tmp_path, text))
    check(row, source="DeepSpeed log", samples_per_s=650.25, model=None, seq_len=None, tokens_per_s=None, status="ok")


def test_the_oldest_timer_counts_micro_batches(tmp_path):
    line = "[2021-01-01 00:00:00,000] [INFO] [timer.py:154:stop] 0/{}, SamplesPerSec={}, MemAllocated=1.0GB, MaxMemAllocated=2.5GB\n"
    row = only(read(tmp_path, logs.CONFIG + line.format(20, 100.5) + line.format(40, 101.5)))
    check(row, samples_per_s=101.5, peak_allocated_gib=2.5)
    assert list(dsnb.load_steps(tmp_path)["step"]) == [10, 20]


def test_the_pipeline_engine(tmp_path):
    text = (
        logs.CONFIG
        + "steps: 10 loss: 7.5 iter time (s): 0.500 samples/sec: 128.0\nsteps: 20 loss: 7.0 lm loss: 6.5 iter time (s): 1.000 samples/sec: 64.0\n"
    )
    row = only(read(tmp_path, text))
    check(row, loss_first=7.5, loss_last=7.0, samples_per_s=64 * 11 / 10.5)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("prefix", ["", "node3: ", "7: ", "[default7]:"])
def test_megatron(tmp_path, new, prefix):
    text = "".join(prefix + line for line in logs.megatron(new).splitlines(keepends=True))
    row = only(read(tmp_path, text))
    check(
        row, status="ok", cause="the log ends at step 4 of 100", source="Megatron-LM log", gpus=16, tensor_parallel=2,
        pipeline_parallel=4, data_parallel=2, micro_batch_size=4, global_batch_size=32, grad_accum=4, seq_len=512,
        precision="bf16", optimizer="adam", activation_checkpointing=new, strategy="megatron",
        samples_per_s=16.0, tokens_per_s=16.0 * 512, tokens_per_s_per_gpu=512.0, step_time_s=2.0, timed_steps=3,
        loss_first=10.0, loss_last=7.0, skipped_steps=4, nan_steps=0, peak_allocated_gib=2.5, peak_reserved_gib=4.0,
        parameters=24 * (12 * 1024**2 + 13 * 1024) + (50432 + 512) * 1024 + 2 * 1024,
    )  # fmt: skip
    assert "tflops_per_gpu" in kinds(row)["derived"]
    if new:
        check(row, tflops_per_gpu=55.5)
    steps = dsnb.load_steps(tmp_path)
    assert list(steps["phase"]) == ["warmup", "timed", "timed", "timed"]
    assert list(steps["loss"]) == [10, 9, 8, 7]


def test_other_forms_of_megatrons_line(tmp_path):
    seconds = " iteration  {}/ 100 | elapsed time per iteration (s): 4.00 | global batch size: 8 | lm loss: 2.5E+00 | samples per second: 2.0 | TFLOPs: 149.02 |\n"
    row = only(read(tmp_path, "".join(seconds.format(number) for number in (10, 20, 30))))
    check(row, samples_per_s=2.0, step_time_s=4.0, hardware_tflops_per_gpu=149.02, loss_last=2.5, seq_len=None)
    oldest = " iteration      {}/  500 | elapsed time per iteration (ms): 430.0 | learning rate 1.500E-04 | lm loss 7.399415E+00 | loss scale 16384.0 |\n"
    row = only(read(tmp_path, "".join(oldest.format(number) for number in (100, 200)), "b.log"))
    check(row, step_time_s=0.43, samples_per_s=None, loss_last=7.399415)


@pytest.mark.parametrize("quoted", [True, False])
def test_trainer_console(tmp_path, quoted):
    row = only(read(tmp_path, logs.trainer(quoted)))
    check(
        row, status="ok", source="transformers Trainer log", micro_batch_size=8, grad_accum=2, global_batch_size=64,
        gpus=4, steps=10, train_runtime_s=20.0, samples_per_s=32.0, steps_per_s=0.5, loss_mean=4.25, loss_first=4.5,
        loss_last=4.0, step_time_s=2.0, trainable_parameters=124439808, tokens_per_s=None,
    )  # fmt: skip
    steps = dsnb.load_steps(tmp_path)
    assert list(steps["step"]) == [5, 10]
    assert list(steps["loss"]) == [4.5, 4.0]


def test_trainers_block_of_metrics(tmp_path):
    text = (
        "***** train metrics *****\n  epoch                    =        1.0\n  train_loss               =     0.2208\n"
        "  train_runtime            = 1:08:59.74\n  train_samples_per_second =    187.862\n"
        "  train_steps_per_second   =      2.134\n  init_mem_gpu_alloc_delta   =     512MB\n"
        "  train_mem_gpu_alloc_delta  =     256MB\n  train_mem_gpu_peaked_delta =     256MB\n"
    )
    row = only(read(tmp_path, text))
    check(row, train_runtime_s=4139.74, samples_per_s=187.862, steps_per_s=2.134, peak_allocated_gib=1.0)


def test_trainers_before_4_6_called_steps_samples(tmp_path):
    row = only(read(tmp_path, "{'train_runtime': 155.2034, 'train_samples_per_second': 2.242, 'epoch': 3.0}\n"))
    check(row, steps_per_s=2.242, samples_per_s=None)
    assert "taken as steps per second" in row["note"]


def test_trainer_state(tmp_path):
    row = only(read(tmp_path, logs.trainer_state(), "trainer_state.json"))
    check(
        row, micro_batch_size=8, steps=10, train_runtime_s=20.0, samples_per_s=32.0, tokens_per_s=4096.0, loss_last=4.0
    )
    assert list(dsnb.load_steps(tmp_path)["loss"]) == [4.5, 4.0]


def test_step_csv_as_logged_and_corrected(tmp_path):
    """Steps of 50 ms, 4,096 tokens: 81,920 tokens/s in truth; the median of the steps 21 to 63 is logged as a fifth."""
    folder = logs.write_all(tmp_path) / "results"
    row = only(dsnb.load_runs(folder))
    check(row, experiment="zs0_fp16_gpus1_bs32_sl128", repeat=1, model="gpt2", zero_stage=0, precision="fp16", gpus=1)
    assert row["tokens_per_s"] == pytest.approx(4096 / 0.05, rel=1e-5)
    assert row["tokens_per_s_logged"] == pytest.approx(4096 / 0.05 / 5, rel=1e-5)
    assert row["step_time_s"] == pytest.approx(0.05, rel=1e-4)
    check(row, step_time_logged_s=0.25, timed_steps=86, peak_reserved_gib=7584 / 1024, power_w=450.0)
    check(row, gpu_util_pct=None)  # 86 steps of 50 ms are too short for it
    check(row, device_memory_gib=10.0)
    assert "cumulative" in row["note"]
    steps = dsnb.load_steps(folder)
    assert list(steps["step_time_logged_s"].iloc[:11]) == pytest.approx([0.05 * k for k in range(1, 11)] + [0.05])
    assert steps["step_time_s"].iloc[1:].to_numpy() == pytest.approx(0.05, rel=1e-3)
    assert list(dsnb.runs.load.load_gpu(row["run_dir"])["memory_used_gib"]) == [8.0, 10.0]


def test_several_starts_are_several_runs(tmp_path):
    """The first was killed, the second ran out of memory, the third ended; each with its own settings."""
    launch = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    killed = launch + logs.CONFIG + "Killing subprocess 123\n"
    out = (
        launch
        + logs.CONFIG.replace("per_gpu  4", "per_gpu  2")
        + "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n"
    )
    runs = read(tmp_path, killed + out + launch + logs.chat())
    assert list(runs["status"]) == ["failed", "oom", "ok"]
    assert list(runs["micro_batch_size"]) == [4, 2, 4]
    assert list(runs["experiment"]) == ["a_start1", "a_start2", "a_start3"]
    assert runs["samples_per_s"].isna().tolist() == [True, True, False]
    again = read(tmp_path, logs.megatron() * 2, "b.log")
    assert list(again["repeat"]) == [1, 2]
    assert set(again["experiment"]) == {"b"}
    assert list(again["samples_per_s"]) == [16.0, 16.0]


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB\n", "oom", "CUDA out of memory"),
        ("Traceback (most recent call last):\n  File\nValueError: bad\n", "failed", "ValueError: bad"),
        (
            "slurmstepd: error: *** STEP 1.0 CANCELLED AT 2025-01-01T00:00:00 DUE TO TIME LIMIT ***\n",
            "timeout",
            "Slurm",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n", "oom", "host's memory"),
        ("[launch.py:321:sigkill_handler] ['x'] exits with return code = -9\n", "failed", "exit code -9"),
        ("Traceback (most recent call last):\nKeyboardInterrupt\n", "interrupted", "stopped by the user"),
        ("", "interrupted", "the log ends before the first step"),
    ],
)
def test_how_it_ended(tmp_path, end, status, cause):
    row = only(read(tmp_path, logs.CHAT_COMMAND + logs.CONFIG + end))
    assert row["status"] == status
    assert cause in row["cause"]
    assert pd.isna(row["tokens_per_s"])


def test_a_loss_that_is_nan_is_no_measurement(tmp_path):
    row = only(read(tmp_path, logs.megatron().replace("lm loss: 7.000000E+00", "lm loss: nan")))
    check(row, status="nan", loss_last=8.0)


@pytest.mark.draws
def test_no_number_is_taken_that_may_have_lost_its_end(tmp_path):
    """Cut at every byte of the last lines: a figure is the logged one, or missing."""
    text = logs.chat()
    logged = {"samples_per_s": {640.0, 650.25, 700.5}, "peak_allocated_gib": {33.5, 33.78}, "skipped_steps": {3}}
    begin = text.index("[2024-07-08 05:17:04")
    path = tmp_path / "cut.log"
    for end in range(begin, len(text), 3):
        path.write_text(text[:end])
        (run,) = console.read_console(path)
        for name, values in logged.items():
            assert run.figures.get(name) in {None, *values}, text[:end][-60:]


def test_every_kind_beside_dsnbs_own(tmp_path, monkeypatch):
    from tests.support import made_up

    logs.write_all(tmp_path)
    made_up.write_folders(made_up.runs(9), tmp_path / "own", steps=5)
    (tmp_path / "noise.log").write_bytes(os.urandom(200_000))
    (tmp_path / "notes.txt").write_text("iteration of ideas: 'loss' of time")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runs = dsnb.load_runs(tmp_path)
    assert list(runs.columns) == RUN_COLUMNS
    assert runs["source"].value_counts().to_dict() == {
        "dsnb": 9, "DeepSpeed-Chat log": 2, "Megatron-LM log": 2, "transformers Trainer log": 2, "GPT-2 step CSV": 1,
    }  # fmt: skip
    summary = dsnb.summarize(runs)
    assert summary.loc["chat/training", "tokens_per_s_median"] == 640.0 * 256
    explorer, selections = dsnb.explore(runs), []
    for task in explorer.data.tasks:
        explorer.set(task=task, source="DeepSpeed-Chat log")
        selections.append(explorer.selection)
    assert set(pd.concat(selections)["experiment"]) == {"training", "pdsh"}


def test_a_run_folders_console_is_not_a_second_run(tmp_path):
    from tests.support import made_up

    made_up.write_folders(made_up.runs(1), tmp_path, steps=3)
    next(tmp_path.rglob("experiment.json")).with_name("console.log").write_text(logs.chat())
    assert list(dsnb.load_runs(tmp_path)["source"]) == ["dsnb"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.log", b"\0\xff garbage", "is not a log that dsnb can read: supported are console logs of DeepSpeed"),
        ("a.log", b"", "is not a log that dsnb can read"),
        ("trainer_state.json", b'{"log_history": [', "line 1 is cut off or damaged JSON"),
        ("trainer_state.json", b'{"log_history": 3}', "is not a trainer_state.json: it must have a list 'log_history'"),
        (
            "step_log.csv",
            logs.step_csv().splitlines()[0].encode() + b"\n1,2",
            "line 2 holds no complete row: every row needs numbers for timestamp, global_step",
        ),
    ],
)
def test_a_file_that_is_no_log(tmp_path, name, content, message):
    with pytest.raises(LogError) as caught:
        read(tmp_path, content, name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)
    assert caught.value.path == tmp_path / name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dsnb.load_runs(tmp_path).empty  # in a folder it is passed over


def test_a_path_that_is_not_there():
    with pytest.raises(SettingsError, match="is not a folder or a file"):
        dsnb.load_runs("nowhere")


def test_a_long_log_takes_little_memory(tmp_path):
    """24 MB of other lines; the tables need the steps only."""
    path, line = tmp_path / "long.log", logs.megatron(iterations=4).splitlines(keepends=True)[-1]
    path.write_text(logs.megatron(iterations=1) + ("x" * 99 + "\n") * 240_000 + line.replace(" 4/", " 2/"))
    tracemalloc.start()
    runs = dsnb.load_runs(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert only(runs)["samples_per_s"] == 16.0
    assert peak < 60e6


def test_logs_like_public_ones(tmp_path):
    """The figures that the authors of the public logs state."""
    folder = collected_logs.write_all(tmp_path / "logs")
    runs = dsnb.load_runs(folder).set_index("experiment")
    check(runs.loc["opt-350m_1node"], samples_per_s=943.455, samples_per_s_running=950.7571805799944, nodes=1, gpus=8)
    check(runs.loc["opt-350m_1node"], peak_allocated_gib=33.78, skipped_steps=9)
    check(runs.loc["opt-13b_16nodes"], samples_per_s=1156.8893, nodes=16, gpus=128, lora_rank=128)
    check(runs.loc["gpt2_3d_16nodes"], gpus=64, tensor_parallel=4, pipeline_parallel=16, data_parallel=1, seq_len=1024)
    starts = runs[runs.index.str.startswith("gpt2_16nodes")]
    assert list(starts["global_batch_size"]) == [2048, 1024, 512]
    assert starts["train_runtime_s"].notna().tolist() == [False, False, True]
    check(starts.iloc[2], samples_per_s=3.663, steps_per_s=0.007, train_runtime_s=273.0149)
    for name, true in (("zs0", 64_033), ("zs3", 24_453)):
        row = runs.loc[f"{name}_fp16_gpus1_bs32_sl128"]
        assert row["tokens_per_s"] == pytest.approx(true, rel=1e-4)
        assert row["tokens_per_s_logged"] == pytest.approx(true / 5, rel=1e-4)
    assert len(dsnb.load_steps(folder / "megatron")) == 49


def test_names_in_json_are_no_code(tmp_path):
    text = logs.chat().replace("facebook/opt-350m", "</script><script>alert(1)</script>")
    row = only(read(tmp_path, text))
    assert "<" not in str(row["model"])
    assert json.dumps(row["provenance"])


def test_megatrons_tflops_are_a_mean_over_time(tmp_path):
    line = " iteration  {}/ 100 | elapsed time per iteration (ms): {} | throughput per GPU (TFLOP/s/GPU): {} | global batch size: 8 | lm loss: 2.5E+00 |\n"
    text = line.format(1, 9000.0, 10.0) + line.format(2, 1000.0, 500.0) + line.format(3, 3000.0, 100.0)
    row = only(read(tmp_path, text))
    check(row, tflops_per_gpu=(500 * 1 + 100 * 3) / 4, samples_per_s=4.0)
    assert "tflops_per_gpu" in kinds(row)["derived"]


def test_deepspeed_chats_third_step(tmp_path):
    line = "End-to-End => Latency: {}s, TFLOPs: 3.29, Samples/sec: 1.57, Time/seq 0.64s, Batch Size: 4, Total Seq. Length: 512\n"
    row = only(read(tmp_path, logs.CONFIG + line.format(2.0) + line.format(3.0)))
    check(row, source="DeepSpeed-Chat log", samples_per_s=8 / 5, tokens_per_s=8 / 5 * 512, step_time_s=2.5, seq_len=512)


def test_a_complaint_about_a_flag_is_no_setting(tmp_path):
    noise = "/usr/lib/x.py:12: UserWarning: use --bf16 instead\nmain.py: error: unrecognized arguments --zero_stage 3 --seq_length 77\n"
    row = only(read(tmp_path, noise + logs.CONFIG.replace("zero_", "none_").replace("float16", "float17")))
    check(row, seq_len=None, zero_stage=None, precision=None)


def test_the_oldest_megatron(tmp_path):
    text = (
        "using world size: 8 and model-parallel size: 2 \n-------------------- arguments --------------------\n"
        "  batch_size ...................... 4\n  seq_length ...................... 1024\n---------------- end of arguments ----------------\n"
    )
    line = " iteration {}/ 500 | elapsed time per iteration (ms): 500.0 | learning rate 1.500E-04 | lm loss 7.4E+00 | loss scale 16384.0 |\n"
    row = only(read(tmp_path, text + line.format(100) + line.format(200)))
    check(row, gpus=8, tensor_parallel=2, data_parallel=4, micro_batch_size=4, seq_len=1024, global_batch_size=16)
    check(row, step_time_s=0.5, samples_per_s=32.0)
