"""Models and tokenizers of the hub on nodes without a network: in its cache on this machine, and trained from."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from dsnb.errors import FetchError, SettingsError
from dsnb.files import records
from dsnb.formulas.model_shapes import PRESETS
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks, inputs
from dsnb.settings.experiment import Experiment
from tests.conftest import SMALL

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cached(hub, name):
    """Give the folder of a repository's files in a cache, as huggingface_hub lays it out."""
    repository = hub / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return repository / "snapshots" / COMMIT


@pytest.mark.process
def test_a_model_and_a_tokenizer_are_trained_from_without_a_network(tmp_path, small):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    made, home, text = tmp_path / "made", tmp_path / "shared folder", tmp_path / "text.txt"
    words = {word: number for number, word in enumerate(["the", "cat", "sat", "on", "mat", "[UNK]"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(made)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**PRESETS["gpt2-tiny"].config())).save_pretrained(made)
    text.write_text("the cat sat on the mat " * 50)
    shutil.copytree(made, cached(home / "hub", "owner/made"))

    asked = {"model": "owner/made", "weights": "pretrained", "tokenizer": "owner/made", "data": str(text)}
    here = small(**asked | {"model": str(made), "tokenizer": str(made)})
    expected = launch(here, tmp_path / "here" / "run1", progress=False)
    # The ranks of another process: huggingface_hub reads its variables when it is loaded.
    offline = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    offline = {name: value for name, value in offline.items() if not name.startswith("DSNB_FORK_SERVER")}
    params = tmp_path / "params.yaml"
    params.write_text(json.dumps({"name": "p", "defaults": {**SMALL, **asked}}))
    command = [sys.executable, "-m", "dsnb", "sweep", params, "--output", tmp_path / "there"]
    done = subprocess.run(command, env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "there").rglob("result.json")
    curves = [
        [row["loss"] for row in records.read_lines(RunPaths(run).steps)] for run in (expected.run_dir, result.parent)
    ]
    assert curves[0] == curves[1]
    assert json.loads(RunPaths(result.parent).experiment.read_text())["model"] == "owner/made"


def test_the_cache_is_checked_before_a_launch_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    settings = Experiment(**{**SMALL, "model": "owner/small", "weights": "pretrained"}).model_dump()
    folder = cached(tmp_path, "owner/small")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert checks.unsupported(settings) == []  # the launch may fetch the weights
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert checks.unsupported(settings) == [
        "model is 'owner/small': HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its config and weights; "
        "run `hf download owner/small` where there is a network, and set HF_HOME to the folder that has it"
    ]
    (folder / "model.safetensors").write_text("weights")
    assert checks.unsupported(settings) == []


def test_which_files_are_chosen():
    both = "config.json model.safetensors pytorch_model.bin consolidated.safetensors onnx/model.onnx"
    index = "model.safetensors.index.json"
    parts = ["config.json", "model_00001-of-00002.safetensors", "model_00002-of-00002.safetensors", index]
    words = ["config.json", "tokenizer.json", "vocab.json", "merges.txt", "spiece.model", "model.safetensors"]
    for names, part, files in [
        (both.split(), "config", ["config.json"]),
        (both.split(), "weights", ["config.json", "model.safetensors"]),
        (["config.json", "pytorch_model.bin", "tf_model.h5"], "weights", ["config.json", "pytorch_model.bin"]),
        ([*parts, "pytorch_model.bin"], "weights", sorted(parts)),
        (words, "tokenizer", sorted(words[:-1])),
    ]:
        assert inputs.chosen(names, {part}) == files
    with pytest.raises(FetchError, match="1 of 2 files of the weights are missing"):
        inputs.chosen([parts[0], parts[2], index], {"weights"})
    with pytest.raises(FetchError, match="there are no weights that transformers could load"):
        inputs.chosen(["config.json", "flax_model.msgpack"], {"weights"})


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", "/etc/passwd", "owner/name/more", "a\0/b"])
def test_no_name_of_a_model_leads_out_of_the_cache(name):
    with pytest.raises(SettingsError, match="model is "):
        Experiment(model=name)
