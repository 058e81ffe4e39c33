"""Small logs in the formats of other programs, with figures that one can check by hand."""
# ruff: noqa: E501  (programs print lines as long as they like)

import json
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
    steps = timer(10, 2, 700.5, 512.0, 33.5, skipped=3) + timer(20, 4, 650.25, 640.0, 33.78, skipped=3)
    end = "Execution time: 2.0000 seconds for 20 steps\nThroughput: 640.0000 samples/sec\n" if final else ""
    return CHAT_COMMAND + WORLD + CONFIG + "***** Running training *****\n" + steps + end


def with_hosts(log: str, host: str = "n1") -> str:
    """Give a log as pdsh passes it on."""
    return "".join(f"{host}: {line}" for line in log.splitlines(keepends=True))


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
        + ("  recompute_granularity ........................... full\n" if new else "")
        + "  seq_length ...................................... 512\n"
        "  tensor_model_parallel_size ...................... 2\n"
        "  train_iters ..................................... 100\n"
        "  world_size ...................................... 16\n"
        "-------------------- end of arguments ---------------------\n"
        " > padded vocab (size: 50257) with 175 dummy tokens (new size: 50432)\n"
    )
    lines = []
    for number in range(1, iterations + 1):
        ms = 10_000.0 if number == 1 else 2000.0
        stamp = f" [2024-05-01 12:00:{2 * number:02d}]" if new else ""
        rate = " throughput per GPU (TFLOP/s/GPU): 55.5 |" if new else ""
        loss = "lm loss" if new else "lm-loss"
        lines.append(
            f"{stamp} iteration {number:8d}/     100 | consumed samples: {32 * number:12d} | "
            f"elapsed time per iteration (ms): {ms:.1f} |{rate} learning rate: 1.500E-04 | global batch size:    32 | "
            f"{loss}: {11 - number:.6E} | loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   1 | "
            "number of nan iterations:   0 |\n"
        )
    memory = "".join(
        f"[Rank {rank}] (after 1 iterations) memory (MB) | allocated: 1000.0 | max allocated: {2048.0 + 512 * rank} | "
        f"reserved: 3000.0 | max reserved: 4096.0\n"
        for rank in (1, 0)
    )
    return head + lines[0] + memory + "".join(lines[1:])


def trainer(quoted: bool = False, ranks: int = 2) -> str:
    """10 steps of 64 sequences in 20 s, printed by every rank; `quoted` as transformers 5 prints numbers."""
    mark = "'" if quoted else ""
    losses = "".join(
        f" {10 * step}%|#    | {step}/10 [00:0{step % 10}<00:10,  2.00s/it]\r"
        f"{{'loss': {mark}{5 - step / 10}{mark}, 'grad_norm': {mark}1.5{mark}, 'learning_rate': {mark}5e-05{mark}, 'epoch': {mark}0.1{mark}}}\n"
        for step in (5, 10)
    )
    final = "".join(
        f"{{'train_runtime': {mark}{19.5 + rank / 2}{mark}, 'train_samples_per_second': {mark}32.0{mark}, "
        f"'train_steps_per_second': {mark}0.5{mark}, 'train_loss': {mark}4.25{mark}, 'epoch': {mark}1.0{mark}}}\n"
        for rank in range(ranks)
    )
    settings = (
        "***** Running training *****\n  Num examples = 1,280\n  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 64\n"
        "  Gradient Accumulation steps = 2\n  Total optimization steps = 10\n"
        "  Number of trainable parameters = 124,439,808\n"
    )
    return settings + losses + final


def trainer_state() -> str:
    """The same training as the Trainer keeps it."""
    log = [{"step": step, "epoch": step / 10, "loss": 5 - step / 10, "learning_rate": 5e-05} for step in (5, 10)]
    end = {"step": 10, "train_runtime": 20.0, "train_samples_per_second": 32.0, "train_steps_per_second": 0.5}
    state = {"epoch": 1.0, "global_step": 10, "log_history": [*log, end | {"train_loss": 4.25}], "max_steps": 10}
    return json.dumps(state | {"num_input_tokens_seen": 81920, "train_batch_size": 8}, indent=2)


def step_csv(steps: int = 63, seconds: float = 0.05, epochs: int = 2) -> str:
    """Steps of `seconds` each, 4,096 tokens, with the timer of the GPT-2 benchmark: it restarts after every tenth."""
    rows, now = [], 1_000_000.0
    for _ in range(epochs):
        for step in range(1, steps + 1):
            now += seconds
            cumulative = seconds * ((step - 1) % 10 + 1)
            rows.append(f"{now:.6f},{step},{cumulative:.6f},{9.0:.6f},{4096 / cumulative:.2f},7584.0")
    return "timestamp,global_step,step_time_s,loss,tokens_per_sec,gpu_max_mem_mb\n" + "\n".join(rows) + "\n"


GPU_CSV = "timestamp,gpu_index,gpu_util_pct,mem_used_mb,power_w\n1.0,0,80,8192,400\n2.0,0,90,10240,500\n"


def write_all(folder: Path) -> Path:
    """Write one log of every kind, as people keep them."""
    (folder / "chat").mkdir(parents=True)
    (folder / "chat" / "training.log").write_text(chat())
    (folder / "chat" / "pdsh.out").write_text(with_hosts(chat()))
    (folder / "megatron").mkdir()
    (folder / "megatron" / "slurm-123.out").write_text(megatron())
    (folder / "megatron" / "old").write_text(megatron(new=False))
    (folder / "trainer").mkdir()
    (folder / "trainer" / "console.txt").write_text(trainer())
    (folder / "trainer" / "trainer_state.json").write_text(trainer_state())
    run = folder / "results" / "zs0_fp16_gpus1_bs32_sl128" / "run1"
    run.mkdir(parents=True)
    (run / "step_log.csv").write_text(step_csv())
    (run / "gpu_log.csv").write_text(GPU_CSV)
    return folder
