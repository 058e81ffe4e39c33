"""`dsnb.adapt`: a user's model has the loss and gradients that it had, whatever its batches, and is saved as before."""

import copy
import functools
import json
import re

import pytest

import dsnb
from benchmarks import families
from dsnb.base.errors import DsnbWarning
from dsnb.settings.exchange import files as exchange
from tests.support import lazy

torch = lazy.Module("torch")
transformers, peft = lazy.Module("transformers"), lazy.Module("peft")
adapting, adapted, attention, build, parts, proof = (
    lazy.Module(f"dsnb.models.{name}")
    for name in ("adapt", "adapted", "attention", "build", "parts", "proof_of_adapted")
)
EVERYTHING = {"loss": "chunked", "activation_checkpointing": True, "checkpoint_every": 2}
PADDED = {"pad_vocab": 64, "activation_checkpointing": True}
LENGTH = 24
KINDS = ("llama", "gpt2", "mistral", "gemma2", "olmo2", "qwen3_moe", "falcon", "opt", "bloom")
"""Grouped and separate queries, windows, soft caps, experts, learned positions, ALiBi."""


def made(kind, **fields):
    torch.manual_seed(0)
    sizes = {**families.configuration(kind), "num_hidden_layers": 4, **fields}
    if kind == "qwen3_moe":
        sizes["layer_types"] = ["full_attention"] * 4
    config = transformers.AutoConfig.for_model(**sizes)
    build.set_dropout(config, 0.0)
    return transformers.AutoModelForCausalLM.from_config(config).train()


def batches(vocab):
    """Sequences that are whole, padded on either side and within, with targets in the padding, and packed."""
    torch.manual_seed(1)
    ids = torch.randint(1, vocab, (3, LENGTH))
    ones = torch.ones_like(ids)
    right = ones.clone()
    right[0, 15:] = 0
    right[2, 20:] = 0
    left = right.flip(1)
    odd = ones.clone()
    odd[1, 7:9] = 0
    places = torch.arange(LENGTH).expand(3, LENGTH)
    packed = torch.cat([places[:, :10], places[:, :14]], dim=1)
    answers = ids.clone()
    answers[:, :9] = -100

    def masked(mask):
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, 1:].masked_fill_(mask[:, :-1] == 0, -100)  # what padding predicts is not defined
        return {"input_ids": ids, "labels": labels, "attention_mask": mask}

    return {
        "whole": {"input_ids": ids, "labels": ids},
        "answers": {"input_ids": ids, "labels": answers},
        "ones": {"input_ids": ids, "labels": ids, "attention_mask": ones},
        "right": masked(right),
        "left": masked(left),
        "within": masked(odd),
        "counted": {**masked(right), "num_items_in_batch": torch.tensor(200)},
        "number": {"input_ids": ids, "labels": answers, "num_items_in_batch": 100},
        "positions": {"input_ids": ids, "labels": ids, "position_ids": places},
        "packed": {"input_ids": ids, "labels": ids, "position_ids": packed},
        "both": {**masked(right), "position_ids": packed},
    }


def takes(model, batch):
    named = model.forward.__func__.__signature__.parameters
    return "position_ids" in named or "position_ids" not in batch


def trained(model, batch):
    model.zero_grad()
    loss = model(**batch)["loss"]
    loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    return float(loss.detach()), torch.cat([one.flatten() for one in found.values()])


def assert_equal_training(model, own, names=None):
    for name, batch in batches(own.config.vocab_size).items():
        if (names and name not in names) or not takes(parts.language_model(model), batch):
            continue
        expected, gradient = trained(own, {**batch, "use_cache": False})
        loss, ours = trained(model, batch)
        assert loss == pytest.approx(expected, rel=1e-5), name
        assert (ours - gradient).norm() < 1e-4 * gradient.norm(), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", [EVERYTHING, PADDED], ids=["chunked", "padded"])
@pytest.mark.filterwarnings("ignore::dsnb.base.errors.DsnbWarning")
def test_loss_and_gradients_are_those_of_the_model_itself(kind, settings):
    windows = {"sliding_window": 8} if kind in {"mistral", "gemma2"} else {}
    own = made(kind, **windows)
    model = dsnb.adapt(copy.deepcopy(own), settings)
    assert {"attention", "activation_checkpointing"} <= model.dsnb_applied.applied.keys()
    assert_equal_training(model, own)


@pytest.mark.parametrize(
    ("unit", "settings"),
    [("model", {"loss": "chunked"}), ("block", PADDED)],
    ids=["model", "block"],
)
@pytest.mark.process
def test_a_compiled_model_trains_alike(unit, settings, monkeypatch):
    """Without C++: graphs are captured and differentiated as ever."""
    without_cpp = functools.partial(torch.compile, backend="aot_eager")
    monkeypatch.setattr("torch.compile", without_cpp)
    torch._dynamo.reset()
    own = made("llama", num_hidden_layers=2)
    settings = {**settings, "compile": "default", "compile_unit": unit}
    model = dsnb.adapt(copy.deepcopy(own), settings)
    assert "compile" in model.dsnb_applied.applied
    graphs = torch._dynamo.utils.counters["stats"]
    assert_equal_training(model, own, {"whole", "counted", "left", "packed"})
    seen = graphs["unique_graphs"]
    assert seen
    assert_equal_training(model, own, {"whole", "counted", "left", "packed"})
    assert graphs["unique_graphs"] == seen
    assert model.state_dict().keys() == own.state_dict().keys()


@pytest.mark.parametrize("wrapped_first", [True, False])
def test_adapters_train_alike(wrapped_first):
    own = made("llama")
    config = peft.LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    config.init_lora_weights = False

    def wrapped(model):
        torch.manual_seed(3)
        return peft.get_peft_model(model, config)

    settings = {**EVERYTHING, "lora_rank": 4}
    model = copy.deepcopy(own)
    if wrapped_first:
        model = dsnb.adapt(wrapped(model), settings)
        assert model.dsnb_applied.left_out == {}
    else:
        with pytest.warns(DsnbWarning, match="lora_rank: all weights are trained; wrap the model"):
            model = wrapped(dsnb.adapt(model, settings))
    own = wrapped(own)
    assert_equal_training(model, own)
    assert model.state_dict().keys() == own.state_dict().keys()


def test_masks_without_an_effect_are_left_out():
    """Only what padding on the right computes may differ, and nothing learns from it."""
    ids = torch.ones(2, 6, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    labels = ids.masked_fill(mask == 0, -100)

    def is_left_out(mask, labels):
        batch = {"labels": labels, "attention_mask": mask}
        return adapted.without_needless(batch)[0]["attention_mask"] is None

    assert is_left_out(mask, labels)
    assert is_left_out(torch.ones_like(mask), ids)
    assert not is_left_out(mask.flip(1), labels.flip(1))
    assert not is_left_out(torch.tensor([[1, 1, 0, 1, 1, 1]] * 2), labels)
    learns = labels.clone()
    learns[1, 4] = 1  # predicted by the last token that is real
    assert is_left_out(mask, learns)
    learns[1, 5] = 1  # predicted by padding
    assert not is_left_out(mask, learns)
    dense = torch.ones(2, 1, 6, 6)
    assert adapted.without_needless({"labels": labels, "attention_mask": dense})[1] is False


def test_a_model_is_saved_evaluated_and_copied_as_before(tmp_path):
    own = made("llama")
    model = dsnb.adapt(copy.deepcopy(own), {**EVERYTHING, "pad_vocab": 0})
    batch = batches(251)["left"]
    ids = batch["input_ids"][:, :9]
    own.eval(), model.eval()
    expected = own(**batch)
    ours = model(**batch)
    torch.testing.assert_close(ours.logits, expected.logits)
    torch.testing.assert_close(ours.loss, expected.loss)
    how = {
        "max_new_tokens": 8,
        "do_sample": False,
        "attention_mask": batch["attention_mask"][:, -9:],
    }
    assert torch.equal(model.generate(ids, **how), own.generate(ids, **how))
    model.save_pretrained(tmp_path)
    assert not re.search("causal_sdpa|dsnb", (tmp_path / "config.json").read_text())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.state_dict().keys() == own.state_dict().keys()
    for name, weight in own.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight)
    twin = copy.deepcopy(model).train()
    with torch.no_grad():
        twin.get_input_embeddings().weight.zero_()
    assert_equal_training(model.train(), own.train(), {"left"})
    assert trained(twin, batch)[0] != pytest.approx(trained(model, batch)[0], abs=1e-6)


def test_more_than_the_loss_is_computed_as_before():
    model = dsnb.adapt(made("llama"), {"loss": "chunked"})
    batch = batches(251)["whole"]
    assert set(model(**batch)) == {"loss"}
    assert "logits" in model(input_ids=batch["input_ids"])
    assert len(model(**batch, output_hidden_states=True).hidden_states) == 5
    assert isinstance(model(**batch, return_dict=False), tuple)
    with torch.no_grad():
        assert "logits" in model(**batch)
    cached = model.eval()(batch["input_ids"][:, :8], use_cache=True).past_key_values
    more = model(batch["input_ids"][:, 8:], past_key_values=cached).logits
    torch.testing.assert_close(more, model(batch["input_ids"]).logits[:, 8:])


@pytest.mark.parametrize("unit", ["model", "block"])
def test_blocks_are_recomputed_once_whatever_a_trainer_asks_for(unit, monkeypatch):
    monkeypatch.setattr("torch.compile", lambda one, **_: one)
    settings = {"activation_checkpointing": True, "checkpoint_every": 3}
    model = dsnb.adapt(made("llama"), {**settings, "compile": "default", "compile_unit": unit})
    model.gradient_checkpointing_enable()
    model.activation_checkpointing_enable()
    calls = []
    for number, block in enumerate(parts.blocks(model)):
        block.mlp.register_forward_pre_hook(lambda *_, number=number: calls.append(number))
    loss = model(**batches(251)["whole"]).loss
    assert calls == [0, 1, 2, 3]
    loss.backward()
    assert sorted(calls[4:]) == [0, 3]


def test_dropout_changes_if_it_is_stated():
    def gpt2():
        torch.manual_seed(0)
        sizes = families.configuration("gpt2")
        config = transformers.AutoConfig.for_model(**sizes)
        return transformers.AutoModelForCausalLM.from_config(config)

    with pytest.warns(DsnbWarning, match="dropout: the model's own 0.1 is kept"):
        kept = dsnb.adapt(gpt2(), {"loss": "chunked"})
    batch = batches(251)["whole"]
    assert trained(kept.train(), batch)[0] != trained(kept, batch)[0]
    stated = dsnb.adapt(gpt2(), {"dropout": 0.0}).train()
    assert stated.dsnb_applied.applied["dropout"] == "0 (before: 0.1)"
    assert trained(stated, batch)[0] == trained(stated, batch)[0]


def test_a_change_that_computes_something_else_is_left_out(monkeypatch):
    wrong = lambda *_, **__: None  # noqa: E731
    interface = attention.AttentionMaskInterface
    monkeypatch.setitem(interface._global_mapping, attention.CAUSAL, wrong)
    own = made("llama")
    with pytest.warns(DsnbWarning, match="left out attention: a small model of the same kind had"):
        model = dsnb.adapt(copy.deepcopy(own), {"loss": "chunked"})
    assert model.dsnb_applied.applied.keys() == {"loss"}
    assert model.config._attn_implementation == own.config._attn_implementation
    assert_equal_training(model, own)


def test_what_cannot_be_changed_is_said():
    own = made("granite", logits_scaling=1000.0)
    with pytest.warns(DsnbWarning, match="left out pad_vocab: pad_vocab is 64: its logits have a"):
        model = dsnb.adapt(copy.deepcopy(own), {"pad_vocab": 64})
    assert "left out: " in str(model.dsnb_applied)
    assert_equal_training(model, own, {"whole", "left"})
    experts = made("qwen3_moe", output_router_logits=True)
    with pytest.warns(DsnbWarning, match="left out loss: the model adds its router's loss itself"):
        model = dsnb.adapt(copy.deepcopy(experts), {"loss": "chunked"})
    assert_equal_training(model, experts, {"whole", "left"})


def test_settings_come_from_a_mapping_an_experiment_a_file_or_a_run(tmp_path):
    settings = {"loss": "chunked", "zero_stage": 2, "gpus": 8, "micro_batch_size": 4}
    path = tmp_path / "params.yaml"
    path.write_text(f"name: mine\ndefaults: {json.dumps(settings)}\n")
    flat = tmp_path / "settings.yaml"
    flat.write_text(json.dumps(settings))
    run = tmp_path / "run1"
    run.mkdir()
    (run / "experiment.json").write_text(json.dumps(settings))
    written = tmp_path / exchange.SETTINGS_FILE
    written.write_text(exchange.files(dsnb.Experiment(**settings))[written.name])
    for given in (settings, dsnb.Experiment(**settings), path, str(flat), written, run):
        assert "loss" in dsnb.adapt(made("llama"), given).dsnb_applied.applied
    path.write_text("name: mine\ngrid: {zero_stage: [0, 1]}\n")
    with pytest.raises(
        dsnb.SettingsError, match="has 2 settings of runs, but one model is trained"
    ):
        dsnb.adapt(made("llama"), path)
    with pytest.raises(dsnb.SettingsError, match=r"unknown setting 'los': did you mean .loss."):
        dsnb.adapt(made("llama"), {"los": "chunked"})


def test_only_causal_language_models_are_adapted_and_once():
    model = made("llama")
    with pytest.raises(TypeError, match=r"model is a Linear: dsnb\.adapt takes a causal language"):
        dsnb.adapt(torch.nn.Linear(2, 2), {})
    with pytest.raises(TypeError, match=r"LlamaModel: dsnb\.adapt takes a causal language model"):
        dsnb.adapt(model.model, {})
    with pytest.raises(TypeError, match="before the model is compiled or wrapped"):
        dsnb.adapt(torch.compile(model), {})
    dsnb.adapt(model, {})
    with pytest.raises(TypeError, match=r"model is adapted already: call dsnb\.adapt once"):
        dsnb.adapt(model, {})


def test_cuda_graphs_refuse_gradients_of_an_earlier_micro_batch():
    model = made("llama")
    model.lm_head.weight.grad = torch.zeros_like(model.lm_head.weight)
    adapted.begin_step(model)
    next(model.parameters()).grad = torch.zeros_like(next(model.parameters()))
    with pytest.raises(ValueError, match="use gradient_accumulation_steps 1"):
        adapted.begin_step(model)
