"""Attention without a mask, FlexAttention with ALiBi, and the kernel that is recorded."""

import pytest

from dsnb.base.formulas.model_shapes import PRESETS
from tests.support import lazy

torch, F = lazy.Module("torch"), lazy.Module("torch.nn.functional")
transformers = lazy.Module("transformers")
attention = lazy.Module("dsnb.models.attention")
MASKLESS = [
    "gpt2-tiny",
    "opt-tiny",
    "llama-tiny",
    "qwen3-tiny",
    "neox-tiny",
    "phi3-tiny",
    "moe-tiny",
    "qwen3-moe-tiny",
]
"""One of each family that does not share its attention with another one: Mistral, Qwen 2, Gemma and Phi do."""


def built(name, implementation):
    """Return a model with weights as large as after a training: freshly drawn ones hardly attend."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(
        **PRESETS[name].config(), attn_implementation=implementation
    )
    for dropout in (
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
        "dropout",
        "attention_dropout",
        "hidden_dropout",
    ):
        if hasattr(config, dropout):
            setattr(config, dropout, 0.0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation
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


@pytest.mark.parametrize("name", MASKLESS)
def test_causal_attention_without_a_mask_is_transformers_eager_one(name):
    ids = torch.randint(PRESETS[name].config()["vocab_size"], (2, 100))
    loss, expected = loss_and_gradients(built(name, "eager"), ids)
    ours, found = loss_and_gradients(built(name, attention.CAUSAL), ids)
    assert ours == pytest.approx(loss, abs=1e-5)
    assert (found - expected).norm() < 2e-5 * expected.norm()


@pytest.mark.parametrize(
    ("family", "settings", "expected"),
    [
        ("mistral", {"sliding_window": 64}, "sdpa"),
        ("qwen2", {"sliding_window": 64, "use_sliding_window": False}, "causal_sdpa"),
        ("gemma2", {}, "eager"),  # its scores are capped
        ("gemma3_text", {"sliding_window": 64}, "sdpa"),
    ],
)
def test_a_window_or_a_cap_of_scores_is_not_lost(family, settings, expected):
    assert attention.fastest(transformers.AutoConfig.for_model(family, **settings), 128) == expected


@pytest.mark.process
def test_no_mask_is_made_even_if_a_compiler_traces_the_model():
    model, masks = built("opt-tiny", attention.CAUSAL), []
    whole = attention.sdpa_attention_forward

    def watched(module, query, key, value, mask, **options):
        masks.append((mask, options["is_causal"]))
        return whole(module, query, key, value, mask, **options)

    ids = torch.randint(256, (2, 40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dsnb.models.attention.sdpa_attention_forward", watched)
        torch.compile(lambda: model(input_ids=ids, use_cache=False).logits, backend="eager")()
    assert masks
    assert set(masks) == {(None, True)}


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


def test_the_kernel_is_named_by_its_operator():
    kernels = {
        "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
        "aten::_scaled_dot_product_efficient_attention": "efficient",
        "aten::_scaled_dot_product_cudnn_attention": "cudnn",
        "aten::bmm": "math",  # with the softmax that is beside each of them
    }
    assert {
        name: attention.kernel_of(["aten::mm", "aten::_softmax", name]) for name in kernels
    } == kernels
    assert attention.kernel_of(["aten::mm"]) is None


def test_the_kernel_that_ran_is_found():
    query = torch.randn(1, 2, 16, 8, requires_grad=True)
    fused, unfused = attention.KernelWatch(), attention.KernelWatch()
    with fused.watching():
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    with unfused.watching():
        torch.softmax(query @ query.transpose(-1, -2), -1) @ query
    assert (fused.kernel, unfused.kernel, attention.KernelWatch().kernel, attention.KernelWatch(flex=True).kernel) == (
        "flash", "math", None, "flex",
    )  # fmt: skip
