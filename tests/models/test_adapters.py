"""The layers that LoRA adapts, in every family by the same properties."""

import pytest

from tests.support import lazy

adapters = lazy.Module("dsnb.models.adapters")
build = lazy.Module("dsnb.models.build")
FUSED = {"gpt2-tiny": "c_attn", "bloom-tiny": "query_key_value", "phi3-tiny": "qkv_proj"}
OUTPUTS = {"gpt2-tiny": "c_proj", "bloom-tiny": "dense", "phi3-tiny": "o_proj"}
APART = {"opt-tiny": "out_proj", "llama-tiny": "o_proj", "moe-tiny": "o_proj"}


def names(small, model, targets):
    built = build.build_on_meta(small(model=model))
    return {name.rpartition(".")[2] for name in adapters.layers_of(built, targets)}


@pytest.mark.parametrize("model", FUSED)
def test_a_layer_that_makes_queries_keys_and_values_together_is_that_of_queries_and_values(
    small, model
):
    assert names(small, model, "query-value") == {FUSED[model]}
    assert names(small, model, "attention") == {FUSED[model], OUTPUTS[model]}


@pytest.mark.parametrize("model", APART)
def test_layers_of_queries_and_values_are_found_by_name(small, model):
    assert names(small, model, "query-value") == {"q_proj", "v_proj"}
    assert names(small, model, "attention") == {"q_proj", "k_proj", "v_proj", APART[model]}


def test_layers_and_their_sizes_are_counted_by_block(small):
    """Llama's tiny one has queries and outputs of 128 x 128, keys and values of 128 x 64."""
    built = build.build_on_meta(small(model="llama-tiny"))
    whole, shared = adapters.counted(built, "attention"), adapters.counted(built, "query-value")
    assert whole == [4, 2 * (128 + 128) + 2 * (128 + 64)]
    assert shared == [2, (128 + 128) + (128 + 64)]


def test_a_model_without_attention_is_refused(small, monkeypatch):
    built = build.build_on_meta(small(model="llama-tiny"))
    without = [block.mlp for block in built.model.layers]
    monkeypatch.setattr("dsnb.models.adapters.blocks", lambda _: without)
    words = "lora_targets is 'attention': llama has no such linear layers; use 'linear'"
    with pytest.raises(ValueError, match=f"^{words}$"):
        adapters.layers_of(built, "attention")
