"""Hostfiles and what is taken of them."""

import os
from pathlib import Path

import pytest

from dsnb import Experiment
from dsnb.base.errors import SettingsError
from dsnb.measure.launcher.hosts import command
from dsnb.measure.sweep.allocation import load_groups
from dsnb.settings import checks, hostfile
from dsnb.settings.hostfile import Host

EIGHT = "# two machines\n\nworker-1 slots=8  # rack 1\n  worker-2\tslots = 8\n"
IS_NONE = (
    "is not a host: write 'NAME slots=NUMBER', with letters, digits, '.', "
    "'_' and '-' in the name, and 1 to 1024 slots"
)


@pytest.fixture
def write(tmp_path):
    def writer(text):
        path = tmp_path / "hosts.txt"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return writer


def problems(call, *arguments, **named):
    with pytest.raises(SettingsError) as caught:
        call(*arguments, **named)
    return caught.value.problems


def test_a_hostfile_is_read_as_deepspeed_reads_it(write):
    all_of = tuple(range(8))
    assert hostfile.read(write(EIGHT)) == (Host("worker-1", all_of), Host("worker-2", all_of))
    from_windows = write(
        b"\xef\xbb\xbf10.0.0.1 slots=1 # first\r\n\r\nnode_2.cluster.org slots = 2\r\n"
    )
    assert hostfile.read(from_windows) == (
        Host("10.0.0.1", (0,)),
        Host("node_2.cluster.org", (0, 1)),
    )


def test_bad_lines_are_told_with_their_numbers(write):
    bad = [
        "worker-1 slots=x",
        "worker-1 max_slots=8",
        "worker-1 slots=0",
        "-oX@worker-1 slots=1",
        "-oProxyCommand=reboot slots=1",
        "a;reboot slots=1",
        "../worker slots=1",
    ]
    path = write("\n".join(["worker-2 slots=8", *bad, "worker-2 slots=4"]))
    messages = [f"{line!r} {IS_NONE}" for line in bad] + [
        "'worker-2' is listed twice: keep one line"
    ]
    assert problems(hostfile.read, path) == [
        f"hostfile {path!r}, line {number}: {message}"
        for number, message in enumerate(messages, start=2)
    ]


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ("", "", {"worker-1": range(8), "worker-2": range(8)}),
        ("worker-1:0,2 @ worker-2", "", {"worker-1": [0, 2], "worker-2": range(8)}),
        ("worker-2:7@worker-2:1", "", {"worker-2": [1, 7]}),
        ("", "worker-1:0,1,2,3,4,5@worker-2:0", {"worker-1": [6, 7], "worker-2": range(1, 8)}),
    ],
)
def test_filters(write, include, exclude, left):
    hosts = hostfile.hosts(write(EIGHT), include, exclude)
    assert hosts == tuple(Host(name, tuple(devices)) for name, devices in left.items())


@pytest.mark.parametrize(
    ("slots", "ranks", "nodes", "taken"),
    [
        ([8, 8], 8, 2, {0: 4, 1: 4}),
        ([2, 8, 8], 8, 1, {1: 8}),  # as few hosts as have room: the second
        ([8, 8, 8], 9, 1, {0: 3, 1: 3, 2: 3}),
        ([8, 4], 12, 1, {0: 8, 1: 4}),  # no equal share
        ([4, 4, 4], 12, 2, {0: 4, 1: 4, 2: 4}),
    ],
)
def test_places(slots, ranks, nodes, taken):
    available = [Host(f"w{number}", tuple(range(count))) for number, count in enumerate(slots)]
    expected = tuple(Host(f"w{number}", tuple(range(count))) for number, count in taken.items())
    assert hostfile.place(available, ranks, nodes) == expected


def test_settings_follow_from_the_hostfile(write):
    asked = Experiment(hostfile=write(EIGHT), gpus="auto", exclude="worker-1:0,1,2,3")
    assert (asked.gpus, asked.nodes, asked.device) == (12, 2, "auto")
    assert asked.hosts == (Host("worker-1", (4, 5, 6, 7)), Host("worker-2", tuple(range(8))))
    assert "_nodes2" in asked.name
    assert "nodes" not in Experiment(hostfile=write(EIGHT), gpus=8).name


@pytest.mark.process
def test_slurm_is_a_hostfile_in_a_job_alone(monkeypatch, tmp_path):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    message = "hostfile is 'slurm': this process is not in a Slurm job; use --slurm, or start it inside salloc"
    assert problems(hostfile.hosts, "slurm") == [message]
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "scontrol does not list the nodes of the job" in problems(hostfile.hosts, "slurm")[0]
    program = tmp_path / "scontrol"
    program.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames n[1-2]" ] && echo n1 && echo n2 && echo -oX\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "64")
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", "h100:4(x2)")
    assert hostfile.hosts("slurm", exclude="n1:0") == (
        Host("n1", (1, 2, 3)),
        Host("n2", (0, 1, 2, 3)),
    )
    assert checks.unsupported(Experiment(hostfile="slurm", gpus=8)) == []


def test_what_would_block_or_never_end_is_no_hostfile(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (str(pipe), "/dev/zero"):
        assert problems(hostfile.read, path) == [
            f"hostfile is {path!r}: it cannot be read (it is not a regular file); check the path"
        ]


def test_users_and_what_follows_the_slots_are_read_as_deepspeed_reads_them(write):
    path = write("me@worker-1 slots=8\nworker-2 slots=8 max_slots=9 # comment\n")
    assert hostfile.read(path) == (
        Host("worker-1", tuple(range(8)), "me"),
        Host("worker-2", tuple(range(8))),
    )
    first, second = Experiment(hostfile=path, gpus=16).hosts
    assert "-l me -- worker-1 " in " ".join(command(Experiment(hostfile=path), first, "true"))
    assert "-l" not in command(Experiment(hostfile=path), second, "true")
    assert "-l you -- worker-1 " in " ".join(
        command(Experiment(hostfile=path, ssh_user="you"), first, "true")
    )
    assert [host.name for host in hostfile.hosts(path, include="worker-1:0")] == ["worker-1"]
    assert problems(hostfile.read, write("me@worker-1 slots=1\nyou@worker-1 slots=2"))[0].endswith(
        "keep one line"
    )


def test_the_slots_of_a_bare_name_are_unknown(write):
    path = write("worker-1\nworker-2\n")
    asked = Experiment(hostfile=path, gpus=16, nodes=2)
    assert [(host.name, host.devices) for host in asked.hosts] == [
        (f"worker-{n}", tuple(range(8))) for n in (1, 2)
    ]
    assert problems(Experiment, hostfile=path, gpus="auto") == [
        "gpus is 'auto': the hostfile gives no slots of worker-1; write 'worker-1 slots=8' there, or give a number"
    ]
    assert Experiment(hostfile=path, gpus="auto", include="worker-2:0,1").gpus == 2
    with pytest.raises(SettingsError, match="the hostfile gives no slots of worker-1"):
        load_groups(write_params(path), [1])


def write_params(hosts):
    path = Path(hosts).with_name("params.yaml")
    path.write_text(f"name: t\ndefaults: {{hostfile: {hosts}, model: gpt2-tiny}}\n")
    return path
