"""Attention without a mask, FlexAttention with ALiBi, and the kernel that is recorded."""

import pytest

from dsnb.base.formulas import model_shapes
from dsnb.base.formulas.model_shapes import PRESETS
from tests.support import lazy

torch, F = lazy.Module("torch"), lazy.Module("torch.nn.functional")
transformers = lazy.Module("transformers")
attention = lazy.Module("dsnb.models.attention")
build = lazy.Module("dsnb.models.build")
SIZES = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 2, "num_experts": 4, "num_local_experts": 4, "moe_intermediate_size": 32,
}  # fmt: skip
"""Of a small model, whatever its family calls those that it has."""
FAMILIES = [
    "apertus", "arcee", "bitnet", "cohere", "cohere2", "diffllama", "ernie4_5", "exaone4", "gemma", "gemma3_text",
    "glm", "glm4", "granite", "helium", "hunyuan_v1_dense", "jetmoe", "lfm2", "llama", "llama4_text", "ministral",
    "mistral", "nanochat", "nemotron", "olmo", "olmo2", "olmo3", "persimmon", "phi", "phimoe", "qwen2", "seed_oss",
    "smollm3", "stablelm", "starcoder2",
]  # fmt: skip
"""As transformers builds them from their types; the code knows none of these names."""
PRESET_NAMES = ["gpt2-tiny", "opt-tiny", "neox-tiny", "phi3-tiny", "moe-tiny", "qwen3-moe-tiny"]


def config_of(name, **settings):
    """Return the configuration of a preset, or a small one of a family, without dropout."""
    if name in PRESETS:
        config = transformers.AutoConfig.for_model(**PRESETS[name].config() | settings)
    else:
        has = transformers.AutoConfig.for_model(name).to_dict()
        sizes = {key: value for key, value in SIZES.items() if key in has}
        config = transformers.AutoConfig.for_model(name, **sizes | settings)
    build.set_dropout(config, 0.0)
    return config


def built(name, implementation, **settings):
    """Return a model with weights as large as after a training: freshly drawn ones hardly attend."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config_of(name, **settings), attn_implementation=implementation
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def loss_and_gradients(model, ids):
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    return loss.item(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.fixture
def given(monkeypatch):
    """Return the list of masks that attention is given, of which None is none."""
    masks = []
    fused = attention.sdpa_attention_forward

    def watched(module, query, key, value, mask, **options):
        masks.append(mask)
        return fused(module, query, key, value, mask, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, attention.CAUSAL, watched)
    return masks


@pytest.mark.parametrize(
    "name",
    [
        *PRESET_NAMES,
        *FAMILIES[::4],
        *(pytest.param(name, marks=pytest.mark.docs) for name in FAMILIES),
    ],
)
def test_causal_attention_without_a_mask_is_transformers_eager_one(name, given):
    """In fp64, which experts lack: in fp32, a number near zero may be on the other side of OPT's ReLU."""
    torch.manual_seed(0)
    ids = torch.randint(3, 256, (2, 100))
    has_experts = model_shapes.shared_sizes(config_of(name).to_dict()).get("experts")
    dtype = torch.float32 if has_experts else torch.float64
    loss, expected = loss_and_gradients(built(name, "eager").to(dtype), ids)
    with attention.whole_sequences():
        ours, found = loss_and_gradients(built(name, attention.CAUSAL).to(dtype), ids)
    assert ours == pytest.approx(loss, abs=1e-5)
    assert (found - expected).norm() < 2e-5 * expected.norm()
    assert given
    assert set(given) == {None}


@pytest.mark.parametrize(
    ("name", "settings", "masked"),
    [
        ("mistral", {"sliding_window": 64}, 2),
        ("mistral", {"sliding_window": 99}, 2),
        ("mistral", {"sliding_window": 100}, 0),  # each token sees all before it
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, 0),
        ("gemma3_text", {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}, 1),
        ("llama4_text", {"attention_chunk_size": 64, "layer_types": ["chunked_attention", "full_attention"]}, 1),
    ],
)  # fmt: skip
def test_layers_with_a_window_below_the_length_keep_their_mask(name, settings, masked, given):
    ids = torch.randint(3, 256, (2, 100))
    loss, expected = loss_and_gradients(built(name, "eager", **settings), ids)
    with attention.whole_sequences():
        ours, found = loss_and_gradients(built(name, attention.CAUSAL, **settings), ids)
    assert sum(mask is not None for mask in given) == masked
    assert ours == pytest.approx(loss, abs=1e-5)
    assert (found - expected).norm() < 2e-5 * expected.norm()


def test_padding_is_not_lost(given):
    model = built("llama", attention.CAUSAL)
    ids = torch.randint(3, 256, (2, 40))
    padding = torch.ones(2, 40, dtype=torch.long)
    padding[0, :7] = 0
    with torch.no_grad():
        padded = model(input_ids=ids, attention_mask=padding, use_cache=False).logits
        model.set_attn_implementation("eager")
        expected = model(input_ids=ids, attention_mask=padding, use_cache=False).logits
    assert given[0] is not None
    assert padded[:, 7:].allclose(expected[:, 7:], atol=1e-5)


@pytest.mark.parametrize(
    ("family", "model", "expected"),
    [
        ("gemma2", "Gemma2ForCausalLM", "eager"),  # its scores are capped
        ("olmo2", "Olmo2ForCausalLM", "causal_sdpa"),
        ("falcon", "FalconForCausalLM", "sdpa"),  # knows the attention of its own classes only
    ],
)
def test_the_fastest_attention_is_one_that_a_model_can_use(family, model, expected):
    config = transformers.AutoConfig.for_model(family)
    assert attention.fastest(config, getattr(transformers, model)) == expected


@pytest.mark.process
@pytest.mark.parametrize(("name", "masked"), [("opt-tiny", 0), ("olmo2", 0), ("gemma3_text", 1)])
def test_no_mask_is_made_even_if_a_compiler_traces_the_model(name, masked, given):
    settings = {}
    if masked:
        settings = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
    model = built(name, attention.CAUSAL, **settings)
    ids = torch.randint(3, 256, (2, 40))
    with attention.whole_sequences():
        torch.compile(lambda: model(input_ids=ids, use_cache=False).logits, backend="eager")()
    assert len(given) == model.config.num_hidden_layers
    assert sum(mask is not None for mask in given) == masked


def test_fused_attention_with_alibi_is_transformers_attention():
    model = built("bloom-tiny", "eager")
    ids = torch.randint(model.config.vocab_size, (2, 256))

    def gradients(dtype):
        loss, found = loss_and_gradients(model.to(dtype), ids)
        return loss, found.float()

    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    logits = model(input_ids=ids, use_cache=False).logits.detach()
    (loss, exact), (_, eager) = gradients(torch.float32), gradients(torch.bfloat16)
    model.to(torch.float32).load_state_dict(weights)
    attention.use_fused_alibi(model)
    (fused_loss, same), (_, fused) = gradients(torch.float32), gradients(torch.bfloat16)
    assert fused_loss == pytest.approx(loss, abs=1e-5)
    assert (same - exact).norm() < 2e-5 * exact.norm()
    assert (fused - exact).norm() < (eager - exact).norm()
    model.to(torch.float32).load_state_dict(weights)
    attention.use_fused_alibi(model, flex_length=256)
    with torch.no_grad():  # on a CPU FlexAttention has no backward pass
        flex = model(input_ids=ids, use_cache=False).logits
    assert (flex - logits).norm() < 1e-5 * logits.norm()


TENSOR, NUMBER = [1, 2, 16, 8], []
"""Shapes of inputs of an operator, as the profiler records them."""


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("flash_attention_for_cpu", [NUMBER, NUMBER, NUMBER])], "flash"),
        ([("flash_attention_for_cpu", [NUMBER, NUMBER, [16, 16]])], "flash, masked"),
        ([("efficient_attention", [NUMBER, NUMBER])], "efficient"),
        ([("cudnn_attention", [[1, 1, 16, 16], NUMBER])] * 2, "cudnn, masked"),
        ([("cudnn_attention", [[16, 16]]), ("cudnn_attention", [NUMBER])], "cudnn, partly masked"),
        ([], "math"),
    ],
)  # fmt: skip
def test_the_kernel_is_named_by_its_operator_and_its_mask(calls, expected):
    operators = [("aten::mm", [[16, 16], [16, 16]]), ("aten::_softmax", [TENSOR, NUMBER])]
    for name, others in calls:
        operators.append((f"aten::_scaled_dot_product_{name}", [TENSOR] * 3 + others))
        operators.append((f"aten::_scaled_dot_product_{name}_backward", [TENSOR] * 5))
    assert attention.kernel_of(operators) == expected
    assert attention.kernel_of(operators[:1]) is None


KINDS = ["sliding_attention", "full_attention"]


def kernel_in(compute):
    watch = attention.KernelWatch()
    with watch.watching():
        compute()
    return watch.kernel


def test_the_kernel_that_ran_is_found():
    query = torch.randn(1, 2, 16, 8, requires_grad=True)
    mask = torch.zeros(16, 16)

    def fused(**options):
        return F.scaled_dot_product_attention(query, query, query, **options).sum().backward()

    def unfused():
        return torch.softmax(query @ query.transpose(-1, -2), -1) @ query

    assert kernel_in(lambda: fused(is_causal=True)) == "flash"
    assert kernel_in(lambda: fused(attn_mask=mask)) == "flash, masked"
    assert kernel_in(unfused) == "math"
    assert attention.KernelWatch().kernel is None
    assert attention.KernelWatch(flex=True).kernel == "flex"


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("olmo2", {}, "flash"),
        ("mistral", {"sliding_window": 8}, "flash, masked"),
        ("gemma3_text", {"sliding_window": 8, "layer_types": KINDS}, "flash, partly masked"),
    ],
)
def test_the_mask_of_a_model_is_found(name, settings, expected):
    model = built(name, attention.CAUSAL, **settings)
    ids = torch.randint(3, 256, (2, 40))
    assert kernel_in(lambda: loss_and_gradients(model, ids)) == expected
