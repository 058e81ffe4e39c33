"""Recordings of allocations: in order, complete, and the same memory as the traces that are made another way."""

import json

import pytest

from dsnb.prediction.memory import peak_memory
from dsnb.prediction.moments import ModelTrace
from dsnb.prediction.replay.recording import ALLOCATED, FREED, GRADIENT, Recording
from dsnb.prediction.replay.simulate import engine_of, simulate
from dsnb.settings.experiment import Experiment
from tests.support import lazy

recording = lazy.Module("dsnb.train.recording")
memory_trace = lazy.Module("dsnb.train.memory_trace")
compiled_recording = lazy.Module("dsnb.train.compiled_recording")
live_bytes = lazy.Module("dsnb.train.live_bytes")

GRID = [
    ({"strategy": "plain"}, {}),
    ({"strategy": "plain"}, {"activation_checkpointing": True, "dropout": 0.1}),
    ({"zero_stage": 0}, {"attention": "eager"}),
    ({"zero_stage": 0, "mixed_precision": "autocast", "gpus": 2}, {}),
    ({"zero_stage": 1}, {"activation_checkpointing": True, "checkpoint_every": 2}),
    ({"zero_stage": 1, "gpus": 2, "mixed_precision": "autocast"}, {}),
    ({"zero_stage": 1, "gpus": 4, "grad_accum": 2}, {}),
    ({"zero_stage": 2, "gpus": 2}, {"loss": "chunked"}),
    ({"zero_stage": 2, "gpus": 4, "grad_accum": 3}, {}),
    ({"strategy": "ddp", "gpus": 2}, {"activation_checkpointing": True, "checkpoint_offload": True}),
]


def events_of(one, micro_batch):
    return Recording.read(json.loads(json.dumps(recording.record(one, micro_batch)))).events


@pytest.mark.parametrize("model", ["gpt2-tiny", "opt-tiny", "bloom-tiny"])
def test_every_weight_has_a_gradient_and_activations_are_freed(model):
    one = Experiment(model=model, precision="bf16", seq_len=32, device="cuda")
    found = Recording.read(recording.record(one, 2))
    allocated = sum(kind == ALLOCATED for kind, *_ in found.events)
    freed = [number for kind, number, _ in found.events if kind == FREED]
    assert len(set(freed)) == len(freed)
    left = set(range(allocated)) - set(freed)  # BLOOM keeps its ALiBi for the next pass
    assert len(left) == (1 if model == "bloom-tiny" else 0)
    gradients = [weight for kind, weight, _ in found.events if kind == GRADIENT]
    assert sorted(gradients) == [number for number, tensor in enumerate(found.tensors) if tensor.trained]
    assert {number for kind, _, number in found.events if kind == GRADIENT} <= set(range(allocated))


def test_one_recording_serves_all_micro_batches():
    one = Experiment(model="gpt2-tiny", precision="bf16", seq_len=64, device="cuda")
    any_size, of_three = events_of(one, memory_trace.MANY), events_of(one, 3)
    assert len(any_size) == len(of_three)
    for (kind, constant, each), (same, whole, rest) in zip(any_size, of_three, strict=True):
        assert kind == same
        if kind == ALLOCATED:
            assert -(-(constant + 3 * each) // 512) * 512 == whole
        else:
            assert (constant, each) == (whole, rest)


@pytest.mark.parametrize(
    ("model", "engine", "traced"), [*(("gpt2-tiny", *one) for one in GRID), ("bloom-tiny", *GRID[-1])], ids=str
)
def test_what_a_replay_allocates_is_what_the_rules_say(model, engine, traced):
    """Two ways to the same figure: events in the order of the source, and the peaks between gradients plus formulas.

    The bucket is as small as these models, or it would hide everything else.
    """
    bucket = {} if engine.get("strategy") or not engine["zero_stage"] else {"bucket_elements": 100_000}
    settings = {"precision": "bf16", "seq_len": 256, "micro_batch_size": 4, "device": "cuda", **bucket}
    one = Experiment(model=model, **{**settings, **engine, **traced})
    record = memory_trace.trace(one)
    by_rules = peak_memory(one, ModelTrace.read(record).of(4)).peak_allocated_gib
    replayed = simulate(one, Recording.read(record["recording"]))
    assert replayed.allocated_gib == pytest.approx(by_rules, rel=0.03)
    assert replayed.reserved_gib >= replayed.allocated_gib


COMPILED = {"precision": "bf16", "seq_len": 256, "micro_batch_size": 4, "device": "cuda", "compile": "default"}


@pytest.mark.parametrize("model", ["gpt2-tiny", "opt-tiny", "bloom-tiny"])
@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "plain"},
        {"zero_stage": 0, "activation_checkpointing": True, "checkpoint_every": 2},
        {"zero_stage": 0, "activation_checkpointing": True, "compile_unit": "model"},
        {"zero_stage": 0, "activation_checkpointing": True, "checkpoint_offload": True},
        {"zero_stage": 1, "lora_rank": 4, "loss": "chunked"},
    ],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_a_recording_of_a_compiled_model_is_complete(model, settings):
    """With made-up tensors that blocks keep: every trained weight has a gradient once, and everything is freed once."""
    one = Experiment(model=model, **COMPILED, **settings)
    of_block, each = [live_bytes.Size(0, 1024), live_bytes.Size(0, 2048)], live_bytes.Size(0, 512)
    kept = [[each, *(of_block * blocks), each] for blocks in (2, 3)]
    found = Recording.read(json.loads(json.dumps(compiled_recording.record(one, kept, each, each, each))))
    allocated = sum(kind == ALLOCATED for kind, *_ in found.events)
    assert sorted(number for kind, number, _ in found.events if kind == FREED) == list(range(allocated))
    gradients = [weight for kind, weight, _ in found.events if kind == GRADIENT]
    assert sorted(gradients) == [number for number, tensor in enumerate(found.tensors) if tensor.trained]


@pytest.mark.parametrize(
    "settings",
    [{"strategy": "plain"}, {"zero_stage": 0, "activation_checkpointing": True, "mixed_precision": "autocast"}],
    ids=lambda one: "-".join(map(str, one.values())),
)
def test_what_a_replay_of_a_compiled_model_allocates_is_what_the_rules_say(settings):
    """Within 15 % for a tiny model, whose temporaries count for more."""
    one = Experiment(model="gpt2-tiny", **COMPILED, **settings)
    record = memory_trace.trace(one)
    by_rules = peak_memory(one, ModelTrace.read(record).of(4)).peak_allocated_gib
    assert simulate(one, Recording.read(record["recording"])).allocated_gib == pytest.approx(by_rules, rel=0.15)


def test_what_blocks_keep_and_what_is_recomputed():
    """Tensors of 1, 2 and 3 KiB a block; recomputed blocks keep an input of 5 KiB."""
    of_block, root = [live_bytes.Size(0, size) for size in (1024, 2048, 3072)], [live_bytes.Size(0, 512)]
    logits = [live_bytes.Size(0, 7168), live_bytes.Size(0, 99 * 1024)]
    kept = [[*root, *(of_block * blocks), *logits] for blocks in (2, 3)]
    assert compiled_recording._parts(*kept) == (root, of_block, logits)
    most = {}
    for name, settings in {"kept": {}, "every": {"activation_checkpointing": True}}.items():
        one = Experiment(model="gpt2-tiny", precision="bf16", seq_len=32, device="cuda", compile="default", **settings)
        none, whole = live_bytes.Size(), live_bytes.Size(0, 5 * 1024)
        events = compiled_recording.record(one, kept, whole, none, none)["events"]
        sizes = [size for kind, _, size in events if kind == ALLOCATED]
        most[name] = [sizes.count(size) for size in (1024, 2048, 3072, 5 * 1024)]
    layers = memory_trace.model_builder.model_config(one).num_hidden_layers
    assert most["kept"][:3] == [layers] * 3
    assert most["every"] == [layers] * 4  # inputs in the forward pass, the others in the backward pass


def test_cuda_graphs_are_not_replayed():
    one = Experiment(model="gpt2-tiny", precision="bf16", strategy="plain", device="cuda", compile="reduce-overhead")
    assert engine_of(one) is None
