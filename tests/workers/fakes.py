"""Fake workers: each is a function, chosen by `$DSNB_TEST_FAKE`; what returns nothing trains for real after it."""

import functools
import gc
import itertools
import json
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import deepspeed
import psutil
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.tensor import DTensor

from dsnb.base.files import json_files
from dsnb.base.system import own_memory
from dsnb.measure.record import clock
from dsnb.measure.train import (
    data,
    engine,
    meter,
    over_ranks,
    probe,
    profiling,
    tensor_parallel,
    worker,
)
from dsnb.measure.train import trainer as trainers
from dsnb.models import build, layout, logits, parts, quantized
from dsnb.models.compile import compiled_graphs
from dsnb.models.loss import CausalLoss
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4294967296 bytes. Error code 12 (Cannot allocate memory)"
)


def main(run_dir):
    code = globals()[os.environ["DSNB_TEST_FAKE"]](RunPaths(Path(run_dir)))
    return worker.main(run_dir) if code is None else code


def wrap(module, name, wrapper):
    """Let a function of a module be `wrapper(function, ...)`."""
    setattr(module, name, functools.partial(wrapper, getattr(module, name)))


def change_trainer(change):
    """Let `change` change the trainer once it is built."""

    def make_changed(make, *arguments):
        trainer = make(*arguments)
        change(trainer)
        return trainer

    wrap(worker, "make_trainer", make_changed)


def change_steps(step):
    """Let every step be `step(train, batches)`."""
    change_trainer(lambda trainer: wrap(trainer, "step", step))


def change_config(**changes):
    def initialize_changed(initialize, *, config, **named):
        return initialize(config={**config, **changes}, **named)

    wrap(deepspeed, "initialize", initialize_changed)


def unproved(run):
    """Train without the proof of changes of the model, which would take back a wrong one, and without counting FLOPs.

    Both take time in every run, and have tests of their own.
    """
    worker.proved = lambda experiment, device: (experiment, None)
    worker.flops = SimpleNamespace(record=lambda experiment: {})


def silent(run):
    """End well without a word."""
    return 0


def crashing(run):
    """Crash as native code does: a word on stderr and an exit code, no Python exception."""
    print(
        os.environ.get("DSNB_TEST_LAST_WORDS", "RuntimeError: CUDA error: out of memory"),
        file=sys.stderr,
    )
    sys.stderr.flush()
    os._exit(7)


def dying(run):
    """Be killed as rank 1 after the third step, in the midst of collectives, by `$DSNB_TEST_SIGNAL` or SIGKILL."""
    steps = []

    def step(train, batches):
        steps.append(train(batches))
        if worker.rank() == 1 and len(steps) == 3:
            os.kill(os.getpid(), signal.Signals[os.environ.get("DSNB_TEST_SIGNAL", "SIGKILL")])
        return steps[-1]

    change_steps(step)


def occupied(run):
    """Find the port of the rendezvous taken: another program got it after it was chosen."""
    if worker.rank() == 0:
        socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))).detach()


def full_disk(run):
    """Find no room on the disk for the first step."""
    if worker.rank() == 0:
        run.steps.symlink_to("/dev/full")


def aborting_peers(run):
    """Fail as rank 0 in the third step; let rank 1 abort when it loses the connection, as NCCL's watchdog does."""
    steps = []

    def step(train, batches):
        if worker.rank() == 0 and len(steps) == 2:
            raise ValueError("3 is odd")
        try:
            steps.append(train(batches))
        except RuntimeError:
            os.abort()
        return steps[-1]

    change_steps(step)


def killed(run):
    """Be killed two seconds after the third step."""
    steps = []

    def step(train, batches):
        if len(steps) == 3:
            time.sleep(2.0)
            os.kill(os.getpid(), signal.SIGKILL)
        steps.append(train(batches))
        return steps[-1]

    change_steps(step)


def starving(run):
    """Fail to allocate 4 GiB in the backward pass of the third step."""
    steps = []

    def fail(gradient):
        if len(steps) == 3:
            raise RuntimeError(NO_MEMORY)

    change_trainer(lambda trainer: next(trainer.module.parameters()).register_hook(fail))
    change_steps(lambda train, batches: steps.append(None) or train(batches))


def gradless(run):
    """Let every gradient arrive as zero: as fast as a training, and none."""

    def change(trainer):
        for parameter in trainer.module.parameters():
            parameter.register_hook(torch.zeros_like)

    change_trainer(change)


def frozen(run):
    """Write down which parameters have changed, and in which number formats they are."""
    unproved(run)
    before, after = {}, {}

    def keep(trainer):
        after.update(trainer.module.named_parameters())
        before.update({name: one.detach().clone() for name, one in after.items()})

    def mean_and_compare(mean, losses):
        if worker.rank() == 0:
            found = {
                name: {"changed": not is_same(one, after[name]), "dtype": str(one.dtype)}
                for name, one in before.items()
            }
            json_files.write_json(run.dir / "parameters.json", found)
        return mean(losses)

    change_trainer(keep)
    wrap(over_ranks, "mean_of_ranks", mean_and_compare)


def is_same(first, second):
    """Return whether a rank's shares have the same bits: those of weights of 4 bits may be no numbers."""
    shares = (local(one.detach()).contiguous() for one in (first, second))
    return torch.equal(*(one.flatten().view(torch.uint8) for one in shares))


def states(run):
    """Write down the bytes and number formats of rank 0's weights and optimizer states after the last step."""
    unproved(run)
    kept = []

    def mean_and_write(mean, losses):
        if worker.rank() == 0:
            json_files.write_json(run.dir / "states.json", described_states(kept[0]))
        return mean(losses)

    change_trainer(kept.append)
    wrap(over_ranks, "mean_of_ranks", mean_and_write)


def uncompiled_states(run):
    """Write down states; what asks for a whole compiled graph runs eagerly, as no compiler of a CPU is quick."""
    torch.compile = lambda function, **_: function
    states(run)


def described_states(trainer):
    """Return the formats and bytes of tensors with one number for each weight, and of what they consist of."""
    optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    found = {"weights": 0, "states": 0, "formats": []}
    for weight, state in optimizer.state.items():
        found["weights"] += local(weight).nbytes
        moments = [one for one in state.values() if torch.is_tensor(one)]
        for moment in map(local, moments):
            if moment.numel() > 1:
                stored = stored_tensors(moment)
                found["formats"] += [str(one.dtype) for one in stored]
                found["states"] += sum(one.nbytes for one in stored)
    return {**found, "formats": sorted(set(found["formats"]))}


def local(tensor):
    """Return a rank's share of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def stored_tensors(tensor):
    """Return the tensors that a quantized one consists of, or itself."""
    names = getattr(tensor, "tensor_attrs", ())
    return [getattr(tensor, name) for name in names] or [tensor]


def dequantized(run):
    """Let linear layers have the weights that NF4 stands for, in full."""

    def quantize(experiment, model):
        parts.use_linear_layers(model)
        quantized.reveal_torchao(experiment)
        for block in parts.blocks(model):
            for layer in filter(quantized.fits_nf4, block.modules()):
                bits = quantized.Nf4Linear(layer).bits()
                layer.weight = torch.nn.Parameter(quantized.dequantized(*bits))

    build.quantize_blocks = quantize


def latecomer(run):
    """Begin every step 0.3 s late on rank 1."""
    change_steps(lambda train, batches: time.sleep(0.3 * worker.rank()) or train(batches))


def sleeper(run):
    """Let every step be so long, on a clock that stands still otherwise."""
    lengths_s = iter([0.6, 0.32, 0.32, 0.64, 1.28])
    now_s = [100.0]

    def step(train, batches):
        trained = train(batches)
        now_s[0] += next(lengths_s)
        return trained

    stopped = SimpleNamespace(perf_counter=lambda: now_s[0])
    meter.time = stopped
    clock.time = stopped
    print(f"rank {worker.rank()} was in {os.getcwd()}")
    change_steps(step)


def listener(run):
    """Write down on which addresses this rank listens."""

    def step(train, batches):
        listening = [
            one.laddr.ip
            for one in psutil.Process().net_connections("inet")
            if one.status == "LISTEN"
        ]
        (run.dir / f"listening{worker.rank()}.json").write_text(json.dumps(listening))
        return train(batches)

    change_steps(step)


def missplit(run):
    """Train a pipeline of another ZeRO stage whose stages were never split, and expect another data-parallel rank."""
    engine.split_blocks = lambda *_: None
    engine.data_rank = lambda *_: 1
    change_config(zero_optimization={"stage": 1})


def sgd(run, rate=0.1):
    """Train with plain gradient descent, which shows a gradient that is wrong by a factor; Adam divides it out."""
    unproved(run)
    change_config(
        optimizer={"type": "SGD", "params": {"lr": rate}}, zero_allow_untested_optimizer=True
    )
    trainers.make_optimizer = lambda _, parameters: torch.optim.SGD(parameters, lr=rate)


def counted(run):
    """Descend as `sgd`, and write how often FSDP reduced gradients in each step."""
    counts = []

    def count(reduce, *arguments, **named):
        counts[-1] += 1
        return reduce(*arguments, **named)

    def step(train, batches):
        counts.append(0)
        trained = train(batches)
        if worker.rank() == 0:
            json_files.write_json(run.dir / "reductions.json", {"of_steps": counts})
        return trained

    sgd(run)
    wrap(_fsdp_param_group, "foreach_reduce", count)
    change_steps(step)


def slow_sgd(run):
    """Descend slowly: at the usual rate ten steps of GPT-2 turn bf16's rounding of 0.001 into 0.1."""
    sgd(run, rate=0.01)


def traced(run):
    """Train with graphs that are captured and differentiated as ever, but run without generating C++ for them."""
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    code = worker.main(run.dir)
    assert compiled_graphs() > 0
    return code


def disproved(run):
    """Train after a proof in which chunks lose a hundredth of the gradient."""
    logits.LogitMap.is_product = property(lambda made: False)
    logits.LogitMap.slope = lambda made, values: 0.99
    return worker.main(run.dir)


SHARED = (
    {"strategy": "plain", "gpus": 1, "micro_batch_size": 4},
    {"strategy": "fsdp"},
    {"strategy": "deepspeed", "zero_stage": 3},
)
"""Ways to share a global batch of four sequences between two ranks.

DDP and ZeRO 0 to 2 leave blocks as the plain loop does: whole, and without hooks of their own.
"""

WAYS = (("off", False), ("off", True), ("default", True))
"""Compiled how, and recomputed or not."""


def combined(run):
    """Train with the first `$DSNB_TEST_STRATEGIES`, then recomputed, then compiled as well, in the same processes.

    Of each, `combined.json` has the losses, the types of tensors that its blocks receive, the bytes that the last
    forward pass saved, and the types and sums of the model's buffers. Graphs are kept, since strategies of one number
    format compile the same.
    """
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    torch._dynamo.config.automatic_dynamic_shapes = False
    base = Experiment.read(run.experiment)
    device, found = worker.set_up(base), {}
    strategies = SHARED[: int(os.environ["DSNB_TEST_STRATEGIES"])]
    for shared, (compiled, recomputed) in itertools.product(strategies, WAYS):
        changes = {**shared, "compile": compiled, "activation_checkpointing": recomputed}
        experiment = base.model_copy(update=changes)
        way = trained_way(experiment, device)
        found.setdefault(f"{experiment.strategy}{experiment.zero_stage}", []).append(way)
        gc.collect()
    assert compiled_graphs() > 0
    if worker.rank() == 0:
        json_files.write_json(run.dir / "combined.json", found)
    torch.distributed.destroy_process_group()
    return 0


def trained_way(experiment, device):
    trainer = worker.make_trainer(experiment, deepspeed_config(experiment), device)
    batches = data.batches(experiment, trainer.config.vocab_size, worker.rank(), device)
    types, losses, saved_bytes = set(), [], 0

    def note(block, inputs, named):
        torch.utils._pytree.tree_map_only(
            torch.Tensor, lambda each: types.add(str(each.dtype)), named
        )

    def save(tensor):
        nonlocal saved_bytes
        saved_bytes += tensor.nbytes
        return tensor

    for block in parts.blocks(trainer.module):
        block.register_forward_pre_hook(note, with_kwargs=True)
    for step in range(experiment.steps):
        saved_bytes = 0
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            losses.append(trainer.step(batches(step))[0])
    losses = over_ranks.mean_of_ranks(torch.stack(losses))
    buffers = {
        name: (str(each.dtype), float(each.sum())) for name, each in trainer.module.named_buffers()
    }
    return {
        "losses": losses,
        "types": sorted(types),
        "saved_bytes": saved_bytes,
        "buffers": buffers,
    }


def divided(run):
    """Train each configuration in `$DSNB_TEST_MODELS` whole and split, by gradient descent in the same processes.

    `divided.json` has the losses and the parameters of a rank, whole, split, and split and sharded by FSDP, or why a
    model is not split.
    """
    base = Experiment.read(run.experiment)
    device, found = worker.set_up(base), {}
    for path in sorted(Path(os.environ["DSNB_TEST_MODELS"]).glob("*.json")):
        whole = base.model_copy(update={"model": str(path), "tensor_parallel": 1})
        found[path.stem] = {"whole": descent(whole, device)}
        try:
            split = whole.model_copy(update={"tensor_parallel": 2})
            found[path.stem]["split"] = descent(split, device)
            found[path.stem]["sharded"] = sharded_descent(split, device)
        except ValueError as error:
            found[path.stem]["refused"] = str(error)
    if worker.rank() == 0:
        json_files.write_json(run.dir / "divided.json", found)
    torch.distributed.destroy_process_group()
    return 0


def descent(experiment, device):
    model = build.build(experiment, {}, device)
    if experiment.tensor_parallel > 1:
        given = layout.block_arguments(model)
        tensor_parallel.split_blocks(experiment, model, parts.blocks(model), given)
    with_loss = CausalLoss(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    ids = same_tokens()
    losses = []
    for _ in range(4):
        loss = with_loss(ids)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"losses": losses, "parameters": sum(each.numel() for each in model.parameters())}


def sharded_descent(experiment, device):
    sgd(None, rate=0.2)
    fsdp = experiment.model_copy(update={"strategy": "fsdp"})
    trainer = trainers.FsdpTrainer(fsdp, {}, device)
    parameters = sum(each.numel() for each in trainer.wrapped.parameters())
    losses = [trainer.step([same_tokens()])[0].item() for _ in range(4)]
    return {"losses": losses, "parameters": parameters}


def same_tokens():
    return torch.randint(3, 100, (2, 32), generator=torch.Generator().manual_seed(1))


def uncompiled(run):
    """Switch torch.compile off, also behind dsnb's back, as a plugin or a startup file may do."""
    torch._dynamo.config.disable = True


def bad_profile(run):
    """Let profilers fail as `$DSNB_TEST_PROFILE` says, and on rank 0 alone."""
    broken = os.environ["DSNB_TEST_PROFILE"]

    def fail(*_):
        if broken == "profilers":
            raise RuntimeError("no counters on this host\nand more")
        if broken == "rank":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(100)

    profiling.MAX_S = 2.0 if broken == "hang" else profiling.MAX_S
    if worker.rank() == 0:
        profiling.trace_step = fail


def builder(run):
    """Build the model and nothing else; write by how many bytes the peak memory of this rank has grown."""
    experiment = Experiment.read(run.experiment)
    device, stages = worker.set_up(experiment), experiment.pipeline_parallel
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if stages > 1:
        built, path = build.build_stage(experiment, worker.rank(), device)
        modules = list(parts.stage_modules(built, path, worker.rank(), stages))
    else:
        modules = [build.build(experiment, json_files.read_json(run.deepspeed) or {}, device)]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    bad = sum(
        not bool(parameter.isfinite().all())
        for module in modules
        for parameter in module.parameters()
    )
    json_files.write_json(
        run.dir / f"rank{worker.rank()}.json", {"grown_bytes": grown, "not_finite": bad}
    )
    return 0


def eater(run):
    """Take memory while building and less of it while training; leave the peaks before and after."""
    device = worker.set_up(Experiment.read(run.experiment))
    own_memory.reset_peak()
    before = over_ranks.peaks_of_ranks({"peak_allocated_gib": 1.0 + worker.rank()}, device)
    building = b"\1" * (600 * 2**20)
    del building
    own_memory.reset_peak()
    training = b"\1" * ((100 + 100 * worker.rank()) * 2**20)
    after = over_ranks.peaks_of_ranks({"peak_allocated_gib": 1.0 + worker.rank()}, device)
    assert training
    if worker.rank() == 0:
        json_files.write_lines(run.dir / "peaks.jsonl", [before, after])
    torch.distributed.destroy_process_group()
    return 0


def which_gpu(run):
    """Write the UUID of the GPU that this rank works on, and whether its allocator has expandable segments."""
    device = worker.set_up(Experiment.read(run.experiment))
    torch.zeros(1, device=device)
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    (run.dir / "expandable").write_text(str(settings["expandable_segments"]))
    (run.dir / f"gpu{worker.rank()}").write_text(
        f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    )
    return 0


def wrong_sum(run):
    """Test all-reduce where rank 1 has one element that is not what it says, from the fourth size on."""

    def wrong(fill, buffer, factor):
        fill(buffer, factor)
        if factor == 2 and worker.rank() == 1 and len(buffer) == 16:
            buffer[5] += 1

    wrap(probe, "fill", wrong)
    return probe.main(run.dir)


def brief(run):
    """Measure each message size for a tenth of the time."""
    probe.SIZE_LIMIT_S = 0.05
    return probe.main(run.dir)


def added(run):
    """Descend as `sgd`, and write how often gradients of inputs of split layers were added up in each step."""
    counts, whole = [], tensor_parallel._AddGradients

    class Counted(whole):
        @staticmethod
        def backward(ctx, gradient):
            counts[-1] += 1
            return whole.backward(ctx, gradient)

    def step(train, batches):
        counts.append(0)
        trained = train(batches)
        if worker.rank() == 0:
            json_files.write_json(run.dir / "added.json", {"of_steps": counts})
        return trained

    sgd(run)
    tensor_parallel._AddGradients = Counted
    change_steps(step)


def norms_of_gradients(run):
    """Descend as `sgd`, and write the norms of all gradients of parameters before each update, by name."""
    found = []

    def watch(trainer):
        def clip(before, limit):
            norms = {}
            for name, parameter in trainer.wrapped.named_parameters():
                gradient = parameter.grad
                if isinstance(gradient, DTensor):
                    gradient = gradient.full_tensor()
                norms[name] = gradient.norm().item()
            norm = before(limit)
            found.append({"parameters": norms, "norm": norm.item()})
            if worker.rank() == 0:
                json_files.write_json(run.dir / "gradients.json", {"of_steps": found})
            return norm

        wrap(trainer, "clip", clip)

    sgd(run)
    change_trainer(watch)
