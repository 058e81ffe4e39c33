"""Logs with the shape and the figures of public benchmark logs, written from the formats in `foreign_logs`.

The logs themselves are not ours to publish. These have what makes them hard to read: many hosts through pdsh, what
every rank repeats, three starts in one file, and the end figures that their authors state.
"""

import re
from pathlib import Path

from tests.support import foreign_logs

NOISE = (
    "[2024-07-08 07:04:10,000] [INFO] [real_accelerator.py:203] Setting ds_accelerator to cuda (auto detect)",
    "[93m [WARNING] [0m async_io requires the dev libaio .so object and headers but these were not found.",
    "Loading checkpoint shards:  50%|█████     | 1/2 [00:04<00:04,  4.20s/it]",
    "Time to load fused_adam op: 0.10136 seconds",
)  # fmt: skip
LAUNCHER = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid overload.\n"
OF_RANK_0 = ("[Rank 0]", "Throughput", "Execution", "config.py", "timer.py", "*****")


def replaced(text: str, **values: object) -> str:
    """Return a log with other values for names that are followed by dots, `=`, or a space and a number."""
    for name, value in values.items():
        text, count = re.subn(rf"(\b{name}(?: \.+ |=|  | ))[\d.]+", rf"\g<1>{value}", text)
        assert count, name
    return text


def one_node() -> str:
    """OPT-350M on 8 GPUs of one node: 192 sequences a step, with a running average beside the final throughput."""
    text = foreign_logs.chat(final=False)
    text = text.replace("{'n1': [0, 1, 2, 3], 'n2': [0, 1, 2, 3]}", "{'n1': [0, 1, 2, 3, 4, 5, 6, 7]}")
    text = text.replace("nnodes=2, num_local_procs=4", "nnodes=1, num_local_procs=8")
    text = replaced(
        text,
        per_device_train_batch_size=24,
        max_seq_len=512,
        train_batch_size=192,
        RunningAvgSamplesPerSec=950.7571805799944,
    )
    text = replaced(text, gradient_accumulation_steps=1, train_micro_batch_size_per_gpu=24, skipped=9)
    return text + "Execution time: 20.3507 seconds for 100 steps\nThroughput: 943.4550 samples/sec\n"


def through_pdsh(nodes: int, noise: int = 1) -> str:
    """OPT-13B with LoRA on nodes of 8 GPUs: each line under its host's name, and most of them from every rank."""
    hosts = [f"node-{number:03d}" for number in range(1, nodes + 1)]
    text = foreign_logs.chat(final=False)
    command = foreign_logs.CHAT_COMMAND.replace("--seed 7", "--seed 7 --lora_dim 128").replace("350m", "13b")
    world = ", ".join(f"'{host}': [0, 1, 2, 3, 4, 5, 6, 7]" for host in hosts)
    text = re.sub(r"\{'n1'.*\}", f"{{{world}}}", text.removeprefix(foreign_logs.CHAT_COMMAND))
    text = text.replace("nnodes=2, num_local_procs=4", f"nnodes={nodes}, num_local_procs=8")
    text = replaced(text, dist_world_size=8 * nodes, world_size=8 * nodes, train_batch_size=64 * nodes)
    text += "Execution time: 88.5131 seconds for 100 steps\nThroughput: 1156.8893 samples/sec\n"
    lines = [f"{host} slots=8" for host in hosts] + command.splitlines()
    for line in text.splitlines():
        lines += [f"{host}: {line}" for host in (hosts[:1] if any(words in line for words in OF_RANK_0) else hosts)]
        lines += [f"{host}: {words}" for words in NOISE * noise for host in hosts]
    return "\n".join(lines) + "\n"


def three_starts() -> str:
    """The Trainer on 16 nodes, started with three batch sizes in turn; only the last one ends, as every rank prints."""
    launchers = ("*" * 41 + "\n" + LAUNCHER + "*" * 41 + "\n") * 16
    last = foreign_logs.trainer(ranks=16)
    starts = [last.partition("{'train_runtime'")[0], last.partition("{'loss'")[0], last]
    figures = {
        "'train_samples_per_second'": "3.663",
        "'train_steps_per_second'": "0.007",
        "'train_runtime'": "273.0149",
    }
    for name, value in figures.items():
        starts[-1] = re.sub(rf"({name}: )[\d.]+", rf"\g<1>{value}", starts[-1])
    batches = zip((2048, 1024, 512), starts, strict=True)
    return "".join(launchers + text.replace("accumulation) = 64", f"accumulation) = {size}") for size, text in batches)


def in_three_dimensions() -> str:
    """Megatron-DeepSpeed on 64 GPUs: tensor parallel 4, pipeline parallel 16, 49 iterations."""
    text = foreign_logs.megatron(new=False, iterations=49)
    first = (
        "using world size: 64, data-parallel-size: 1, tensor-model-parallel size: 4, pipeline-model-parallel size: 16 "
    )
    text = first + "\n" + text.partition("\n")[2]
    settings = {"tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 16, "seq_length": 1024}
    return replaced(text, world_size=64, **settings)


def write_all(folder: Path) -> Path:
    """Write one log of each kind."""
    folder.mkdir(parents=True)
    (folder / "opt-350m_1node.log").write_text(one_node())
    (folder / "opt-13b_16nodes.log").write_text(through_pdsh(16))
    (folder / "gpt2_16nodes.log").write_text(three_starts())
    (folder / "megatron").mkdir()
    (folder / "megatron" / "gpt2_3d_16nodes.log").write_text(in_three_dimensions())
    for name, tokens_per_s in (("zs0", 64_033), ("zs3", 24_453)):
        run = folder / f"{name}_fp16_gpus1_bs32_sl128" / "run1"
        run.mkdir(parents=True)
        (run / "step_log.csv").write_text(foreign_logs.step_csv(seconds=4096 / tokens_per_s))
    return folder
