"""How sweeps are stopped, by whatever signal, and what they leave: a result, no process, no folder.

Their fork servers are real ones without torch (`tests/light`), and ranks wait where a test asks for it.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jupyter_client
import psutil
import pytest

from dsnb.base.files import json_files
from tests import ROOT
from tests.support.small_sweep import NAMES, ONE_RUN, command, light_server
from tests.support.waiting import WAIT_S, is_running, wait_until, wait_until_ended

pytestmark = pytest.mark.process
END = "interrupted: finished runs are kept, start the sweep again to go on"


def test_a_killed_sweep_still_ends_with_the_same_runs_wherever_it_is_started_again(
    params, tmp_path
):
    """SIGKILL while the second run steps: no process stays, and no run is lost, doubled or half-written.

    The other working folder holds modules with the names of packages, and Jupyter's path another kernel `python3`.
    """
    words, out = [*command(params), "--only", "zs0*", "--set", "steps=30"], tmp_path / "out"
    steps = out / NAMES[0] / "run2" / "steps.jsonl"
    env = light_server() | {
        "DSNB_TEST_STEP_S": "0.05"
    }  # so that the run cannot end before it is killed
    sweep = psutil.Popen(
        words, cwd=ROOT, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    wait_until(lambda: steps.exists() and steps.read_text().count("\n") > 10, "run2 steps")
    family = sweep.children(recursive=True)
    sweep.kill()
    assert sweep.wait() == -signal.SIGKILL
    wait_until_ended(
        process.pid for process in family
    )  # a kernel that still imports notices afterwards
    finished = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    assert list(finished) == [out / NAMES[0] / "run1" / "result.json"]
    work, kernel = tmp_path / "work", tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    work.mkdir()
    for name in ("pandas", "torch", "random", "deepspeed", "json", "sitecustomize", "dsnb_plugin"):
        (work / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write('{name} ')\n"
        )
    json_files.write_json(
        kernel,
        {"argv": ["/bin/false", "{connection_file}"], "display_name": "x", "language": "python"},
    )
    env = light_server() | {"JUPYTER_PATH": str(tmp_path / "jupyter")}
    done = subprocess.run(words, cwd=work, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    folders = sorted(str(file.parent.relative_to(out)) for file in out.rglob("experiment.json"))
    assert folders == [f"{NAMES[0]}/run{repeat}" for repeat in (1, 2)]
    for folder in folders:
        assert json.loads((out / folder / "result.json").read_text())["status"] == "ok"
        assert [row["step"] for row in json_files.read_lines(out / folder / "steps.jsonl")] == list(
            range(1, 32)
        )
    assert finished == {file: file.stat().st_mtime_ns for file in finished}


def test_a_kernel_interrupt_ends_the_run_and_the_kernel_lives_on(tmp_path):
    """What JupyterLab's stop button does."""
    manager, client = jupyter_client.manager.start_new_kernel(cwd=str(ROOT))

    def interrupt():
        wait_until(lambda: len(list(tmp_path.glob("run1/pids*"))) == 2, "both ranks hang")
        manager.interrupt_kernel()

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        reply = client.execute(
            "from dsnb.settings.experiment import Experiment\nfrom dsnb.measure.launcher.run import launch\n"
            "experiment = Experiment(model='gpt2-tiny', device='cpu', precision='fp32', gpus=2)\n"
            f"launch(experiment, {str(tmp_path / 'run1')!r}, progress=False, worker='tests.workers.hanger')",
            reply=True,
            timeout=WAIT_S,
        )
        assert reply["content"]["ename"] == "KeyboardInterrupt", "\n".join(
            reply["content"]["traceback"]
        )
        assert (
            json.loads((tmp_path / "run1" / "result.json").read_text())["status"] == "interrupted"
        )
        numbers = [
            int(word) for file in tmp_path.glob("run1/pids*") for word in file.read_text().split()
        ]
        assert len(numbers) == 4
        assert not any(map(is_running, numbers))
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def start(home, words, **popen):
    """Start a command whose run waits after its first step; return it and all its processes."""
    (home / "tmp").mkdir()
    (home / "wait").write_text("7")
    env = light_server() | {"TMPDIR": str(home / "tmp"), "DSNB_TEST_WAIT": str(home / "wait")}
    started = psutil.Popen(
        list(map(str, words)), env=env, text=True, **{"stderr": subprocess.PIPE, **popen}
    )
    wait_until(
        lambda: list(home.glob("out/**/pids0")) or started.poll() is not None,
        "the rank is there",
        200,
    )
    assert started.poll() is None, started.stderr and started.stderr.read()
    return started, [one.pid for one in started.children(recursive=True)]


def start_sweep(home, *before, **popen):
    home.mkdir()
    (home / "small.yaml").write_text(ONE_RUN)
    return start(home, [*before, *command(home / "small.yaml", "--set", "seed=7")], **popen)


def assert_interrupted(home, sweep, family, how):
    _, said = sweep.communicate(timeout=WAIT_S)
    if how:
        assert said == f"stop with {how}; finished runs are kept\n{END}\n"
        assert sweep.returncode == 130
    wait_until_ended(family)
    (result,) = (home / "out").rglob("result.json")
    assert json.loads(result.read_text())["status"] == "interrupted"
    assert list((home / "tmp").iterdir()) == []


def by_ctrl_c(home):
    sweep, family = start_sweep(home)
    sweep.send_signal(signal.SIGINT)
    assert_interrupted(home, sweep, family, f"Ctrl-C or `kill {sweep.pid}`")


def in_the_background(home):
    """As a script's `&` under `nohup` starts it: SIGINT and SIGHUP come and go, SIGTERM ends it."""
    sweep, family = start_sweep(home, "sh", "-c", 'trap "" INT HUP; exec "$0" "$@"')
    for number in (signal.SIGINT, signal.SIGHUP):
        sweep.send_signal(number)
    time.sleep(0.5)
    assert sweep.poll() is None
    sweep.send_signal(signal.SIGTERM)
    sweep.send_signal(signal.SIGTERM)  # impatient, which must not cut the cleanup short
    assert_interrupted(home, sweep, family, f"`kill {sweep.pid}`")


def by_closing_its_terminal(home):
    master, slave = pty.openpty()
    line = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
    sweep, family = start_sweep(
        home, **line, preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR))
    )
    os.close(slave)
    os.close(master)
    assert_interrupted(home, sweep, family, None)  # it cannot print any more


def papermill_is_ended(home):
    """There papermill handles signals, or does not: then its kernel, the kernel's fork server and ranks go as well."""
    home.mkdir()
    settings = {"model": "gpt2-tiny", "device": "cpu", "seed": 7, "run_dir": home / "out" / "run1"}
    words = [word for name, value in settings.items() for word in ("-p", name, value)]
    papermill = [
        sys.executable,
        "-m",
        "papermill",
        "--no-progress-bar",
        ROOT / "notebooks" / "10_run.ipynb",
    ]
    run, family = start(home, [*papermill, home / "out.ipynb", *words], stderr=subprocess.DEVNULL)
    run.terminate()
    run.wait(timeout=WAIT_S)
    wait_until_ended(family)
    assert list((home / "tmp").glob("dsnb-*")) == []


def killed_while_it_is_stopped(home):
    """So is its kernel, which cannot notice by itself."""
    sweep, family = start_sweep(home, stderr=subprocess.DEVNULL)
    (kernel,) = (
        one
        for one in sweep.children(recursive=True)
        if "dsnb.measure.execute.kernel_process" in one.cmdline()
    )
    kernel.suspend()
    sweep.suspend()
    sweep.kill()
    sweep.wait()
    wait_until_ended(family)
    assert not list(home.rglob("result.json"))


def test_a_sweep_ends_well_however_it_is_stopped():
    """All at once, for each waits most of its time."""
    ways = [
        by_ctrl_c,
        in_the_background,
        by_closing_its_terminal,
        killed_while_it_is_stopped,
        papermill_is_ended,
    ]
    with (
        tempfile.TemporaryDirectory(prefix="stop-") as home,
        ThreadPoolExecutor(len(ways)) as pool,
    ):  # a short name
        list(pool.map(lambda way: way(Path(home) / way.__name__[:12]), ways))
