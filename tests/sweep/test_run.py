"""Sweeps through papermill with real runs: resuming, killing, interrupting, sharing a folder."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import jupyter_client
import nbformat
import nbformat.v4 as nbf
import psutil
import pytest

from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.run_folder import paths
from dsnb.runs.load import load_runs
from dsnb.sweep.job import execute
from dsnb.sweep.params import load_sweep
from dsnb.sweep.run import is_finished, locked, run_sweep
from tests import ROOT
from tests.support.waiting import is_running, wait_until, wait_until_ended

PARAMS = """
name: small
question: Does it resume?
defaults: {model: gpt2-tiny, data: stdlib, precision: fp32, device: cpu, micro_batch_size: 2, seq_len: 32,
           warmup_steps: 1, steps: 4, time_limit_s: 100}
grid: {zero_stage: [0, 3]}
repeats: 2
"""
NAMES = ["zs0_fp32_gpus1_bs2_sl32_stdlib", "zs3_fp32_gpus1_bs2_sl32_stdlib"]


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(PARAMS)
    return path


def command(params, *more):
    return [sys.executable, "-m", "dsnb", "sweep", str(params), "--output", str(params.parent / "out"), *more]


def statuses(results):
    return [result.status for result in results]


def own_server():
    """Give the environment without the test session's fork server: a user's sweep has one of its own."""
    return {key: value for key, value in os.environ.items() if not key.startswith("DSNB_FORK_SERVER")}


def test_a_sweep_leaves_complete_folders_and_a_table(swept):
    runs = load_runs(swept)
    assert list(runs["status"]) == ["ok"] * 4
    assert list(runs["experiment"]) == [NAMES[0]] * 2 + [NAMES[1]] * 2
    assert list(runs["repeat"]) == [1, 2, 1, 2]
    assert (runs["loss_last"] < runs["loss_first"]).all()
    folder = swept / NAMES[1] / "run2"
    files = {"experiment.json", "deepspeed.json", "environment.json", "steps.jsonl", "console.log", "worker.json"}
    assert {file.name for file in folder.iterdir()} == {*files, "result.json", "run.ipynb"}
    notebook = nbformat.read(folder / "run.ipynb", as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    html = "".join(output.get("data", {}).get("text/html", "") for output in outputs)
    assert "tokens_per_s" in html
    assert 'alt="Loss and step time of one run' in html
    assert "%|" not in json.dumps(outputs)  # the progress bar is gone, not frozen at 0 %


def test_a_second_sweep_repeats_nothing_and_failed_runs_only_on_demand(params, swept, tmp_path):
    out = shutil.copytree(swept, tmp_path / "out")
    sweep = load_sweep(params, only="zs0*", output=out)
    before = {file: file.stat().st_mtime_ns for file in out.rglob("result.json")}
    record = json.loads(sweep.runs[1].paths.result.read_text())
    records.write_json(sweep.runs[1].paths.result, {**record, "status": "failed", "cause": "by hand"})
    assert statuses(run_sweep(sweep, progress=False)) == ["ok", "failed"]
    assert statuses(run_sweep(sweep, retry=True, progress=False)) == ["ok", "ok"]
    assert sweep.runs[0].paths.result.stat().st_mtime_ns == before[sweep.runs[0].paths.result]


@pytest.mark.process
def test_an_empty_result_counts_as_unfinished_and_a_folder_with_braces_is_taken_as_it_is(params, tmp_path):
    out = tmp_path / "a {x} [b]"
    sweep = load_sweep(params, only="zs0*", overrides={"repeats": 1}, output=out)
    sweep.runs[0].paths.dir.mkdir(parents=True)
    sweep.runs[0].paths.result.write_text("")
    with pytest.warns(UserWarning, match=r"result\.json is left out"):
        results = run_sweep(sweep, progress=False)
    assert statuses(results) == ["ok"]
    assert (out / NAMES[0] / "run1" / "run.ipynb").exists()


def test_other_settings_under_the_same_name_are_refused(params, swept, tmp_path):
    out = shutil.copytree(swept, tmp_path / "out")
    with pytest.raises(SettingsError) as caught:
        run_sweep(params, only="zs0*", overrides={"repeats": 1, "steps": 5}, output=out, progress=False)
    assert str(caught.value) == (
        f"{out / NAMES[0] / 'run1'} is finished with other settings (steps was 4 and is 5): choose another --output"
    )


@pytest.mark.process
def test_a_failed_run_is_a_row_with_its_notebook_and_the_sweep_goes_on(params, tmp_path):
    text = PARAMS.replace("grid:", "include: [{zero_stage: 0, micro_batch_size: 1000000000, data: synthetic}]\ngrid:")
    params.write_text(text)
    results = run_sweep(params, only="zs0*", overrides={"repeats": 1}, output=tmp_path / "out", progress=False)
    assert {result.run_dir.parent.name: result.status for result in results} == {
        NAMES[0]: "ok",
        "zs0_fp32_gpus1_bs1000000000_sl32": "oom",
    }
    notebook = (tmp_path / "out" / "zs0_fp32_gpus1_bs1000000000_sl32" / "run1" / "run.ipynb").read_text()
    assert "LaunchError" in notebook
    assert "Next: lower micro_batch_size" in notebook


def test_a_run_whose_notebook_cannot_start_is_a_row(params, tmp_path, monkeypatch):
    def broken(*_):
        raise ValueError("Invalid Signature\nand more")

    monkeypatch.setattr("dsnb.execute.notebook.execute", broken)
    sweep = load_sweep(params, only="zs0*", overrides={"repeats": 1}, output=tmp_path / "out")
    execute(sweep.runs[0])
    runs = load_runs(tmp_path / "out")
    assert list(zip(runs["status"], runs["cause"], strict=True)) == [("failed", "ValueError: Invalid Signature")]
    assert list(runs["seq_len"]) == [32]


@pytest.mark.parametrize(
    ("source", "status"),
    [("", "interrupted"), ("(pathlib.Path(run_dir) / 'console.log').touch()", "failed")],
    ids=["before the run began", "while it went on"],
)
@pytest.mark.process
def test_a_run_whose_kernel_was_killed_is_made_again_if_it_had_not_begun(params, monkeypatch, source, status):
    parameters = nbf.new_code_cell("import os, pathlib\nrun_dir = ''", metadata={"tags": ["parameters"]})
    cells = [parameters, nbf.new_code_cell(f"{source}\nos.kill(os.getpid(), 9)")]
    language = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbf.new_notebook(cells=cells, metadata=language), params.with_name("10_run.ipynb"))
    monkeypatch.setattr(paths, "notebook_template", lambda _: params.with_name("10_run.ipynb"))
    run = load_sweep(params, output=params.parent / "out").runs[0]
    run.paths.dir.mkdir(parents=True)
    run.paths.console.touch()  # of an earlier attempt
    result = execute(run)
    cause = "the kernel of 10_run.ipynb failed: it was killed by signal 9 (SIGKILL)"
    assert (result.status, result.cause) == (status, cause)
    assert is_finished(run) == (status == "failed")


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "a/b", "/etc"])
def test_no_experiment_leaves_the_sweeps_folder(tmp_path, name):
    with pytest.raises(SettingsError, match=r"is not a plain folder name: leave out '/' and '\.\.'"):
        paths.SweepPaths(tmp_path).run(name, 1)


@pytest.mark.process
def test_a_result_that_lacks_parts_does_not_stop_a_sweep(params, tmp_path):
    sweep = load_sweep(params, only="zs0*", overrides={"repeats": 1}, output=tmp_path / "out")
    records.write_json(sweep.runs[0].paths.result, {"status": "ok"})
    assert statuses(run_sweep(sweep, progress=False)) == ["ok"]


def test_a_notebook_without_a_setting_or_its_tag_is_refused(params, tmp_path, monkeypatch):
    template = tmp_path / "10_run.ipynb"
    text = paths.notebook_template("10_run").read_text()
    monkeypatch.setattr(paths, "notebook_template", lambda _: template)
    template.write_text(text.replace("grad_accum: int", "gradaccum: int"))
    with pytest.raises(SettingsError, match="does not take grad_accum: add it to the cell tagged 'parameters'"):
        run_sweep(params, output=tmp_path / "out", progress=False)
    template.write_text(text.replace('"parameters"', '"params"'))
    with pytest.raises(SettingsError, match="does not take model, weights, strategy, zero_stage, "):
        run_sweep(params, output=tmp_path / "out", progress=False)


@pytest.mark.process
def test_two_sweeps_do_not_share_a_folder(params, tmp_path):
    sweep = load_sweep(params, output=tmp_path / "out")
    with locked(sweep.paths):
        done = subprocess.run(command(params), capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1
    holder = f"process {os.getpid()} on {os.uname().nodename}"
    assert done.stderr == (
        f"error: {tmp_path / 'out'} is in use by another sweep ({holder}): wait for it, or choose another --output\n"
    )


@pytest.mark.process
def test_a_full_disk_stops_the_sweep_in_one_sentence(params, tmp_path):
    """A real file system of 1 MiB; needs the right to mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        sweep = load_sweep(params, output=disk / "out")
        with pytest.raises(LaunchError, match=r"the disk is full \(0 MiB free\); free 64 MiB and start again"):
            run_sweep(sweep, progress=False)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_during_a_run(params, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    sweep = load_sweep(params, output=tmp_path / "out")
    monkeypatch.setattr("dsnb.execute.notebook.execute", full)
    with pytest.raises(LaunchError, match="the disk is full; make room and start the sweep again"):
        execute(sweep.runs[0])


def steps_since(out, began):
    """Count the steps that runs have made since a time, and say whether one of these runs is not finished."""
    steps, unfinished = 0, False
    for file in out.rglob("steps.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # a new run has just removed it
            if file.stat().st_mtime > began:
                steps += file.read_text().count("\n")
                unfinished |= not (file.parent / "result.json").exists()
    return steps, unfinished


def kill(words, out, seconds, steps):
    """Start a sweep, kill it after some time or steps, whichever is first, and say whether a run was stepping."""
    began = time.time()
    sweep = psutil.Popen(words, cwd=ROOT, env=own_server(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while time.time() < began + seconds and steps_since(out, began)[0] < steps:
        time.sleep(0.02)
    family = sweep.children(recursive=True)
    _, stepping = steps_since(out, began)
    assert sweep.poll() is None, "the sweep was over before it was killed"
    sweep.kill()
    sweep.wait()
    wait_until_ended(one.pid for one in family)
    for result in out.rglob("result.json"):
        assert json.loads(result.read_text())["status"] == "ok"
    return stepping


@pytest.mark.process
def test_killed_at_six_moments_it_still_ends_with_the_same_runs(params, tmp_path):
    """SIGKILL, which nothing can catch: no process stays, no run is lost, doubled or half-written.

    Two sweeps at a time, each in a folder of its own. Half of the kills are for a run that steps, one of these for a
    second run; the others are spread over the start.
    """
    outs = [tmp_path / "one", tmp_path / "two"]
    commands = [[*command(params)[:-1], str(out), "--set", "steps=30"] for out in outs]
    draw = random.Random(5)
    in_a_run = 0
    with ThreadPoolExecutor(len(outs)) as pool:
        for attempt in range(3):
            early = draw.uniform(0.5, 2.0) + 1.5 * attempt, 1
            stepping = 60.0, draw.randint(1, 20) + (31 if attempt == 2 else 0)
            seconds, steps = zip(*((stepping, early) if attempt % 2 == 0 else (early, stepping)), strict=True)
            in_a_run += sum(pool.map(kill, commands, outs, seconds, steps))
    assert in_a_run >= 2
    finished = {file: file.stat().st_mtime_ns for out in outs for file in out.rglob("result.json")}
    assert finished
    last = [
        subprocess.Popen(
            words, cwd=ROOT, env=own_server(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        for words in commands
    ]
    for sweep, out in zip(last, outs, strict=True):
        _, said = sweep.communicate(timeout=250)
        assert sweep.returncode == 0, said
        folders = sorted(str(file.parent.relative_to(out)) for file in out.rglob("experiment.json"))
        assert folders == [f"{name}/run{repeat}" for name in NAMES for repeat in (1, 2)]
        for folder in folders:
            assert json.loads((out / folder / "result.json").read_text())["status"] == "ok"
            assert [row["step"] for row in records.read_lines(out / folder / "steps.jsonl")] == list(range(1, 32))
    assert finished == {file: file.stat().st_mtime_ns for file in finished}


TRAPS = ("pandas", "torch", "random", "deepspeed", "json", "sitecustomize", "dsnb_plugin")
KERNEL = {"argv": ["/bin/false", "{connection_file}"], "display_name": "another environment", "language": "python"}


@pytest.fixture(scope="module")
def crowded(tmp_path_factory):
    """Let three sweeps start together, two of them on the same outputs; give their folder, exit codes and words.

    Their working folder holds modules with the names of packages that they use, their home is on a full disk (where
    one can be mounted), Jupyter's path has another kernel called `python3`, and their umask keeps all to the user.
    """
    home = tmp_path_factory.mktemp("crowded")
    work, kernels = home / "work", home / "jupyter" / "kernels" / "python3"
    work.mkdir()
    for name in TRAPS:
        (work / f"{name}.py").write_text(f"open({str(home / 'executed')!r}, 'a').write('{name} ')\n")
    kernels.mkdir(parents=True)
    (kernels / "kernel.json").write_text(json.dumps(KERNEL))
    full = home / "full"
    full.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(full)], capture_output=True)
    with contextlib.suppress(OSError):
        (full / "file").write_bytes(bytes(2**17))
    env = own_server() | {"HOME": str(full), "JUPYTER_PATH": str(home / "jupyter"), "DSNB_CACHE": "off"}
    params = home / "small.yaml"
    params.write_text(PARAMS.replace("repeats: 2", "repeats: 1"))
    other = [*command(params)[:-1], str(home / "other")]
    started = [
        subprocess.Popen(words, cwd=work, env=env, umask=0o077, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for words in (command(params), command(params), other)
    ]
    said = [sweep.communicate(timeout=120)[1].decode() for sweep in started]
    yield home, env, [sweep.returncode for sweep in started], said
    if not mounted.returncode:
        subprocess.run(["umount", str(full)], check=True)


@pytest.mark.process
def test_sweeps_at_once_in_one_folder_and_in_two(crowded):
    home, _, codes, said = crowded
    assert sorted(codes[:2]) == [0, 1], said
    assert codes[2] == 0, said
    refused = said[codes.index(1)]
    assert refused.startswith(f"error: {home / 'out'} is in use by another sweep (process ")
    assert len(refused.splitlines()) == 1


@pytest.mark.process
def test_runs_are_made_by_this_interpreter_whatever_kernelspecs_there_are_and_without_a_home(crowded):
    for folder in ("out", "other"):
        assert list(load_runs(crowded[0] / folder)["status"]) == ["ok"] * 2


@pytest.mark.process
def test_modules_in_the_working_folder_are_never_imported(crowded):
    home, env, *_ = crowded
    for words in (["summary", home / "out"], ["report", home / "out"]):
        done = subprocess.run(
            [sys.executable, "-m", "dsnb", *map(str, words)],
            cwd=home / "work", env=env, umask=0o077, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert not (home / "executed").exists(), (home / "executed").read_text()


@pytest.mark.process
def test_what_a_sweep_writes_follows_the_umask(crowded):
    home = crowded[0]
    written = [path for folder in ("out", "other") for path in (home / folder, *(home / folder).rglob("*"))]
    assert len(written) > 40
    assert {path for path in written if path.stat().st_mode & 0o077} == set()


@pytest.mark.process
def test_an_interrupted_sweep_says_so_and_leaves_nothing(params, tmp_path):
    """By both signals, two sweeps at a time."""
    with ThreadPoolExecutor(2) as pool:
        outs = [tmp_path / "one", tmp_path / "two"]
        list(pool.map(interrupt, [command(params)] * 2, outs, [signal.SIGINT, signal.SIGTERM]))


def interrupt(words, out, number):
    long = [*words[:-1], str(out), "--set", "steps=100000"]
    sweep = psutil.Popen(long, cwd=ROOT, env=own_server(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    folder = out / NAMES[0] / "run1"
    wait_until(lambda: records.read_lines(folder / "steps.jsonl"), "the run trains")
    family = sweep.children(recursive=True)
    sweep.send_signal(number)
    _, said = sweep.communicate(timeout=60)
    assert sweep.returncode == 130
    assert said == (
        f"stop with Ctrl-C or `kill {sweep.pid}`; finished runs are kept\n"
        "interrupted: finished runs are kept, start the sweep again to go on\n"
    )
    assert json.loads((folder / "result.json").read_text())["status"] == "interrupted"
    assert records.read_lines(folder / "steps.jsonl")
    wait_until_ended(one.pid for one in family)


def reply_to(client, number):
    """Wait for the reply to one request; a slow kernel may still answer how it is."""
    while (reply := client.get_shell_msg(timeout=30))["parent_header"]["msg_id"] != number:
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
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert json.loads((tmp_path / "run1" / "result.json").read_text())["status"] == "interrupted"
        numbers = [int(word) for file in tmp_path.glob("run1/pids*") for word in file.read_text().split()]
        assert len(numbers) == 4
        assert not any(map(is_running, numbers))
        assert reply_to(client, client.execute("1 + 1"))["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
