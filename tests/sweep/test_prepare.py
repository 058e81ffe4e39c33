"""What is fetched for nodes without a network: from a hub on this machine, and trained from."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

from dsnb.errors import FetchError, SettingsError
from dsnb.files import records
from dsnb.formulas.model_shapes import PRESETS
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks, inputs
from dsnb.settings.experiment import Experiment
from dsnb.sweep.prepare import prepare
from tests.conftest import SMALL

CONFIG = b'{"model_type": "gpt2"}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Repositories in memory (`owner/name` -> file name -> content), what was asked of them, and who is refused."""

    def __init__(self):
        self.files, self.asked, self.tokens, self.private = {}, [], set(), set()

    def sent(self):
        """Give the names of all files that were sent."""
        return [path.rpartition("/")[2] for method, path in self.asked if method == "GET" and "/resolve/" in path]


@contextmanager
def serving(hub):
    """Serve a hub; give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers like the hub."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path))
        self.hub.tokens.add(self.headers.get("Authorization"))
        parts = path.strip("/").split("/")
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repo in self.hub.private:
            return self.refuse(401, "GatedRepo")
        if repo not in self.hub.files:
            return self.refuse(404, "RepoNotFound")
        files = self.hub.files[repo]
        if parts[0] == "api":
            tree = len(parts) > 4 and parts[4] == "tree"
            listed = [self.described(name, content, tree) for name, content in files.items()]
            whole = {"id": repo, "sha": COMMIT, "siblings": listed, "private": False, "tags": [], "downloads": 0}
            return self.send(200, json.dumps(listed if tree else whole).encode(), {"Content-Type": "application/json"})
        name = "/".join(parts[4:])
        if name not in files:
            return self.refuse(404, "EntryNotFound")
        head = {"ETag": f'"{hashlib.sha1(files[name]).hexdigest()}"', "X-Repo-Commit": COMMIT}
        return self.send(200, files[name], head)

    @staticmethod
    def described(name, content, tree):
        blob = hashlib.sha1(content).hexdigest()
        if tree:
            return {"type": "file", "path": name, "size": len(content), "oid": blob}
        return {"rfilename": name, "size": len(content), "blobId": blob}

    def send(self, code, body, head):
        self.send_response(code)
        for key, value in {**head, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    def refuse(self, code, name):
        self.send(code, b"{}", {"X-Error-Code": name, "X-Error-Message": name})


@pytest.fixture
def hub(monkeypatch):
    """Serve a hub with one small repository, the one that huggingface_hub asks here."""
    hub = Hub()
    hub.files["owner/small"] = {"config.json": CONFIG, "model.safetensors": b"weights", "README.md": b"?"}
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


@pytest.mark.process
def test_a_model_and_a_tokenizer_are_fetched_once_and_trained_from_without_a_network(
    tmp_path, params, small, monkeypatch
):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    made, home, text = tmp_path / "made", tmp_path / "shared folder", tmp_path / "text.txt"
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
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
        printed = prepare(params(**asked), home)
        assert printed == [
            "fetched: config and tokenizer and weights of 'owner/made'",
            f"Runs read from there without a network: export HF_HOME='{home}' HF_HUB_OFFLINE=1",
        ]
        assert "Bearer hf_verysecret" in hub.tokens
        hub.asked.clear()
        assert prepare(params(**asked), home)[0].startswith("already there: config")
        assert hub.asked == []
        monkeypatch.delenv("HF_TOKEN")
    written = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert b"hf_verysecret" not in b"".join([*written, *map(str.encode, printed)])

    here = small(**asked | {"model": str(made), "tokenizer": str(made)})
    expected = launch(here, tmp_path / "here" / "run1", progress=False)
    # The ranks of another process: huggingface_hub reads its variables when it is loaded.
    offline = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    offline = {name: value for name, value in offline.items() if not name.startswith("DSNB_FORK_SERVER")}
    words = [sys.executable, "-m", "dsnb", "sweep", params(**asked), "--output", tmp_path / "there"]
    done = subprocess.run(words, env=offline, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (result,) = (tmp_path / "there").rglob("result.json")
    curves = [
        [row["loss"] for row in records.read_lines(RunPaths(run).steps)] for run in (expected.run_dir, result.parent)
    ]
    assert curves[0] == curves[1]
    assert json.loads(RunPaths(result.parent).experiment.read_text())["model"] == "owner/made"


def test_weights_come_only_where_they_are_asked_for_and_the_cache_is_checked_before_a_launch(
    hub, params, tmp_path, monkeypatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = Experiment(**{**SMALL, "model": "owner/small", "weights": "pretrained"}).model_dump()
    prepare(params(), tmp_path)
    assert hub.sent() == ["config.json"]
    assert checks.unsupported(settings) == []  # the launch may fetch the weights
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert checks.unsupported(settings) == [
        "model is 'owner/small': HF_HUB_OFFLINE is set, and the cache of Hugging Face lacks its config and weights; "
        "run `dsnb prepare` with the params file where there is a network, and set HF_HOME to its folder"
    ]
    monkeypatch.delenv("HF_HUB_OFFLINE")
    prepare(params(weights="pretrained"), tmp_path)
    assert hub.sent() == ["config.json", "model.safetensors"]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert checks.unsupported(settings) == []


def test_what_the_hub_refuses_is_one_sentence(hub, params, tmp_path, monkeypatch):
    hub.private.add("owner/small")
    hub.files["owner/bare"] = {"config.json": CONFIG, "flax_model.msgpack": b""}
    for name, message in [
        ("owner/small", "127.0.0.1 has no such model for you; check the name, or log in (`hf auth login`) if it is "
                        "private or gated"),
        ("owner/bare", "there are no weights that transformers could load (model.safetensors, pytorch_model.bin)"),
    ]:  # fmt: skip
        with pytest.raises(FetchError) as caught:
            prepare(params(model=name, weights="pretrained"), tmp_path)
        assert str(caught.value) == f"config and weights of {name!r} cannot be fetched: {message}"
    monkeypatch.setenv("HF_ENDPOINT", "http://user:hf_secret@127.0.0.1:9")
    with pytest.raises(FetchError) as caught:
        prepare(params(tokenizer="owner/words"), tmp_path)
    assert str(caught.value).splitlines() == [
        f"{item} cannot be fetched: 127.0.0.1 cannot be reached (ConnectError)"
        for item in ("config of 'owner/small'", "tokenizer of 'owner/words'")
    ]


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


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../../b", "/etc/passwd", "owner/name/more", "a\0/b"])
def test_no_name_leads_out_of_the_folder(hub, params, tmp_path, name):
    with pytest.raises(SettingsError, match="model is "):
        prepare(params(model=name), tmp_path / "home")
    assert not (tmp_path / "home").exists()
