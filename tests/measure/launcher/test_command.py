"""Runs of a user's program: how they end, what is recorded of them, and that nothing of them is left."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.measure.launcher import command_ranks, supervisor
from dsnb.measure.launcher.command_ranks import CommandRanks
from dsnb.measure.launcher.outcome import Outcome, of_command
from dsnb.measure.launcher.run import launch
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.run_record import RunRecord
from tests import ROOT
from tests.support.waiting import wait_until, wait_until_ended

SCRIPT = ROOT / "tests" / "workers" / "script.py"
WORDS = (
    f"python '{SCRIPT}' --batch {{micro_batch_size}} --steps {{script.steps}} --how {{script.how}} "
    "{activation_checkpointing?--checkpointing} '{run_dir}' {port}"
)
SETTINGS = {
    "device": "cpu", "warmup_steps": 1, "steps": 4, "time_limit_s": 60, "activation_checkpointing": True,
    "micro_batch_size": 4,
}  # fmt: skip


def experiment(how="well", steps=5, **settings):
    script = {"how": how, "steps": steps}
    return Experiment(**{**SETTINGS, "command": WORDS, "script": script, **settings})


@pytest.fixture(scope="module")
def run_script(tmp_path_factory):
    """Return a function that starts the script and gives its result with the settings recorded of it."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_ranks, "LINGER_S", 0.3)
        patch.setattr(supervisor, "TERMINATE_S", 1.0)

        def run(name="run", **settings):
            paths = RunPaths(folder / name)
            result = launch(experiment(**settings), paths.dir, progress=False)
            return SimpleNamespace(
                result=result, paths=paths, recorded=json_files.read_json(paths.experiment)
            )

        yield run


@pytest.fixture(scope="module")
def well(run_script):
    return run_script("well", micro_batch_size=2)


@pytest.mark.process
def test_a_script_that_ends_by_itself_is_ok_with_what_it_showed(well):
    assert (well.result.status, well.result.cause, well.result.exit_codes) == ("ok", None, {0: 0})
    assert well.result.summary["timed_steps"] == 4
    known = {name: value for name, value in well.recorded.items() if value is not None}
    assert known["micro_batch_size"] == 2
    assert known["seq_len"] == 64  # shown, and not stated
    assert known["strategy"] == "plain"
    assert known["program"] == "own"
    assert {"model", "precision", "zero_stage", "learning_rate"} & known.keys() == set()
    (line,) = [row for row in well.paths.console.read_text().splitlines() if "arguments" in row]
    words = json_files.parse_json(line.partition(":")[2].encode())
    expected = ["--batch", "2", "--steps", "5", "--how", "well", "--checkpointing"]
    assert words[:-1] == [*expected, str(well.paths.dir)]
    assert 15_000 <= int(words[-1]) < 32_000


@pytest.mark.process
def test_nothing_of_a_script_is_left_in_whatever_session_it_started(well):
    wait_until_ended(json_files.parse_json((well.paths.dir / "pids").read_bytes()))


@pytest.mark.process
@pytest.mark.parametrize(
    ("settings", "status", "cause"),
    [
        ({"steps": 100_000}, "ok", None),
        ({"how": "deaf"}, "failed", "the script ran with micro_batch_size 8, not 4"),
        ({"how": "silently"}, "failed",
         "the command ended without a recorded step: add dsnb.TrainerCallback to its Trainer, or dsnb.record to "
         "its loop"),
        ({"how": "raises"}, "failed",
         "the command ended with exit code 1: ValueError: no such optimizer: 'sgdx'"),
        ({"how": "killed"}, "failed", "the command was killed by signal 9 (SIGKILL)"),
        ({"steps": 3}, "failed",
         "the command ended after 2 of 4 timed steps: let it train 5 steps ({total_steps})"),
        ({"command": WORDS.replace("--batch ", "--batsch=")}, "failed",
         "the command ended with exit code 2: script.py: error: unrecognized arguments: --batsch=4"),
    ],
)  # fmt: skip
def test_how_a_command_ends(run_script, settings, status, cause):
    run = run_script(str(abs(hash(str(settings)))), **settings)
    assert (run.result.status, run.result.cause) == (status, cause)
    assert status == "ok" or run.recorded["program"] == "own"
    pids = run.paths.dir / "pids"
    wait_until_ended(json_files.parse_json(pids.read_bytes()) if pids.exists() else [])


@pytest.mark.process
def test_a_time_limit_ends_all_that_a_command_has_started(run_script, tmp_path):
    wait = tmp_path / "wait"
    wait.touch()
    words = f"{WORDS} --wait-for '{wait}'"
    run = run_script("slow", command=words, time_limit_s=3)
    cause = "no end within the time limit of 3 s, 1 of 5 steps done"
    assert (run.result.status, run.result.cause) == ("timeout", cause)
    assert run.result.exit_codes == {0: -signal.SIGTERM}
    wait_until_ended(json_files.parse_json((run.paths.dir / "pids").read_bytes()))


@pytest.mark.process
def test_a_command_ends_with_a_launcher_that_is_killed(tmp_path):
    wait = tmp_path / "wait"
    wait.touch()
    run = RunPaths(tmp_path / "run")
    json_files.write_json(tmp_path / "settings.json", experiment(
        command=f"{WORDS} --wait-for '{wait}'").model_dump())  # fmt: skip
    lines = (
        "import dsnb, json, sys\n"
        f"settings = json.load(open({str(tmp_path / 'settings.json')!r}))\n"
        f"dsnb.launch(dsnb.Experiment(**settings), {str(run.dir)!r}, progress=False)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", lines], start_new_session=True)
    pids = run.dir / "pids"
    wait_until(pids.exists, "the script has started")
    left = json_files.parse_json(pids.read_bytes())
    launcher.kill()
    launcher.wait()
    wait_until_ended(left)
    assert RunRecord(run).status == "interrupted"


def test_a_program_that_cannot_be_started_is_refused(tmp_path):
    program = tmp_path / "broken"
    program.write_bytes(b"\0")
    program.chmod(0o755)
    paths = RunPaths(tmp_path / "run")
    with pytest.raises(SettingsError, match="broken cannot be started: Exec format error"):
        launch(experiment(command=f"{program} {{script.how}} {{script.steps}}"), paths.dir)
    assert RunRecord(paths).status == "failed"


def ranks(folder, monkeypatch, **settings):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("RANK", "7")
    run = RunPaths(folder)
    return CommandRanks(experiment(**settings), run, 2.5)._variables


def test_the_environment_of_a_command(tmp_path, monkeypatch):
    alone = ranks(tmp_path, monkeypatch, gpus=2)
    assert alone["DSNB_RUN_DIR"] == str(tmp_path)
    assert alone["DSNB_LAUNCHED_AT"] == "2.5"
    assert alone["GLOO_SOCKET_IFNAME"] == "lo"
    assert alone["DS_ACCELERATOR"] == "cpu"
    # A script may import what is beside it, and its launcher numbers the ranks.
    assert {"PYTHONSAFEPATH", "RANK", "CUDA_VISIBLE_DEVICES"} & alone.keys() == set()
    assert "GLOO_SOCKET_IFNAME" not in ranks(tmp_path, monkeypatch, gpus=2, nodes=2)


SUMMARY = """
Traceback (most recent call last):
RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Failures:
[1]:
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 21)
Root Cause (first observed failure):
[0]:
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 20)
"""


@pytest.mark.parametrize(
    ("log", "code", "failures", "expected"),
    [
        (SUMMARY.format(code=-9), 1, [], ("failed", "rank 0 was killed by signal 9 (SIGKILL)")),
        (SUMMARY.format(code=-15), 1, [], ("interrupted", "rank 0 was killed by signal 15 (SIGTERM)")),
        ("KeyError: 'x'\n" + SUMMARY.format(code=1), 1, [],
         ("failed", "the command ended with exit code 1: KeyError: 'x'")),
        ("KeyError: 'x'\n", 1, [{"rank": 1, "cause": "ValueError: y", "in_communication": False}],
         ("failed", "rank 1: ValueError: y")),
        ("SignalException: Process 7 got signal: 15\n", 1, [],
         ("interrupted", "the command was killed by signal 15 (SIGTERM)")),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried\n", 1, [],
         ("oom", "the command ended with exit code 1 after an out-of-memory error")),
        ("python: can't open file '/x/train.py': [Errno 2] No such file or directory\n", 2, [],
         ("failed", "the command ended with exit code 2: python: can't open file '/x/train.py': "
          "[Errno 2] No such file or directory")),
        ("nothing to say\n", 3, [], ("failed", "the command ended with exit code 3")),
    ],
)  # fmt: skip
def test_the_cause_is_the_first_rank_that_failed_or_the_last_exception(
    tmp_path, log, code, failures, expected
):
    run = RunPaths(tmp_path)
    json_files.write_json(run.experiment, experiment().model_dump())
    json_files.write_lines(run.failures, failures)
    run.console.write_text(log)
    assert of_command(RunRecord(run), code, 0) == Outcome(*expected)


def test_a_run_of_other_settings_has_failed_even_if_it_was_ended(tmp_path):
    run = RunPaths(tmp_path)
    asked = experiment(
        learning_rate=0.1, attention="auto", micro_batch_size=4, gpus=2, bucket_elements=100_000_000
    )
    json_files.write_json(run.experiment, asked.model_dump())
    run.console.touch()
    late = Outcome("timeout", "too late")
    settings = {"micro_batch_size": 4, "learning_rate": 0.1 + 1e-12, "attention": "sdpa", "x": 1}
    settings["bucket_elements"] = 381 * 2**20 // 4  # DDP counts them in MiB
    json_files.write_json(run.observed, {"program": "a", "settings": settings})
    assert of_command(RunRecord(run), None, 0, late) == late
    settings |= {"gpus": 1, "activation_checkpointing": False, "seq_len": 5}
    json_files.write_json(run.observed, {"program": "a", "settings": settings})
    cause = "the script ran with gpus 1, not 2; activation_checkpointing false, not true"
    assert of_command(RunRecord(run), None, 0, late) == Outcome("failed", cause)
