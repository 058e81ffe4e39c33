"""The README's examples, run as they stand, in a copy of the folders that they name."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from dsnb.sweep.params import load_sweep
from tests import ROOT

README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("readme")
    for name in ("notebooks", "params"):
        (home / name).symlink_to(ROOT / name)
    return home


@pytest.fixture(scope="module")
def used(home):
    """Run the README's commands, in which its Python goes on."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) == 7
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for line in lines:
        done = subprocess.run(shlex.split(line), cwd=home, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return home


def test_its_commands_run(used):
    home = used
    assert (home / "outputs/quickstart/report.html").stat().st_size > 100_000
    result = home / "outputs/single/gpt2-tiny_zs2_bf16_gpus1_bs8_sl128/run1/result.json"
    assert json.loads(result.read_text())["status"] == "ok"
    assert nbformat.read(home / "out.ipynb", as_version=4).cells


def test_its_python_runs(used):
    code = "\n".join(blocks("python"))
    assert "dsnb.launch" in code
    assert "dsnb.explore" in code
    done = subprocess.run([sys.executable, "-c", code], cwd=used, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ok ")


def test_its_params_file_is_valid(tmp_path):
    (text,) = blocks("yaml")
    path = tmp_path / "my_sweep.yaml"
    path.write_text(text)
    sweep = load_sweep(path)
    assert len(sweep.runs) == 3 * (6 - 1 + 1)
    assert yaml.safe_load(text)["name"] == sweep.name


def test_its_two_commands_are_targets():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.M):
        assert f"\n{target}: env\n" in makefile
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_every_file_that_the_documents_name_exists():
    for document in (ROOT / "README.md", ROOT / "docs/TRAPS.md", ROOT / "docs/LOG.md"):
        for name in re.findall(r"`((?:dsnb|docs|params|benchmarks|notebooks)/[\w./-]+\.\w+)`", document.read_text()):
            assert (ROOT / name).is_file(), f"{document.name} names {name}"
