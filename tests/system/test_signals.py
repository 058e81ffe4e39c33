"""How a sweep is stopped, by whatever signal, and what it leaves: a result, no process, no folder.

Its fork server is a real one without torch (`tests/light`), and its ranks wait where the test asks for it.
"""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.support.small_sweep import command, light_server
from tests.support.waiting import WAIT_S, wait_until, wait_until_ended

pytestmark = pytest.mark.process
PARAMS = """
name: small
defaults: {model: gpt2-tiny, device: cpu, micro_batch_size: 1, seq_len: 32, warmup_steps: 1, steps: 3, seed: 7}
"""
END = "interrupted: finished runs are kept, start the sweep again to go on"


class Started:
    """A sweep, or another command, whose run waits after its first step until it is released.

    It ignores signals as if a shell had started it so.
    """

    def __init__(self, home, process=(), ignored=(), **popen):
        self.temporary, self.out, self.wait = home / "tmp", home / "out", home / "wait"
        self.temporary.mkdir(parents=True)
        (home / "small.yaml").write_text(PARAMS)
        self.wait.write_text("7")
        env = light_server() | {"TMPDIR": str(self.temporary), "DSNB_TEST_WAIT": str(self.wait)}
        words = [sys.executable, "-m", *process] if process else command(home / "small.yaml")
        trap = ["sh", "-c", f'trap "" {" ".join(ignored)}; exec "$0" "$@"'] if ignored else []
        self.process = psutil.Popen(
            [*trap, *map(str, words)], env=env, text=True, **{"stderr": subprocess.PIPE, **popen}
        )
        wait_until(lambda: self.pid_of_rank() or self.process.poll() is not None, "the rank is there", 200)
        assert self.process.poll() is None, self.process.stderr and self.process.stderr.read()
        self.family = self.process.children(recursive=True)

    def pid_of_rank(self):
        return next((int(file.read_text().split()[0]) for file in self.out.rglob("pids0") if file.read_text()), None)

    def assert_nothing_is_left(self):
        wait_until_ended(one.pid for one in self.family)

    def assert_interrupted(self):
        self.assert_nothing_is_left()
        (result,) = self.out.rglob("result.json")
        assert json.loads(result.read_text())["status"] == "interrupted"
        assert list(self.temporary.iterdir()) == []

    def close(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.kill()
        self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


def in_the_background(home):
    """As a script's `&` under `nohup` starts it: SIGINT and SIGHUP come and go, SIGTERM ends it."""
    sweep = Started(home, ignored=("INT", "HUP"))
    for number in (signal.SIGINT, signal.SIGHUP):
        sweep.process.send_signal(number)
    time.sleep(0.5)
    assert sweep.process.poll() is None
    sweep.process.send_signal(signal.SIGTERM)
    sweep.process.send_signal(signal.SIGTERM)  # impatient, which must not cut the cleanup short
    _, said = sweep.process.communicate(timeout=WAIT_S)
    pid = sweep.process.pid
    assert said == f"stop with `kill {pid}`; finished runs are kept\n{END}\n"
    assert sweep.process.returncode == 130
    sweep.assert_interrupted()
    sweep.close()


def by_closing_its_terminal(home):
    master, slave = pty.openpty()
    line = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    sweep = Started(home, **line, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)))  # takes it over
    os.close(slave)
    said = os.read(master, 65536).decode(errors="replace")
    assert f"stop with Ctrl-C or `kill {sweep.process.pid}`; finished runs are kept" in said
    os.close(master)
    sweep.process.wait(timeout=WAIT_S)
    sweep.assert_interrupted()
    sweep.close()


def papermill_is_ended(home):
    """There papermill handles signals, or does not: then its kernel, the kernel's fork server and ranks go as well."""
    settings = {"model": "gpt2-tiny", "device": "cpu", "seed": 7, "run_dir": home / "out" / "run1"}
    words = [word for name, value in settings.items() for word in ("-p", name, value)]
    notebook = ROOT / "notebooks" / "10_run.ipynb"
    papermill = ["papermill", "--no-progress-bar", notebook, home / "out.ipynb", *words]
    run = Started(home, papermill, stderr=subprocess.DEVNULL)
    run.process.terminate()
    run.process.wait(timeout=WAIT_S)
    run.assert_nothing_is_left()
    assert list(run.temporary.glob("dsnb-*")) == []
    run.close()


def killed_while_it_is_stopped(home):
    """So is its kernel, which cannot notice by itself."""
    sweep = Started(home)
    (kernel,) = (one for one in sweep.family if "dsnb.execute.kernel_process" in one.cmdline())
    kernel.suspend()
    sweep.process.suspend()
    sweep.process.kill()
    sweep.process.wait()
    sweep.assert_nothing_is_left()
    assert not list(sweep.out.rglob("result.json"))
    sweep.close()


def test_a_sweep_ends_well_however_it_is_stopped():
    """All at once, for each waits most of its time."""
    ways = [in_the_background, by_closing_its_terminal, killed_while_it_is_stopped, papermill_is_ended]
    with tempfile.TemporaryDirectory(prefix="stop-") as home, ThreadPoolExecutor(4) as pool:  # short, for sockets
        list(pool.map(lambda way: way(Path(home) / way.__name__[:12]), ways))
