"""What is fetched for nodes without a network: from a hub on this machine, whole or not at all, and trained from."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsnb.errors import FetchError, SettingsError
from dsnb.files import records
from dsnb.formulas.model_shapes import PRESETS
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.settings.prepared import lookup, model_files
from dsnb.settings.prepared.paths import SharedPaths
from dsnb.sweep.prepare import prepare
from tests.cli.test_app import dsnb
from tests.conftest import SMALL
from tests.support.fake_hub import COMMIT, Hub, serving
from tests.support.waiting import wait_until

CONFIG = b'{"model_type": "gpt2"}'
WEIGHTS = bytes(range(256)) * 2000


@pytest.fixture
def hub(monkeypatch):
    """Serve a hub with one small repository, the one that huggingface_hub asks here."""
    hub = Hub()
    hub.files["owner/small"] = {"config.json": CONFIG, "model.safetensors": WEIGHTS, "README.md": b"?"}
    with serving(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield hub


@pytest.fixture
def params(tmp_path):
    """Write a params file of one run with the given settings; give its path."""

    def write(**settings):
        path = tmp_path / "params.yaml"
        path.write_text(json.dumps({"name": "p", "defaults": {**SMALL, "model": "owner/small", **settings}}))
        return path

    return write


def index(folder):
    return json.loads((folder / "prepared.json").read_text())


def content(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


@pytest.mark.process
def test_a_model_a_tokenizer_and_a_text_are_fetched_once_and_trained_from_without_a_network(
    tmp_path, params, small, monkeypatch
):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    made, shared, text = tmp_path / "made", tmp_path / "shared folder", tmp_path / "text.txt"
    words = {word: number for number, word in enumerate(["the", "cat", "sat", "on", "mat", "[UNK]"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(made)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**PRESETS["gpt2-tiny"].config())).save_pretrained(made)
    text.write_text("the cat sat on the mat " * 50)
    hub = Hub()
    hub.files["owner/made"] = {path.name: path.read_bytes() for path in made.iterdir()}
    asked = {"model": "owner/made", "weights": "pretrained", "tokenizer": "owner/made", "data": str(text)}
    with serving(hub) as address:
        online = {**os.environ, "HF_ENDPOINT": address, "HF_TOKEN": "hf_verysecret"}
        done = dsnb("prepare", params(**asked), "--cache", shared, env=online)
        assert done.returncode == 0, done.stderr
        assert sorted(line.partition(" (")[0] for line in done.stdout.splitlines()[:2]) == [
            "fetched: config and tokenizer and weights of 'owner/made'",
            f"fetched: text of {str(text)!r}",
        ]
        assert done.stdout.endswith(f"without a network: export DSNB_SHARED='{shared}'\n")
        assert "Bearer hf_verysecret" in hub.tokens
        hub.asked.clear()
        again = dsnb("prepare", params(**asked), "--cache", shared, env=online)
        assert again.stdout.count("already there: ") == 2
        assert hub.asked == []
    assert b"hf_verysecret" not in b"".join([*content(shared).values(), done.stdout.encode(), done.stderr.encode()])

    here = small(**asked | {"model": str(made), "tokenizer": str(made)}, gpus=2)
    there = small(**asked, gpus=2)
    expected = launch(here, tmp_path / "here" / "run1", progress=False)
    text.unlink()  # another node would not see it
    monkeypatch.setenv("DSNB_SHARED", str(shared))
    result = launch(there, tmp_path / "there" / "run1", progress=False, worker="tests.workers.offline")
    assert (expected.status, result.status) == ("ok", "ok"), result.message()
    curves = [[row["loss"] for row in records.read_lines(RunPaths(run.run_dir).steps)] for run in (expected, result)]
    assert curves[0] == curves[1]
    assert not (result.run_dir / "asked").exists()
    assert json.loads((result.run_dir / "experiment.json").read_text())["model"] == "owner/made"

    monkeypatch.delenv("DSNB_SHARED")
    result = launch(there, tmp_path / "there" / "run2", progress=False, worker="tests.workers.offline")
    assert result.status == "failed"
    assert (result.run_dir / "asked").exists()


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"model": "gpt2"}, []),
        ({"model": "gpt2", "data": "stdlib"}, []),
        ({"model": "gpt2", "weights": "pretrained"}, ["config and weights of 'openai-community/gpt2'"]),
        ({"model": "owner/name"}, ["config of 'owner/name'"]),
        (
            {"model": "owner/name", "data": __file__, "tokenizer": "owner/words"},
            ["config of 'owner/name'", "tokenizer of 'owner/words'", f"text of {__file__!r}"],
        ),
    ],
)
def test_what_runs_need(settings, needed):
    assert [str(need) for need in lookup.external_items(Experiment(**settings).model_dump())] == needed


@pytest.mark.process
def test_nothing_is_fetched_where_nothing_is_needed(hub, tmp_path):
    done = dsnb("prepare", "params/quickstart.yaml", "--cache", tmp_path / "shared")
    assert done.stdout.startswith("nothing to fetch: presets with random weights")
    assert not (tmp_path / "shared").exists()
    done = dsnb("prepare", "params/quickstart.yaml")
    assert done.stderr == (
        "error: no folder is named: give --cache FOLDER, a folder that all nodes see, or set DSNB_SHARED\n"
    )


@pytest.mark.process
def test_without_a_network_one_sentence_names_all_that_is_missing(params, tmp_path):
    shared = tmp_path / "shared"
    settings = {"weights": "pretrained", "tokenizer": "owner/words", "data": __file__}
    offline = {**os.environ, "HF_ENDPOINT": "http://user:hf_secret@127.0.0.1:9"}
    began = time.monotonic()
    done = dsnb("prepare", params(**settings), "--cache", shared, env=offline)
    assert time.monotonic() - began < 60  # it does not try again and again
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: 127.0.0.1 cannot be reached (ConnectError), and {shared} lacks config and weights of 'owner/small', "
        "tokenizer of 'owner/words': run `dsnb prepare` where there is a network, with a --cache that all nodes see\n"
    )
    assert list(index(shared)) == [__file__]  # what needs no network is kept


def test_weights_come_only_where_they_are_asked_for_and_from_the_same_commit(hub, params, tmp_path):
    shared = tmp_path / "shared"
    prepare(params(), shared)
    assert [path.rpartition("/")[2] for path in hub.got()] == ["config.json"]
    prepare(params(weights="pretrained"), shared)
    assert [path.rpartition("/")[2] for path in hub.got()] == ["config.json", "model.safetensors"]
    asked = [path for _, path, _ in hub.asked if path.startswith("/api/models/owner/small/revision/")]
    assert asked == [f"/api/models/owner/small/revision/{COMMIT}"]
    entry = index(shared)["hub:owner/small"]
    assert (entry["parts"], entry["commit"]) == (["config", "weights"], COMMIT)
    assert sorted(Path(name).name for name in entry["files"]) == ["config.json", "model.safetensors"]


def test_a_broken_connection_goes_on_where_it_broke(hub, params, tmp_path):
    large = WEIGHTS * 48  # huggingface_hub goes on after the last whole 10 MiB
    hub.files["owner/small"]["model.safetensors"] = large
    hub.break_once.add("model.safetensors")
    prepare(params(weights="pretrained"), tmp_path / "shared")
    ranges = [wanted for method, path, wanted in hub.asked if method == "GET" and path.endswith("model.safetensors")]
    assert ranges == [None, f"bytes={10 * 2**20}-"]
    (file,) = (tmp_path / "shared").rglob("snapshots/*/model.safetensors")
    assert file.read_bytes() == large


@pytest.mark.process
def test_what_a_killed_call_left_is_not_taken_for_whole_and_the_next_one_goes_on(hub, params, tmp_path, monkeypatch):
    shared, file = tmp_path / "shared", params(weights="pretrained")
    hub.stall.add("model.safetensors")
    words = [sys.executable, "-m", "dsnb", "prepare", str(file), "--cache", str(shared)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: len(hub.got()) == 2 and list(shared.rglob("config.json")), "the weights are being fetched")
        process.send_signal(signal.SIGKILL)
    assert not (shared / "prepared.json").exists()
    monkeypatch.setenv("DSNB_SHARED", str(shared))
    settings = Experiment(**{**SMALL, "model": "owner/small", "weights": "pretrained"}).model_dump()
    assert checks.unsupported(settings) == [
        f"model is 'owner/small': DSNB_SHARED ({shared}) does not contain its config and weights; "
        "run `dsnb prepare` with the params file, or unset DSNB_SHARED"
    ]
    with pytest.raises(SettingsError, match="does not contain its config and weights"):
        launch(Experiment(**settings), tmp_path / "run1")
    hub.stall.clear()
    hub.asked.clear()
    assert [str(need) for need in prepare(file).fetched] == ["config and weights of 'owner/small'"]
    assert [path.rpartition("/")[2] for path in hub.got()] == ["model.safetensors"]
    assert checks.unsupported(settings) == []


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"half")])
def test_what_was_damaged_since_is_fetched_again(hub, params, tmp_path, damage):
    shared = tmp_path / "shared"
    prepare(params(weights="pretrained"), shared)
    (file,) = shared.rglob("snapshots/*/model.safetensors")
    damage(file.resolve())
    assert len(prepare(params(weights="pretrained"), shared).fetched) == 1
    assert file.read_bytes() == WEIGHTS


def test_what_the_hub_refuses_is_one_sentence(hub, params, tmp_path):
    hub.private.add("owner/small")
    hub.files["owner/bare"] = {"config.json": CONFIG, "flax_model.msgpack": b""}
    for name, message in [
        ("owner/small", "owner/small: 127.0.0.1 has no such model for you; check the name, or log in (`hf auth login`) "
                        "if it is private or gated"),
        ("owner/bare", "owner/bare: there are no weights that transformers could load (model.safetensors, "
                       "pytorch_model.bin)"),
    ]:  # fmt: skip
        with pytest.raises(FetchError) as caught:
            prepare(params(model=name, weights="pretrained"), tmp_path / "shared")
        assert str(caught.value) == message


def test_which_files_are_chosen():
    def chosen(names, parts, **read):
        return model_files.chosen(names.split(), parts, lambda name: read[name.split(".")[0]])

    both = "config.json model.safetensors pytorch_model.bin consolidated.safetensors onnx/model.onnx"
    assert chosen(both, {"config"}) == ["config.json"]
    assert chosen(both, {"weights"}) == ["config.json", "model.safetensors"]
    assert chosen("config.json pytorch_model.bin tf_model.h5", {"weights"}) == ["config.json", "pytorch_model.bin"]
    parts = "config.json model.safetensors.index.json model_1.safetensors model_2.safetensors pytorch_model.bin"
    listed = {"weight_map": {"a": "model_1.safetensors", "b": "model_2.safetensors"}}
    assert chosen(parts, {"weights"}, model=listed) == sorted(parts.split()[:-1])
    words = "config.json tokenizer.json vocab.json merges.txt spiece.model model.safetensors"
    assert chosen(words, {"tokenizer"}) == sorted(words.split()[:-1])
    for weight_map in ({"a": "../../etc/passwd"}, {}, ["a"], {"a": 1}):
        with pytest.raises(FetchError):
            chosen(parts, {"weights"}, model={"weight_map": weight_map})


def test_a_text_is_copied_by_its_content_and_a_changed_one_is_noticed(params, tmp_path, monkeypatch):
    shared, text = tmp_path / "shared", tmp_path / "a text.txt"
    text.write_text("one")
    file = params(model="gpt2-tiny", data=str(text))
    prepare(file, shared)
    settings = Experiment(**{**SMALL, "data": str(text)}).model_dump()
    monkeypatch.setenv("DSNB_SHARED", str(shared))
    first = Path(lookup.places(settings)["data"])
    assert first.read_text() == "one"
    assert first.is_relative_to(shared)
    text.write_text("other")
    said = f"data is {str(text)!r}: it has changed since it was copied to {shared}; run `dsnb prepare` again"
    assert checks.unsupported(settings) == [said]
    prepare(file, shared)
    assert Path(lookup.places(settings)["data"]).read_text() == "other"
    assert first.read_text() == "one"  # for runs that are under way
    assert not list(shared.glob("files/.part-*"))


def test_a_model_of_ones_own_is_copied_as_far_as_it_is_read(params, tmp_path, monkeypatch):
    shared, model = tmp_path / "shared", tmp_path / "model"
    model.mkdir()
    shape = json.dumps(PRESETS["gpt2-tiny"].config())
    for name in ("config.json", "shape.json", "pytorch_model.bin", "notes.txt"):
        (model / name).write_text(shape)
    monkeypatch.setenv("DSNB_SHARED", str(shared))
    for name, weights, copied in [
        (model, "random", {"config.json"}),
        (model, "pretrained", {"config.json", "pytorch_model.bin"}),
        (model / "shape.json", "pretrained", {"shape.json", "pytorch_model.bin"}),
    ]:
        settings = {"model": str(name), "weights": weights}
        prepare(params(**settings))
        place = Path(lookup.places(Experiment(**{**SMALL, **settings}).model_dump())["model"])
        assert place.name == (name.name if name.suffix else place.name)
        assert {path.name for path in (place if place.is_dir() else place.parent).iterdir()} == copied


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/../../b", "owner/..", "/etc/passwd", "owner/name/more", "a\0/b"]
)
def test_no_name_leads_out_of_the_folder(hub, params, tmp_path, name):
    with pytest.raises(SettingsError, match="model is "):
        prepare(params(model=name), tmp_path / "shared")
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"path": "..", "parts": ["config"], "files": {"../outside/config.json": 2}},
        {"path": "../outside", "parts": ["config"], "files": {"config.json": 2}},
        {"path": "link", "parts": ["config"], "files": {"link/config.json": 2}},
        {"path": ".", "parts": ["config"], "files": {}},
        {"path": ".", "parts": ["config"], "files": ["config.json"]},
        {"path": "."},
        ["config.json"],
    ],
)
def test_a_hostile_index_serves_nothing(tmp_path, entry):
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    for folder in (shared, outside):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (shared / "link").symlink_to(outside)
    (shared / "prepared.json").write_text(json.dumps({"hub:owner/small": entry}))
    (item,) = lookup.external_items(
        {"model": "owner/small", "weights": "random", "tokenizer": "bytes", "data": "stdlib"}
    )
    paths = SharedPaths(shared)
    assert lookup.place(paths, lookup.read_index(paths), item) is None


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_one_line(hub, params, tmp_path):
    (tmp_path / "file").write_text("")
    done = dsnb("prepare", params(), "--cache", tmp_path / "file")
    assert (done.returncode, done.stderr) == (1, f"error: {tmp_path / 'file' / 'files'}: Not a directory\n")


def test_what_is_no_file_is_refused(params, tmp_path):
    with pytest.raises(SettingsError, match="data is '/dev/null': no such file"):
        prepare(params(model="gpt2-tiny", data="/dev/null"), tmp_path / "shared")
