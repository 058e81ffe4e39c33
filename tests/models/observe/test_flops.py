"""The FLOPs of one token: experts, layers without attention, windows, shared blocks; expected counts are by hand."""

import json
from types import SimpleNamespace

import pytest

from dsnb.base.formulas import metrics
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.settings.tables import REFUSALS
from tests.support import lazy

torch, transformers = lazy.Module("torch"), lazy.Module("transformers")
build, experts, flops, forward = (
    lazy.Module(f"dsnb.models.{name}")
    for name in ("build", "observe.experts", "observe.flops", "observe.forward")
)
BASE = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
BASE |= {"max_position_embeddings": 128, "num_key_value_heads": 2}
MIXTRAL = {
    "model_type": "mixtral",
    **BASE,
    "num_hidden_layers": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
ATTENTION = 2 * 64 * 64 + 2 * 64 * 32
EXPERT = 3 * 64 * 128
MIXTRAL_ACTIVE = 2 * 512 * 64 + 64 + 2 * (ATTENTION + 2 * 64 + 8 * 64 + 2 * EXPERT)
JAMBA = {
    "model_type": "jamba",
    **BASE,
    "num_hidden_layers": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
JAMBA |= {
    "attn_layer_period": 4,
    "attn_layer_offset": 2,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
}
JAMBA |= {"use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4}


@pytest.fixture
def counted(small, tmp_path):
    """Count the FLOPs of a token of a configuration, without training it."""

    def count(config, **settings):
        (tmp_path / "config.json").write_text(json.dumps(config))
        return flops.count(small(model=str(tmp_path), **settings))

    return count


def built(config):
    return transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )


def parameters(module):
    return sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(("model", "every"), [("gpt2-tiny", 1), ("opt-tiny", 0), ("bloom-tiny", 3)])
def test_dense_families_have_the_figures_of_the_formula(small, model, every):
    """The same figures as those of `dsnb predict` and of logs, which know shapes only."""
    shape, checkpointing = (
        PRESETS[model],
        {"activation_checkpointing": True, "checkpoint_every": every},
    )
    found = flops.count(small(model=model, **(checkpointing if every else {})))
    work = shape.layers, shape.hidden, 32
    assert found == {
        "active_parameters": shape.parameters,
        "flops_per_token": metrics.model_flops_per_token(shape.parameters, *work),
        "forward_flops_per_token": metrics.model_flops_per_token(shape.parameters, *work) / 3,
        "masked_flops_per_token": metrics.masked_flops_per_token(*work),
        "windowed_share": 0,
        "recomputed_flops_per_token": metrics.recomputed_flops_per_token(
            shape.block_parameters, *work, every
        ),
    }


def test_only_layers_with_attention_are_charged_for_it(counted):
    config = {
        "model_type": "qwen3_next",
        **BASE,
        "num_hidden_layers": 4,
        "head_dim": 16,
        "num_experts": 0,
    }
    config |= {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "mlp_only_layers": [0, 1, 2, 3],
    }
    work = counted(config)
    assert work["active_parameters"] == parameters(built(config))
    assert work["flops_per_token"] == 6 * work["active_parameters"] + 12 * 4 * 16 * 32
    assert work["masked_flops_per_token"] == 6 * 4 * 16 * 32


WIDE = {**BASE, "num_hidden_layers": 2, "head_dim": 24, "num_local_experts": 4}
NEO = {
    "num_heads": 4,
    "num_layers": 2,
    "max_position_embeddings": 128,
    "vocab_size": 512,
    "hidden_size": 96,
}
SLIDING, CHUNKED = (
    {"layer_types": [kind, "full_attention"]} for kind in ("sliding_attention", "chunked_attention")
)


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        ({"model_type": "mistral", "sliding_window": 8, **WIDE}, [8, 8]),
        ({"model_type": "gemma3_text", "sliding_window": 8, **SLIDING, **WIDE}, [8, 32]),
        (
            {
                "model_type": "gpt_neo",
                "attention_types": [[["local", "global"], 1]],
                "window_size": 8,
                **NEO,
            },
            [8, 32],
        ),
        ({"model_type": "llama4_text", "attention_chunk_size": 8, **CHUNKED, **WIDE}, [8, 32]),
    ],
)
def test_windows_and_heads_of_another_width(counted, config, keys):
    found = counted(config)
    attention = found["flops_per_token"] - 6 * found["active_parameters"]
    assert attention == pytest.approx(sum(12 * 4 * 24 * one for one in keys))
    assert found["masked_flops_per_token"] == pytest.approx(
        sum(6 * 4 * 24 * one * one / 32 for one in keys)
    )
    assert found["windowed_share"] == keys.count(8) / 2


def test_latent_attention_has_heads_of_two_widths(counted):
    config = {"model_type": "deepseek_v3", **BASE, "num_key_value_heads": 4, "num_hidden_layers": 2}
    config |= {
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
    }
    config |= {
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
    }
    config |= {"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
    found = counted(config)
    expert, norms = 3 * 64 * 32, 2 * 64 + 16 + 16
    latent = 64 * 16 + 16 * 4 * 24 + 64 * (16 + 8) + 16 * 4 * (16 + 16) + 4 * 16 * 64
    active = 2 * (latent + norms) + 3 * 64 * 128 + (2 + 1) * expert + 8 * 64 + 2 * 512 * 64 + 64
    assert found["active_parameters"] == active
    assert found["flops_per_token"] == 6 * active + 12 * 2 * 4 * (24 + 16) / 2 * 32


def test_a_hybrid_with_experts(counted):
    found = counted({**JAMBA}, activation_checkpointing=True, checkpoint_every=2)
    model = built(JAMBA)
    active = (
        parameters(model) - 2 * 2 * EXPERT
    )  # layers 1 and 3 have 4 experts, and 2 of them are idle
    assert found["active_parameters"] == active
    assert found["flops_per_token"] == 6 * active + 12 * 64 * 32
    again = sum(parameters(model.model.layers[layer]) for layer in (0, 2))
    assert (
        found["recomputed_flops_per_token"] == 2 * again + 4 * 64 * 32
    )  # layer 2 has the attention


def test_where_products_are_kept_none_is_recomputed(counted):
    found = counted({**JAMBA}, activation_checkpointing=True, checkpoint_ops="cheap")
    assert found["recomputed_flops_per_token"] == 0


def test_a_block_that_several_layers_share_works_in_each(counted):
    config = {
        "model_type": "zamba2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
    }
    config |= {
        "num_hidden_layers": 4,
        "vocab_size": 512,
        "mamba_d_state": 8,
        "n_mamba_heads": 4,
        "mamba_headdim": 32,
    }
    config |= {
        "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "num_mem_blocks": 1,
        "adapter_rank": 4,
    }
    found = counted(config)
    model = built(config)
    first, second = (
        {id(one): one.numel() for one in model.model.layers[layer].parameters()} for layer in (1, 3)
    )
    shared = sum(size for one, size in first.items() if one in second)
    assert shared > 0
    idle = 64 * 4 + 4 * 2 * 128  # each of the two uses leaves the adapter of the other one out
    assert found["active_parameters"] == parameters(model) + shared - 2 * idle


def test_lora_trains_its_adapters_only(counted):
    config = {"model_type": "llama", **BASE, "num_hidden_layers": 2}
    whole, found = counted(config), counted(config, lora_rank=4)
    sides = 64 + 64, 64 + 32, 64 + 32, 64 + 64, 64 + 128, 64 + 128, 128 + 64
    adapters, frozen = 2 * 4 * sum(sides), whole["active_parameters"]
    assert found["active_parameters"] == frozen + adapters
    assert found["flops_per_token"] == 4 * (frozen + adapters) + 2 * adapters + 12 * 2 * 64 * 32


SPARSE = {"model_type": "deepseek_v32", **BASE, "num_key_value_heads": 4, "num_hidden_layers": 2}
SPARSE |= {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("config", "settings", "why"),
    [
        (
            MIXTRAL,
            {"lora_rank": 4},
            "peft computes the adapters of all experts of base_model.*, whatever a token choos",
        ),
        (SPARSE, {}, r"model\.layers\.0\.self_attn\.indexer chooses the keys that attention sees"),
    ],
)
def test_what_cannot_be_counted_is_refused(counted, config, settings, why):
    """Peft 0.21 adds adapters to the weights of all experts before the router's choice is used."""
    with pytest.raises(ValueError, match=f"^{why}"):
        counted(config, **settings)


def test_a_mixture_that_is_trained_records_its_active_parameters(run_small, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MIXTRAL))
    result, _ = run_small(model=str(tmp_path), activation_checkpointing=True)
    summary = result.summary
    assert result.status == "ok"
    assert (summary["parameters"], summary["active_parameters"]) == (
        MIXTRAL_ACTIVE + 2 * 6 * EXPERT,
        MIXTRAL_ACTIVE,
    )
    rate = summary["tokens_per_s_per_gpu"] / 1e12
    attention, in_blocks = 12 * 2 * 64 * 32, MIXTRAL_ACTIVE - 2 * 512 * 64 - 64
    assert summary["tflops_per_gpu"] == pytest.approx((6 * MIXTRAL_ACTIVE + attention) * rate)
    assert summary["hardware_tflops_per_gpu"] == pytest.approx(
        (6 * MIXTRAL_ACTIVE + attention + 2 * in_blocks + attention / 3) * rate
    )


@pytest.mark.parametrize(
    ("router", "config", "chosen"),
    [
        (lambda scores: scores.topk(3), {"num_experts_per_tok": 2}, 3),  # the pass takes precedence
        (lambda scores: scores, {"moe_top_k": 4, "topk_group": 2, "norm_topk_prob": True}, 4),
        (lambda scores: scores, {"num_experts_per_tok": 2, "moe_top_k": 3}, None),
        (lambda scores: (scores.topk(1), scores.topk(2)), {}, None),
    ],
)
def test_the_experts_of_an_unknown_mixture_are_counted_or_refused_if_not_certain(
    router, config, chosen
):
    with torch.device("meta"):
        model, moe = torch.nn.Module(), torch.nn.Module()
        moe.router, moe.experts = (
            torch.nn.Linear(8, 6),
            torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6)),
        )
        moe.forward = lambda hidden: router(moe.router(hidden))
        model.embedding, model.moe, model.config = (
            torch.nn.Embedding(9, 8),
            moe,
            SimpleNamespace(to_dict=lambda: config),
        )
        model.forward = lambda input_ids, use_cache: model.moe(model.embedding(input_ids))
    held = experts.expert_modules(model)
    seen = forward.observe(model, held)
    if chosen:
        expected = {"moe.experts": experts.Experts(6, chosen, stacked=False)}
        assert experts.chosen_experts(model, held, seen) == expected
        return
    with pytest.raises(
        ValueError,
        match=r"^it is not certain how many of the 6 experts of moe\.experts work on a tok",
    ):
        experts.chosen_experts(model, held, seen)


def test_a_model_that_cannot_be_followed_says_so(small, monkeypatch):
    monkeypatch.setattr("dsnb.models.observe.flops.observe", lambda *_, **__: 1 / 0)
    why = "the FLOPs of a token could not be counted: division by zero"
    assert flops.record(small()) == {"flops_missing": why}


def test_the_lists_of_encoders_are_those_of_transformers():
    """Types whose `is_decoder` is false by default, except for those that are causal anyway."""
    encoders, both = set(), set()
    types = {*transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    for kind in types - {"gpt_neox", "gpt_neox_japanese", "trocr", "gemma4_assistant"}:
        config = transformers.AutoConfig.for_model(kind)
        if getattr(config, "is_encoder_decoder", False):
            both.add(kind)
        elif getattr(config, "is_decoder", None) is False:
            encoders.add(kind)
    assert encoders | {"xlm", "xlnet"} == set(
        REFUSALS["model_types"]["decoders_if_set"]
    )  # these two have no `is_decoder`
    assert both == set(REFUSALS["model_types"]["encoder_decoders"])


def test_a_model_within_another_is_refused(small, monkeypatch):
    """The configuration of the hub's `google/gemma-3-4b-it` is of a language model and a vision model."""
    text = {**BASE, "num_hidden_layers": 2, "head_dim": 16}
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = transformers.AutoConfig.for_model("gemma3", text_config=text, vision_config=vision)
    monkeypatch.setattr("dsnb.models.build.model_config", lambda _: config)
    why = (
        "^model is 'google/gemma-3-4b-it': gemma3 is more than a language model; save the text_config of its "
        "configuration as a separate configuration and use that$"
    )
    with pytest.raises(ValueError, match=why):
        build.build_on_meta(small(model="google/gemma-3-4b-it"))
