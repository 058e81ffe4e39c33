"""Presets against transformers' own modules, and names taken from paths."""

import json

import pytest

from dsnb.formulas import model_shapes


@pytest.mark.parametrize("name", model_shapes.PRESETS)
def test_parameter_counts_are_transformers_own(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**model_shapes.PRESETS[name].config()))
    assert sum(parameter.numel() for parameter in model.parameters()) == model_shapes.PRESETS[name].parameters


def test_sizes_are_what_the_names_say():
    millions = {name: round(shape.parameters / 1e6) for name, shape in model_shapes.PRESETS.items()}
    assert (millions["gpt2"], millions["gpt2-xl"], millions["opt-350m"]) == (124, 1558, 331)
    assert millions["gpt-1.3b"] == 1316
    assert (millions["bloom-7b1"], millions["bloom-176b"]) == (7069, 176247)


def test_local_configurations(tmp_path):
    folder = tmp_path / "my model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 64}))
    assert model_shapes.facts(str(folder)) == {"family": "gpt2", "positions": 64}
    assert model_shapes.slug(str(folder)) == "my-model"
    (folder / "config.json").write_text("[1]")
    assert model_shapes.facts(str(folder)) == {}


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../b", "x'; rm -rf /", "/", "..", "ü/ü"])
def test_no_name_leads_out_of_its_folder(name):
    slug = model_shapes.slug(name)
    assert slug
    assert "/" not in slug
    assert slug.strip(".") == slug
    assert not model_shapes.is_hub_id(name)
