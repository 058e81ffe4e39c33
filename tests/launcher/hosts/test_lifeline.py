"""An agent whose launcher falls silent."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process


def test_an_agent_says_that_its_launcher_fell_silent():
    agent = [sys.executable, "-m", "dsnb.launcher.hosts.agent"]
    env = {**os.environ, "DSNB_SILENCE_S": "3"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(agent, env=env, **pipes) as process:
        records = process.stdout.read()  # ends with the agent: the launcher's pipe stays open
        said = process.stderr.read().decode()
    assert b'"alive"' in records
    assert said == "it heard nothing from the launcher for 3 s and ended its ranks\n"
