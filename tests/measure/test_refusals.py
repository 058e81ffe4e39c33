"""What sweeps and launches refuse: the whole message, and neighbours that are accepted. No run is started."""

import contextlib
import errno
import shutil
import socket
from pathlib import Path

import pytest

from dsnb import Experiment
from dsnb.base.errors import LaunchError, SettingsError
from dsnb.cli.sweep import parse_overrides, sweep
from dsnb.measure.launcher import folder, hosts, local
from dsnb.measure.sweep import allocation, job, run
from dsnb.measure.sweep.allocation import Allocation
from dsnb.measure.sweep.params import load_sweep
from dsnb.settings import inputs
from dsnb.settings.hostfile import Host
from dsnb.settings.records.paths import RunPaths
from tests.support.refusals import message_of


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Give the current folder, with a params file and a hostfile of two hosts with two slots."""
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("name: a\ndefaults: {model: gpt2-tiny, device: cpu}\n")
    Path("hosts").write_text("one slots=2\ntwo slots=2\n")
    return tmp_path


def refusal(call):
    return message_of(call, SettingsError)


def test_options_of_slurm(here):
    hosts_twice = "--hostfile is 'hosts', but Slurm chooses hosts: leave one of them out"
    assert refusal(lambda: sweep(Path("a.yaml"), slurm=True, hostfile="hosts")) == hosts_twice
    set_here = {"slurm": True, "set_": ["hostfile=hosts"]}
    assert refusal(lambda: sweep(Path("a.yaml"), **set_here)) == hosts_twice
    words = "--sub-cluster divides the hosts of one job: use --hostfile slurm in a job"
    assert refusal(lambda: sweep(Path("a.yaml"), slurm=True, sub_cluster="1")) == words
    given = {
        "partition": "a",
        "account": "a",
        "nodes": 2,
        "gpus_per_node": 2,
        "time": 5,
        "constraint": "a",
        "sbatch_option": ["mem=2G"],
    }
    for name, value in given.items():
        words = f"--{name.replace('_', '-')} is for Slurm: add --slurm, or leave it out"
        assert (
            refusal(lambda name=name, value=value: sweep(Path("a.yaml"), **{name: value})) == words
        )


def test_limits_of_a_job():
    with pytest.raises(SettingsError) as caught:
        Allocation(0, 0, time_min=-1, extra_options={"Mem": "2G", "time": "5"})
    assert caught.value.problems == [
        "--nodes is 0: give a whole number of at least 1",
        "--gpus-per-node is 0: give a whole number of at least 1",
        "--time is -1: give a whole number of at least 1",
        "--sbatch-option is 'Mem=2G': write it like 'mem=200G' or 'exclusive'",
        "--sbatch-option is 'time': dsnb sets that itself; use the options of `dsnb sweep`",
    ]
    assert Allocation(1, 1, time_min=0, extra_options={"mem": "2G", "exclusive": ""}).nodes == 1


@pytest.mark.parametrize(("gpus", "nodes"), [(9, 1), (3, 3)])
def test_settings_that_a_job_has_no_room_for(gpus, nodes):
    asked = Experiment(device="cpu", gpus=gpus, nodes=nodes)
    words = (
        f"gpus is {gpus} and nodes is {nodes}: a job may have 2 nodes with 4 each; "
        "raise --nodes or --gpus-per-node"
    )
    assert refusal(lambda: Allocation(2, 4).place(asked)) == words
    eight = Experiment(device="cpu", gpus=8)
    assert Allocation(2, 4).place(eight).nodes == 2


def test_ranks_that_nodes_cannot_share():
    words = "gpus is 5: 2 nodes cannot share that equally; use a multiple of 2"
    assert refusal(lambda: Allocation(2, 4).place(Experiment(device="cpu", gpus=5))) == words
    assert Allocation(2, 4).place(Experiment(device="cpu", gpus=6)).nodes == 2


@pytest.mark.parametrize("text", ["", "0", "1,1", "a", "1;2", "-1", "1.5", "100000"])
def test_sizes_of_sub_clusters(text):
    words = f"sub-cluster is {text!r}: give numbers of hosts, each once, for example 2 or 1,2,4"
    assert refusal(lambda: allocation.sizes(text)) == words
    assert allocation.sizes("1, 2,99999") == [1, 2, 99_999]


def test_groups_of_hosts(here):
    words = "sub-cluster needs hosts: name them with --hostfile"
    assert refusal(lambda: allocation.load_groups("a.yaml", [1])) == words
    found = {"hostfile": "hosts"}
    for size in (0, 3):
        words = f"sub-cluster is {size}: there are 2 hosts; give 1 to 2"
        assert refusal(lambda size=size: allocation.load_groups("a.yaml", [size], found)) == words
    assert len(allocation.load_groups("a.yaml", [1, 2], found)[0].runs) == 3
    Path("a.yaml").write_text(
        "name: a\nrepeats: 834\ndefaults: {model: gpt2-tiny, device: cpu}\n"
        "grid: {seed: [1, 2, 3, 4]}\n"
    )
    words = "sub-cluster: 10,008 runs: at most 10,000 are allowed; split the sweep"
    assert refusal(lambda: allocation.load_groups("a.yaml", [1, 2], found)) == words


def test_changes_on_the_command_line():
    words = "--set is 'seq_len': write KEY=VALUE, for example --set seq_len=256"
    assert refusal(lambda: parse_overrides(["seq_len"])) == words
    words = "--set is '=3': write KEY=VALUE, for example --set seq_len=256"
    assert refusal(lambda: parse_overrides(["=3"])) == words
    words = "--set is 'a={b: 1, b: 2}': duplicate key 'b': remove one"
    assert refusal(lambda: parse_overrides(["a={b: 1, b: 2}"])) == words
    assert parse_overrides(["seq_len=256", "data="]) == {"seq_len": 256, "data": None}


def test_a_sweep_needs_the_run_notebook(here, monkeypatch):
    notebook = here / "10_run.ipynb"
    monkeypatch.setattr(run.paths, "notebook_template", lambda name: notebook)
    words = (
        f"notebook {str(notebook)!r} has no cell tagged 'parameters' with 'run_dir': "
        "restore the tag, or the cell"
    )
    assert refusal(run.check_notebook) == words


def test_settings_that_this_machine_cannot_run_stop_a_sweep(here, monkeypatch):
    monkeypatch.setattr(run.checks, "unsupported", lambda experiment: ["no GPU", "no disk"])
    with pytest.raises(SettingsError) as caught:
        run.run_sweep("a.yaml", progress=False)
    assert caught.value.problems == ["no GPU", "no disk"]
    assert not Path("outputs").exists()


def test_models_that_cannot_be_built_stop_a_sweep(here, monkeypatch):
    monkeypatch.setattr(run.built_models, "problems", lambda experiments: ["model is 'x': no"])
    assert refusal(lambda: run.check_models(load_sweep("a.yaml"))) == "model is 'x': no"


def test_input_files_that_change_during_a_sweep(here):
    Path("text.txt").write_text("some text")
    (planned,) = run.with_inputs(load_sweep("a.yaml", {"data": "text.txt"})).runs
    assert job.check_inputs(planned, inputs.digests(planned.experiment)) is None
    Path("text.txt").write_text("another text")
    words = (
        "text.txt has changed since the sweep began: restore it, or choose another --output, "
        "so that runs with different files are not averaged"
    )
    now = inputs.digests(planned.experiment)
    assert refusal(lambda: job.check_inputs(planned, now)) == words


def test_a_job_of_an_empty_folder(here):
    words = "run1/experiment.json holds no settings: start the sweep again"
    assert refusal(lambda: job.load_run(RunPaths(Path("run1")))) == words


def test_a_folder_that_is_in_use(here):
    paths = load_sweep("a.yaml", output="out").paths
    with run.locked(paths):
        holder = paths.lock.read_text()
        words = (
            f"out is in use by another sweep ({holder}): wait for it, or choose another --output"
        )

        def enter():
            with run.locked(paths):
                pass

        assert refusal(enter) == words
    enter()


def test_a_folder_with_a_finished_run(here, monkeypatch):
    monkeypatch.setattr(folder.RunRecord, "is_finished", lambda self: True)
    words = "run_dir is 'run1': it holds a finished run; choose another folder"
    experiment = Experiment(device="cpu")
    assert refusal(lambda: folder.prepare(RunPaths(Path("run1")), experiment)) == words


def test_folders_that_cannot_be_written(here, monkeypatch):
    def failure(call):
        return message_of(call, LaunchError)

    words = "a.yaml/out cannot be written: a.yaml is no folder; choose another --output"
    assert failure(lambda: folder.check_writable(Path("a.yaml/out"))) == words

    def full():
        with folder.writing(Path("out"), "choose another --output"):
            raise OSError(errno.ENOSPC, "No space left on device")

    words = "out cannot be written: No space left on device; choose another --output"
    assert failure(full) == words
    usage = type(shutil.disk_usage("."))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40, 3 * 2**20))
    words = "out/a: the disk is full (3 MiB free); free 64 MiB and start again"
    assert failure(lambda: folder.check_free_space(Path("out/a"))) == words
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 0, 2**26))
    assert folder.check_free_space(Path("out/a")) is None
    monkeypatch.setattr(folder.os, "access", lambda path, mode: False)
    words = f"{here}/out cannot be written: {here} is read-only; choose another --output"
    assert failure(lambda: folder.check_writable(here / "out")) == words


@pytest.mark.parametrize("text", ["", "soon", "0", "-1", "inf", "nan"])
def test_the_silence_of_hosts(monkeypatch, text):
    monkeypatch.setenv("DSNB_SILENCE_S", text)
    words = f"the environment variable DSNB_SILENCE_S is {text!r}: give seconds, at least 4"
    assert refusal(hosts.silence_s) == words
    monkeypatch.setenv("DSNB_SILENCE_S", "5.5")
    assert hosts.silence_s() == 5.5


def test_ports(monkeypatch):
    with socket.socket() as taken:
        taken.bind((local.LOCALHOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        experiment = Experiment(device="cpu", master_port=port)
        words = f"master_port is {port}: it is in use; choose another, or 0 for any free port"
        assert message_of(lambda: local.rank_variables(experiment, [], 0.0), LaunchError) == words
    (variables,) = local.rank_variables(experiment, [], 0.0)
    assert variables["MASTER_PORT"] == str(port)
    monkeypatch.setattr(local, "is_free", lambda address, port: False)
    words = (
        "none of 100 TCP ports between 15000 and 32000 is free: stop the programs that hold them"
    )
    assert message_of(lambda: local.free_port(local.LOCALHOST), LaunchError) == words


def test_ssh_that_is_not_installed(here, monkeypatch):
    monkeypatch.setenv("PATH", str(here))
    experiment = Experiment(device="cpu", hostfile="hosts", gpus=2)
    words = "ssh cannot be started (No such file or directory): install it or add it to PATH"
    assert message_of(lambda: hosts.Node(experiment, Host("one", (0, 1))), LaunchError) == words


def test_a_fork_server_that_has_ended(monkeypatch):
    monkeypatch.setattr(local, "_connect", lambda device: None)
    monkeypatch.setattr(local, "shared_servers", lambda devices: contextlib.nullcontext())
    words = "the ranks could not be started: the fork server has ended"
    assert message_of(lambda: local._connect_or_start("cpu"), LaunchError) == words
