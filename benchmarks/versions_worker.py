"""Train fixed settings with the DeepSpeed that is on PYTHONPATH: a process of `benchmarks.versions_measure`.

The loop is what a user's own script has: a model of transformers, `deepspeed.initialize`, forward,
backward, step. It imports nothing of dsnb, so that it runs where only torch, transformers and
DeepSpeed are installed. A request, one line of JSON on standard input, names a setting and how long
to time it; the answer is one line of JSON on standard output.
"""

import faulthandler
import gc
import importlib
import importlib.util
import json
import math
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

BATCHES = 4
"""Batches of random tokens that are used in turn: the loss falls, so that a wrong update shows."""
SMALL_BYTES = 2**20
"""Tensors of at most this size outlive a setting: DeepSpeed may share them between engines."""


@dataclass(frozen=True)
class Setting:
    """What is trained, and how."""

    name: str
    gpus: int
    model: str
    stage: int
    micro_batch: int
    seq_len: int
    accumulated: int = 1
    recomputed: bool = False

    @property
    def tokens_per_step(self) -> int:
        """Tokens of an optimizer step, over all GPUs."""
        return self.gpus * self.accumulated * self.micro_batch * self.seq_len

    @property
    def warmup(self) -> int:
        """Optimizer steps before the timed ones."""
        return 2 if self.accumulated > 1 else 3


_ALL = (
    Setting("one-z0", 1, "gpt2", 0, 8, 1024),
    Setting("one-z1", 1, "llama-374m", 1, 8, 1024),
    Setting("one-z2-acc8", 1, "gpt2", 2, 4, 1024, accumulated=8),
    Setting("one-z3", 1, "gpt2", 3, 8, 1024),
    Setting("one-z3-ckpt", 1, "llama-374m", 3, 8, 1024, recomputed=True),
    Setting("one-z3-acc8", 1, "gpt2", 3, 4, 1024, accumulated=8),
    Setting("two-z0", 2, "gpt2", 0, 8, 1024),
    Setting("two-z1", 2, "llama-374m", 1, 8, 1024),
    Setting("two-z2-acc8", 2, "llama-374m", 2, 4, 1024, accumulated=8),
    Setting("two-z3", 2, "llama-1.3b", 3, 4, 2048),
    Setting("two-z3-ckpt", 2, "llama-1.3b", 3, 4, 2048, recomputed=True),
    Setting("two-z3-acc8", 2, "gpt2", 3, 4, 1024, accumulated=8),
    # Limited by the GPU, so that a few rounds suffice to see 10 %.
    Setting("one-z1-large", 1, "llama-1.3b", 1, 8, 2048),
    Setting("one-z3-large", 1, "llama-1.3b", 3, 8, 2048),
    Setting("one-z3-ckpt-large", 1, "llama-1.3b", 3, 16, 2048, recomputed=True),
    Setting("one-z3-acc8-large", 1, "llama-1.3b", 3, 4, 2048, accumulated=8),
    Setting("two-z1-large", 2, "llama-1.3b", 1, 8, 2048),
    Setting("two-z3-large", 2, "llama-1.3b", 3, 8, 2048),
    Setting("two-z3-ckpt-large", 2, "llama-1.3b", 3, 16, 2048, recomputed=True),
    Setting("two-z3-acc8-large", 2, "llama-1.3b", 3, 4, 2048, accumulated=8),
)
SETTINGS = {setting.name: setting for setting in _ALL}


def config(setting: Setting) -> dict[str, Any]:
    """DeepSpeed's configuration of a setting; every other option keeps the version's default."""
    return {
        "train_micro_batch_size_per_gpu": setting.micro_batch,
        "gradient_accumulation_steps": setting.accumulated,
        "gradient_clipping": 1.0,
        "steps_per_print": 1_000_000,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": setting.stage},
    }


def build(name: str) -> Any:
    """Build a model with random weights on the current device."""
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

    shape = {
        "llama-374m": {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16},
        "llama-1.3b": {"hidden_size": 2048, "intermediate_size": 5504, "num_attention_heads": 16},
    }
    configs = {
        "gpt2": GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False),
        "tiny": GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=2048, use_cache=False),
    }
    for llama, sizes in shape.items():
        configs[llama] = LlamaConfig(num_hidden_layers=24, use_cache=False, **sizes)
    return AutoModelForCausalLM.from_config(configs[name], attn_implementation="sdpa")


DROPPED = (
    ("torch.distributed.elastic.agent.server.api", "log", None),
    ("torch.distributed.elastic.agent.server.api", "_get_socket_with_port", None),
    ("numpy", "BUFSIZE", 8192),
)
"""Names that DeepSpeed 0.13.1 imports and today's torch and numpy no longer have.

It uses them for elastic training and the autotuner, which play no part here.
"""


def lend_names() -> list[str]:
    """Define the names that DeepSpeed 0.13.1 needs to start; return which were missing."""
    lent = []
    for module, name, value in DROPPED:
        owner = importlib.import_module(module)
        if not hasattr(owner, name):
            setattr(owner, name, value)
            lent.append(f"{module}.{name}")
    if importlib.util.find_spec("distutils") is None:
        importlib.import_module("setuptools")  # it brings its own distutils
        lent.append("distutils")
    return lent


class Device:
    """The calls that differ between a GPU and a CPU, on which the loop is only tried."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.is_gpu = torch.cuda.is_available()
        self.rank = int(os.environ["RANK"])
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.kind = "cuda" if self.is_gpu else "cpu"
        self.name = f"cuda:{self.local_rank}" if self.is_gpu else "cpu"
        self.backend = "nccl" if self.is_gpu else "gloo"
        if self.is_gpu:
            torch.cuda.set_device(self.local_rank)

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.is_gpu:
            self.torch.cuda.synchronize()

    def largest(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        value = self.torch.tensor([number], device=self.name)
        self.torch.distributed.all_reduce(value, op=self.torch.distributed.ReduceOp.MAX)
        return int(value.item())

    def gib(self) -> float | None:
        """GiB that are allocated now; None without a GPU."""
        return self.torch.cuda.memory_allocated() / 2**30 if self.is_gpu else None

    def peak_gib(self) -> float | None:
        """Return the most GiB that were allocated since the last `clear`; None without a GPU."""
        return self.torch.cuda.max_memory_allocated() / 2**30 if self.is_gpu else None

    def clear(self) -> None:
        """Free every large tensor, and forget the peak.

        Hooks of ZeRO keep the parameters and states of an ended engine where Python finds no cycle.
        """
        gc.collect()
        for tensor in gc.get_objects():
            if not isinstance(tensor, self.torch.Tensor) or tensor.device.type != self.kind:
                continue
            storage = tensor.untyped_storage()
            if storage.nbytes() > SMALL_BYTES:
                storage.resize_(0)
        if self.is_gpu:
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats()


class Training:
    """A setting in training."""

    def __init__(self, setting: Setting, device: Device) -> None:
        import deepspeed
        import torch

        self.setting = setting
        self.device = device
        torch.manual_seed(0)
        with torch.device(device.name):
            model = build(setting.model)
        if setting.recomputed:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        vocabulary = model.config.vocab_size
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(setting))
        self.engine: Any = engine
        shape = (BATCHES, setting.micro_batch, setting.seq_len)
        generator = torch.Generator().manual_seed(1 + device.rank)
        tokens = torch.randint(vocabulary, shape, generator=generator)
        self.tokens = tokens.to(device.name)
        self.seen = 0

    def step(self) -> Any:
        """Take an optimizer step; return the last micro-batch's loss."""
        for _ in range(self.setting.accumulated):
            ids = self.tokens[self.seen % BATCHES]
            loss = self.engine(input_ids=ids, labels=ids).loss
            self.engine.backward(loss)
            self.engine.step()
            self.seen += 1
        return loss.detach()

    def grad_norm(self) -> float | None:
        """Return the gradients' norm in the last step; None where DeepSpeed does not tell."""
        norm = self.engine.get_global_grad_norm()
        return None if norm is None else float(norm)

    def warm_up(self) -> dict[str, Any]:
        """Take the steps that are not timed; return their losses and the first gradient norm."""
        losses = [float(self.step())]
        norm = self.grad_norm()
        while len(losses) < self.setting.warmup:
            began = time.perf_counter()
            losses.append(float(self.step()))
            self.device.wait()
            self.step_s = time.perf_counter() - began
        return {"losses": losses, "grad_norm": norm}

    def timed(self, window_s: float) -> dict[str, Any]:
        """Take steps for at least `window_s` seconds."""
        steps = 0
        seconds = 0.0
        self.device.largest(0)
        self.device.wait()
        began = time.perf_counter()
        while seconds < window_s:
            missing = math.ceil((window_s - seconds) / self.step_s)
            count = self.device.largest(missing)
            for _ in range(count):
                loss = self.step()
            self.device.wait()
            steps += count
            microseconds = math.ceil((time.perf_counter() - began) * 1e6)
            seconds = self.device.largest(microseconds) / 1e6
            self.step_s = seconds / steps
        return {
            "steps": steps,
            "seconds": seconds,
            "tokens_per_s": steps * self.setting.tokens_per_step / seconds,
            "loss": float(loss),
        }

    def end(self) -> None:
        """Free the engine."""
        self.engine.destroy()
        self.engine.optimizer = None
        self.engine.module = None
        del self.engine


def measure(setting: Setting, window_s: float, device: Device) -> dict[str, Any]:
    """Train one setting and return its row."""
    device.clear()
    before = device.gib()
    began = time.perf_counter()
    training = Training(setting, device)
    built_s = time.perf_counter() - began
    row = {**asdict(setting), "built_s": built_s, "before_gib": before}
    row |= training.warm_up()
    row["warmed_s"] = time.perf_counter() - began - built_s
    row |= training.timed(window_s)
    row["peak_gib"] = device.peak_gib()
    training.end()
    del training
    device.clear()
    row["left_gib"] = device.gib()
    row["whole_s"] = time.perf_counter() - began
    return row


def about(lent: list[str]) -> dict[str, Any]:
    """Return what this process runs with."""
    import deepspeed
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "deepspeed": deepspeed.__version__,
        "folder": os.path.dirname(deepspeed.__file__),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "gpu": gpu,
        "lent": lent,
    }


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # DeepSpeed prints to standard output

    def say(answer: dict[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    faulthandler.register(signal.SIGUSR1)  # where does a process hang?
    began = time.perf_counter()
    lent = lend_names()
    import deepspeed

    device = Device()
    deepspeed.init_distributed(dist_backend=device.backend)
    device.largest(0)
    say({**about(lent), "start_s": time.perf_counter() - began})
    for line in sys.stdin:
        request = json.loads(line)
        setting = Setting(**request["setting"])
        try:
            say(measure(setting, request["window_s"], device))
        except Exception as error:  # the other settings and versions go on
            text = f"{type(error).__name__}: {error}"
            say({**asdict(setting), "error": text[:2000]})


if __name__ == "__main__":
    main()
