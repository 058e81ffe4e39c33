"""What settings make of a model: its weights by seed, recomputed blocks, adapters, tied weights, causal attention."""

import pytest

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.settings.experiment import Experiment
from tests.support import lazy

torch = lazy.Module("torch")
build, parts, model_loss, attention = (
    lazy.Module(f"dsnb.models.{name}") for name in ("build", "parts", "loss", "attention")
)
FAMILIES = [name for name in PRESETS if name.endswith("-tiny")]

TIED = {"gpt2-tiny", "opt-tiny", "bloom-tiny", "gemma2-tiny", "falcon-tiny", "qwen3-tiny"}


def built(small, model="gpt2-tiny", **settings):
    experiment = small(**{"model": model, "strategy": "ddp", "gpus": 2, **settings})
    return build.build(experiment, {}, torch.device("cpu"))


def in_one(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def test_weights_follow_from_the_seed_and_differ_between_blocks(small):
    torch.manual_seed(99)
    first, second, other = (built(small, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(in_one(first), in_one(second))
    assert not torch.equal(in_one(first), in_one(other))
    matrices = [block.mlp.c_fc.weight for block in parts.blocks(first)]
    assert len({matrix.sum().item() for matrix in matrices}) == len(matrices) == 4
    assert all(matrix.std().item() == pytest.approx(0.02, rel=0.05) for matrix in matrices)
    build.init_weights(first, 7)
    assert torch.initial_seed() == 7  # dropout draws the same numbers, whatever was built before


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_stage_of_a_pipeline_has_the_weights_of_the_whole_model(small, stage):
    whole = dict(built(small, "opt-tiny", seed=3).named_parameters())
    experiment = small(model="opt-tiny", gpus=4, pipeline_parallel=4, seed=3)
    model, _ = build.build_stage(experiment, stage, torch.device("cpu"))
    own = {name: one for name, one in model.named_parameters() if not one.is_meta}
    assert all(torch.equal(weight, whole[name]) for name, weight in own.items())
    of_blocks = {name.split("layers.")[1][0] for name in own if "layers." in name}
    assert of_blocks == {str(stage)}
    assert ("model.decoder.embed_tokens.weight" in own) is (stage in (0, 3))  # tied to the head
    assert ("model.decoder.embed_positions.weight" in own) is (stage == 0)
    assert ("model.decoder.final_layer_norm.weight" in own) is (stage == 3)


@pytest.mark.parametrize(
    ("settings", "recomputed"),
    [
        ({}, [False, False, False, False]),
        ({"activation_checkpointing": True}, [True, True, True, True]),
        ({"activation_checkpointing": True, "checkpoint_every": 2}, [True, False, True, False]),
        ({"activation_checkpointing": True, "checkpoint_every": 3}, [True, False, False, True]),
    ],
)
@pytest.mark.parametrize("offload", [False, True])
def test_every_nth_block_is_recomputed_and_nothing_else(
    small, monkeypatch, settings, recomputed, offload
):
    """A block is called again in the backward pass; its saved input is in host memory if it is offloaded."""
    saved, save = [], build.save_on_cpu
    monkeypatch.setattr(
        "dsnb.models.build.save_on_cpu", lambda **how: saved.append(how) or save(**how)
    )
    offloaded = {"checkpoint_offload": True} if offload and settings else {}
    model = built(small, "opt-tiny", **settings, **offloaded)
    calls = []
    for number, block in enumerate(parts.blocks(model)):
        block.fc1.register_forward_hook(lambda *_, number=number: calls.append(number))
    loss = model_loss.CausalLoss(model)(torch.arange(64).reshape(2, 32))
    assert calls == [0, 1, 2, 3]
    loss.backward()
    again = [number for number, is_recomputed in enumerate(recomputed) if is_recomputed]
    assert sorted(calls[4:]) == again
    assert saved == len(again) * bool(offloaded) * [{"pin_memory": False}]
    plain = built(small, "opt-tiny")
    expected = model_loss.CausalLoss(plain)(torch.arange(64).reshape(2, 32))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-6)


@pytest.mark.parametrize(
    ("strategy", "dtype"), [({"strategy": "ddp"}, "float32"), ({"zero_stage": 2}, "bfloat16")]
)
def test_adapters_are_trained_and_the_rest_is_frozen_in_half_precision(small, strategy, dtype):
    settings = {"strategy": "deepspeed", "lora_rank": 4, "precision": "bf16", **strategy}
    model = built(small, **settings)
    adapters = {name: one for name, one in model.named_parameters() if "lora_" in name}
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    assert trained == adapters.keys()
    assert len(adapters) == 4 * 4 * 2  # of each block's four layers
    assert {one.dtype for one in adapters.values()} == {getattr(torch, dtype)}
    frozen = {one.dtype for name, one in model.named_parameters() if name not in adapters}
    assert frozen == {torch.bfloat16}
    layer = next(module for module in model.modules() if hasattr(module, "lora_A"))
    assert layer.scaling == {"default": 1.0}
    assert not any(isinstance(one, torch.nn.Dropout) and one.p for one in layer.modules())
    assert {len(one) for name, one in adapters.items() if "lora_A" in name} == {4}


def test_adapters_follow_from_the_seed_whatever_was_drawn_before(small):
    """As where the weights are loaded, which draws numbers, too."""
    found = []
    for drawn, seed in ((1, 5), (2, 5), (1, 6)):
        whole = built(small)
        torch.manual_seed(drawn)
        adapted = build.add_adapters(small(seed=seed, lora_rank=2), whole)
        adapters = [one.flatten() for name, one in adapted.named_parameters() if "lora_A" in name]
        found.append(torch.cat(adapters).detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("implementation", ["auto", "eager"])
def test_no_token_sees_a_later_one(small, name, implementation):
    model = built(small, name, attention=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    ids = torch.randint(2, 200, (1, 32))
    changed = ids.clone()
    changed[0, 20] += 1
    with torch.no_grad():
        before, after = (
            model(input_ids=each, use_cache=False).logits[0] for each in (ids, changed)
        )
    differs = (before - after).abs().amax(dim=-1) > 1e-4
    assert not differs[:20].any()
    assert differs[20:].all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("pad", [0, 96])
def test_an_output_layer_is_the_embedding_where_the_family_ties_them(small, name, pad):
    model = built(small, name, pad_vocab=pad)
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head is embedding) is (name in TIED)
    assert len(head) % (pad or 1) == 0


@pytest.mark.parametrize("chunked", [False, True])
def test_the_loss_is_the_mean_over_predicted_tokens(chunked):
    """Each token is predicted from the one before it, the last one predicts nothing: 2 x 3 losses of known size."""
    columns = 8
    logits = torch.zeros(2, 4, columns)
    ids = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    for row in range(2):
        for place in range(3):
            logits[row, place, ids[row, place + 1]] = float(10 * row + place)
    logits[:, 3] = 1e4 * torch.randn(2, columns)
    scores = torch.tensor([0.0, 1.0, 2.0, 10.0, 11.0, 12.0], dtype=torch.float64)
    expected = (scores.exp() + columns - 1).log() - scores
    if chunked:
        targets = model_loss.next_tokens(ids)
        assert targets.tolist() == [[1, 2, 3, -100], [5, 6, 7, -100]]
        found = model_loss.differentiate(logits.flatten(0, 1).clone(), targets.flatten()) / 6
    else:
        found = model_loss.causal_loss(logits, ids)
        in_half = model_loss.causal_loss(logits.bfloat16(), ids)  # which has these numbers
        assert in_half.item() == pytest.approx(expected.mean().item(), rel=1e-5)
    assert found.item() == pytest.approx(expected.mean().item(), rel=1e-5)


def test_chunks_are_as_equal_as_can_be():
    assert [model_loss.chunk_tokens(tokens) for tokens in (1, 2048, 2049, 4096, 6000)] == [
        1, 2048, 1025, 2048, 2000,
    ]  # fmt: skip
    assert [model_loss.aligned(vocab) for vocab in (1, 8, 50257)] == [8, 8, 50264]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gpt2-tiny", "seq_len": 4096},
         r"^seq_len is 4096: gpt2-tiny has \d+ positions; use at most \d+$"),
        ({"model": "gpt2-tiny", "tensor_parallel": 3, "gpus": 3},
         r"^tensor_parallel is 3: it must divide the model's 4 heads$"),
        ({"model": "gpt2-tiny", "pipeline_parallel": 3, "gpus": 3},
         r"^pipeline_parallel is 3: it must divide the model's 4 layers$"),
        ({"model": "llama-tiny", "tensor_parallel": 4, "gpus": 4},
         r"^tensor_parallel is 4: it must divide the model's 2 key-value heads$"),
        ({"model": "falcon-tiny", "tensor_parallel": 2, "gpus": 2},
         r"^tensor_parallel is 2: it must divide the model's 1 key-value heads$"),
        ({"model": "moe-tiny", "tensor_parallel": 2, "gpus": 2},
         r"^tensor_parallel is 2: moe-tiny has 4 experts, whose weights AutoTP does not split; set it to 1$"),
    ],
)  # fmt: skip
def test_what_a_model_cannot_do_is_refused(small, settings, message):
    experiment = small(precision="fp32").model_copy(update=settings)
    with pytest.raises(ValueError, match=message):
        parts.check_split(experiment, build.model_config(experiment))


def test_a_model_is_built_in_the_format_that_is_trained(small):
    for settings, dtype in (
        ({"strategy": "ddp", "precision": "bf16"}, torch.float32),  # under autocast
        ({"strategy": "deepspeed", "zero_stage": 1, "precision": "bf16"}, torch.bfloat16),
        ({"strategy": "deepspeed", "zero_stage": 1, "precision": "fp32"}, torch.float32),
    ):
        assert {one.dtype for one in built(small, **settings).parameters()} == {dtype}
    model = build.build_on_meta(Experiment(model="gpt2-tiny", device="cpu"), layers=2)
    assert len(parts.blocks(model)) == 2
    assert model.device.type == "meta"
    assert not model.config.use_cache
    assert model.training
