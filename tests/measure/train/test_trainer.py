"""One step of torch's trainers, computed by hand beside the call; their ranks are this process alone.

The steps are plain gradient descent without clipping, which shows a gradient that is wrong by a factor: Adam and
clipping divide it out.
"""

import contextlib
import copy
from types import SimpleNamespace

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
distributed, tensor = lazy.Module("torch.distributed"), lazy.Module("torch.distributed.tensor")
trainers, model_loss = lazy.Module("dsnb.measure.train.trainer"), lazy.Module("dsnb.models.loss")
RATE = 0.5


@pytest.fixture
def one_rank(monkeypatch):
    """Let this process be the only rank of a group."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def trainer_of(experiment, kind):
    """Return a trainer that descends without momentum."""
    torch.manual_seed(0)
    trainer = getattr(trainers, kind)(experiment, {}, torch.device("cpu"))
    trainer.optimizer = torch.optim.SGD(trainer.trainable, RATE)
    return trainer


def micro_batches(count, seed=0):
    """Return micro-batches of two sequences of eight tokens."""
    generator = torch.Generator().manual_seed(seed)
    return list(torch.randint(200, (count, 2, 8), generator=generator))


def weights_of(trainer):
    """Return all weights of a trainer, whole and in one vector."""
    whole = []
    for weight in trainer.wrapped.parameters():
        local = weight.to_local() if isinstance(weight, tensor.DTensor) else weight
        whole.append(local.detach().flatten())
    return torch.cat(whole)


def by_hand(trainer, batches, clip=None):
    """Return loss, gradient norm and weights after a step on the mean gradient of all sequences at once."""
    model = copy.deepcopy(getattr(trainer.wrapped, "module", trainer.wrapped))
    loss = model(torch.cat(batches))
    weights = list(model.parameters())
    gradient = torch.cat([each.flatten() for each in torch.autograd.grad(loss, weights)])
    norm = gradient.norm()
    if clip:
        gradient = gradient * min(1.0, clip / norm)
    before = torch.cat([weight.detach().flatten() for weight in weights])
    return loss.item(), norm.item(), before - RATE * gradient


@pytest.mark.parametrize("kind", ["TorchTrainer", "DdpTrainer"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_step_descends_the_mean_gradient_of_its_micro_batches(small, one_rank, kind, count):
    trainer = trainer_of(small(strategy="plain", grad_accum=count), kind)
    for seed in (1, 2):  # the second step adds nothing of the first one's gradients
        batches = micro_batches(count, seed)
        loss, _, expected = by_hand(trainer, batches)
        found, skipped = trainer.step(batches)
        assert (found.item(), skipped) == (pytest.approx(loss, rel=1e-5), False)
        assert torch.allclose(weights_of(trainer), expected, atol=1e-6)
        assert trainer.grad_norm() is None  # without clipping nothing computes it


def test_a_sharded_step_descends_the_mean_gradient_of_its_micro_batches(small, one_rank):
    plain = trainer_of(small(strategy="plain", grad_accum=3), "TorchTrainer")
    batches = micro_batches(3)
    loss, _, expected = by_hand(plain, batches)
    sharded = trainer_of(small(strategy="fsdp", grad_accum=3), "FsdpTrainer")
    found, skipped = sharded.step(batches)
    assert (found.item(), skipped) == (pytest.approx(loss, rel=1e-5), False)
    assert torch.allclose(weights_of(sharded), expected, atol=1e-6)


def test_the_norm_is_that_before_clipping_and_the_step_is_clipped(small, one_rank):
    experiment = small(strategy="plain", grad_accum=2, gradient_clipping=0.01)
    trainer, batches = trainer_of(experiment, "TorchTrainer"), micro_batches(2)
    _, norm, expected = by_hand(trainer, batches, clip=0.01)
    assert norm > 0.1
    trainer.step(batches)
    assert trainer.grad_norm().item() == pytest.approx(norm, rel=1e-4)
    assert torch.allclose(weights_of(trainer), expected, atol=1e-6)


def test_ddp_reduces_each_bucket_once_a_step_however_many_micro_batches(small, one_rank):
    """Reduced in every micro-batch, the numbers are the same, and the step is slower."""
    experiment = small(strategy="ddp", grad_accum=3, bucket_elements=20_000)
    trainer = trainer_of(experiment, "DdpTrainer")
    reduced = []

    def count(state, bucket):
        reduced.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    trainer.wrapped.register_comm_hook(None, count)
    for seed in (1, 2, 3):  # DDP arranges its buckets after the first step
        reduced.clear()
        trainer.step(micro_batches(3, seed))
        assert sorted(reduced) == list(range(len(reduced)))
    assert len(reduced) > 2


@pytest.mark.parametrize(("reduced", "told"), [("micro-batch", []), ("step", [False, False, True])])
def test_fsdp_is_told_when_to_reduce(small, one_rank, monkeypatch, reduced, told):
    experiment = small(strategy="fsdp", grad_accum=3, gpus=2, reduce_gradients=reduced)
    trainer = trainer_of(experiment.model_copy(update={"gpus": 1}), "FsdpTrainer")
    heard = []
    tell = trainer.wrapped.set_requires_gradient_sync
    monkeypatch.setattr(
        trainer.wrapped, "set_requires_gradient_sync", lambda last: heard.append(last) or tell(last)
    )
    trainer.step(micro_batches(3))
    assert heard == told


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"shard_size": 2}, [False, False, True]),
        ({"shard_size": 2, "reduce_gradients": "step"}, []),
        ({}, []),
    ],
)
def test_copies_of_shards_are_averaged_with_the_last_micro_batch(
    small, one_rank, monkeypatch, settings, told
):
    """FSDP reduces once a step for both, if it is told to."""
    trainer = trainer_of(small(strategy="fsdp", grad_accum=3), "FsdpTrainer")
    trainer.experiment = small(strategy="fsdp", grad_accum=3, gpus=4, **settings)
    heard = []
    monkeypatch.setattr(trainer.wrapped, "set_requires_all_reduce", heard.append)
    trainer.step(micro_batches(3))
    assert heard == told


class Mesh:
    """Ranks with names of dimensions, of which the first rank takes parts."""

    def __init__(self, ranks, names):
        self.ranks, self.names = ranks, names

    def __getitem__(self, chosen):
        place = tuple(slice(None) if name in chosen else 0 for name in self.names)
        return Mesh(self.ranks[place], chosen)


@pytest.mark.parametrize(
    ("settings", "names", "ranks"),
    [
        ({}, ("shards",), list(range(8))),
        ({"shard_size": 4}, ("copies", "shards"), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ({"tensor_parallel": 2}, ("shards",), [0, 2, 4, 6]),
        ({"tensor_parallel": 2, "shard_size": 2}, ("copies", "shards"), [[0, 2], [4, 6]]),
    ],
)
def test_the_ranks_that_share_shards_are_neighbours_behind_those_that_split_layers(
    small, one_rank, monkeypatch, settings, names, ranks
):
    """As rank 0 of eight sees them."""
    trainer = trainer_of(small(strategy="fsdp"), "FsdpTrainer")
    trainer.experiment = small(strategy="fsdp", model="llama-tiny", gpus=8, **settings)

    def mesh_of_eight(device, sizes, mesh_dim_names):
        return Mesh(torch.arange(8).view(sizes), mesh_dim_names)

    monkeypatch.setattr("dsnb.measure.train.trainer.init_device_mesh", mesh_of_eight)
    found = trainer.mesh()
    assert (found.names, found.ranks.tolist()) == (names, ranks)


def test_fsdp_shards_each_block_by_itself_and_adds_gradients_in_fp32(small, one_rank):
    sharded = trainers.FsdpTrainer(small(strategy="fsdp"), {}, torch.device("cpu"))
    kinds = [type(module).__name__ for module in sharded.wrapped.modules()]
    assert kinds.count("FSDPGPT2Block") == 4
    assert kinds[0] == "FSDPCausalLoss"
    assert "mp_policy" not in sharded.sharding()
    assert "reshard_after_forward" not in sharded.sharding()
    sharded.experiment = small(strategy="fsdp", gathered_weights="micro-batch")
    assert sharded.sharding()["reshard_after_forward"] is False
    sharded.experiment = small(strategy="fsdp", precision="bf16")
    policy = sharded.sharding()["mp_policy"]
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    assert policy.cast_forward_inputs is False
    pure = {"strategy": "fsdp", "precision": "bf16", "mixed_precision": "none"}
    sharded.experiment = small(**pure)
    assert "mp_policy" not in sharded.sharding()
    sharded.experiment = small(**pure, grad_accum_dtype="fp32")
    assert sharded.sharding()["mp_policy"] == policy


@pytest.mark.parametrize(
    ("settings", "mib"),
    [
        ({"bucket_elements": 2**20}, 4.0),  # fp32
        ({}, None),
        ({"gradient_compression": "powersgd", "powersgd_rank": 2}, 2**20),  # one on a CPU
    ],
)
def test_the_buckets_of_ddp(small, one_rank, monkeypatch, settings, mib):
    given = {}

    def wrapped(model, **options):
        given.update(options)
        return SimpleNamespace(parameters=model.parameters, register_comm_hook=hooks.append)

    hooks = SimpleNamespace(append=lambda state, hook: given.update(state=state, hook=hook))
    monkeypatch.setattr("dsnb.measure.train.trainer.DistributedDataParallel", wrapped)
    trainers.DdpTrainer(small(strategy="ddp", gpus=2, **settings), {}, torch.device("cpu"))
    assert given["bucket_cap_mb"] == mib
    assert given["device_ids"] is None
    if "powersgd_rank" in settings:
        assert given["state"].matrix_approximation_rank == 2
        assert given["hook"].__name__ == "powerSGD_hook"
    else:
        assert "hook" not in given


def test_the_parts_of_a_step_are_marked_in_order(small, one_rank):
    trainer, seen = trainer_of(small(strategy="plain"), "TorchTrainer"), []

    @contextlib.contextmanager
    def section(name):
        seen.append(name)
        yield
        seen.append("end")

    trainer.section = section
    trainer.step(micro_batches(2))
    assert seen == [*["forward", "end", "backward", "end"] * 2, "optimizer", "end"]


@pytest.mark.parametrize(
    ("precision", "computed"), [("fp32", "float32"), ("tf32", "float32"), ("bf16", "bfloat16")]
)
def test_the_forward_pass_alone_is_under_autocast(small, one_rank, precision, computed):
    experiment = small(strategy="ddp").model_copy(update={"precision": precision})
    trainer, seen = trainer_of(experiment, "TorchTrainer"), []
    linear = next(
        module for module in trainer.wrapped.modules() if type(module).__name__ == "Conv1D"
    )
    linear.register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    linear.weight.register_hook(lambda _: seen.append(torch.is_autocast_enabled("cpu")))
    trainer.step(micro_batches(1))
    assert seen == [getattr(torch, computed), False]
    assert {weight.dtype for weight in trainer.trainable} == {torch.float32}


def test_gradients_are_unscaled_before_they_are_clipped_and_an_overflow_is_a_skipped_step(
    small, one_rank
):
    """The scale is 65,536 at first: a scaled norm would be clipped, whatever the gradient."""
    experiment = small(strategy="ddp", gradient_clipping=1e3)
    trainer = trainer_of(experiment, "TorchTrainer")
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    batches = micro_batches(2)
    _, norm, expected = by_hand(trainer, batches)
    assert trainer.step(batches)[1] is False
    assert trainer.grad_norm().item() == pytest.approx(norm, rel=1e-4)
    assert torch.allclose(weights_of(trainer), expected, atol=1e-6)
    hook = trainer.trainable[0].register_hook(lambda gradient: gradient * float("inf"))
    assert trainer.step(batches)[1] is True
    assert torch.allclose(weights_of(trainer), expected, atol=1e-6)
    hook.remove()
    assert trainer.step(batches)[1] is False  # with half the scale


@pytest.mark.parametrize(("precision", "scales"), [("fp16", True), ("bf16", False)])
def test_the_loss_is_scaled_in_fp16_alone(small, one_rank, precision, scales):
    experiment = small(strategy="ddp").model_copy(update={"precision": precision})
    assert trainers.TorchTrainer(experiment, {}, torch.device("cpu")).scaler.is_enabled() is scales


def test_the_optimizers_have_the_settings_and_torchs_defaults(small):
    weights = [torch.nn.Parameter(torch.zeros(2, 2))]
    adam = trainers.make_optimizer(small(learning_rate=0.25), weights)
    assert type(adam) is torch.optim.AdamW
    names = ("lr", "betas", "eps", "weight_decay")
    assert [adam.defaults[name] for name in names] == [0.25, (0.9, 0.999), 1e-8, 0.01]
    eighth = small(learning_rate=0.25, optimizer="adamw-8bit", strategy="plain")
    small_moments = trainers.make_optimizer(eighth, weights)
    assert type(small_moments).__name__ == "AdamW8bit"
    assert [float(small_moments.defaults[name]) for name in ("lr", "eps", "weight_decay")] == [
        0.25, 1e-8, 0.01
    ]  # fmt: skip
    assert small_moments.block_size == 256
    factored = trainers.make_optimizer(small(learning_rate=0.25, optimizer="adafactor"), weights)
    assert type(factored) is torch.optim.Adafactor
    assert [factored.defaults[name] for name in ("lr", "weight_decay")] == [0.25, 0.01]


HIDDEN, BLOCKS = 128, 4
OF_A_BLOCK = 12 * HIDDEN**2 + 13 * HIDDEN
"""GPT-2's four matrices, four biases and two norms."""


@pytest.mark.parametrize(
    ("settings", "trainable"),
    [({}, None), ({"lora_rank": 2, "precision": "bf16"}, 2 * BLOCKS * HIDDEN * 16)],
)
def test_parameters_are_counted_once_and_trained_ones_separately(
    small, one_rank, settings, trainable
):
    experiment = small(strategy="ddp", gpus=2, **settings)
    trainer = trainers.TorchTrainer(experiment, {}, torch.device("cpu"))
    shape = trainer.config
    assert (shape.n_embd, shape.n_layer) == (HIDDEN, BLOCKS)
    whole = (shape.vocab_size + shape.n_positions) * HIDDEN + BLOCKS * OF_A_BLOCK + 2 * HIDDEN
    adapters = trainable or 0
    assert trainer.parameters == {
        "parameters": whole + adapters,  # the tied output layer is the embedding
        "trainable_parameters": trainable or whole,
        "block_parameters": BLOCKS * OF_A_BLOCK + adapters,
    }
    assert len(trainer.trainable) == len(trainer.optimizer.param_groups[0]["params"])
    described = trainer.describe()
    assert (described["strategy"], described["optimizer"]) == ("CausalLoss", "AdamW")
    assert (described["parameter_dtype"], described["communication"]) == ("float32", False)
