"""How blocks are split among tensor-parallel ranks; `test_strategies` trains split models."""

import json

import pytest

from dsnb.base.formulas.model_shapes import PRESETS, facts, undivided
from tests.support import lazy

torch = lazy.Module("torch")
build, parts = (lazy.Module(f"dsnb.models.{name}") for name in ("build", "parts"))
layouts = lazy.Module("dsnb.models.layout")
memory = lazy.Module("dsnb.models.observe.memory")
counting = lazy.Module("dsnb.models.observe.work")
TINY = [name for name in PRESETS if name.endswith("-tiny")]
HIDDEN, INNER, QUERIES, KEYS, HEADS, LAYERS = 128, 344, 128, 64, 4, 4
"""Sizes of llama-tiny; `QUERIES` and `KEYS` are the widths of the queries, and of the keys as of the values."""


def layout(model, ranks=2):
    given = layouts.block_arguments(model)
    with layouts.evaluating(model):
        return layouts.layout_of(parts.blocks(model)[0], given[0], ranks)


@pytest.fixture
def built(small):
    """Build a model with random weights."""

    def make(name, **settings):
        experiment = small(model=name, **settings)
        model = build.build(experiment, {}, torch.device("cpu"))
        parts.use_linear_layers(model)
        return model

    return make


def test_layers_are_split_by_what_they_read(built):
    found = layout(built("llama-tiny"))
    attention = {
        f"self_attn.{name}_proj": [size] for name, size in zip("qkv", (128, 64, 64), strict=True)
    }
    assert found.sections == attention | {"mlp.gate_proj": [INNER], "mlp.up_proj": [INNER]}
    assert found.rows == ["self_attn.o_proj", "mlp.down_proj"]
    assert (found.partial, found.across) == ([], [])


@pytest.mark.parametrize(
    ("model", "layer", "sizes"),
    [
        ("gpt2-tiny", "attn.c_attn", [128, 128, 128]),
        ("bloom-tiny", "self_attention.query_key_value", [384]),  # side by side for each head
        ("neox-tiny", "attention.query_key_value", [384]),
        ("phi3-tiny", "self_attn.qkv_proj", [128, 64, 64]),
        ("phi3-tiny", "mlp.gate_up_proj", [344, 344]),
    ],
)
def test_parts_of_an_output_are_split_separately(built, model, layer, sizes):
    assert layout(built(model)).sections[layer] == sizes


def test_norms_between_split_layers_are_whole(built, tmp_path):
    """A rank computes a part of the gradient of a norm of each head; one over all heads needs all ranks' outputs."""
    assert layout(built("qwen3-tiny")).partial == [
        "self_attn.q_norm.weight",
        "self_attn.k_norm.weight",
    ]
    config = PRESETS["llama-tiny"].config() | {"model_type": "olmo2", "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = layout(built(str(tmp_path)))
    assert sorted(found.across) == ["self_attn.k_norm", "self_attn.q_norm"]
    assert sorted(found.partial) == ["self_attn.k_norm.weight", "self_attn.q_norm.weight"]


@pytest.mark.parametrize("name", TINY)
def test_a_preset_that_the_settings_allow_can_be_split(small, name):
    """Presets are not built before a run, so what is known of them must be enough."""
    sizes = facts(name)
    allowed = not undivided("tensor_parallel", 2, sizes) and sizes.get("experts", 0) < 2
    model = build.build_on_meta(small(model=name))
    if allowed:
        layouts.check(model, 2)
        return
    with pytest.raises(ValueError, match=r"^tensor_parallel is 2: "):
        layouts.check(built_whole(model), 2)


def built_whole(model):
    """Return a model with numbers: the parts of an output are unknown without."""
    return type(model)(model.config)


def test_a_layer_that_nothing_follows_is_named(built):
    model = built("llama-tiny")
    for block in parts.blocks(model):
        block.mlp.down_proj = torch.nn.Identity()
        block.mlp.up_proj = torch.nn.Linear(HIDDEN, HIDDEN)
        block.mlp.gate_proj = torch.nn.Linear(HIDDEN, HIDDEN)
    with pytest.raises(
        ValueError, match=r"no linear layer follows mlp\.gate_proj in a block; set it to 1$"
    ):
        layouts.check(model, 2)


def test_sizes_that_ranks_cannot_share_are_named(built):
    model = built("llama-tiny")
    for block in parts.blocks(model):
        block.mlp.gate_proj = torch.nn.Linear(HIDDEN, 345)
        block.mlp.up_proj = torch.nn.Linear(HIDDEN, 345)
        block.mlp.down_proj = torch.nn.Linear(345, HIDDEN)
    with pytest.raises(
        ValueError,
        match=r"^tensor_parallel is 2: it must divide the 345 outputs of mlp\.gate_proj$",
    ):
        layouts.check(model, 2)


def test_training_modes_and_weights_are_as_before(built):
    model = built("llama-tiny")
    model.train()
    model.model.norm.training = False
    before = [weight.clone() for weight in model.parameters()]
    layouts.check(model, 2)
    assert [module for module in model.modules() if not module.training] == [model.model.norm]
    assert all(map(torch.equal, before, model.parameters()))
    assert all(weight.grad is None for weight in model.parameters())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_keeps_its_part_of_what_is_between_split_layers(small, ranks):
    """Compiled, in bytes of bf16: two hidden states and their norms are whole.

    Queries, keys, values and results of the attention with its sums in fp32, and three of the MLP, are divided.
    """
    settings = {
        "precision": "bf16",
        "zero_stage": 1,
        "gpus": 2,
        "compile": "default",
        "device": "cuda",
    }
    experiment = small(model="llama-tiny", seq_len=1024, **settings).model_copy(
        update={"tensor_parallel": ranks}
    )
    record = memory.trace(experiment)
    divided = 2 * (2 * QUERIES + 2 * KEYS + 3 * INNER) + 4 * HEADS
    _, per_sequence = record["kept"]
    assert per_sequence == pytest.approx(
        1024 * LAYERS * (2 * 4 * HIDDEN + divided / ranks), rel=5e-3
    )
    assert record["parameters"] == PRESETS["llama-tiny"].parameters
    of_layers = 2 * HIDDEN * QUERIES + 2 * HIDDEN * KEYS + 3 * HIDDEN * INNER
    rest = record["parameters"] - LAYERS * of_layers
    assert record.get("of_rank", record["parameters"]) == rest + LAYERS * of_layers / ranks
    assert record["moments"][-1][2] == pytest.approx(record["trainable"])


def test_what_ranks_share_is_counted(small):
    """Eager in fp32: activation functions, positions and copies of heads, but no norm, no sum of residuals."""
    experiment = small(model="llama-tiny", precision="fp32", strategy="plain")
    record = counting.count(experiment)
    forward, _ = record["inside"]["compiled"]
    # Read queries and keys and write them turned; read both halves of the MLP and write their product.
    by_hand = 4 * (2 * QUERIES + 2 * KEYS + 3 * INNER)
    assert forward == pytest.approx(by_hand, rel=0.25)
    assert 0 < record["inside"]["eager"][0] < record["traffic"]["eager"][0]
    assert (
        counting.count(small(model="moe-tiny", precision="fp32", strategy="plain"))["inside"] == {}
    )
