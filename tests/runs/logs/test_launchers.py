"""Logs as launch scripts make them: traces of `set -x`, Megatron-DeepSpeed with ZeRO, printed topologies."""
# ruff: noqa: E501  (programs print lines as long as they like)

import pandas as pd
import pytest

import dsnb
from dsnb.runs.logs import console
from dsnb.runs.logs.logged_run import LoggedRun
from tests.runs.logs.test_console import check, kinds, only, read
from tests.support import foreign_logs as logs


@pytest.mark.parametrize("launcher", ["torchrun --nproc_per_node 4", "deepspeed --num_gpus 4", "accelerate launch"])
@pytest.mark.parametrize("prefix", ["", "node7: "])
def test_a_trainer_under_set_x(tmp_path, launcher, prefix):
    text = "".join(prefix + line for line in logs.traced_trainer(launcher).splitlines(keepends=True))
    (tmp_path / "bystander.log").write_text(logs.chat())
    if prefix:  # a prefix is known by a time stamp behind it
        text = f"{prefix}[2024-07-08 05:14:48,908] [INFO] [real_accelerator.py:203:get_accelerator] cuda\n{text}"
    row = only(read(tmp_path, text))
    check(
        row, status="ok", source="transformers Trainer log", strategy="deepspeed", model="gpt2", zero_stage=2,
        precision="bf16", micro_batch_size=8, grad_accum=2, global_batch_size=64, gpus=4, data_parallel=4,
        tensor_parallel=1, pipeline_parallel=1, seq_len=512, steps=10, learning_rate=2e-5, activation_checkpointing=True,
        samples_per_s=32.0, tokens_per_s=32.0 * 512, tokens_per_s_per_gpu=8.0 * 512, step_time_s=2.0,
        train_runtime_s=20.0,
    )  # fmt: skip
    assert len(dsnb.load_runs(tmp_path)) == 2


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("old", [True, False])
def test_megatron_deepspeed_with_zero(tmp_path, stage, old):
    row = only(read(tmp_path, logs.zero_megatron(stage, old=old)))
    check(
        row, status="ok", source="Megatron-DeepSpeed log", strategy="megatron-deepspeed", zero_stage=stage, gpus=64,
        tensor_parallel=4, pipeline_parallel=1, data_parallel=16, micro_batch_size=4, grad_accum=12,
        global_batch_size=768, precision="fp16", seq_len=1024, steps=1000, activation_checkpointing=True,
        samples_per_s=6.4, tokens_per_s=6.4 * 1024, tokens_per_s_per_gpu=102.4, step_time_s=120.0, timed_steps=3,
        loss_first=12.0, loss_last=9.0, peak_allocated_gib=2.0, peak_reserved_gib=4.0, learning_rate=0.00015,
    )  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("old", [True, False])
def test_megatron_deepspeed_with_a_pipeline(tmp_path, stage, old):
    row = only(read(tmp_path, logs.zero_megatron(stage, pipeline=16, old=old)))
    check(
        row, zero_stage=stage, gpus=64, tensor_parallel=4, pipeline_parallel=16, data_parallel=1, micro_batch_size=4,
        grad_accum=192, global_batch_size=768, samples_per_s=6.4, strategy="megatron-deepspeed",
    )  # fmt: skip


def test_the_engine_knows_skipped_steps_of_a_pipeline(tmp_path):
    """Megatron's lines say 0 though the engine skipped the first step; of a run that was resumed nobody can tell."""
    text = logs.zero_megatron(1, pipeline=16)
    row = only(read(tmp_path, text))
    check(row, skipped_steps=1)
    assert "skipped_steps" in kinds(row)["as logged"]
    later = text.replace("iteration        1/", "iteration      991/").replace("step=1,", "step=991,")
    for number in (2, 3, 4):
        later = later.replace(f"iteration        {number}/", f"iteration      {990 + number}/")
    check(only(read(tmp_path, later)), skipped_steps=0)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("  pipe_parallel_size .............. 16\n", 16),
        ("  pipe_parallel_size .............. 16...........updated\n", 16),
        ("  pipe_parallel_size .............. 0\n", 1),
        ("[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   pipe_parallel_size ........... 16\n", 16),
        ("[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   pipeline ..................... {'stages': 16, 'partition': 'best'}\n", 16),
        ("[2021-05-25 22:30:04,196] [INFO] [config.py:752:print]   pipeline ..................... {'stages': 'auto', 'partition': 'best'}\n", 1),
        (logs.topology(16, 1, 4), 16),
        (logs.topology(16, 1, 4).partition("\nUsing")[2].partition("\n")[2], 16),  # the stages alone
        ("".join(line for line in logs.topology(16, 1, 4).splitlines(keepends=True) if "STAGE=" in line), 16),
        ("MPU PP: [0, 4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60]\n", 16),
        ("> initializing pipeline model parallel with size 16\n", 16),
    ],
)  # fmt: skip
def test_where_a_pipeline_is_printed(tmp_path, said, expected):
    """Each alone, behind a first line that knows no pipeline; 64 GPUs, TP 4."""
    head, rest = logs.zero_megatron(1).split("\n", 1)
    engine = rest.replace("world_size ................... 16", f"world_size ................... {16 // expected}")
    engine = engine.replace(" gas .............. 12", f" gas .............. {12 * expected}")
    row = only(read(tmp_path, f"{head}\n{said}{engine}"))
    check(row, pipeline_parallel=expected, tensor_parallel=4, gpus=64, data_parallel=16 // expected)


def test_a_plain_pipeline_says_all_by_its_topology(tmp_path):
    steps = "".join(f"steps: {step} loss: 7.5 iter time (s): 0.500 samples/sec: 128.0\n" for step in (10, 20, 30))
    row = only(read(tmp_path, logs.topology(4, 8, None) + logs.CONFIG + steps))
    check(row, pipeline_parallel=4, data_parallel=8, tensor_parallel=1, gpus=32, global_batch_size=64)
    config = logs.CONFIG.replace("world_size ................... 8", "world_size ... 2").replace(
        "........ 64", "... 16"
    )
    row = only(read(tmp_path, logs.topology(2, 2, 3) + config + steps))
    check(row, pipeline_parallel=2, data_parallel=2, tensor_parallel=3, gpus=12)


def test_a_topology_that_is_cut_off_is_not_counted(tmp_path):
    """Of a line longer than what is read of it the last ranks are missing, and so the highest of the slowest axis."""
    whole = logs.topology(64, 4, 16)
    assert len(whole.splitlines()[1]) > 64 * 1024
    row = only(read(tmp_path, "pipeline_parallel\n" + logs.CONFIG + whole.splitlines()[1] + "\n"))
    check(row, pipeline_parallel=1)  # nothing else is said


def words(line, **expected):
    run = LoggedRun()
    console._read_line(run, line)
    assert {name: run.settings.get(name) for name in expected} == expected


def test_commands_of_a_trace():
    words("+ torchrun a.py --zero_stage 2 --seq_length '1024'\n", zero_stage=2, seq_len=1024)
    words("++ bash -c 'cd /x && python a.py --zero-stage=3 --bf16'\n", zero_stage=3, precision="bf16")
    words("+ export 'CMD=  a.py  --zero_stage 1  '\n", zero_stage=1)
    words("+ deepspeed a.py --note 'two words' --fp16 '' --lr 1e-4\n", precision="fp16", learning_rate=1e-4)
    words('+ deepspeed a.py "$@" --max_seq_len 128\n', seq_len=128)
    words("+ PYTHONWARNINGS=ignore python a.py --no_warning: --max_seq_len 128\n", seq_len=128)
    words("+ echo 'usage: a.py --zero_stage 3'\n", zero_stage=None)
    words("+ python a.py\n", zero_stage=None)
    words("+ CMD='a.py --zero_stage 2 \\\n", zero_stage=2)
    words("+ x='it'\\''s a.py --zero_stage 2'\n", zero_stage=2)


def test_a_command_over_several_lines(tmp_path):
    command = (
        "+ srun bash -c 'torchrun --nproc_per_node 8 \\\n    pretrain.py \\\n    --max_seq_len 256 \\\n"
        "    --model_name_or_path facebook/opt-350m \\\n    --bf16'\n  --max_seq_len 99 is a help text\n"
    )
    row = only(read(tmp_path, command + logs.CONFIG.replace("float16", "float17").replace("fp16", "fp17")))
    check(row, seq_len=256, model="opt-350m", precision="bf16")


def test_the_last_command_before_the_training_counts(tmp_path):
    before = "+ python prepare.py --max_seq_len 77 --seed 1\n+ torchrun train.py --max_seq_len 128\n"
    after = "+ python evaluate.py --max_seq_len 55\n"
    check(only(read(tmp_path, before + logs.CONFIG + after)), seq_len=128, seed=1)


def test_transformers_arguments_line_by_line(tmp_path):
    text = (
        "[INFO|training_args.py:1] Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\nbf16=True,\n"
        "gradient_accumulation_steps=2,\ngradient_checkpointing=True,\nper_device_train_batch_size=8,\nseed=7,\n)\n"
        "Grouping texts in chunks of 1024:  10%|#  | 1/10 [00:01<00:09,  1.00ex/s]\n"
    )
    expected = {"precision": "bf16", "grad_accum": 2, "activation_checkpointing": True, "seq_len": 1024, "seed": 7}
    check(only(read(tmp_path, text + logs.trainer())), micro_batch_size=8, **expected)


def test_megatron_that_only_shows_its_engine(tmp_path):
    """Without arguments, it is DeepSpeed's own lines that say with what it trains."""
    lines = logs.zero_megatron(2).splitlines(keepends=True)
    text = "".join(
        line for line in lines if ("arguments" not in line and ".............. " not in line) or "config.py" in line
    )
    check(only(read(tmp_path, text)), source="Megatron-DeepSpeed log", strategy="megatron-deepspeed", zero_stage=2)


@pytest.mark.parametrize(("experts", "is_dense"), [("None", True), ("[1]", True), ("8", False), ("[64]", False)])
def test_megatrons_mixture_of_experts_has_no_flops_of_a_dense_model(tmp_path, experts, is_dense):
    argument = f"  num_experts ..................................... {experts}\n"
    text = logs.megatron(new=False).replace("  num_layers ..", argument + "  num_layers ..")
    row = only(read(tmp_path, text))
    assert [pd.notna(row[name]) for name in ("tflops_per_gpu", "parameters")] == [is_dense] * 2
    check(row, tokens_per_s=16.0 * 512)
