"""One small sweep for the code blocks of all pages."""

import shlex
import shutil
import sys

import pytest
import yaml

from docs.code_blocks import ROOT, Home
from tests.support import foreign_logs

SMALLER = {"gpus": 2, "micro_batch_size": 2, "seq_len": 32, "warmup_steps": 1, "steps": 3}


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Make a copy of the folders that pages name, in which the quickstart is a smaller sweep of the same name."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "notebooks").symlink_to(ROOT / "notebooks")
    shutil.copytree(ROOT / "params", folder / "params")
    shutil.copytree(ROOT / "outputs" / "examples", folder / "outputs" / "examples")
    quickstart = yaml.safe_load((ROOT / "params" / "quickstart.yaml").read_text())
    quickstart["defaults"] |= SMALLER
    quickstart |= {
        "grid": {"zero_stage": [0, 1, 3], "precision": ["fp32"]},
        "include": [],
        "repeats": 1,
    }
    (folder / "params" / "quickstart.yaml").write_text(yaml.safe_dump(quickstart))
    (folder / "logs").mkdir()
    (folder / "logs" / "chat.log").write_text(foreign_logs.chat())
    command = (
        folder / "bin" / "dsnb"
    )  # of this checkout, whichever one the environment was installed from
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m dsnb "$@"\n')
    command.chmod(0o755)
    return Home(folder)
