"""Scripts that end badly: the status, rank and cause in their run folders. Each case has processes of its own."""

import os
import re
import subprocess
import sys

import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from tests import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]
KILLED = "its process is gone, and left no message: it was killed"
EXITED = "the script ended with exit code 3 before its training did"
TERMINATED = "killed by signal 15 (SIGTERM)"
CASES = {
    "loop:value_error:1": ("failed", "rank 0: ValueError: a bad batch"),
    "loop:out_of_memory:1": ("oom", "rank 0: out of memory in the forward pass of step 3, "),
    "loop:exit:1": ("failed", f"rank 0: {EXITED}"),
    "loop:terminate:1": ("interrupted", f"rank 0: {TERMINATED}"),
    "loop:interrupt:1": ("interrupted", "rank 0: stopped by the user"),
    "loop:nan:1": ("nan", "the loss was not a finite number at step 3"),
    "loop:value_error:2": ("failed", "rank 1: ValueError: a bad batch"),
    "loop:exit:2": ("failed", f"rank 1: {EXITED}"),
    "loop:kill:2": ("interrupted", f"rank 1: {KILLED}"),
    "trainer:exit:1": ("failed", f"rank 0: {EXITED}"),
    "trainer:terminate:1": ("interrupted", f"rank 0: {TERMINATED}"),
    "trainer:nan:1": ("nan", "the loss was not a finite number at step 3"),
    "trainer:value_error:2": ("failed", "rank 1: ValueError: a bad batch"),
    "trainer:kill:2": ("interrupted", f"rank 1: {KILLED}"),
}
CODES = {"value_error": 1, "exit": 3, "kill": -9, "terminate": -15, "nan": 0}


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Return a folder with the runs of all cases, and the exit codes of their ranks."""
    folder = tmp_path_factory.mktemp("failed")
    cases = [*CASES, "loop:kill:1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers.recorded_failures", str(folder), *cases],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    codes = re.findall(r"^(\w+:\w+:\d) \{(.*)\}$", done.stdout, re.M)
    return folder, dict(codes)


@pytest.mark.parametrize("case", CASES)
def test_a_failure_has_a_status_a_rank_and_a_cause(failed, case):
    folder, codes = failed
    run = RunPaths(folder / case.replace(":", "_") / "run1")
    result = json_files.read_json(run.result)
    status, cause = CASES[case]
    assert result["status"] == status
    assert result["cause"].startswith(cause)
    _, how, ranks = case.split(":")
    if how in CODES:  # dsnb has not changed how the script ends
        assert codes[case].endswith(f"{int(ranks) - 1}: {CODES[how]}")
    steps = json_files.read_lines(run.steps)
    assert len(steps) == (6 if how == "nan" else 2)


def test_a_killed_script_without_other_ranks_is_interrupted(failed):
    folder, _ = failed
    (row,) = dsnb.load_runs(folder / "loop_kill_1").to_dict("records")
    assert (row["status"], row["strategy"]) == ("interrupted", "plain")
