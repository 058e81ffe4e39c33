"""How data, models and engines are set up; `test_strategies` trains with them."""

import contextlib
import inspect
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
engine, data = (lazy.Module(f"dsnb.measure.train.{name}") for name in ("engine", "data"))
model = lazy.Module("dsnb.models.build")
offload = lazy.Module("deepspeed.runtime.zero.parameter_offload")


def test_gathers_wait_for_the_update():
    stream, updating = mock.Mock(), object()
    zero3 = SimpleNamespace(parameter_offload=SimpleNamespace(**{engine.GATHERING_STREAM: stream}))
    with mock.patch("torch.cuda.current_stream", return_value=updating):
        engine.order_gathers(SimpleNamespace(optimizer=zero3))
    stream.wait_stream.assert_called_once_with(updating)
    # DeepSpeed's name of the stream is private, so another release may have another.
    owner, _, name = engine.GATHERING_STREAM.removeprefix("_").partition("__")
    assert f"self.__{name} = " in inspect.getsource(getattr(offload, owner).__init__)


def test_a_family_without_tested_pipelines_is_refused_in_one_sentence(small):
    settings = small(model="neox-tiny").model_copy(update={"gpus": 2, "pipeline_parallel": 2})
    why = "is 2: it is tested for gpt2, opt and bloom only, not for gpt_neox; set it to 1$"
    with pytest.raises(ValueError, match=f"^pipeline_parallel {why}"):
        model.build_stage(settings, 0, torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("~" * 20, "has 20 tokens: seq_len 32 needs more text"),
     ("~" * 100, "tokenizer 'bytes' gives token 126: the model's vocabulary ends at 49")],
)  # fmt: skip
def test_a_text_that_does_not_suit_the_settings(small, tmp_path, text, problem):
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match=problem):
        data.batches(small(data=str(tmp_path / "text.txt")), 50, 0, torch.device("cpu"))


def test_a_text_with_its_own_tokenizer(small, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        word: number for number, word in enumerate(["the", "cat", "sat", "on", "mat", "[UNK]"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        tmp_path / "tok"
    )
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat " * 50)
    experiment = small(data=str(text), tokenizer=str(tmp_path / "tok"))
    assert data.tokenize(experiment).tolist() == [0, 1, 2, 3, 0, 4] * 50
    after = {0: {1, 4}, 1: {2}, 2: {3}, 3: {0}, 4: {0}}
    (batch,) = data.batches(experiment, 6, 0, torch.device("cpu"))(0)
    assert all(word in after[before] for ids in batch.tolist() for before, word in pairwise(ids))


def test_dropout_is_set(small):
    trained = model.build(small(dropout=0.5), {}, torch.device("cpu"))
    ids = torch.arange(32)[None]
    assert not torch.equal(trained(ids).logits, trained(ids).logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_weights_are_those_of_fp32_rounded(monkeypatch, dtype):
    """On GPUs, torch draws other numbers for tensors above 2 GiB, a size that fp32 reaches before half precision."""
    monkeypatch.setattr("dsnb.models.build.MAX_FILL_BYTES", 4 * 1000 - 1)
    weights = {}
    for name in ("float32", dtype):
        layer = torch.nn.Linear(10, 100, dtype=getattr(torch, name))
        before = {one: (one.data_ptr(), one.dtype) for one in layer.parameters()}
        torch.manual_seed(0)
        with model.large_weights_in_fp32(layer):
            assert layer.weight.dtype == torch.float32, "1,000 numbers"
            assert layer.bias.dtype == getattr(torch, name), "100 numbers"
            torch.nn.init.normal_(layer.weight)
        assert {one: (one.data_ptr(), one.dtype) for one in layer.parameters()} == before
        weights[name] = layer.weight.detach()
    assert torch.equal(weights[dtype], weights["float32"].to(getattr(torch, dtype)))


SETTINGS = {
    "gpus": 8, "tensor_parallel": 2, "micro_batch_size": 3, "grad_accum": 4, "precision": "bf16",
    "deepspeed": {"zero_optimization": {"reduce_bucket_size": 12345}},
}  # fmt: skip


class FakeEngine:
    """What DeepSpeed says of an engine that was built as `SETTINGS` ask for, and what is changed of that."""

    optimizer, is_compiled, num_stages = type("FusedAdam", (), {})(), False, 1

    def __init__(self, **changed):
        layer = torch.nn.Linear(1, 1, dtype=changed.pop("weights", torch.bfloat16))
        split = SimpleNamespace(mp_group=changed.pop("split", 2))
        self.module = SimpleNamespace(
            modules=lambda: [split], parameters=lambda: iter([layer.weight])
        )
        self.data_parallel_group = SimpleNamespace(rank=changed.pop("place", 2))
        self.dp_world_size = changed.pop("data_parallel", 4)
        sizes = {"reduce_bucket_size": changed.pop("bucket", 12345)}
        self._config = SimpleNamespace(zero_config=SimpleNamespace(**sizes))
        answers = {
            "zero_optimization_stage": 0,
            "gradient_accumulation_steps": 4,
            "train_micro_batch_size_per_gpu": 3,
            "torch_autocast_enabled": "torch_autocast_dtype" in changed,
            "torch_autocast_dtype": None,
            "zero_offload_optimizer": None,
            "zero_offload_param": None,
        }
        for name, value in changed.items():
            if name not in answers:
                setattr(self, name, value)
        for name, value in answers.items():
            answer = changed.get(name, value)
            setattr(self, name, lambda answer=answer: answer)


OTHERWISE = {
    "ZeRO stage": ({"zero_optimization_stage": 1}, "1 instead of 0"),
    "accumulation": ({"gradient_accumulation_steps": 1}, "1 instead of 4"),
    "micro-batch": ({"train_micro_batch_size_per_gpu": 6}, "6 instead of 3"),
    "data-parallel ranks": ({"data_parallel": 8}, "8 instead of 4"),
    "data-parallel place": ({"place": 3}, "3 instead of 2"),
    "tensor-parallel ranks": ({"split": 4}, "4 instead of 2"),
    "pipeline stages": ({"num_stages": 2}, "2 instead of 1"),
    "weights": ({"weights": "float32"}, "float32 instead of bfloat16"),
    "autocast": ({"torch_autocast_dtype": "bfloat16"}, "bfloat16 instead of None"),
    "optimizer offloaded to": (
        {"zero_offload_optimizer": SimpleNamespace(device="cpu")}, "cpu instead of none"),
    "parameters offloaded to": (
        {"zero_offload_param": SimpleNamespace(device="nvme")}, "nvme instead of none"),
    "optimizer": ({"optimizer": type("MuonWithAuxAdam", (), {})()}, "Muon instead of Adam"),
    "compiled": ({"is_compiled": True}, "True instead of False"),
    "deepspeed.zero_optimization.reduce_bucket_size": ({"bucket": 500}, "500 instead of 12345"),
}  # fmt: skip
"""Each property of an engine -> what DeepSpeed may have built otherwise, and how that is told."""


@pytest.fixture
def proven(small, monkeypatch):
    """Compare a fake engine with settings, on rank 4 of 8 whose layers are split between pairs."""
    monkeypatch.setattr("dsnb.measure.train.engine.TensorParallel_Layer", SimpleNamespace)
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda group=None: group.rank if group else 4)
    monkeypatch.setattr("deepspeed.comm.get_world_size", lambda group: group)

    def check(changed, **settings):
        for name in {"weights", "torch_autocast_dtype"} & changed.keys():
            changed = {**changed, name: getattr(torch, changed[name])}
        asked = small(**SETTINGS).model_copy(update=settings)  # past the rules
        engine.check(asked, FakeEngine(**changed))

    return check


@pytest.mark.parametrize("name", OTHERWISE)
def test_each_property_of_an_engine_is_compared_with_the_settings(proven, name):
    proven({})
    changed, said = OTHERWISE[name]
    advice = "choose settings that it supports"
    with pytest.raises(RuntimeError, match=f"^DeepSpeed built {name} {said}; {advice}$"):
        proven(changed)


def test_every_property_that_is_expected_has_a_case(proven, small):
    assert [*engine.expected(small(**SETTINGS))] == [*OTHERWISE]


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        ({"zero_stage": 2, "tensor_parallel": 1}, {"zero_optimization_stage": 2, "split": 1}),
        ({"grad_accum": 2}, {"gradient_accumulation_steps": 2}),
        ({"micro_batch_size": 5}, {"train_micro_batch_size_per_gpu": 5}),
        ({"precision": "fp32"}, {"weights": "float32"}),
        ({"precision": "fp16"}, {"weights": "float16"}),
        ({"mixed_precision": "autocast"}, {"weights": "float32", "torch_autocast_dtype": "bfloat16"}),
        ({"compile": "default"}, {"is_compiled": True}),
        ({"optimizer": "adafactor"}, {"optimizer": type("Adafactor", (SimpleNamespace,), {})()}),
        ({"optimizer": "muon"}, {"optimizer": type("Muon", (SimpleNamespace,), {})()}),
        ({"offload": "optimizer-cpu"}, {"zero_offload_optimizer": SimpleNamespace(device="cpu")}),
        ({"offload": "all-nvme"}, {
            "zero_offload_optimizer": SimpleNamespace(device=SimpleNamespace(value="nvme")),
            "zero_offload_param": SimpleNamespace(device="nvme")}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_asked_for_is_what_must_be_built(proven, settings, changed):
    """Each setting alone, also where rules refuse it without another one."""
    place = {"data_parallel": 8, "place": 4} if settings.get("tensor_parallel") == 1 else {}
    proven({**changed, **place}, **settings)
    with pytest.raises(RuntimeError, match=" instead of "):
        proven(place if place else {}, **settings)


def test_all_differences_are_told_at_once(proven):
    changed = {"zero_optimization_stage": 3, "gradient_accumulation_steps": 1, "is_compiled": True}
    said = "ZeRO stage 3 instead of 0, accumulation 1 instead of 4, compiled True instead of False"
    with pytest.raises(RuntimeError, match=f"^DeepSpeed built {said}; "):
        proven(changed)


@pytest.mark.parametrize(
    ("settings", "places"),
    [
        ({"gpus": 4}, [0, 1, 2, 3]),
        ({"gpus": 4, "tensor_parallel": 2}, [0, 0, 1, 1]),  # neighbours share sequences
        ({"gpus": 4, "pipeline_parallel": 2}, [0, 1, 0, 1]),  # stages are farthest apart
        ({"gpus": 8, "tensor_parallel": 2, "pipeline_parallel": 2}, [0, 0, 1, 1, 0, 0, 1, 1]),
        ({"gpus": 4, "tensor_parallel": 4}, [0, 0, 0, 0]),
    ],
)
def test_which_ranks_have_the_same_sequences(small, settings, places):
    ranks = range(settings["gpus"])
    assert [data.data_rank(small(**settings), rank) for rank in ranks] == places


@pytest.mark.parametrize("source", ["synthetic", "stdlib"])
def test_a_step_has_the_same_sequences_however_it_is_divided(small, source):
    def sequences(step, **settings):
        experiment, cpu = small(data=source, steps=3, **settings), torch.device("cpu")
        found = []
        for rank in range(experiment.gpus):
            micro_batches = data.batches(experiment, 300, rank, cpu)(step)
            assert len(micro_batches) == experiment.grad_accum
            for ids in micro_batches:
                assert ids.shape == (experiment.micro_batch_size, experiment.seq_len)
                found += ids.tolist()
        return found

    whole = [sequences(step, micro_batch_size=8) for step in range(4)]
    assert len({str(ids) for of_step in whole for ids in of_step}) == 4 * 8
    for step in range(4):
        for shares in ({"gpus": 4}, {"grad_accum": 4}, {"gpus": 2, "grad_accum": 2}):
            assert sequences(step, micro_batch_size=2, **shares) == whole[step]
    assert sequences(0, micro_batch_size=8, seed=1) != whole[0]
    if source == "synthetic":  # in little memory
        assert sequences(data.SYNTHETIC_STEPS, micro_batch_size=8) == whole[0]


def test_the_gradient_of_a_micro_batch_is_scaled_where_the_optimizer_unscales_it(monkeypatch):
    """DeepSpeed's ZeRO-0 optimizers for fp16 divide by the loss scale, and do not multiply."""
    for optimizer, is_fp16, expected in (
        ("FP16_Optimizer", True, 1024 / 4),
        ("FP16_UnfusedOptimizer", True, 1024 / 4),
        ("FP16_Optimizer", False, 1.0),  # bf16
        ("Other", True, 1.0),
    ):
        kind = type(optimizer, (), {"loss_scale": 1024})
        if optimizer != "Other":
            monkeypatch.setattr(f"dsnb.measure.train.engine.{optimizer}", kind)
        built = SimpleNamespace(
            optimizer=kind(),
            fp16_enabled=lambda is_fp16=is_fp16: is_fp16,
            gradient_accumulation_steps=lambda: 4,
        )
        weight = torch.ones((), requires_grad=True)
        loss = 3 * weight
        engine.scale_loss(built, loss)
        loss.backward()
        assert weight.grad.item() == 3 * expected, optimizer


def test_the_first_step_that_deepspeed_takes_itself_is_undone(monkeypatch):
    class Optimizer:
        def __init__(self):
            self.fp32_groups_flat = [torch.tensor([0.5, 0.75])]  # decayed already
            self.fp16_groups_flat = [torch.tensor([1.0, 1.5], dtype=torch.float16)]
            self.optimizer = SimpleNamespace(state={"step": 1})

    kept = Optimizer()
    engine.undo_first_step(kept)  # of ZeRO 1 to 3, which take none
    assert (kept.optimizer.state, kept.fp32_groups_flat[0].tolist()) == ({"step": 1}, [0.5, 0.75])
    monkeypatch.setattr("dsnb.measure.train.engine.FP16_Optimizer", Optimizer)
    engine.undo_first_step(kept)
    assert (kept.optimizer.state, kept.fp32_groups_flat[0].tolist()) == ({}, [1.0, 1.5])


@pytest.mark.parametrize(("gpus", "stage", "skipped"), [(1, 0, True), (1, 1, False), (2, 0, False)])
def test_only_a_single_rank_without_zero_skips_the_reduction(small, gpus, stage, skipped):
    entered = mock.MagicMock()
    with engine.without_reduction(
        small(gpus=gpus, zero_stage=stage), SimpleNamespace(no_sync=entered)
    ):
        pass
    assert entered.called is skipped


def test_a_norm_is_not_copied_to_a_gpu(small):
    trainer = SimpleNamespace(engine=SimpleNamespace())
    for norm, found in ((torch.tensor(2.5), 2.5), (1.5, 1.5), (None, None)):
        trainer.engine.get_global_grad_norm = lambda norm=norm: norm
        assert engine.EngineTrainer.grad_norm(trainer) == found
        assert not isinstance(engine.EngineTrainer.grad_norm(trainer), torch.Tensor)


class Stepped:
    """An engine that notes its calls; the loss of a micro-batch is the sum of its tokens."""

    def __init__(self, module, skips):
        self.module, self.calls, self.skips = module, [], iter(skips)
        self.optimizer, self.device = SimpleNamespace(), torch.device("cpu")
        self.torch_autocast_z0_gradscaler, self.skipped_steps = None, 0

    def __call__(self, ids):
        self.calls.append("forward")
        return torch.tensor(float(ids.sum()), requires_grad=True)

    def backward(self, loss):
        self.calls.append(f"backward {loss.item():g}")

    def step(self):
        self.calls.append("step")
        self.skipped_steps += next(self.skips)


def test_an_engine_gets_each_micro_batch_and_its_own_parameters(small, monkeypatch):
    given = {}

    def initialize(**options):
        given.update(options)
        return Stepped(options["model"], [0, 0, 0, 1]), None

    monkeypatch.setattr("deepspeed.initialize", initialize)
    monkeypatch.setattr("dsnb.measure.train.engine.check", lambda *_: given.update(checked=True))
    experiment = small(lora_rank=2, precision="bf16", zero_stage=1, gpus=2, grad_accum=2)
    trainer = engine.DeepSpeedTrainer(experiment, {"a": 1}, torch.device("cpu"))
    assert given["checked"] is True
    assert (given["config"], given["optimizer"]) == ({"a": 1}, None)
    trained = [one for one in given["model"].parameters() if one.requires_grad]
    assert [id(one) for one in given["model_parameters"]] == [id(one) for one in trained]
    parts, seen = ["forward", "backward", "optimizer"], []
    trainer.section = lambda name: seen.append(name) or contextlib.nullcontext()
    loss, skipped = trainer.step([torch.tensor([1]), torch.tensor([4])])
    assert (loss.item(), skipped) == (2.5, False)
    assert trainer.engine.calls == [
        "forward",
        "backward 1",
        "step",
        "forward",
        "backward 4",
        "step",
    ]
    assert seen == 2 * parts
    assert trainer.step([torch.tensor([1]), torch.tensor([4])])[1] is True


@pytest.mark.parametrize(
    ("settings", "leaves"),
    [
        ({"zero_stage": 3, "leaf_modules": "blocks"}, ["GPT2Block"]),
        ({"zero_stage": 3, "leaf_modules": "none"}, []),
        ({"zero_stage": 1, "leaf_modules": "blocks"}, []),
    ],
)
def test_blocks_are_gathered_whole_where_that_is_asked_for(small, monkeypatch, settings, leaves):
    told = []
    for name, value in {
        "build": lambda *_: model.build(small(), {}, torch.device("cpu")),
        "set_z3_leaf_modules": lambda _, kinds: told.extend(kind.__name__ for kind in kinds),
        "check": lambda *_: None,
        "deepspeed.initialize": lambda **options: (Stepped(options["model"], []),),
    }.items():
        monkeypatch.setattr(f"dsnb.measure.train.engine.{name}", value)
    experiment = small(gpus=2).model_copy(update=settings)
    engine.DeepSpeedTrainer(experiment, {}, torch.device("cpu"))
    assert told == leaves
