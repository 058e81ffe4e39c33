"""Small logs in the formats of other programs, with figures that one can check by hand."""
# ruff: noqa: E501  (programs print lines as long as they like)

import json
import re
from pathlib import Path

CHAT_COMMAND = (
    "[2024-07-08 05:14:51,770] [INFO] [runner.py:568:main] cmd = /usr/bin/python3 -u -m deepspeed.launcher.launch "
    "--world_info=eyJ9 --master_addr=n1 /home/me/training/step1_supervised_finetuning/main.py --data_path some/data "
    "--model_name_or_path facebook/opt-350m --per_device_train_batch_size 4 --max_seq_len 256 --learning_rate 1e-5 "
    "--gradient_accumulation_steps 2 --zero_stage 2 --gradient_checkpointing --hub_token hf_secret --seed 7\n"
)
CONFIG = """\
[2024-07-08 05:16:08,835] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed info: version=0.14.4, git-hash=unknown, git-branch=unknown
[2024-07-08 05:16:08,836] [INFO] [logging.py:96:log_dist] [Rank 0] DeepSpeed Basic Optimizer = FusedAdam
[2024-07-08 05:16:08,837] [INFO] [logging.py:96:log_dist] [Rank 0] step=0, skipped=0, lr=[0.0], mom=[(0.9, 0.95)]
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print] DeepSpeedEngine configuration:
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   bfloat16_enabled ............. True
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   fp16_enabled ................. False
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   gradient_accumulation_steps .. 2
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   gradient_clipping ............ 1.0
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   train_batch_size ............. 64
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   train_micro_batch_size_per_gpu  4
[2024-07-08 05:16:08,837] [INFO] [config.py:1001:print]   world_size ................... 8
[2024-07-08 05:16:08,838] [INFO] [config.py:1001:print]   zero_config .................. stage=2 offload_param=DeepSpeedZeroOffloadParamConfig(device='none', x=1) offload_optimizer=DeepSpeedZeroOffloadOptimizerConfig(device='cpu', y=2)
[2024-07-08 05:16:08,838] [INFO] [config.py:1001:print]   zero_optimization_stage ...... 2
"""
WORLD = (
    "[2024-07-08 05:14:55,997] [INFO] [launch.py:146:main] WORLD INFO DICT: {'n1': [0, 1, 2, 3], 'n2': [0, 1, 2, 3]}\n"
    "[2024-07-08 05:14:55,997] [INFO] [launch.py:152:main] nnodes=2, num_local_procs=4, node_rank=0\n"
    "[2024-07-08 05:14:55,997] [INFO] [launch.py:164:main] dist_world_size=8\n"
)


def timer(step: int, second: int, running: float, now: float, peak: float, skipped: int = 0) -> str:
    """Give the two lines that DeepSpeed prints every `steps_per_print` steps."""
    stamp = f"[2024-07-08 05:17:{second:02d},000] [INFO]"
    return (
        f"{stamp} [logging.py:96:log_dist] [Rank 0] step={step}, skipped={skipped}, lr=[1e-05], mom=[(0.9, 0.95)]\n"
        f"{stamp} [timer.py:258:stop] epoch=0/micro_step={2 * step}/global_step={step}, "
        f"RunningAvgSamplesPerSec={running}, CurrSamplesPerSec={now}, MemAllocated=5.53GB, MaxMemAllocated={peak}GB\n"
    )


def chat(final: bool = True) -> str:
    """A run of DeepSpeed-Chat on 2 nodes of 4: 64 sequences of 256 tokens a step, 640 samples/s."""
    steps = timer(10, 2, 700.5, 512.0, 33.5, skipped=3) + timer(
        20, 4, 650.25, 640.0, 33.78, skipped=3
    )
    end = (
        "Execution time: 2.0000 seconds for 20 steps\nThroughput: 640.0000 samples/sec\n"
        if final
        else ""
    )
    return CHAT_COMMAND + WORLD + CONFIG + "***** Running training *****\n" + steps + end


def prefixed(log: str, prefix: str = "n1: ") -> str:
    """Give a log with a prefix before every line, as pdsh, srun or torchrun adds one."""
    return "".join(prefix + line for line in re.split(r"(?<=\n)(?=.)", log, flags=re.DOTALL))


def megatron(new: bool = True, iterations: int = 4) -> str:
    """32 sequences of 512 tokens an iteration, 2 s each after a first one of 10 s, on 16 GPUs: TP 2, PP 4, DP 2."""
    head = (
        "using world size: 16, data-parallel-size: 2, tensor-model-parallel size: 2, pipeline-model-parallel size: 4 \n"
        "------------------------ arguments ------------------------\n"
        "  bf16 ............................................ True\n"
        "  global_batch_size ............................... 32\n"
        "  hidden_size ..................................... 1024\n"
        "  micro_batch_size ................................ 4\n"
        "  num_layers ...................................... 24\n"
        "  optimizer ....................................... adam\n"
        "  params_dtype .................................... torch.bfloat16\n"
        "  pipeline_model_parallel_size .................... 4\n"
        + f"  recompute_granularity ........................... {'full' if new else None}\n"
        + "  seq_length ...................................... 512\n"
        "  tensor_model_parallel_size ...................... 2\n"
        "  train_iters ..................................... 100\n"
        "  world_size ...................................... 16\n"
        "-------------------- end of arguments ---------------------\n"
        " > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)\n"
    )
    stamp, rate, loss = "", "", "lm-loss"
    if new:
        stamp, rate, loss = (
            " [2024-05-01 12:00:02]",
            " throughput per GPU (TFLOP/s/GPU): 55.5 |",
            "lm loss",
        )
    lines = [
        f"{stamp} iteration {number:8d}/     100 | consumed samples: {32 * number:12d} | "
        f"elapsed time per iteration (ms): {10_000.0 if number == 1 else 2000.0} |{rate} learning rate: 1.500E-04 | "
        f"global batch size:    32 | {loss}: {11 - number:.6E} | grad norm: 1.234 | number of skipped iterations:   1 | "
        "number of nan iterations:   0 |\n"
        for number in range(1, iterations + 1)
    ]
    memory = "".join(
        f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 1000.0 | max allocated: {2048.0 + 512 * rank} | "
        f"reserved: 3000.0 | max reserved: 4096.0\n"
        for rank in (1, 0)
    )
    return head + lines[0] + memory + "".join(lines[1:])


def trainer(quoted: bool = False, ranks: int = 2) -> str:
    """10 steps of 64 sequences in 20 s, printed by every rank; `quoted` as transformers 5 prints numbers."""
    log = (
        "***** Running training *****\n  Num examples = 1,280\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        "  Gradient Accumulation steps = 2\n  Total optimization steps = 10\n"
        "  Number of trainable parameters = 124,439,808\n"
    )
    for step in (5, 10):
        log += f" {10 * step}%|#    | {step}/10 [00:0{step % 10}<00:10,  2.00s/it]\r"
        log += (
            f"{{'loss': {5 - step / 10}, 'grad_norm': 1.5, 'learning_rate': 5e-05, 'epoch': 0.1}}\n"
        )
    for rank in range(ranks):
        log += f"{{'train_runtime': {19.5 + rank / 2}, 'train_samples_per_second': 32.0, "
        log += "'train_steps_per_second': 0.5, 'train_loss': 4.25, 'epoch': 1.0}\n"
    return re.sub(r"(?<=': )[\d.e-]+", r"'\g<0>'", log) if quoted else log


def trainer_state() -> str:
    """The same training as the Trainer keeps it."""
    log = [
        {"step": step, "epoch": step / 10, "loss": 5 - step / 10, "learning_rate": 5e-05}
        for step in (5, 10)
    ]
    log += [
        {
            "step": 10,
            "train_runtime": 20.0,
            "train_samples_per_second": 32.0,
            "train_steps_per_second": 0.5,
        }
    ]
    state = {
        "epoch": 1.0,
        "global_step": 10,
        "log_history": log,
        "max_steps": 10,
        "train_batch_size": 8,
    }
    return json.dumps(state | {"num_input_tokens_seen": 81920}, indent=2)


def step_csv(steps: int = 63, seconds: float = 0.05, epochs: int = 2) -> str:
    """Steps of `seconds` each, 4,096 tokens, with the timer of the GPT-2 benchmark: it restarts after every tenth."""
    rows, now = (
        "timestamp,global_step,step_time_s,loss,tokens_per_sec,gpu_max_mem_mb\n",
        1_000_000.0,
    )
    for step in [*range(1, steps + 1)] * epochs:
        now += seconds
        cumulative = seconds * ((step - 1) % 10 + 1)
        rows += f"{now:.6f},{step},{cumulative:.6f},9.0,{4096 / cumulative:.2f},7584.0\n"
    return rows


def traced_trainer(launcher: str = "torchrun --nproc_per_node 4") -> str:
    """The same training as `trainer()`, with DeepSpeed, started by a script under `set -x`: 4 GPUs, micro-batch 8."""
    command = (
        "examples/run_clm.py --model_name_or_path openai-community/gpt2 --do_train --per_device_train_batch_size 8 "
        "--gradient_accumulation_steps 2 --block_size 512 --bf16 --gradient_checkpointing --learning_rate 2e-5 "
        "--deepspeed ./ds_z2.json --empty '' --config_overrides n_embd=64,n_layer=2\n"
    )
    return (
        "+++ type -t module\n++ '[' -z function ']'\n"
        "+ python tools/preprocess_data.py --seq_length 77 --seed 5\n"
        "+ srun --jobid 1 bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'\n"
        f"+ {launcher} {command}"
        + CONFIG.replace("per_gpu  4", "per_gpu  8").replace(
            "world_size ................... 8", "world_size ... 4"
        )
        + trainer()
    )


def zero_megatron(stage: int, pipeline: int = 1) -> str:
    """Megatron-DeepSpeed on 64 GPUs, TP 4, micro-batch 4: 768 sequences of 1,024 tokens in 120 s, in 124 s at first.

    An old fork without a global batch size, whose first line has no pipeline.
    """
    ways, accumulated = 16 // pipeline, 12 * pipeline
    arguments: dict[str, object] = {
        "batch_size": 4, "checkpoint_activations": True, "deepspeed": True, "deepspeed_activation_checkpointing": False,
        "gas": accumulated, "hidden_size": 1024, "lr": 0.00015, "model_parallel_size": 4, "num_layers": 24,
        "params_dtype": "torch.float16", "seq_length": 1024, "train_iters": 1000, "world_size": 64, "zero_stage": stage,
    }  # fmt: skip
    arguments |= {"pipe_parallel_size": pipeline} if pipeline > 1 else {}
    config = CONFIG.replace("stage=2", f"stage={stage}")
    for name, value in {
        "train_batch_size": 768, "gradient_accumulation_steps": accumulated, "world_size": ways,
        "zero_optimization_stage": stage, "bfloat16_enabled": False, "fp16_enabled": True,
    }.items():  # fmt: skip
        config = re.sub(rf"({name} \.+) .*", rf"\1 {value}", config)
    steps = ""
    for number, seconds in enumerate((124, 120, 120, 120), start=1):
        steps += "[2021-05-25 22:30:04,195] [INFO] [logging.py:60:log_dist] [Rank 0] "
        steps += f"step={number}, skipped=1, lr=[0.0], mom=[0]\n"
        if pipeline > 1:
            steps += f"steps: {number} loss: 9.5 iter time (s): {seconds}.0 samples/sec: 6.2\n"
        steps += (
            f" iteration {number:8d}/    1000 | elapsed time per iteration (ms): {seconds}000.0 |"
        )
        steps += f" lm loss: {13 - number:.6E} | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    return (
        "using world size: 64 and model-parallel size: 4\nusing torch.float16 for parameters ...\n"
        "-------------------- arguments --------------------\n"
        + "".join(f"  {name} .............. {value}\n" for name, value in arguments.items())
        + "---------------- end of arguments ----------------\n"
        "> padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)\n"
        + (topology(pipeline, ways, 4) if pipeline > 1 else "")
        + config
        + steps
        + "after 1 iterations memory (MB) | allocated: 1024.0 | max allocated: 2048.0 | reserved: 3072.0 | max reserved: 4096.0\n"
        "[after training is done] datetime: 2021-05-25 23:30:04 \n"
    )


def topology(pipeline: int, data: int, model: int | None) -> str:
    """What DeepSpeed's pipeline engine prints of who does what."""
    places = [(p, d, m) for p in range(pipeline) for d in range(data) for m in range(model or 1)]
    names = [f"pipe={p}, data={d}" + (f", model={m}" if model else "") for p, d, m in places]
    ranks = ", ".join(f"ProcessCoord({name}): {rank}" for rank, name in enumerate(names))
    return f"SEED_LAYERS=False\nUsing topology: {{{ranks}}}\n"


def write_all(folder: Path) -> Path:
    """Write one log of every kind, as people keep them."""
    run = "results/zs0_fp16_gpus1_bs32_sl128/run1"
    files = {
        "chat/training.log": chat(), "chat/pdsh.out": prefixed(chat()), "megatron/slurm-123.out": megatron(),
        "megatron/old": megatron(new=False), "trainer/console.txt": trainer(),
        "trainer/trainer_state.json": trainer_state(), f"{run}/step_log.csv": step_csv(),
    }  # fmt: skip
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
