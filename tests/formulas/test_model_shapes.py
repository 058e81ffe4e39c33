"""Presets against transformers' own modules, and names taken from paths."""

import json

import pytest

from dsnb.formulas import model_shapes


@pytest.mark.parametrize("name", ["gpt2", "gpt-1.3b", "gpt2-tiny", "opt-125m", "opt-350m", "bloom-560m"])
def test_parameter_counts_are_transformers_own(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_shapes.PRESETS[name].config()))
    assert sum(parameter.numel() for parameter in model.parameters()) == model_shapes.PRESETS[name].parameters


def test_sizes_are_what_the_names_say():
    """In millions of parameters, for each family's largest models too."""
    said = {"gpt2-xl": 1558, "opt-6.7b": 6658, "opt-175b": 174604, "bloom-7b1": 7069, "bloom-176b": 176247}
    assert {name: round(model_shapes.PRESETS[name].parameters / 1e6) for name in said} == said


def test_local_configurations(tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 64}))
    assert model_shapes.facts(str(folder)) == {"family": "gpt2", "positions": 64}
    assert model_shapes.slug(str(folder)) == "my-model"
    (folder / "config.json").write_text("[1]")
    assert model_shapes.facts(str(folder)) == {}


def test_a_name_does_not_depend_on_what_files_there_are(tmp_path, monkeypatch):
    named = {"m/llama.json": "llama", "m/llama/config.json": "llama", "m/llama-3.1/": "llama-3.1", "a/b": "b"}
    assert {model: model_shapes.slug(model) for model in named} == named
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m/llama").mkdir(parents=True)
    for name in ("m/llama.json", "m/llama/config.json"):
        (tmp_path / name).write_text("{}")
    assert {model: model_shapes.slug(model) for model in named} == named


def test_equal_names_are_extended_to_the_left_until_they_differ():
    models = ["a/llama.json", "b/llama.json", "gpt2", "openai/gpt2", "x/a/config.json", "y/a/config.json", "opt-125m"]
    names = ["a-llama", "b-llama", "gpt2", "openai-gpt2", "x-a", "y-a", "opt-125m"]
    assert model_shapes.slugs(models) == dict(zip(models, names, strict=True))
    assert model_shapes.slugs(["c.json", "./c.json"]) == {"c.json": "c", "./c.json": "c"}  # one file
    assert model_shapes.slugs(["a-b.json", "a/b.json", "x/b.json"])["a/b.json"] == "a-b"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../b", "x'; rm -rf /", "/", "..", "ü/ü"])
def test_no_name_leads_out_of_its_folder(name):
    slug = model_shapes.slug(name)
    assert slug
    assert "/" not in slug
    assert slug.strip(".") == slug
    assert not model_shapes.is_hub_id(name)
