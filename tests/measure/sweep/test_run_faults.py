"""Faults of the machine or of dsnb itself: the run is made again by the same command, or finished if all is recorded.

The processes are really killed. Fork servers are real ones without torch (`tests/light`).
"""

import json
import subprocess

import psutil
import pytest

from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from tests import ROOT
from tests.support.small_sweep import NAMES, ONE_RUN, command, light_server
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended

pytestmark = pytest.mark.process
KERNEL, SERVER = "dsnb.measure.execute.kernel_process", "dsnb.measure.train.fork_server"
CAUSES = {
    KERNEL: "the kernel of 10_run.ipynb failed: it was killed by signal 9 (SIGKILL)",
    SERVER: "the fork server ended during the run, and its ranks with it",
}


@pytest.mark.parametrize(
    ("victim", "when"),
    [(KERNEL, "in a step"), (SERVER, "in a step"), (SERVER, "after the last step")],
)
def test_a_killed_process_of_dsnb(params, tmp_path, victim, when):
    params.write_text(ONE_RUN)
    waits = {"in a step": "DSNB_TEST_WAIT", "after the last step": "DSNB_TEST_WAIT_AT_END"}
    (tmp_path / "wait").write_text("0")  # the seed of the run
    environment = light_server() | {waits[when]: str(tmp_path / "wait")}
    run = RunPaths(tmp_path / "out" / NAMES[0] / "run1")
    sweep = psutil.Popen(command(params), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    wait_until((run.dir / "pids0" if when == "in a step" else run.worker).exists, "the rank waits")
    family = sweep.children(recursive=True)
    next(process for process in family if victim in process.cmdline()).kill()
    sweep.wait(WAIT_S)
    wait_until_ended(process.pid for process in family)
    first = json.loads(run.result.read_text())
    (tmp_path / "wait").unlink()
    if when == "in a step":
        assert (first["status"], first["cause"]) == ("interrupted", CAUSES[victim])
        assert first["summary"]["loss_first"] == 1.0  # what was recorded stays
    else:
        assert (first["status"], first["cause"], sweep.returncode) == ("ok", None, 0)
        assert (first["summary"]["timed_steps"], first["summary"]["step_time_mean_s"]) == (4, 0.01)
    before = run.result.stat().st_mtime_ns
    assert (
        subprocess.run(command(params), cwd=ROOT, env=environment, timeout=WAIT_S).returncode == 0
    )
    assert json_files.read_json(run.result)["status"] == "ok"
    assert (run.result.stat().st_mtime_ns == before) == (when == "after the last step")


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, a little larger than a sweep asks for."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=66m", "none", disk], capture_output=True
    ).returncode:
        pytest.skip("mounting a file system needs root")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_that_fills_up_during_a_run_ends_the_sweep_in_one_sentence(small_disk):
    params = small_disk / "small.yaml"
    params.write_text(ONE_RUN)
    run = RunPaths(small_disk / "out" / NAMES[0] / "run1")
    fill = small_disk / "fill"
    environment = light_server() | {"DSNB_TEST_FILL": str(fill)}
    done = subprocess.run(
        command(params), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"error: {run.dir} cannot be written: No space left on device; start the sweep again when it can"
    )
    assert not run.result.exists()
    fill.unlink()
    assert (
        subprocess.run(command(params), cwd=ROOT, env=light_server(), timeout=WAIT_S).returncode
        == 0
    )
    assert json_files.read_json(run.result)["status"] == "ok"
