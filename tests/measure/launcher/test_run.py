"""How runs end, and that nothing of them is left."""

import json
import os
import re
import signal
import socket
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.launcher import local, run
from dsnb.measure.launcher.folder import create_run_dir
from dsnb.measure.launcher.run import launch
from dsnb.settings.exchange import deepspeed_config
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from tests.support.small_sweep import light_server
from tests.support.waiting import is_running, wait_until, wait_until_ended

pytestmark = pytest.mark.process


def pids(folder):
    return [int(word) for file in sorted(folder.glob("pids*")) for word in file.read_text().split()]


def wait_for_ranks(folder):
    wait_until(lambda: len(pids(folder)) == 4, "two ranks have started a child each")


def assert_left_nothing(folder):
    left = pids(folder)
    assert len(left) == 4
    wait_until_ended(left)


def test_a_sleeper_reports_exactly_its_sleep(run_small):
    result, paths = run_small(worker="sleeper", gpus=2)
    tokens = 2 * 2 * 32
    assert result.status == "ok"
    figures = {
        "tokens_per_s": 4 * tokens / 2.56,
        "tokens_per_s_per_gpu": 2 * tokens / 2.56,
        "step_time_mean_s": 0.64,
        "step_time_median_s": 0.48,
        "step_skew": 0.0,
    }
    found = {name: result.summary[name] for name in figures}
    assert found == pytest.approx(figures)
    phases = {name: result.phases_s[name] for name in ("warmup", "timed")}
    assert phases == pytest.approx({"warmup": 0.6, "timed": 2.56})
    assert {f"rank {rank} was in {os.getcwd()}" for rank in (0, 1)} <= set(
        paths.console.read_text().splitlines()
    )


@pytest.mark.parametrize(
    ("settings", "status", "cause"),
    [
        ({"worker": "silent", "gpus": 3}, "failed",
         "the ranks ended after 0 of 4 timed steps without an error message"),
        ({"worker": "crashing"}, "oom", "rank 0 ended with exit code 7 after an out-of-memory error"),
        ({"worker": "uncompiled", "compile": "default", "steps": 1}, "failed",
         "compile is 'default': torch.compile captured no graph, so nothing was compiled"),
        ({"micro_batch_size": 64, "seq_len": 1024, "data": "synthetic", "memory_limit_gib": 1}, "oom",
         "rank 0: .*memory.*"),
        ({"learning_rate": 1e30, "steps": 6}, "nan", r"the loss was not a finite number at step \d"),
    ],
)  # fmt: skip
def test_how_a_run_ends(run_small, settings, status, cause):
    result, paths = run_small(**settings)
    assert result.status == status
    assert re.fullmatch(cause, result.cause)
    assert json_files.read_json(paths.result)["status"] == status
    assert status != "nan" or result.summary["loss_last"] is None


def test_a_killed_rank_ends_the_run_and_leaves_nothing_behind(run_small, monkeypatch):
    monkeypatch.setenv("DSNB_TEST_KILL_RANK", "1")
    monkeypatch.setattr(run, "GRACE_PERIOD_S", 1.0)
    result, paths = run_small(worker="tests.workers.hanger", gpus=2)
    assert (result.status, result.cause) == ("failed", "rank 1 was killed by signal 9 (SIGKILL)")
    assert_left_nothing(paths.dir)
    assert local.is_free(local.LOCALHOST, int((paths.dir / "port").read_text()))


def test_a_rank_killed_in_a_collective_is_the_cause_not_its_neighbours_error(
    run_small, monkeypatch
):
    counts = iter([5, 6])
    monkeypatch.setattr("dsnb.base.system.hardware.oom_kills", lambda: next(counts))
    result, paths = run_small(worker="dying", gpus=2, steps=50)
    cause = "rank 1 was killed by the kernel: the machine's memory ran out"
    assert (result.status, result.cause) == ("oom", cause)
    assert len(json_files.read_lines(paths.steps)) >= 2


def test_a_killed_run_keeps_the_steps_that_it_has_done(run_small):
    result, paths = run_small(worker="killed", steps=50)
    assert result.status == "failed"
    assert [row["step"] for row in json_files.read_lines(paths.steps)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "settings", "status"),
    [
        ("SIGTERM", {"strategy": "ddp"}, "interrupted"),
        ("SIGSEGV", {"zero_stage": 3}, "failed"),
        ("SIGABRT", {"strategy": "fsdp"}, "failed"),
        ("SIGBUS", {"tensor_parallel": 2, "zero_stage": 1}, "failed"),
    ],
)
def test_a_rank_that_dies_of_a_signal_is_named_with_it(
    run_small, monkeypatch, name, settings, status
):
    monkeypatch.setenv("DSNB_TEST_SIGNAL", name)
    result, paths = run_small(worker="dying", gpus=2, steps=50, **settings)
    number = int(signal.Signals[name])
    assert (result.status, result.cause) == (
        status,
        f"rank 1 was killed by signal {number} ({name})",
    )
    assert all(failure["in_communication"] for failure in json_files.read_lines(paths.failures))
    has_same_losses = not settings.keys().isdisjoint({"tensor_parallel", "pipeline_parallel"})
    for figure in ("loss_first", "loss_last"):  # otherwise the steps have those of rank 0 alone
        assert (result.summary[figure] is not None) == has_same_losses


def test_an_abort_after_another_ranks_error_is_a_consequence(run_small):
    result, paths = run_small(worker="aborting_peers", gpus=2, strategy="ddp")
    assert (result.status, result.cause) == ("failed", "rank 0: ValueError: 3 is odd")
    assert result.exit_codes == {0: 1, 1: -signal.SIGABRT}
    assert json_files.read_lines(paths.failures)[0]["in_communication"] is False


@pytest.mark.parametrize(
    ("worker", "cause"),
    [
        (
            "occupied",
            "rank 0: OSError: .*Address already in use.*; leave master_port at 0 for any free port and .* again",
        ),
        (
            "full_disk",
            "rank 0: OSError: .*No space left on device; make room on the disk and start the sweep again",
        ),
    ],
)
def test_a_fault_of_the_machine_leaves_the_run_unfinished(
    run_small, small, monkeypatch, worker, cause
):
    monkeypatch.setattr(run, "GRACE_PERIOD_S", 1.0)
    result, paths = run_small(worker=worker, gpus=2)
    assert result.status == "interrupted"
    assert re.fullmatch(cause, result.cause), result.cause
    assert (
        launch(small(gpus=2), paths.dir, progress=False).status == "ok"
    )  # made again in the same folder


LEFT_BY_A_LAUNCHER = {
    **{
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
    },
    **{"TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_ERROR_FILE": "/nowhere/error.json"},
    **{
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "5",
        "LOCAL_WORLD_SIZE": "8",
        "LOCAL_SIZE": "8",
    },
    **{
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_NAME": "x",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "8",
    },
    **{
        "MASTER_ADDR": "10.255.255.1",
        "MASTER_PORT": "1",
        "NODE_RANK": "1",
        "CROSS_RANK": "1",
        "CROSS_SIZE": "2",
    },
    **{"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "5"},
    **{
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
        "ACCELERATE_USE_DEEPSPEED": "true",
    },
    **{
        "PET_NNODES": "2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_MAX_RESTARTS": "3",
        "PET_NPROC_PER_NODE": "8",
    },
    **{"NCCL_COMM_ID": "10.255.255.1:1"},
    **{"DSNB_LAUNCHED_AT": "0", "DS_ACCELERATOR": "cuda", "DSNB_OWNER_PID": "1"},
}
"""What a shell has that was started by torchrun, DeepSpeed's launcher, accelerate, mpirun or in Kubeflow's pods."""


def test_variables_that_another_launcher_has_left_change_nothing(run_small, monkeypatch, losses):
    """Before, the ranks waited for the store of a torchrun until their time limit."""
    usual = losses(gpus=2)
    for name, value in LEFT_BY_A_LAUNCHER.items():
        monkeypatch.setenv(name, value)
    result, paths = run_small(gpus=2, time_limit_s=100.0)
    assert result.status == "ok", result.message()
    assert [step["loss"] for step in json_files.read_lines(paths.steps)] == usual
    recorded = json_files.read_json(paths.environment)["variables"]
    assert not [name for name in recorded if name.startswith("TORCHELASTIC")]


@pytest.fixture
def server(monkeypatch):
    """Let launches use a fork server without torch, in the place of the session's; give its process."""
    for name, value in light_server().items():
        monkeypatch.setenv(name, value)
    server = local.ForkServer("cpu")
    server.wait_ready()
    monkeypatch.setenv(local.socket_variable("cpu"), str(server.socket))
    yield psutil.Process(server.process.pid)
    server.close()


def test_a_killed_fork_server_leaves_nothing_behind(server, small, tmp_path):
    folder = tmp_path / "run1"

    def kill_the_server():
        wait_for_ranks(folder)
        server.kill()

    threading.Thread(target=kill_the_server, daemon=True).start()
    result = launch(small(gpus=2), folder, progress=False, worker="tests.workers.hanger")
    cause = "the fork server ended during the run, and its ranks with it"
    assert (result.status, result.cause) == ("interrupted", cause)
    assert result.exit_codes == {0: -signal.SIGKILL, 1: -signal.SIGKILL}
    assert_left_nothing(folder)
    assert launch(small(), tmp_path / "run2", progress=False).status == "ok"  # with a new server


def test_ranks_that_hang_after_their_last_record_have_finished(
    server, small, tmp_path, monkeypatch
):
    """The limit passes when all is recorded, however long that took."""
    run, limited = RunPaths(tmp_path / "run1"), small(time_limit_s=900)
    (tmp_path / "wait").touch()
    monkeypatch.setenv("DSNB_TEST_WAIT_AT_END", str(tmp_path / "wait"))
    monkeypatch.setattr(
        launch_clock, "now_s", lambda: time.monotonic() + 1000 * run.worker.exists()
    )
    result = launch(limited, run.dir, progress=False, worker="tests.workers.stepper")
    assert (result.status, result.cause, result.summary["timed_steps"]) == ("ok", None, 4)
    assert result.phases_s["wall"] >= 900
    wait_until_ended(pids(tmp_path / "run1"))


def test_a_client_killed_with_answers_unread_ends_its_ranks_and_the_server_goes_on(
    server, small, tmp_path
):
    """Linux resets a connection that is closed while something in it is unread."""
    folder = create_run_dir(tmp_path, "killed")
    json_files.write_json(folder / "experiment.json", small(steps=100_000).model_dump(mode="json"))
    variables = {**os.environ, "RANK": "0", launch_clock.LAUNCHED_AT: str(launch_clock.now_s())}
    request = {
        "ranks": [variables],
        "cwd": os.getcwd(),
        "log": str(folder / "console.log"),
        "run_dir": str(folder),
    }
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[local.socket_variable("cpu")])
        connection.sendall(
            json.dumps({**request, "worker": "tests.workers.stepper"}).encode() + b"\n"
        )
        wait_until((folder / "pids0").exists, "the rank trains")
    wait_until_ended(pids(folder))
    assert launch(small(), tmp_path / "next", progress=False).status == "ok"
    assert is_running(server.pid)


def test_an_interrupt_while_the_server_is_busy_leaves_nothing_behind(server, small, tmp_path):
    server.suspend()
    folder = tmp_path / "run1"

    def interrupt():
        wait_until((folder / "environment.json").exists, "the launch is about to start its ranks")
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        launch(small(gpus=2), folder, progress=False, worker="tests.workers.hanger")
    record = json_files.read_json(folder / "result.json")
    assert (record["status"], record["cause"]) == ("interrupted", "stopped by the user")
    server.resume()
    wait_until(lambda: server.children() == [], "the server has killed what it forked")
    wait_until_ended(pids(folder))


def test_an_interrupt_just_after_the_ranks_have_started_leaves_nothing_behind(
    small, tmp_path, monkeypatch
):
    folder = tmp_path / "run1"

    class Reader(threading.Thread):
        def start(self):
            wait_for_ranks(folder)
            raise KeyboardInterrupt

    monkeypatch.setattr(local, "threading", SimpleNamespace(Thread=Reader))
    with pytest.raises(KeyboardInterrupt):
        launch(small(gpus=2), folder, progress=False, worker="tests.workers.hanger")
    assert json_files.read_json(folder / "result.json")["status"] == "interrupted"
    assert_left_nothing(folder)


def test_a_failure_is_raised_with_its_log(run_small, monkeypatch):
    monkeypatch.setenv("DSNB_TEST_LAST_WORDS", "Segmentation fault")
    result, paths = run_small(worker="crashing")
    with pytest.raises(LaunchError) as caught:
        result.raise_for_status()
    assert str(caught.value) == (
        "failed: rank 0 ended with exit code 7\n  | Segmentation fault\n"
        f"Log: {paths.console}\nNext: read the log; `dsnb doctor` says what this machine can run"
    )


def test_the_time_limit_leaves_nothing_behind(small, tmp_path, monkeypatch):
    """The limit passes when the ranks hang, however long they took to start."""
    folder = tmp_path / "run1"
    monkeypatch.setattr(
        launch_clock, "now_s", lambda: time.monotonic() + 1000 * (len(pids(folder)) == 4)
    )
    result = launch(
        small(gpus=2, time_limit_s=900), folder, progress=False, worker="tests.workers.hanger"
    )
    assert (result.status, result.cause) == (
        "timeout",
        "no end within the time limit of 900 s, 0 of 5 steps done",
    )
    assert_left_nothing(folder)
    assert local.is_free(local.LOCALHOST, int((folder / "port").read_text()))


def test_ranks_of_one_machine_listen_on_its_loopback_interface_alone(run_small):
    """Gloo's connections, and torch's store on rank 0."""
    result, paths = run_small(gpus=2, worker="listener")
    assert result.status == "ok", result.message()
    addresses = [json.loads((paths.dir / f"listening{rank}.json").read_text()) for rank in (0, 1)]
    assert all(addresses)
    assert {address for of_rank in addresses for address in of_rank} == {"127.0.0.1"}


def test_a_finished_run_is_not_overwritten_and_no_secret_is_in_its_files(
    small, run_small, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    _, paths = run_small()
    assert not [
        file for file in paths.dir.iterdir() if "hf_verysecret" in file.read_text(errors="replace")
    ]
    with pytest.raises(SettingsError, match="it holds a finished run; choose another folder"):
        launch(small(), paths.dir, progress=False)
    record = json_files.read_json(paths.result)
    json_files.write_json(paths.result, {**record, "status": "interrupted"})
    assert launch(small(), paths.dir, progress=False).status == "ok"


def test_a_port_that_is_in_use_and_a_folder_that_cannot_be_written(run_small, small, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            LaunchError, match=f"^master_port is {port}: it is in use; choose another, or 0 for any"
        ):
            run_small(master_port=port)
    record = json_files.read_json(tmp_path / "small" / "run1" / "result.json")
    assert record["status"] == "interrupted"  # it says nothing about the settings
    assert {create_run_dir(tmp_path, "single").name for _ in range(3)} == {"run1", "run2", "run3"}
    (tmp_path / "file").write_text("")
    with pytest.raises(
        LaunchError, match="file/run1 cannot be written: Not a directory; choose another folder"
    ):
        launch(small(), tmp_path / "file" / "run1", progress=False)


def test_deepspeed_compiles_no_op_for_a_cpu_and_makes_no_folder_that_is_named_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    config = deepspeed_config(
        Experiment(device="cpu", zero_stage=3, offload="all-nvme", nvme_path="~/swap")
    )
    assert config["zero_optimization"]["offload_param"]["nvme_path"] == "/home/someone/swap"
    assert config["optimizer"]["params"]["torch_adam"] is True
    assert "torch_adam" not in deepspeed_config(Experiment(device="cuda"))["optimizer"]["params"]
