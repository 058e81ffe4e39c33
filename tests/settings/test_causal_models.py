"""Models that are not causal language models are refused before anything starts."""

import json

import pytest

from dsnb.errors import SettingsError

ALLOWED = "give a causal language model, such as GPT-2, Llama or Mixtral"
IF_SET = f"set is_decoder to true in its configuration, or {ALLOWED}"
ENCODER = f"is an encoder: its tokens also attend to later ones; {IF_SET}"
REFUSED = {
    "bert": ({"model_type": "bert"}, f"bert {ENCODER}"),
    "roberta": ({"model_type": "roberta", "is_decoder": False}, f"roberta {ENCODER}"),
    "xlnet": ({"model_type": "xlnet"}, f"in xlnet, tokens also attend to later ones; {ALLOWED}"),
    "t5": ({"model_type": "t5", "is_encoder_decoder": True}, f"t5 is an encoder-decoder; {ALLOWED}"),
    "list": ([1], f"its configuration is not a JSON object; {ALLOWED}"),
    "none": ({"hidden_size": 64}, f"its configuration has no model_type; {ALLOWED}"),
}


def test_what_sees_its_targets_is_refused(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a long path would be shortened
    for name, (config, why) in REFUSED.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
        with pytest.raises(SettingsError) as caught:
            small(model=f"{name}.json")
        assert caught.value.problems == [f"model is '{name}.json': {why}"]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "is_decoder": True},
        {"model_type": "bart", "is_encoder_decoder": False, "is_decoder": True},
        {"model_type": "xlm", "causal": True},
        {"model_type": "llama"},
        {"model_type": "mamba2"},
        {"model_type": "gpt_neox", "is_decoder": False},
    ],
    ids=lambda config: config["model_type"],
)
def test_decoders_are_allowed(small, tmp_path, config):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert small(model=str(tmp_path)).model == str(tmp_path)
