"""The ranks of a user's own program: one process, which starts them as it likes."""

import contextlib
import json
import math
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, cast

import yaml

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.files.plain_text import short_repr
from dsnb.base.system import hardware, interpreter, launch_clock
from dsnb.measure.launcher import environment
from dsnb.measure.launcher.local import LOCALHOST, LOOPBACK, free_port, is_free, remove_stale_locks
from dsnb.settings import command
from dsnb.settings.command import Place
from dsnb.settings.experiment import Experiment
from dsnb.settings.records import observed
from dsnb.settings.records.paths import RUN_DIR, RunPaths

LINGER_S = 5.0
"""Time for a script to end by itself once its steps are measured."""
END_TIMEOUT_S = 30.0


def variables(experiment: Experiment, run: RunPaths, launched_at_s: float) -> dict[str, str]:
    """Return the environment of a command; it may import modules beside its script, as ever."""
    ranks = max(1, experiment.gpus // experiment.nodes)
    device = experiment.device
    shared = environment.for_ranks(device, ranks, launched_at_s, experiment.allocator)
    if experiment.nodes == 1 and not experiment.hostfile:
        shared = {**LOOPBACK, **shared}
    for name in interpreter.SAFE_PATH:
        shared.pop(name, None)
    return {**shared, RUN_DIR: str(run.dir)}


class CommandRanks:
    """The process of a command, and all that it starts."""

    host_of: Mapping[int, str] = MappingProxyType({})
    """Rank -> name of its host; empty, since the command decides that."""
    external_failure: str | None = None
    """Why the command could not be started or watched; None if it was."""
    _process: subprocess.Popen[bytes] | None = None
    _measured_s = math.inf
    """When the script had measured its steps."""

    def __init__(self, experiment: Experiment, run: RunPaths, launched_at_s: float) -> None:
        if experiment.device == "auto":
            resolved = {"device": hardware.default_device()}
            experiment = experiment.model_copy(update=resolved)
        self._experiment = experiment
        self._run = run
        self._variables = variables(experiment, run, launched_at_s)
        self.gpus: list[int] = []
        if experiment.device == "cuda":
            ranks = experiment.gpus // experiment.nodes
            chosen = hardware.gpus()[:ranks]
            visible = ",".join(gpu.visible_as for gpu in chosen)
            self._variables["CUDA_VISIBLE_DEVICES"] = visible
            self.gpus = [gpu.index for gpu in chosen if not gpu.is_slice]
        self._oom_kills = hardware.oom_kills()
        self._codes: dict[int, int] = {}
        remove_stale_locks()

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills on this machine since the start."""
        return hardware.oom_kills() - self._oom_kills

    def start(self, worker: str) -> None:
        """Write the files that the command refers to, and start it; `worker` is for dsnb's own ranks."""
        experiment = self._experiment
        port = experiment.master_port
        if port and not is_free(LOCALHOST, port):
            raise LaunchError(
                f"master_port is {port}: it is in use; choose another, or 0 for any free port"
            )
        write_files(experiment, self._run)
        place = Place(self._run, port or free_port(LOCALHOST))
        request = {
            "words": command.arguments(experiment, place),
            "env": self._variables,
            "cwd": os.getcwd(),
            "log": str(self._run.console),
        }
        self._process = subprocess.Popen(
            interpreter.command("-m", "dsnb.measure.launcher.supervisor"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C must reach the launcher only
        )
        pipe = cast("IO[bytes]", self._process.stdin)
        with contextlib.suppress(OSError):  # it has ended
            pipe.write(json_files.line(request).encode())
            pipe.flush()
        self._reader = threading.Thread(target=self._read, daemon=True)
        began = self._answer()
        self._reader.start()
        if "error" in began:
            raise SettingsError(f"command is {short_repr(experiment.command)}: {began['error']}")

    def _answer(self) -> dict[str, Any]:
        """Return the next message of the supervisor; empty if it has ended."""
        process = cast("subprocess.Popen[bytes]", self._process)
        message: dict[str, Any] = json.loads(cast("IO[bytes]", process.stdout).readline() or b"{}")
        return message

    def _read(self) -> None:
        code = self._answer().get("exit")
        if code is not None:
            self._codes[0] = code
        else:
            self.external_failure = "the process that supervises the command has ended"

    def exit_codes(self) -> dict[int, int]:
        """Return the exit code of the command as that of rank 0, once there is one."""
        return dict(self._codes)

    def ended(self) -> bool:
        """Return whether the command has ended, or goes on although all of its steps are measured."""
        if self.external_failure or self._codes:
            return True
        now_s = launch_clock.now_s()
        if self._measured_s == math.inf and self._run.worker.exists():
            self._measured_s = now_s
        return now_s > self._measured_s + LINGER_S

    def end(self) -> None:
        """End the command with all of its processes on this host, and record what its script showed."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._codes.setdefault(0, -signal.SIGKILL)
        if self._run.dir.is_dir():  # it may have been removed
            observed.complete(self._run)


def write_files(experiment: Experiment, run: RunPaths) -> None:
    """Write the files that a command refers to."""
    for name, content in command.files(experiment, run).items():
        path: Path = getattr(run, name)
        if isinstance(content, str):
            json_files.write_text(path, content)
        elif path.suffix == ".yaml":
            json_files.write_text(path, yaml.safe_dump(content, sort_keys=False))
        else:
            json_files.write_json(path, content)
