"""Sweeps that are killed, interrupted, or share their folder and machine with others."""

import json
import signal
import subprocess

import jupyter_client
import psutil
import pytest

from dsnb.files import records
from dsnb.runs.load import load_runs
from tests import ROOT
from tests.support.small_sweep import NAMES, PARAMS, command, light_server
from tests.support.waiting import WAIT_S, is_running, wait_until, wait_until_ended


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(PARAMS)
    return path


@pytest.mark.process
def test_a_killed_sweep_still_ends_with_the_same_runs(params):
    """SIGKILL while the second run steps: no process stays, and no run is lost, doubled or half-written."""
    words, out = [*command(params), "--only", "zs0*", "--set", "steps=30"], params.parent / "out"
    steps = out / NAMES[0] / "run2" / "steps.jsonl"
    env = light_server() | {"DSNB_TEST_STEP_S": "0.05"}  # so that the run cannot end before it is killed
    sweep = psutil.Popen(words, cwd=ROOT, env=env, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    wait_until(lambda: steps.exists() and steps.read_text().count("\n") > 10, "run2 steps")
    family = sweep.children(recursive=True)
    sweep.kill()
    assert sweep.wait() == -signal.SIGKILL
    wait_until_ended(process.pid for process in family)  # a kernel that still imports notices afterwards
    finished = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    assert list(finished) == [out / NAMES[0] / "run1" / "result.json"]
    done = subprocess.run(words, cwd=ROOT, env=light_server(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    folders = sorted(str(file.parent.relative_to(out)) for file in out.rglob("experiment.json"))
    assert folders == [f"{NAMES[0]}/run{repeat}" for repeat in (1, 2)]
    for folder in folders:
        assert json.loads((out / folder / "result.json").read_text())["status"] == "ok"
        assert [row["step"] for row in records.read_lines(out / folder / "steps.jsonl")] == list(range(1, 32))
    assert finished == {file: file.stat().st_mtime_ns for file in finished}


TRAPS = ("pandas", "torch", "random", "deepspeed", "json", "sitecustomize", "dsnb_plugin")
KERNEL = {"argv": ["/bin/false", "{connection_file}"], "display_name": "another environment", "language": "python"}


@pytest.mark.process
def test_modules_in_the_working_folder_and_other_kernels_are_not_used(params, tmp_path):
    """The folder holds modules with the names of packages, and Jupyter's path another kernel called `python3`."""
    work, kernels = tmp_path / "work", tmp_path / "jupyter" / "kernels" / "python3"
    work.mkdir()
    for name in TRAPS:
        (work / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write('{name} ')\n")
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(json.dumps(KERNEL))
    env = light_server() | {"JUPYTER_PATH": str(tmp_path / "jupyter")}
    one_run = ["--set", "repeats=1", "--only", "zs0*"]
    done = subprocess.run(
        [*command(params), *one_run], cwd=work, env=env, capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.returncode == 0, done.stderr
    assert list(load_runs(tmp_path / "out")["status"]) == ["ok"]
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_says_so_and_leaves_nothing(params, number):
    words = [*command(params), "--set", "steps=100000"]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    sweep = psutil.Popen(words, cwd=ROOT, env=light_server(), **pipes)
    folder = params.parent / "out" / NAMES[0] / "run1"
    wait_until(lambda: records.read_lines(folder / "steps.jsonl"), "the run trains")
    family = sweep.children(recursive=True)
    sweep.send_signal(number)
    _, printed = sweep.communicate(timeout=WAIT_S)
    assert sweep.returncode == 130
    assert printed == (
        f"stop with Ctrl-C or `kill {sweep.pid}`; finished runs are kept\n"
        "interrupted: finished runs are kept, start the sweep again to go on\n"
    )
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
    assert records.read_lines(folder / "steps.jsonl")
    wait_until_ended(process.pid for process in family)


def reply_to(client, number):
    """Wait for the reply to one request; a slow kernel may still answer how it is."""
    while (reply := client.get_shell_msg(timeout=WAIT_S))["parent_header"]["msg_id"] != number:
        pass
    return reply


@pytest.mark.process
def test_a_kernel_interrupt_ends_the_run_and_the_kernel_lives_on(tmp_path):
    """What JupyterLab's stop button does."""
    manager, client = jupyter_client.manager.start_new_kernel(cwd=str(ROOT))
    try:
        number = client.execute(
            "from dsnb.settings.experiment import Experiment\nfrom dsnb.launcher.run import launch\n"
            "experiment = Experiment(model='gpt2-tiny', device='cpu', precision='fp32', gpus=2)\n"
            f"launch(experiment, {str(tmp_path / 'run1')!r}, progress=False, worker='tests.workers.hanger')"
        )
        wait_until(lambda: len(list(tmp_path.glob("run1/pids*"))) == 2, "both ranks hang")
        manager.interrupt_kernel()
        reply = reply_to(client, number)
        assert reply["content"]["ename"] == "KeyboardInterrupt", "\n".join(reply["content"]["traceback"])
        assert json.loads((tmp_path / "run1" / "result.json").read_text())["status"] == "interrupted"
        numbers = [int(word) for file in tmp_path.glob("run1/pids*") for word in file.read_text().split()]
        assert len(numbers) == 4
        assert not any(map(is_running, numbers))
        # A kernel aborts requests that come within the moment in which it ends the interrupted one.
        wait_until(
            lambda: reply_to(client, client.execute("1 + 1"))["content"]["status"] == "ok", "the kernel lives on"
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
