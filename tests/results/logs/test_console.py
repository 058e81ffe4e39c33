"""Logs of other programs: what a correct reader returns, from small logs whose answer one can work out by hand."""
# ruff: noqa: E501  (programs print lines as long as they like)

import json
import os
import tracemalloc
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import LogError, SettingsError
from dsnb.results.runs.load import load_gpu
from dsnb.settings.records.columns import RUN_COLUMNS, STEP_COLUMNS
from tests.support import foreign_logs as logs
from tests.support import made_up


def read(tmp_path, text, name="a.log"):
    path = tmp_path / name
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
            assert row[name] == (
                pytest.approx(value, rel=1e-9) if isinstance(value, float) else value
            ), name


def kinds(row):
    """Give the figures of a row by where they come from."""
    return {
        kind: set(names.split(", "))
        for kind, names in (part.split(": ") for part in row["provenance"].split("; "))
    }


CHAT = {
    "status": "ok", "source": "DeepSpeed-Chat log", "model": "opt-350m", "zero_stage": 2, "precision": "bf16",
    "micro_batch_size": 4, "grad_accum": 2, "seq_len": 256, "gpus": 8, "nodes": 2, "data_parallel": 8,
    "global_batch_size": 64, "activation_checkpointing": True, "offload": "optimizer-cpu", "optimizer": "FusedAdam",
    "learning_rate": 1e-5, "gradient_clipping": 1.0, "seed": 7, "lora_rank": 0, "strategy": "deepspeed",
    "deepspeed": "0.14.4", "samples_per_s": 640.0, "samples_per_s_running": 650.25, "tokens_per_s": 640.0 * 256,
    "tokens_per_s_per_gpu": 640.0 * 32, "step_time_mean_s": 0.1, "peak_allocated_gib": 33.78, "skipped_steps": 3,
    "timed_steps": 20, "timed_s": 2.0,
}  # fmt: skip


PREFIXES = [
    "node3: ", " 7: ", "n-1  | ", "[default7]:", "[rank0]: ", "[1,0]<stdout>:", "[pod-1:0]: ", "(Worker pid=1, ip=::1) ",
    "2024-07-08T05:16:08.123456Z stdout F ", "\x1b]0;title\x07\x1b[38;5;12m", "\x1b(B\x1b[m", "\0\0", "    ",
]  # fmt: skip
"""Of pdsh, srun, docker compose, torchrun, torch, mpirun, Ray and Kubernetes; titles, colours, character sets, nulls, indents."""


@pytest.mark.parametrize(
    "text",
    [
        logs.chat(),
        logs.chat().replace("\n", " \t\r\n"),
        *(logs.prefixed(logs.chat(), prefix) for prefix in PREFIXES),
    ],
    ids=["plain", "Windows", *map(repr, PREFIXES)],
)
def test_deepspeed_chat(tmp_path, text):
    row = only(read(tmp_path, text))
    check(row, **CHAT)
    provenance = kinds(row)
    assert {
        "samples_per_s",
        "samples_per_s_running",
        "peak_allocated_gib",
        "skipped_steps",
    } <= provenance["as logged"]
    assert {
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "step_time_mean_s",
        "tflops_per_gpu",
    } <= provenance["derived"]
    assert "secret" not in str(dict(row))
    steps = dsnb.load_steps(tmp_path / "a.log")
    assert list(steps.columns) == ["sweep", "experiment", "repeat", *STEP_COLUMNS]
    assert list(steps["step"]) == [10, 20]
    assert list(steps["step_time_s"]) == pytest.approx([64 / 512, 64 / 640])
    assert list(steps["tokens"]) == [64 * 256] * 2
    assert list(steps["skipped"]) == [True, False]
    assert steps["t_s"].diff().iloc[1] == 2.0
    assert steps["loss"].isna().all()


MEGATRON = {
    "status": "ok", "cause": "the log ends at step 4 of 100", "source": "Megatron-LM log", "gpus": 16,
    "tensor_parallel": 2, "pipeline_parallel": 4, "data_parallel": 2, "micro_batch_size": 4, "global_batch_size": 32,
    "grad_accum": 4, "seq_len": 512, "precision": "bf16", "optimizer": "adam", "strategy": "megatron",
    "samples_per_s": 16.0, "tokens_per_s": 16.0 * 512, "tokens_per_s_per_gpu": 512.0, "step_time_mean_s": 2.0,
    "timed_steps": 3, "loss_first": 10.0, "loss_last": 7.0, "skipped_steps": 4, "nan_steps": 0,
    "peak_allocated_gib": 2.5, "peak_reserved_gib": 4.0,
    "parameters": 24 * (12 * 1024**2 + 13 * 1024) + (50432 + 512) * 1024 + 2 * 1024,
}  # fmt: skip


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("prefix", ["", *PREFIXES[:4]])
def test_megatron(tmp_path, new, prefix):
    row = only(read(tmp_path, logs.prefixed(logs.megatron(new), prefix)))
    check(
        row, **MEGATRON, activation_checkpointing=new, **({"tflops_per_gpu": 55.5} if new else {})
    )
    assert "tflops_per_gpu" in kinds(row)["derived"]
    steps = dsnb.load_steps(tmp_path)[["phase", "loss"]].to_numpy().tolist()
    assert steps == [["warmup", 10], ["timed", 9], ["timed", 8], ["timed", 7]]


TRAINER = {
    "status": "ok", "source": "transformers Trainer log", "micro_batch_size": 8, "grad_accum": 2,
    "global_batch_size": 64, "gpus": 4, "steps": 10, "train_runtime_s": 20.0, "samples_per_s": 32.0, "step_time_mean_s": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("quoted", [True, False])
def test_trainer_console(tmp_path, quoted):
    row = only(read(tmp_path, logs.trainer(quoted)))
    check(
        row,
        **TRAINER,
        steps_per_s=0.5,
        loss_mean=4.25,
        loss_first=4.5,
        loss_last=4.0,
        tokens_per_s=None,
    )
    check(row, trainable_parameters=124439808)
    assert dsnb.load_steps(tmp_path)[["step", "loss"]].to_numpy().tolist() == [[5, 4.5], [10, 4.0]]
    row = only(read(tmp_path, logs.trainer_state(), "trainer_state.json"))
    check(
        row,
        micro_batch_size=8,
        steps=10,
        train_runtime_s=20.0,
        samples_per_s=32.0,
        tokens_per_s=4096.0,
    )
    assert list(dsnb.load_steps(tmp_path / "trainer_state.json")["loss"]) == [4.5, 4.0]


def test_a_resumed_trainer_took_only_the_steps_since(tmp_path):
    """20 s for the last five of ten steps; the printed rates are of all ten."""
    begin, _, rest = logs.trainer().partition("\n")
    line = "  Continuing training from global step 5"
    row = only(read(tmp_path, "\n".join([begin, line, rest])))
    check(row, train_runtime_s=20.0, step_time_mean_s=20 / 5, samples_per_s=None, steps_per_s=None)
    assert "resumed from step 5: the final rates are left out" in row["note"]


@pytest.mark.parametrize(
    "launcher", ["torchrun --nproc_per_node 4", "deepspeed --num_gpus 4", "accelerate launch"]
)
@pytest.mark.parametrize("prefix", ["", "node7: "])
def test_a_trainer_under_set_x(tmp_path, launcher, prefix):
    stamp = "[2024-07-08 05:14:48,908] [INFO] [real_accelerator.py:203:get_accelerator] cuda\n"  # behind any prefix
    text = logs.prefixed(stamp + logs.traced_trainer(launcher), prefix)
    check(
        only(read(tmp_path, text)), **TRAINER, strategy="deepspeed", model="gpt2", zero_stage=2, precision="bf16",
        data_parallel=4, tensor_parallel=1, pipeline_parallel=1, seq_len=512, learning_rate=2e-5,
        activation_checkpointing=True, tokens_per_s=32.0 * 512, tokens_per_s_per_gpu=8.0 * 512,
    )  # fmt: skip


@pytest.mark.parametrize(("stage", "pipeline"), [(1, 1), (0, 16)])
def test_megatron_deepspeed(tmp_path, stage, pipeline):
    row = only(read(tmp_path, logs.zero_megatron(stage, pipeline)))
    check(
        row, status="ok", source="Megatron-DeepSpeed log", strategy="megatron-deepspeed", zero_stage=stage, gpus=64,
        tensor_parallel=4, pipeline_parallel=pipeline, data_parallel=16 // pipeline, micro_batch_size=4,
        grad_accum=12 * pipeline, global_batch_size=768, precision="fp16", seq_len=1024, steps=1000,
        activation_checkpointing=True, samples_per_s=6.4, tokens_per_s=6.4 * 1024, tokens_per_s_per_gpu=102.4,
        step_time_mean_s=120.0, timed_steps=3, loss_first=12.0, loss_last=9.0, peak_allocated_gib=2.0,
        peak_reserved_gib=4.0, learning_rate=0.00015,
        skipped_steps=1,  # Megatron's lines miss the step that the engine skipped
    )  # fmt: skip


STAMP = "[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]"


@pytest.mark.parametrize(
    ("line", "stages"),
    [
        ("  pipe_parallel_size .............. 16\n", 16),
        ("  pipe_parallel_size .............. 0\n", 1),
        (f"{STAMP}   pipe_parallel_size ........... 16\n", 16),
        (f"{STAMP}   pipeline ..................... {{'stages': 16, 'partition': 'best'}}\n", 16),
        (
            f"{STAMP}   pipeline ..................... {{'stages': 'auto', 'partition': 'best'}}\n",
            1,
        ),
        (logs.topology(16, 1, 4), 16),
    ],
)
def test_where_a_pipeline_is_printed(tmp_path, line, stages):
    """Each alone, behind a first line that knows no pipeline; 64 GPUs, TP 4."""
    head, rest = logs.zero_megatron(1).split("\n", 1)
    rest = rest.replace(
        "world_size ................... 16", f"world_size ................... {16 // stages}"
    )
    row = only(
        read(
            tmp_path,
            f"{head}\n{line}{rest.replace(' gas .............. 12', f' gas ... {12 * stages}')}",
        )
    )
    check(row, pipeline_parallel=stages, tensor_parallel=4, gpus=64, data_parallel=16 // stages)


def test_a_plain_pipeline_says_all_by_its_topology(tmp_path):
    steps = "".join(
        f"steps: {step} loss: 7.5 iter time (s): 0.500 samples/sec: 128.0\n"
        for step in (10, 20, 30)
    )
    row = only(read(tmp_path, logs.topology(4, 8, None) + logs.CONFIG + steps))
    check(
        row, pipeline_parallel=4, data_parallel=8, tensor_parallel=1, gpus=32, global_batch_size=64
    )
    cut = logs.topology(64, 4, 16).splitlines()[1] + "\n"
    assert (
        len(cut) > 64 * 1024
    )  # of a line longer than what is read of it the last ranks are missing
    row = only(read(tmp_path, "pipeline_parallel\n" + logs.CONFIG + cut))
    check(row, pipeline_parallel=None, tensor_parallel=None, gpus=None, data_parallel=8)


MEGATRON_LINE = " iteration  {}/ 100 | elapsed time per iteration ({}): {} | {} |\n"
OLDEST = " iteration {}/ 500 | elapsed time per iteration (ms): 500.0 | learning rate 1.500E-04 | lm loss 7.4E+00 | loss scale 16384.0 |\n"
OLD_TIMER = "[2021-01-01 00:00:00,000] [INFO] [timer.py:154:stop] 0/{}, SamplesPerSec={}, MemAllocated=1.0GB, MaxMemAllocated=2.5GB\n"
NO_FORMAT = logs.CONFIG.replace("float16", "float17").replace("fp16", "fp17")
FORMS = {
    "plain DeepSpeed: its running average": (
        logs.chat(final=False).replace(logs.CHAT_COMMAND, ""),
        {"source": "DeepSpeed log", "samples_per_s": 650.25, "model": None, "seq_len": None, "tokens_per_s": None},
    ),
    "the oldest timer counts micro-batches": (
        logs.CONFIG + OLD_TIMER.format(20, 100.5) + OLD_TIMER.format(40, 101.5),
        {"samples_per_s": 101.5, "peak_allocated_gib": 2.5, "strategy": "deepspeed"},
    ),
    "the pipeline engine": (
        logs.CONFIG + "steps: 10 loss: 7.5 iter time (s): 0.500 samples/sec: 128.0\nsteps: 20 loss: 7.0 lm loss: 6.5 iter time (s): 1.000 samples/sec: 64.0\n",
        {"loss_first": 7.5, "loss_last": 7.0, "samples_per_s": 64 * 11 / 10.5},
    ),
    "BigScience: seconds and hardware TFLOP/s": (
        "".join(MEGATRON_LINE.format(number, "s", "4.00", "global batch size: 8 | lm loss: 2.5E+00 | samples per second: 2.0 | TFLOPs: 149.02") for number in (10, 20, 30)),
        {"samples_per_s": 2.0, "step_time_mean_s": 4.0, "hardware_tflops_per_gpu": 149.02, "loss_last": 2.5, "seq_len": None},
    ),
    "TFLOP/s are a mean over time": (
        "".join(MEGATRON_LINE.format(number, "ms", ms, f"throughput per GPU (TFLOP/s/GPU): {tflops} | global batch size: 8 | lm loss: 2.5E+00") for number, ms, tflops in ((1, 9000, 10), (2, 1000, 500), (3, 3000, 100))),
        {"tflops_per_gpu": (500 * 1 + 100 * 3) / 4, "samples_per_s": 4.0},
    ),
    "the oldest Megatron": (
        "using world size: 8 and model-parallel size: 2 \n-------------------- arguments --------------------\n"
        "  batch_size ...................... 4\n  seq_length ...................... 1024\n---------------- end of arguments ----------------\n"
        + OLDEST.format(100) + OLDEST.format(200),
        {"gpus": 8, "tensor_parallel": 2, "data_parallel": 4, "micro_batch_size": 4, "seq_len": 1024, "global_batch_size": 16, "step_time_mean_s": 0.5, "samples_per_s": 32.0, "loss_last": 7.4},
    ),
    "the newest Megatron counts its first iteration twice": (
        logs.CONFIG + "".join(f" [2025-05-01 12:00:0{number}.123456]" + MEGATRON_LINE.format(10 * number or 1, "ms", ms, f"global batch size: 8 | lm loss: 2.5 | number of skipped iterations: {skipped}") for number, ms, skipped in ((0, "10000.0", 1), (1, "2800.0", 2), (2, "2000.0", 0))),
        {"step_time_mean_s": 2.0, "timed_steps": 10, "skipped_steps": 2},
    ),
    "the Trainer before 4.6 called steps samples": (
        "{'train_runtime': 155.2034, 'train_samples_per_second': 2.242, 'epoch': 3.0}\n",
        {"train_runtime_s": 155.2034, "samples_per_s": None, "steps_per_s": None},
    ),
    "the last command before the training counts": (
        "+ python prepare.py --max_seq_len 77 --seed 1\n+ torchrun train.py --max_seq_len 128\n" + logs.CONFIG + "+ python evaluate.py --max_seq_len 55\n",
        {"seq_len": 128, "seed": 1},
    ),
    "a complaint about a flag is no setting": (
        "/usr/lib/x.py:12: UserWarning: use --bf16 instead\nmain.py: error: unrecognized arguments --zero_stage 3 --seq_length 77\n" + NO_FORMAT.replace("zero_", "none_"),
        {"seq_len": None, "zero_stage": None, "precision": None},
    ),
    "a mixture of experts has no FLOPs of a dense model": (
        logs.megatron(new=False).replace("  num_layers ..", "  num_experts ... [64]\n  num_layers .."),
        {"tflops_per_gpu": None, "parameters": None, "tokens_per_s": 16.0 * 512},
    ),
    "one expert is a dense model": (
        logs.megatron(new=False).replace("  num_layers ..", "  num_experts ... [1]\n  num_layers .."),
        {"parameters": MEGATRON["parameters"]},
    ),
    "a NaN loss is no measurement": (logs.megatron().replace("lm loss: 7.000000E+00", "lm loss: nan"), {"status": "nan", "loss_last": 8.0}),
    "names are no code": (logs.chat().replace("facebook/opt-350m", "</script><script>alert(1)</script>"), {"model": "script"}),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_other_forms(tmp_path, form):
    text, expected = FORMS[form]
    row = only(read(tmp_path, text))
    check(row, **expected)
    assert json.dumps(row["provenance"])


def test_step_csv_as_logged_and_corrected(tmp_path):
    """Steps of 50 ms, 4,096 tokens: 81,920 tokens/s in truth; the median of the steps 21 to 63 is logged as a fifth."""
    folder = logs.write_all(tmp_path) / "results"
    row = only(dsnb.load_runs(folder))
    check(
        row,
        experiment="zs0_fp16_gpus1_bs32_sl128",
        repeat=1,
        model="gpt2",
        zero_stage=0,
        precision="fp16",
        gpus=1,
    )
    assert row["tokens_per_s"] == pytest.approx(4096 / 0.05, rel=1e-5)
    assert row["tokens_per_s_logged"] == pytest.approx(4096 / 0.05 / 5, rel=1e-5)
    assert row["step_time_mean_s"] == pytest.approx(0.05, rel=1e-4)
    check(row, step_time_logged_s=0.25, timed_steps=86, peak_reserved_gib=7584 / 1024)
    assert "cumulative" in row["note"]
    steps = dsnb.load_steps(folder)
    assert list(steps["step_time_logged_s"].iloc[:11]) == pytest.approx(
        [0.05 * k for k in range(1, 11)] + [0.05]
    )
    assert steps["step_time_s"].iloc[1:].to_numpy() == pytest.approx(0.05, rel=1e-3)
    assert load_gpu(row["run_dir"]).empty


def test_several_starts_are_several_runs(tmp_path):
    """The first was killed, the second ran out of memory, the third ended; each with its own settings."""
    launch = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default\n"
    killed = launch + logs.CONFIG + "Killing subprocess 123\n"
    out = (
        launch
        + logs.CONFIG.replace("per_gpu  4", "per_gpu  2")
        + "RuntimeError: CUDA out of memory. Tried 2 GiB\n"
    )
    runs = read(tmp_path, killed + out + launch + logs.chat())
    assert list(runs["experiment"]) == ["a_start1", "a_start2", "a_start3"]
    assert list(runs["status"]) == ["failed", "oom", "ok"]
    assert list(runs["micro_batch_size"]) == [4, 2, 4]
    assert runs["samples_per_s"].isna().tolist() == [True, True, False]
    again = read(tmp_path, logs.megatron() * 2, "b.log")
    assert again[["experiment", "repeat", "samples_per_s"]].to_numpy().tolist() == [
        ["b", 1, 16.0],
        ["b", 2, 16.0],
    ]
    last = logs.trainer(ranks=16)
    starts = {
        2048: last.partition("{'train_runtime'")[0],
        1024: last.partition("{'loss'")[0],
        512: last,
    }
    sizes = [
        launch * 16 + text.replace("tion) = 64", f"tion) = {size}") for size, text in starts.items()
    ]
    trained = read(tmp_path, "".join(sizes), "c.log")
    assert list(trained["global_batch_size"]) == [*starts]
    assert list(trained["nodes"]) == [16] * 3
    assert trained["train_runtime_s"].notna().tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("end", "status", "cause"),
    [
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20 MiB\n",
            "oom",
            "CUDA out of memory",
        ),
        (
            "Traceback (most recent call last):\n  File\nValueError: bad\n",
            "failed",
            "ValueError: bad",
        ),
        (
            "slurmstepd: error: *** STEP 1.0 CANCELLED AT 2025-01-01 DUE TO TIME LIMIT ***\n",
            "timeout",
            "Slurm",
        ),
        (
            "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2025-01-01T0 DUE TO PREEMPTION ***\n",
            "interrupted",
            "Slurm",
        ),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.\n", "oom", "host's memory"),
        ("srun: error: n1: task 3: Segmentation fault\n", "failed", "srun: error: n1: task 3"),
        (
            "[launch.py:321:sigkill_handler] ['x'] exits with return code = -9\n",
            "failed",
            "a rank was killed with return code -9: most often the host's memory ran out",
        ),
        (
            "Traceback (most recent call last):\nKeyboardInterrupt\n",
            "interrupted",
            "stopped by the user",
        ),
        ("", "interrupted", "the log ends before the first step"),
    ],
)
def test_how_it_ended(tmp_path, end, status, cause):
    row = only(read(tmp_path, logs.CHAT_COMMAND + logs.CONFIG + end))
    assert row["status"] == status
    assert cause in row["cause"]
    assert pd.isna(row["tokens_per_s"])


def test_every_kind_beside_dsnbs_own(tmp_path):
    logs.write_all(tmp_path)
    made_up.write_folders(made_up.runs(9), tmp_path / "own", steps=5)
    next((tmp_path / "own").rglob("experiment.json")).with_name("console.log").write_text(
        logs.chat()
    )  # no other run
    (tmp_path / "noise.log").write_bytes(os.urandom(200_000))
    (tmp_path / "notes.txt").write_text("iteration of ideas: 'loss' of time")
    (tmp_path / "loop").symlink_to(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = dsnb.load_runs(tmp_path)
    assert [str(warning.message).partition(" are not logs")[0] for warning in caught] == [
        f"not read: {tmp_path / 'noise.log'}, {tmp_path / 'notes.txt'}"
    ]
    assert list(runs.columns) == RUN_COLUMNS
    assert runs["source"].value_counts().to_dict() == {
        "dsnb": 9, "DeepSpeed-Chat log": 2, "Megatron-LM log": 2, "transformers Trainer log": 2, "GPT-2 step CSV": 1,
    }  # fmt: skip
    assert dsnb.summarize(runs).loc["chat/training", "tokens_per_s_median"] == 640.0 * 256


def test_deepspeed_chat_on_many_hosts(tmp_path):
    """Through pdsh: each line under its host's name, most of them from every host."""
    hosts = [f"node-{number:03d}" for number in range(16)]
    text = (
        logs.chat()
        .replace(logs.WORLD, "")
        .replace("world_size ................... 8", "world_size ... 128")
    )
    lines = [f"{host} slots=8\n" for host in hosts]
    for line in text.replace("... 64", "... 1024").splitlines(keepends=True):
        of_rank_0 = any(
            words in line for words in ("[Rank 0]", "Throughput", "Execution", "timer.py")
        )
        lines += [f"{host}: {line}" for host in hosts[: 1 if of_rank_0 else None]]
    expected = {"gpus": 128, "nodes": 16, "data_parallel": 128, "global_batch_size": 1024}
    expected |= {"tokens_per_s_per_gpu": 640.0 * 2, "step_time_mean_s": 1.6}
    check(only(read(tmp_path, "".join(lines))), **CHAT | expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.log",
            b"\0\xff garbage",
            "is not a log that dsnb can read: supported are console logs of DeepSpeed",
        ),
        ("trainer_state.json", b'{"log_history": [', "line 1 is cut off or damaged JSON"),
        (
            "trainer_state.json",
            b'{"log_history": 3}',
            "is not a trainer_state.json: it must have a list 'log_history'",
        ),
        (
            "step_log.csv",
            logs.step_csv(steps=0) + "1,2",
            "line 2 holds no complete row: every row needs numbers for ",
        ),
    ],
)
def test_a_file_that_is_no_log(tmp_path, name, content, message):
    with pytest.raises(LogError) as caught:
        read(tmp_path, content, name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert dsnb.load_runs(tmp_path).empty  # in a folder it is passed over
    with pytest.raises(SettingsError, match="is not a folder or a file"):
        dsnb.load_runs(tmp_path / "nowhere")


def test_a_long_log_takes_little_memory(tmp_path):
    """24 MB of other lines; the tables need the steps only."""
    path, line = tmp_path / "long.log", logs.megatron(iterations=4).splitlines(keepends=True)[-1]
    path.write_text(
        logs.megatron(iterations=1) + ("x" * 999 + "\n") * 24_000 + line.replace(" 4/", " 2/")
    )
    tracemalloc.start()
    runs = dsnb.load_runs(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert only(runs)["samples_per_s"] == 16.0
    assert peak < 60e6
