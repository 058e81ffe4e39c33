"""Models and tokenizers of the hub on nodes without a network: in its cache on this machine, and trained from."""

import math
import os
import subprocess
import sys

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from tests.conftest import SMALL

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(hub, name):
    """Give the folder of a repository's files in a cache, as huggingface_hub lays it out."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.mark.process
def test_a_model_and_a_tokenizer_are_trained_from_without_a_network(tmp_path):
    """With a last norm of 0, all tokens are equally likely, so the first loss is the logarithm of their number."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    shape, home, text = PRESETS["gpt2-tiny"], tmp_path / "shared folder", tmp_path / "text.txt"
    folder = cached(home / "hub", "owner/made")
    words = {
        word: number for number, word in enumerate(["the", "cat", "sat", "on", "mat", "[UNK]"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape.config()))
    model.transformer.ln_f.weight.data.zero_()
    model.save_pretrained(folder)
    text.write_text("the cat sat on the mat " * 50)

    # In another process: huggingface_hub reads its variables when it is loaded.
    offline = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    offline = {
        name: value for name, value in offline.items() if not name.startswith("DSNB_FORK_SERVER")
    }
    settings = {
        "model": "owner/made",
        "weights": "pretrained",
        "tokenizer": "owner/made",
        "data": str(text),
    }
    run = RunPaths(tmp_path / "run1")
    code = (
        "from dsnb import Experiment, launch\n"
        f"launch(Experiment(**{ {**SMALL, **settings}!r}), {str(run.dir)!r}, progress=False).raise_for_status()"
    )
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert next(iter(json_files.read_lines(run.steps)))["loss"] == pytest.approx(
        math.log(shape.vocab), rel=1e-6
    )
    assert json_files.read_json(run.experiment)["model"] == "owner/made"


def test_the_cache_is_checked_before_a_launch_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    settings = Experiment(**{**SMALL, "model": "owner/small", "weights": "pretrained"})
    folder = cached(tmp_path, "owner/small")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert checks.unsupported(settings) == []  # the launch may fetch the weights
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert checks.unsupported(settings) == [
        "model is 'owner/small': HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its weights; "
        "run `hf download owner/small` where there is a network, and set HF_HOME to the folder that has it"
    ]
    (folder / "model.safetensors").write_text("weights")
    assert checks.unsupported(settings) == []


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/../../b", "/etc/passwd", "owner/name/more", "a\0/b"]
)
def test_no_name_of_a_model_leads_out_of_the_cache(name):
    with pytest.raises(SettingsError, match="model is "):
        Experiment(model=name)
