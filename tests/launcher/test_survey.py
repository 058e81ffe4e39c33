"""What goes to hosts and what comes from them, as plain values: commands, variables, answers."""

import json
import os
import shlex
import sys
import time

import pytest

import dsnb
from dsnb import Experiment
from dsnb.errors import LaunchError, SettingsError
from dsnb.files import records
from dsnb.launcher import hosts, run, survey
from dsnb.launcher.hosts import HostRanks
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.settings.hostfile import Host
from dsnb.system import launch_clock


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("worker-1 slots=2\nworker-2 slots=2\n")
    return str(path)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Let `ssh` print what a test says, by host."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\ncat {tmp_path}/answer-$2\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")

    def write(name, **facts):
        usual = {"dsnb": dsnb.__version__, "gpus": 0, "sees_folder": True, "problem": None, "port": 1}
        usual |= {"interfaces": {"eth0": "10.0.0.1"}, "environment": {"variables": {}}}
        usual |= {"time": time.time(), "monotonic_s": launch_clock.now_s(), **facts}
        (tmp_path / f"answer-{name}").write_text(f"Welcome!\n[1]\n{{\n{json.dumps(usual)}\nand goodbye\n")

    return write


def ask(hostfile, folder, **settings):
    folder.mkdir(exist_ok=True)
    return HostRanks(Experiment(hostfile=hostfile, gpus=4, **settings), RunPaths(folder))


def test_the_command_of_a_host(hostfile, monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = [sys.executable, "-P", "-u", "-m", "dsnb.launcher.torchrun"]
    words = hosts.command(Experiment(hostfile=hostfile), Host("worker-1", (0,)), "dsnb.launcher.torchrun", "a b")
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "worker-1", shlex.join([*python, "a b"])]
    assert "BatchMode=yes" in words  # nobody is there to type a password
    assert not {"-p", "-l"} & set(words)
    monkeypatch.setenv("PYTHONPATH", "/a b;reboot")
    asked = Experiment(hostfile=hostfile, ssh_port=2222, ssh_user="me")
    words = hosts.command(asked, Host("worker-1", (0,)), "dsnb.launcher.torchrun")
    assert [words[words.index("-p") + 1], words[words.index("-l") + 1]] == ["2222", "me"]
    assert shlex.split(words[-1]) == ["env", "PYTHONPATH=/a b;reboot", *python]
    words = hosts.command(Experiment.model_construct(hostfile="slurm"), Host("n1", (0,)), "dsnb.launcher.torchrun")
    assert (words[0], "--nodelist=n1" in words, words[-5:]) == ("srun", True, python)
    places = (Host("n1", (0, 2)), Host("n2", (3,)))
    words = hosts.torchrun_words(places, 1, "10.0.0.1", 29500, "cuda", "worker", tmp_path)
    assert words[: words.index("--")] == [
        *("--device", "cuda", "--slots", "3", "--cwd", os.getcwd(), str(tmp_path)),
    ]
    assert words[words.index("--") + 1 :] == [
        *("--nnodes", "2", "--nproc-per-node", "1", "--node-rank", "1", "--master-addr", "10.0.0.1"),
        *("--master-port", "29500", "--log-dir", "/dev/null", "-m", "dsnb.train.start", "worker", str(tmp_path)),
    ]


def test_only_what_is_named_is_forwarded_and_no_command_shows_it(hostfile, monkeypatch):
    sent = ("NCCL_DEBUG", "HF_TOKEN", "MY_KEY", "MY_OTHER", "PYTORCH_ALLOC_CONF", "TORCHDYNAMO_DISABLE")
    kept = ("AWS_SECRET", "NOT_MY_KEY", "my_key", "CUDA_VISIBLE_DEVICES")  # the last numbers the GPUs of this host
    for name in (*sent, *kept):
        monkeypatch.setenv(name, f"value-of-{name}")
    asked = Experiment(hostfile=hostfile, forward_env="MY_* , WANDB_MODE")
    forwarded = hosts.forwarded(asked)
    assert set(sent) <= set(forwarded)
    assert not {*kept, "PATH", "HOME"} & set(forwarded)
    assert "value-of" not in " ".join(hosts.command(asked, Host("worker-1", (0,)), "dsnb.launcher.torchrun"))


@pytest.mark.parametrize(("given", "seconds"), [(None, 20), ("5", 5), ("0", 4), ("soon", 20), ("60.5", 60.5)])
def test_the_limit_of_silence(monkeypatch, given, seconds):
    monkeypatch.delenv("DSNB_SILENCE_S", raising=False)
    if given is not None:
        monkeypatch.setenv("DSNB_SILENCE_S", given)
    assert hosts.silence_s() == seconds


@pytest.mark.process
@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"dsnb": "0.0.1"}, f"worker-2 has dsnb 0.0.1 and this host {dsnb.__version__}: install the same version"),
        ({"error": "no disk"}, "worker-2: no disk"),
        ({"gpus": 1}, "worker-1 has 0 usable GPUs and 2 slots: correct the hostfile"),
        ({"problem": "GPU 1 is in use"}, "worker-2: GPU 1 is in use"),
        (
            {"sees_folder": False},
            "worker-2 does not see {folder}: choose outputs on a file system that all hosts share",
        ),
    ],
)
def test_a_host_that_does_not_fit(hostfile, answers, tmp_path, facts, said):
    answers("worker-1")
    answers("worker-2", **facts)
    folder = tmp_path / "run1"
    with pytest.raises(LaunchError) as caught:
        ask(hostfile, folder)
    assert str(caught.value) == said.format(folder=folder)
    assert [node["host"] for node in records.read_json(folder / "nodes.json")["nodes"]] == ["worker-1", "worker-2"]


@pytest.mark.process
def test_hosts_decide_the_device_and_tell_their_clocks(hostfile, answers, tmp_path):
    for name, ahead_s in (("worker-1", 0.0), ("worker-2", 3600.0)):
        answers(name, gpus=2, time=time.time() + ahead_s, monotonic_s=launch_clock.now_s() + ahead_s)
    ranks = ask(hostfile, tmp_path / "run1", device="auto")
    ranks.end()
    assert ranks.experiment.device == "cuda"
    assert ranks.host_suffix(2) == " on worker-2"
    nodes = records.read_json(tmp_path / "run1" / "nodes.json")["nodes"]
    assert [node["clock_offset_s"] for node in nodes] == [pytest.approx(0, abs=60), pytest.approx(3600, abs=60)]
    assert [node["ranks"] for node in nodes] == [[0, 1], [2, 3]]


@pytest.mark.process
def test_samples_of_all_hosts_become_one_file(hostfile, answers, tmp_path):
    for name in ("worker-1", "worker-2"):
        answers(name)
    ranks, run_paths = ask(hostfile, tmp_path / "run1"), RunPaths(tmp_path / "run1")
    for node in (0, 1):
        records.append_line(run_paths.node_gpu(node), {"t_s": 1.0, "gpu": 5, "power_w": 100.0 + node})
    ranks.end()
    rows = [(row["host"], row["gpu"], row["power_w"]) for row in records.read_lines(run_paths.gpu)]
    assert rows == [("worker-1", 5, 100.0), ("worker-2", 5, 101.0)]
    assert sorted(path.name for path in run_paths.dir.iterdir()) == ["gpu.jsonl", "nodes.json"]


@pytest.mark.process
def test_nothing_that_answers(hostfile, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="ssh cannot be started"):
        ask(hostfile, tmp_path / "run1")
    said = "launcher is 'deepspeed': torchrun starts the ranks of a hostfile; leave launcher out"
    with pytest.raises(SettingsError, match=said):
        launch(Experiment(hostfile=hostfile, gpus=4, launcher="deepspeed"), tmp_path / "run2", worker=run.WORKER)


@pytest.mark.parametrize(
    ("used_gib", "pids", "said"),
    [
        (0.4, [], None),
        (30.0, [], "GPU 3 is in use, 30.0 GiB"),
        (0.4, [999_999_999], "GPU 3 is in use by process 999999999, 0.4 GiB"),
    ],
)
def test_gpus_that_somebody_uses(monkeypatch, used_gib, pids, said):
    states = {2: (0.1, []), 3: (used_gib, pids)}
    monkeypatch.setattr(survey.hardware, "gpu_usage", lambda indexes: {index: states[index] for index in indexes})
    assert survey.busy_gpu([2, 3], wait_s=0) == said
    assert survey.busy_gpu([2], wait_s=0) is None


def test_a_gpu_that_is_given_back_late_is_waited_for(monkeypatch):
    looks = iter([{0: (70.0, [])}, {0: (0.2, [])}])
    monkeypatch.setattr(survey.hardware, "gpu_usage", lambda _: next(looks))
    assert survey.busy_gpu([0], wait_s=5) is None
