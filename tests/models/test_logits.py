"""How logits are made of the output layer's product is seen in a model's code, whatever its configuration calls it."""

import pytest

from tests.support import lazy

torch, nn = lazy.Module("torch"), lazy.Module("torch.nn")
transformers = lazy.Module("transformers")
build, logits, model_loss = (
    lazy.Module(f"dsnb.models.{name}") for name in ("build", "logits", "loss")
)
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 96,
}


def on_meta(family, **settings):
    config = transformers.AutoConfig.for_model(family, **SIZES, pad_token_id=0, **settings)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("family", "settings", "made"),
    [
        ("gpt2", {}, (1, 1, 0)),
        ("opt", {}, (1, 1, 0)),
        ("llama4_text", {}, (1, 1, 0)),  # its base model has another name than it says
        ("granite", {"logits_scaling": 8.0}, (1, 1 / 8, 0)),
        ("hyperclovax", {"logits_scaling": 8.0}, (1, 8, 0)),
        ("cohere", {"logit_scale": 0.0625}, (1, 0.0625, 0)),
        ("gemma2", {"final_logit_softcapping": 20.0}, (1, 1, 20)),
        ("nanochat", {}, (1, 1, 15)),
        ("minicpm3", {"dim_model_base": 16}, (0.5, 1, 0)),
    ],
)
def test_a_factor_or_soft_cap_is_found(family, settings, made):
    model = on_meta(family, **settings)
    assert logits.logit_map(model) == pytest.approx(made, rel=1e-5)
    assert logits.logit_map(model.bfloat16()) == pytest.approx(made, rel=1e-5)
    with torch.device("meta"):  # as while the model is built
        assert logits.logit_map(model) == pytest.approx(made, rel=1e-5)


def squared(model):
    forward = model.forward

    def odd(**inputs):
        output = forward(**inputs)
        output.logits = output.logits * output.logits.abs()
        return output

    model.forward = odd


def masked(model):
    forward = model.forward

    def odd(**inputs):
        output = forward(**inputs)
        output.logits[..., 3] = -1e9
        return output

    model.forward = odd


def with_a_layer_before(model):
    model.lm_head = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 96))
    model.get_output_embeddings = lambda: model.lm_head[1]


def shifted(model):
    model.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (squared, "its logits are more than its output layer's product, a factor and a soft cap"),
        (masked, "its logits are more than its output layer's product, a factor and a soft cap"),
        (with_a_layer_before, "its logits are not made by its output layer alone"),
        (shifted, "its output layer is given more than its last hidden states"),
        (lambda model: setattr(model, "lm_head", nn.Identity()),
         "its output layer is of type Identity, not a linear layer"),
    ],
)  # fmt: skip
def test_a_model_that_makes_its_logits_in_another_way_is_refused(change, why):
    model = on_meta("llama")
    change(model)
    for check, words in (
        (model_loss.chunkable, f"loss is 'chunked': {why}; use 'whole'"),
        (lambda model: build.check_padded(model, 64), f"pad_vocab is 64: {why}; set it to 0"),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            check(model)
        assert str(caught.value) == words


def test_logits_that_a_factor_or_cap_keeps_from_being_negligible_are_not_added():
    build.check_padded(on_meta("cohere", logit_scale=0.0625), 64)
    words = (
        "pad_vocab is 64: its logits have a factor or a soft cap, which would make added ones -10.0 instead of "
        "negligible; set it to 0"
    )
    for family, settings in (
        ("gemma2", {"final_logit_softcapping": 10.0}),
        ("cohere", {"logit_scale": 1e-3}),
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            build.check_padded(on_meta(family, **settings), 64)
        assert str(caught.value) == words


def test_a_model_is_left_as_it_was():
    model = on_meta("llama")
    layer = model.get_output_embeddings()
    layer.forward = replaced = lambda hidden: hidden
    logits.logit_map(model)
    assert layer.forward is replaced
    assert "forward" not in model.model.__dict__
