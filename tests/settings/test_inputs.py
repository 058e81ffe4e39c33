"""Digests of the files that a run reads."""

import hashlib
import json

import pytest

from dsnb.settings import inputs
from dsnb.settings.experiment import Experiment


def digests(**settings):
    return inputs.digests(Experiment(device="cpu", precision="fp32", **settings).model_dump())


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"model_type": "llama"}))
    return "a.json"


def test_a_digest_is_of_the_content_alone(model, tmp_path):
    assert digests(model="gpt2-tiny") == {}  # presets and synthetic tokens read no file
    expected = hashlib.sha256((tmp_path / model).read_bytes()).hexdigest()[:32]
    assert digests(model=model) == {"a.json": expected}


def test_every_file_of_a_folder_that_is_read_has_one(tmp_path):
    folder = tmp_path / "m"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "merges.txt", "README.md", "model.safetensors", "pytorch_model.bin"):
        (folder / name).write_text(json.dumps({"name": name, "model_type": "llama"}))
    text = tmp_path / "text.txt"
    text.write_text("some text\n")
    found = digests(model=f"{folder}/", tokenizer=str(folder), data=str(text))
    names = [*(f"{folder}/{name}" for name in ("config.json", "merges.txt", "tokenizer.json")), str(text)]
    assert sorted(found) == sorted(names)
    trained = digests(model=str(folder / "config.json"), weights="pretrained")
    assert sorted(trained) == [f"{folder}/config.json", f"{folder}/model.safetensors"]
    settings = Experiment(device="cpu", model="gpt2-tiny").model_dump() | {"data": str(tmp_path / "gone.txt")}
    assert inputs.digests(settings) == {}  # the launch says that it is missing


def test_a_large_file_is_sampled_from_its_first_to_its_last_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_WHOLE_BYTES", 100)
    monkeypatch.setattr(inputs, "SAMPLES", 4)
    monkeypatch.setattr(inputs, "SAMPLE_BYTES", 10)
    path, content = tmp_path / "weights", bytearray(range(200))
    path.write_bytes(content)
    whole = inputs.digest(path)
    assert whole.startswith("sampled-")
    for place, differs in ((0, True), (65, True), (199, True), (30, False)):  # samples begin at 0, 63, 126 and 190
        path.write_bytes(bytes(content[:place]) + b"x" + bytes(content[place + 1 :]))
        assert (inputs.digest(path) != whole) is differs, place
    path.write_bytes(bytes(content) + b"x")
    assert inputs.digest(path) != whole


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, ["b"]),
        ({"a": "1", "removed": "2"}, {"a": "1", "added": "2"}, ["added", "removed"]),
        (None, {"a": "1"}, []),
        ({"a": "1"}, {}, []),
    ],
)
def test_what_has_changed(before, now, expected):
    assert inputs.changed(before, now) == expected
