"""What goes to hosts and what comes from them, as plain values: commands, variables, answers."""

import itertools
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import dsnb
from dsnb import Experiment
from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import hardware, launch_clock
from dsnb.measure.launcher import code, hosts, on_host
from dsnb.measure.launcher.hosts import HostRanks
from dsnb.measure.launcher.local import free_port
from dsnb.settings.hostfile import Host
from dsnb.settings.records.paths import RunPaths
from tests.support.waiting import WAIT_S, wait_until

ENDING = "tests.workers.ending"


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("worker-1 slots=2\nworker-2 slots=2\n")
    return str(path)


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """Let `ssh` print what a test says, by host, until the connection is closed."""
    script = tmp_path / "bin" / "ssh"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nread request\ncat {tmp_path}/answer-$2\ncat > /dev/null\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")

    def write(name, *messages, **facts):
        usual = {
            "dsnb": dsnb.__version__,
            "code": code.digest(),
            "gpus": 0,
            "sees_folder": True,
            "problem": None,
            "port": 1,
        }
        usual |= {"interfaces": {"eth0": "10.0.0.1"}, "environment": {"variables": {}}}
        usual |= {"time": time.time(), "monotonic_s": launch_clock.now_s(), **facts}
        text = "".join(
            f"a rank{on_host.MARK}{json.dumps(message)}\n" for message in [usual, *messages]
        )
        (tmp_path / f"answer-{name}").write_text(f"Welcome!\n{text}and goodbye\n")

    return write


def ask(hostfile, folder, **settings):
    folder.mkdir(exist_ok=True)
    return HostRanks(Experiment(hostfile=hostfile, gpus=4, **settings), RunPaths(folder), 0.0)


def test_the_command_of_a_host(hostfile, monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    python = [sys.executable, "-P", "-u", "-m", "dsnb.measure.launcher.on_host"]
    words = hosts.command(
        Experiment(hostfile=hostfile), Host("worker-1", (0,)), *python[:-1], "a b", X="1 2"
    )
    assert words[0] == "ssh"
    assert words[-3:] == ["--", "worker-1", shlex.join(["env", "X=1 2", *python[:-1], "a b"])]
    assert "BatchMode=yes" in words  # ssh must not ask for a password
    assert not {"-p", "-l"} & set(words)
    monkeypatch.setenv("PYTHONPATH", "/a b;reboot")
    asked = Experiment(hostfile=hostfile, ssh_port=2222, ssh_user="me")
    words = hosts.command(asked, Host("worker-1", (0,)), *python)
    assert [words[words.index("-p") + 1], words[words.index("-l") + 1]] == ["2222", "me"]
    assert shlex.split(words[-1]) == ["env", "PYTHONPATH=/a b;reboot", *python]
    words = hosts.command(Experiment.model_construct(hostfile="slurm"), Host("n1", (0,)), *python)
    assert (words[0], "--nodelist=n1" in words, words[-5:]) == ("srun", True, python)
    places = (Host("n1", (0, 2)), Host("n2", (3,)))
    assert hosts.torchrun_words(places, 1, "10.0.0.1", 29500, "worker", tmp_path) == [
        *(
            "--nnodes",
            "2",
            "--nproc-per-node",
            "1",
            "--node-rank",
            "1",
            "--master-addr",
            "10.0.0.1",
        ),
        *(
            "--master-port",
            "29500",
            "--log-dir",
            "/dev/null",
            "-m",
            "dsnb.measure.train.start",
            "worker",
            str(tmp_path),
        ),
    ]


def test_only_what_is_named_is_forwarded(hostfile, monkeypatch):
    # CUDA_VISIBLE_DEVICES numbers the GPUs of this host.
    sent = (
        "NCCL_DEBUG",
        "HF_TOKEN",
        "MY_KEY",
        "MY_OTHER",
        "PYTORCH_ALLOC_CONF",
        "TORCHDYNAMO_DISABLE",
    )
    kept = ("TORCHELASTIC_RUN_ID", "AWS_SECRET", "NOT_MY_KEY", "my_key", "CUDA_VISIBLE_DEVICES")
    for name in (*sent, *kept):
        monkeypatch.setenv(name, f"value-of-{name}")
    forwarded = hosts.forwarded(Experiment(hostfile=hostfile, forward_env="MY_* , WANDB_MODE"))
    assert set(sent) <= set(forwarded)
    assert not {*kept, "PATH", "HOME"} & set(forwarded)


@pytest.mark.process
@pytest.mark.parametrize(
    ("facts", "cause"),
    [
        ({"interfaces": {"lo": "::"}}, "interface is 'eth0': worker-2 has no address on it; it has lo"),
        ({"dsnb": "0.0.1"}, f"worker-2 has dsnb 0.0.1 and this host {dsnb.__version__}: install the same version"),
        (
            {"code": "edited"},
            f"worker-2 has dsnb {dsnb.__version__} like this host, but other code: install the same files on both",
        ),
        ({"gpus": 1}, "worker-1 has 0 usable GPUs and 2 slots: correct the hostfile or gpus"),
        ({"problem": "GPU 1 is in use"}, "worker-2: GPU 1 is in use"),
    ],
)  # fmt: skip
def test_a_host_that_does_not_fit(hostfile, answers, tmp_path, monkeypatch, facts, cause):
    answers("worker-1")
    answers("worker-2", **facts)
    folder = tmp_path / "run1"
    with pytest.raises(LaunchError) as caught:
        ask(hostfile, folder, interface="eth0")
    assert str(caught.value) == cause
    assert [node["host"] for node in json_files.read_json(folder / "nodes.json")["nodes"]] == [
        "worker-1",
        "worker-2",
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="ssh cannot be started"):
        ask(hostfile, tmp_path / "run2")


@pytest.mark.process
def test_hosts_decide_the_device_and_tell_their_clocks_and_samples(hostfile, answers, tmp_path):
    sample = {"t_s": 1.0, "gpu": 5, "power_w": 100.0}
    for name, ahead_s in (("worker-1", 0.0), ("worker-2", 3600.0)):
        answers(
            name,
            sample,
            gpus=2,
            time=time.time() + ahead_s,
            monotonic_s=launch_clock.now_s() + ahead_s,
        )
    ranks, run = ask(hostfile, tmp_path / "run1", device="auto"), RunPaths(tmp_path / "run1")
    ranks.end()
    assert (ranks.experiment.device, ranks.host_of[2]) == ("cuda", "worker-2")
    nodes = json_files.read_json(run.nodes)["nodes"]
    assert [node["clock_offset_s"] for node in nodes] == [
        pytest.approx(0, abs=60),
        pytest.approx(3600, abs=60),
    ]
    assert [node["ranks"] for node in nodes] == [[0, 1], [2, 3]]
    samples = sorted(json_files.read_lines(run.gpu), key=lambda row: row["host"])
    assert samples == [{**sample, "host": f"worker-{number}"} for number in (1, 2)]
    console = sorted(run.console.read_text().splitlines())
    assert console == [
        f"worker-{number}: {words}" for number in (1, 2) for words in ("a rank", "and goodbye")
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "address", "interfaces"),
    [
        ({}, "10.0.0.1", [{"GLOO_SOCKET_IFNAME": "eth0"}, {"GLOO_SOCKET_IFNAME": "eth1"}]),
        ({"interface": "ib0"}, "10.9.0.1", 2 * [{"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}]),
    ],
)  # fmt: skip
def test_every_host_is_told_where_the_first_one_is(
    hostfile, answers, tmp_path, settings, address, interfaces
):
    script = tmp_path / "bin" / "ssh"
    script.write_text(
        script.read_text().replace(
            "cat > /dev/null", f'read told; echo "$told" > {tmp_path}/told-$2; cat > /dev/null'
        )
    )
    for number, ahead_s in ((1, 0.0), (2, 3600.0)):
        answers(
            f"worker-{number}",
            address=f"10.0.0.{number}",
            interface=f"eth{number - 1}",
            interfaces={"ib0": f"10.9.0.{number}"},
            port=29500 + number,
            monotonic_s=launch_clock.now_s() + ahead_s,
        )
    run = tmp_path / "run1"
    ranks = ask(hostfile, run, device="cpu", **settings)
    ranks.start("a.worker")
    told = [tmp_path / f"told-worker-{number}" for number in (1, 2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in told), "hosts are told")
    requests = [json.loads(file.read_text()) for file in told]
    ranks.end()
    places = (Host("worker-1", (0, 1)), Host("worker-2", (0, 1)))
    for number, request in enumerate(requests):
        words = hosts.torchrun_words(places, number, address, 29501, "a.worker", run)
        assert request["torchrun"] == words
        assert request["interfaces"] == interfaces[number]
        assert (request["device"], request["devices"]) == ("cpu", [0, 1])
        assert request["allocator"] == "expandable"
        # The time of the launch on the host's own clock.
        assert request["launched_at_s"] == pytest.approx(3600 * number, abs=100)


@pytest.mark.parametrize(
    ("device", "counts", "expected"),
    [
        ("auto", (0, 0), "cpu"),
        ("cpu", (2, 2), "cpu"),
        ("auto", (2, 2), "cuda"),
        ("cuda", (3, 2), "cuda"),
        ("auto", (2, 0), "worker-2 has 0 usable GPUs and 2 slots: correct the hostfile or gpus"),
        ("cuda", (1, 2), "worker-1 has 1 usable GPUs and 2 slots: correct the hostfile or gpus"),
    ],
)
@pytest.mark.process
def test_hosts_use_gpus_if_each_has_those_of_its_slots(
    hostfile, answers, tmp_path, device, counts, expected
):
    for number, count in enumerate(counts, start=1):
        answers(f"worker-{number}", gpus=count, address="10.0.0.1", interface="eth0")
    try:
        ranks = ask(hostfile, tmp_path / "run1", device=device)
        ranks.end()
        found = ranks.experiment.device
    except LaunchError as error:
        found = str(error)
    assert found == expected


def test_a_port_that_is_in_use_and_gpus_that_are_waited_for(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        answer = on_host.prepare(
            {"master_port": port, "devices": [0], "device": "cpu"}, sees_run=False
        )
    cause = f"master_port is {port}: it is in use there; choose another, or 0 for any free port"
    assert answer == {"port": port, "problem": cause}

    def busy(*states, wait_s=0):
        looks = iter(states)
        monkeypatch.setattr(hardware, "gpu_usage", lambda _: next(looks))
        return on_host.busy_gpu([2, 3], wait_s)

    assert busy({2: (0.1, []), 3: (0.4, [])}) is None
    assert busy({2: (0.1, []), 3: (30.0, [])}) == "GPU 3 is in use, 30.0 GiB"
    assert busy({2: (0.1, []), 3: (0.4, [9, 10])}) == "GPU 3 is in use by process 9, 10, 0.4 GiB"
    assert busy({2: (70.0, [])}, {2: (0.2, [])}, wait_s=5) is None


def test_a_host_uses_the_gpus_of_its_slots_and_the_interfaces_that_are_named(monkeypatch):
    cards = [
        hardware.InstalledGpu(number, "NVIDIA H200", f"GPU-{number}", 140.0, (9, 0))
        for number in (3, 5, 6)
    ]
    monkeypatch.setattr(hardware, "gpus", lambda: cards)
    monkeypatch.setattr(
        os, "environ", {**os.environ, "PET_MAX_RESTARTS": "3"}
    )  # torchrun would try again
    request = {"device": "cuda", "devices": [0, 2], "launched_at_s": 7.5, "allocator": "default"}
    assert on_host.set_environment({**request, "interfaces": {"NCCL_SOCKET_IFNAME": "ib0"}}) == [
        3,
        6,
    ]
    names = ("CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME", "LOCAL_SIZE", launch_clock.LAUNCHED_AT)
    assert [os.environ[name] for name in names] == ["3,6", "ib0", "2", "7.5"]
    assert "PET_MAX_RESTARTS" not in os.environ


@pytest.mark.parametrize(
    ("interfaces", "expected"),
    [
        ({"lo": "127.0.0.1", "eth0": "10.0.0.5", "ib0": "10.9.0.5"}, ("10.0.0.5", "eth0")),
        ({"docker0": "10.0.0.1", "eth0": "10.0.0.5"}, ("10.0.0.5", "eth0")),  # bridges last
        ({"lo": "127.0.0.1", "down": "10.0.0.6"}, ("127.0.0.1", "lo")),
    ],
)
def test_other_hosts_reach_a_host_on_an_interface_that_is_up(monkeypatch, interfaces, expected):
    for name in ("SSH_CONNECTION", "SLURM_LAUNCH_NODE_IPADDR"):
        monkeypatch.delenv(name, raising=False)
    entries = {
        name: [SimpleNamespace(family=socket.AF_INET, address=address)]
        for name, address in interfaces.items()
    }
    states = {name: SimpleNamespace(isup=name != "down") for name in interfaces}
    monkeypatch.setattr("psutil.net_if_addrs", lambda: entries)
    monkeypatch.setattr("psutil.net_if_stats", lambda: states)
    assert on_host.own_address() == expected


@pytest.mark.parametrize(("token", "sees"), [("here", True), ("elsewhere", False)])
def test_a_host_says_whether_it_sees_the_folder(monkeypatch, tmp_path, token, sees):
    monkeypatch.setattr(
        on_host, "time", SimpleNamespace(monotonic=itertools.count().__next__, sleep=lambda _: None)
    )
    monkeypatch.setattr("dsnb.measure.launcher.environment.describe", dict)
    monkeypatch.setattr(hardware, "gpus", tuple)
    (tmp_path / "here").touch()
    answer = on_host.survey({"folder": str(tmp_path), "token": token})
    assert (answer["sees_folder"], answer["gpus"], answer["busy"]) == (sees, 0, None)
    assert answer["host"] == socket.gethostname()


def test_how_long_a_host_may_be_silent(monkeypatch):
    for given, used in (("30", 30.0), ("0.5", 4.0)):
        monkeypatch.setenv("DSNB_SILENCE_S", given)
        assert hosts.silence_s() == used
    for wrong in ("20s", "nan", "inf", "-1", ""):
        monkeypatch.setenv("DSNB_SILENCE_S", wrong)
        with pytest.raises(
            SettingsError, match=f"DSNB_SILENCE_S is '{wrong}': give seconds, at least 4"
        ):
            hosts.silence_s()


@pytest.mark.process
@pytest.mark.parametrize(
    ("ends", "codes"),
    [
        ("SIGTERM sleep", {"0": -15}),
        ("sleep 1", {"1": 1}),
        ("0 0", None),
    ],
)
def test_ranks_that_torchrun_terminates_are_not_among_the_failed(
    monkeypatch, tmp_path, ends, codes
):
    monkeypatch.setenv("DSNB_TEST_ENDS", ends)
    words = hosts.torchrun_words(
        [Host("here", (0, 1))], 0, "127.0.0.1", free_port("127.0.0.1"), ENDING, tmp_path
    )
    script = f"from dsnb.measure.train import start; print(start.run_ranks({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=WAIT_S
    )
    assert done.stdout.splitlines()[-1] == str({"exit_codes": codes} if codes else {}), done.stderr


def test_exit_codes_are_in_the_order_in_which_hosts_ended(hostfile, answers, tmp_path):
    for name, delay_s in (("worker-1", 0.4), ("worker-2", 0.0)):
        answers(name)
        ended = on_host.MARK + json.dumps(
            {"exit_codes": {"2" if name == "worker-2" else "0": -6}, "oom_kills": 0}
        )
        (tmp_path / f"end-{name}").write_text(f"sleep {delay_s}; echo '{ended}'\n")
    script = tmp_path / "bin" / "ssh"
    script.write_text(
        script.read_text().replace("cat > /dev/null", f". {tmp_path}/end-$2; cat > /dev/null")
    )
    ranks = ask(hostfile, tmp_path / "run1", device="cpu")
    wait_until(ranks.ended, "both hosts have ended")
    assert list(ranks.exit_codes().items()) == [(2, -6), (0, -6)]
    ranks.end()


def test_the_digest_is_of_the_code_and_changes_with_it(monkeypatch, tmp_path):
    (tmp_path / "train").mkdir()
    digests = set()
    for name, text in (("a.py", "1"), ("train/b.py", "2"), ("train/b.py", "3"), ("notes.txt", "4")):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(code, "PACKAGE", tmp_path)
        code.digest.cache_clear()
        digests.add(code.digest())
    assert len(digests) == 3  # not of other files
    monkeypatch.undo()
    code.digest.cache_clear()
    assert code.digest() not in digests
