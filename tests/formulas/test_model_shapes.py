"""Presets against transformers' own modules, and names taken from paths."""

import json

import pytest

from dsnb.formulas import model_shapes

COUNTED = {
    "llama-2-7b": 6738415616, "llama-3.2-1b": 1235814400, "llama-3.1-8b": 8030261248, "llama-3.1-70b": 70553706496,
    "mistral-7b": 7248023552, "mixtral-8x7b": 46702792704, "qwen2.5-0.5b": 494032768, "qwen2.5-7b": 7615616512,
    "qwen2.5-72b": 72706203648, "qwen3-0.6b": 596049920, "qwen3-30b-a3b": 30532122624, "gemma-2b": 2506172416,
    "gemma-2-2b": 2614341888, "gemma-3-1b": 999885952, "phi-2": 2779683840, "phi-3-mini": 3821079552,
    "phi-4": 14659507200, "pythia-410m": 405334016, "pythia-12b": 11846072320, "falcon-7b": 6921720704,
}  # fmt: skip
"""Parameters that the hub states of the weights."""
OTHERS = [name for name, shape in model_shapes.PRESETS.items() if shape.published]


@pytest.mark.parametrize("name", ["gpt2", "gpt-1.3b", "gpt2-tiny", "opt-125m", "opt-350m", "bloom-560m", *OTHERS])
def test_parameter_counts_are_transformers_own(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_shapes.PRESETS[name].config()))
    shape = model_shapes.PRESETS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert shape.parameters == COUNTED.get(name, shape.parameters)
    if shape.published:
        blocks = next(one for one in model.modules() if isinstance(one, torch.nn.ModuleList))
        of_blocks = sum(parameter.numel() for parameter in blocks.parameters())
        assert of_blocks <= shape.block_parameters < of_blocks + 4 * shape.hidden + shape.vocab


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
