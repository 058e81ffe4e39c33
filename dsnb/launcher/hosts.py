"""Runs the ranks on the hosts of a hostfile: torchrun on each, started through ssh, or srun in a Slurm job.

A host's torchrun ends with the pipe to its standard input (`dsnb.launcher.torchrun`), so nothing of a run outlives the
coordinator. Records are written to the run folder, which all hosts have to share.
"""

import contextlib
import fnmatch
import json
import os
import secrets
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.launcher import environment
from dsnb.run_folder import node_comparison
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.system import interpreter, launch_clock
from dsnb.version import __version__

FORWARDED = (*environment.RECORDED, "GLOO_*", "UCX_*", "FI_*", "HF_*", "TRITON_*")
"""Environment variables that are sent to every host, through the pipe: no command line shows their values."""
KEPT = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Not sent: they number the GPUs of this host."""
HEARTBEAT_S, ANSWER_TIMEOUT_S, END_TIMEOUT_S = 1.0, 60.0, 15.0
RECORD_TIMEOUT_S = 5.0
"""How long the last record of a host may take to appear here through a network file system."""


def silence_s() -> float:
    """Return the seconds after which a silent host counts as lost: `$DSNB_SILENCE_S`, or 20."""
    try:
        return max(4.0, float(os.environ.get("DSNB_SILENCE_S", "20")))
    except ValueError:
        return 20.0


def command(experiment: Experiment, host: Host, module: str, *words: str) -> list[str]:
    """Return the command that runs a module on a host: with srun in a Slurm job, otherwise with ssh."""
    path = os.environ.get("PYTHONPATH")  # dsnb may be found through it only
    there = [*(["env", f"PYTHONPATH={path}"] if path else []), *interpreter.command("-u", "-m", module, *words)]
    if experiment.hostfile == hostfile.SLURM:
        step = ["srun", "--nodes=1", "--ntasks=1", f"--nodelist={host.name}", "--overlap", "--quiet", "--unbuffered"]
        return [*step, "--kill-on-bad-exit=1", "--mpi=none", *there]
    # A new master connection would hold the pipes open; a cut link is detected by keepalives, by TCP alone in hours.
    alive = f"ServerAliveInterval={int(silence_s() / 4)}"
    options = ("BatchMode=yes", "ConnectTimeout=10", "ControlMaster=no", alive, "ServerAliveCountMax=3")
    ssh = ["ssh", "-T", "-x", *(word for option in options for word in ("-o", option))]
    ssh += ["-p", str(experiment.ssh_port)] if experiment.ssh_port else []
    ssh += ["-l", experiment.ssh_user] if experiment.ssh_user else []
    return [*ssh, "--", host.name, shlex.join(there)]


def torchrun_words(
    hosts: Sequence[Host], node: int, address: str, port: int, device: str, worker: str, run_dir: Path, *options: str
) -> list[str]:
    """Return the arguments of `dsnb.launcher.torchrun` on host number `node`."""
    devices = hosts[node].devices
    return [
        *("--device", device, "--slots", ",".join(map(str, devices)), "--cwd", os.getcwd(), *options, str(run_dir)),
        *("--", "--nnodes", str(len(hosts)), "--nproc-per-node", str(len(devices)), "--node-rank", str(node)),
        *("--master-addr", address, "--master-port", str(port), "--log-dir", os.devnull),
        *("-m", "dsnb.train.start", worker, str(run_dir)),
    ]


def forwarded(experiment: Experiment) -> dict[str, str]:
    """Return the environment variables of this process that are passed to the ranks on all hosts."""
    patterns = [*FORWARDED, *filter(None, map(str.strip, experiment.forward_env.split(",")))]
    return {
        name: value
        for name, value in os.environ.items()
        if name not in KEPT and any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


@dataclass
class Survey:
    """What a host has answered: see `dsnb.launcher.survey`."""

    host: Host
    facts: dict[str, Any]
    problem: str | None


def survey(experiment: Experiment, hosts: Sequence[Host], folder: Path, **request: Any) -> list[Survey]:
    """Ask all hosts at once what they are; a host that was not reached has a `problem`.

    Parameters
    ----------
    folder
        The folder that all hosts have to see.
    request
        Further parts of the request. A list is taken for one value for each host.
    """
    token = folder / f".shared-{secrets.token_hex(8)}"
    common = {"folder": str(folder), "token": token.name, "cwd": os.getcwd(), "env": forwarded(experiment)}
    processes: list[subprocess.Popen[bytes]] = []
    pool = ThreadPoolExecutor(max_workers=len(hosts))
    with contextlib.suppress(OSError):
        token.touch()
    try:
        for number, host in enumerate(hosts):
            part = {key: value[number] if isinstance(value, list) else value for key, value in request.items()}
            processes.append(_open(command(experiment, host, "dsnb.launcher.survey")))
            _send(processes[-1], records.line({**common, **part}))
        return list(pool.map(_answer, hosts, processes))
    finally:
        for process in processes:
            process.kill()  # an interrupt must not wait for an unreachable host
        pool.shutdown(wait=False)
        token.unlink(missing_ok=True)


def _open(words: list[str]) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    try:  # in a session of its own, because Ctrl-C must reach the coordinator only
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise LaunchError(f"{words[0]} cannot be started ({error.strerror}): install it or add it to PATH") from error


def _send(process: subprocess.Popen[bytes] | None, line: str) -> None:
    """Write to the standard input of a process on a host, if it was started and still reads."""
    if process and (pipe := process.stdin):
        with contextlib.suppress(OSError, ValueError):
            pipe.write(line.encode())
            pipe.flush()


def _answer(host: Host, process: subprocess.Popen[bytes]) -> Survey:
    """Read a host's answer, with the offsets of its clocks; lines of a greeting of its login shell are skipped."""
    timer = threading.Timer(ANSWER_TIMEOUT_S, process.kill)
    timer.start()
    facts: dict[str, Any] = {}
    for raw in cast("IO[bytes]", process.stdout):
        now_s, monotonic_s = time.time(), launch_clock.now_s()
        with contextlib.suppress(ValueError):
            record = json.loads(raw)
            if isinstance(record, dict) and "monotonic_s" in record:
                facts = record
                facts["clock_offset_s"] = round(record["time"] - now_s, 4)
                facts["monotonic_offset_s"] = record["monotonic_s"] - monotonic_s
    messages = _lines(cast("IO[bytes]", process.stderr).read())
    code = process.wait()
    timer.cancel()
    problem = None
    if facts.get("dsnb", __version__) != __version__:
        problem = f"{host.name} has dsnb {facts['dsnb']} and this host {__version__}: install the same version"
    elif "error" in facts:
        problem = f"{host.name}: {facts['error']}"
    elif not facts and code == -signal.SIGKILL:
        problem = f"{host.name} gave no answer within {ANSWER_TIMEOUT_S:g} s"
    elif not facts:
        problem = f"{host.name} was not reached: {_last(messages, code, host)}"
    return Survey(host, facts, problem)


def _lines(raw: bytes) -> list[str]:
    rows = (row.strip()[:400] for row in raw.decode("utf-8", "replace").splitlines())
    return [row for row in rows if row and not row.startswith("Warning: Permanently added")]


def _last(messages: list[str], code: int | None, host: Host) -> str:
    """Return the last message of ssh, srun or Python, which says why a connection ended."""
    message = messages[-1] if messages else f"it ended without a message (exit code {code})"
    if "No module named" in message:
        message += f"; dsnb must be installed on {host.name} under the same path, in the same version as here"
    return message


class Node:
    """One host of a run, with its torchrun.

    `codes` are the exit codes of the ranks that are known to have ended; `ended`, whether torchrun has ended and told
    how; `failure`, how the host was lost or why torchrun failed on it.
    """

    def __init__(self, number: int, first_rank: int, answer: Survey, run: RunPaths) -> None:
        self.number, self.host, self.facts, self._run = number, answer.host, answer.facts, run
        self.ranks = list(range(first_rank, first_rank + len(answer.host.devices)))
        self.codes: dict[int, int] = {}
        self.ended = False
        self.failure = answer.problem
        self.oom_kills = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: list[str] = []
        self._ended_at_s: float | None = None

    def start(self, words: list[str], request: dict[str, Any]) -> None:
        """Start torchrun; `request` has what no command line may show."""
        self._process = _open(words)
        self.send(records.line(request))
        self._readers = [threading.Thread(target=self._copy_output), threading.Thread(target=self._read_messages)]
        for reader in self._readers:
            reader.daemon = True
            reader.start()

    def send(self, line: str) -> None:
        """Write to torchrun's standard input, if it still reads."""
        _send(self._process, line)

    def _copy_output(self) -> None:
        """Append the output of the ranks to the console, each line behind the name of its host."""
        pipe = cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stdout)
        with open(self._run.console, "ab", buffering=0) as console:
            while raw := pipe.readline(2**16):
                with contextlib.suppress(OSError):  # a full disk shows elsewhere
                    console.write(f"{self.host.name}: ".encode() + raw.rstrip(b"\n") + b"\n")

    def _read_messages(self) -> None:
        for raw in cast("IO[bytes]", cast("subprocess.Popen[bytes]", self._process).stderr):
            self._messages = [*self._messages, *_lines(raw)][-20:]

    def _join_readers(self) -> None:
        for reader in self._readers:
            reader.join(timeout=1.0)

    def check(self) -> None:
        """Find out whether torchrun has ended, and how."""
        if self.ended or self.failure or self._process is None or (code := self._process.poll()) is None:
            return
        self._ended_at_s = self._ended_at_s or time.monotonic()
        record = records.read_json(self._run.node(self.number)) if code in {0, 1} else None
        if record is not None:
            failed = {int(rank): int(number) for rank, number in record.get("exit_codes", {}).items()}
            self.codes = failed or ({} if code else dict.fromkeys(self.ranks, 0))
            self.oom_kills = int(record.get("oom_kills", 0))
            if "error" in record:
                self.failure = f"{self.host.name}: {record['error']}"
            self.ended = True
        elif code not in {0, 1} or time.monotonic() > self._ended_at_s + RECORD_TIMEOUT_S:
            self._join_readers()  # the last message may still arrive
            self.failure = f"the connection to {self.host.name} broke: {_last(self._messages, code, self.host)}"

    def hang_up(self) -> None:
        """Close torchrun's standard input, which ends it and all ranks of the host."""
        with contextlib.suppress(OSError, AttributeError):  # it was never started
            self._process.stdin.close()  # type: ignore[union-attr]

    def wait(self, deadline_s: float) -> None:
        """Wait for the end of torchrun after `hang_up`; a host that does not answer ends its ranks by itself."""
        if self._process is None:
            return
        try:
            self._process.wait(timeout=0 if self.failure else max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.failure = self.failure or f"{self.host.name} did not confirm the end of its ranks"
        self._join_readers()

    def row(self) -> dict[str, Any]:
        """Return this host's row of `nodes.json`."""
        return {
            "host": self.host.name,
            "address": self.facts.get("address"),
            "interface": self.facts.get("interface"),
            "ranks": self.ranks,
            "devices": list(self.host.devices),
            "exit_codes": {str(rank): code for rank, code in sorted(self.codes.items())},
            "lost": self.failure,
            "oom_kills": self.oom_kills,
            "clock_offset_s": self.facts.get("clock_offset_s"),
            "environment": self.facts.get("environment", {}),
        }


class HostRanks:
    """All ranks of a run with a hostfile.

    Raises
    ------
    LaunchError
        If a host was not reached or does not fit; the message names up to five of them with the reason.
    """

    def __init__(self, experiment: Experiment, run: RunPaths) -> None:
        self._run, self._hosts, self._closed = run, experiment.hosts, threading.Event()
        ports = [experiment.master_port, *[0] * (len(self._hosts) - 1)]
        devices = [host.devices for host in self._hosts]
        surveys = survey(experiment, self._hosts, run.dir, device=experiment.device, devices=devices, master_port=ports)
        first_ranks = [sum(map(len, devices[:number])) for number in range(len(devices))]
        self._nodes = [Node(number, first_ranks[number], answer, run) for number, answer in enumerate(surveys)]
        try:
            _raise_first([answer.problem for answer in surveys])
            self.experiment = experiment.model_copy(update={"device": self._device(experiment)})
            _raise_first([self._misfit(node) for node in self._nodes])
        except LaunchError:
            self.end()
            raise
        self.environment: dict[str, Any] = self._nodes[0].facts["environment"]

    def _device(self, experiment: Experiment) -> str:
        """Return `cuda` if every host has the GPUs of its slots, `cpu` if no host has any."""
        counts = [int(node.facts["gpus"]) for node in self._nodes]
        if experiment.device == "cpu" or (experiment.device == "auto" and not any(counts)):
            return "cpu"
        for host, count in zip(self._hosts, counts, strict=True):
            if count <= (last := max(host.devices)):
                raise LaunchError(f"{host.name} has {count} usable GPUs and {last + 1} slots: correct the hostfile")
        return "cuda"

    def _misfit(self, node: Node) -> str | None:
        """Return why a host that was reached cannot run its ranks."""
        chosen, name = self.experiment.interface, node.host.name
        if not node.facts["sees_folder"]:
            return f"{name} does not see {self._run.dir}: choose outputs on a file system that all hosts share"
        if chosen and chosen not in node.facts["interfaces"]:
            there = ", ".join(sorted(node.facts["interfaces"]))
            return f"interface is {chosen!r}: {name} has no address on it; it has {there}"
        return f"{name}: {node.facts['problem']}" if node.facts["problem"] else None

    def start(self, worker: str, launched_at: float) -> None:
        """Start torchrun on every host.

        Raises
        ------
        LaunchError
            If ssh or srun is missing.
        """
        experiment, first, chosen = self.experiment, self._nodes[0].facts, self.experiment.interface
        address = first["interfaces"][chosen] if chosen else first["address"]
        request = {"env": forwarded(experiment), "umask": environment.umask()}
        for node in self._nodes:
            options = ["--launched-at", repr(launched_at + node.facts["monotonic_offset_s"])]
            options += ["--silence-s", f"{silence_s():g}", "--interface", chosen or node.facts["interface"]]
            options += ["--nccl-interface", chosen] if chosen else []
            where = (self._hosts, node.number, address, first["port"], experiment.device, worker, self._run.dir)
            words = torchrun_words(*where, *options)
            node.start(command(experiment, node.host, "dsnb.launcher.torchrun", *words), request)
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            for node in self._nodes:
                node.send("\n")

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code, negative if killed by that signal."""
        return {rank: code for node in self._nodes for rank, code in node.codes.items()}

    def ended(self) -> bool:
        """Return whether the ranks of all hosts have ended."""
        for node in self._nodes:
            node.check()
        return all(node.ended for node in self._nodes)

    def external_failure(self) -> str | None:
        """Return which host was lost and how, or why torchrun failed; None if neither."""
        return next((node.failure for node in self._nodes if node.failure), None)

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills on all hosts since the start."""
        return sum(node.oom_kills for node in self._nodes)

    def host_suffix(self, rank: int) -> str:
        """Return the text that names a rank's host."""
        return next((f" on {node.host.name}" for node in self._nodes if rank in node.ranks), "")

    def end(self) -> None:
        """End the ranks of all hosts, and write what is known of the hosts."""
        if self._closed.is_set():
            return
        self._closed.set()
        deadline_s, gpu_rows = time.monotonic() + END_TIMEOUT_S, []
        for node in self._nodes:
            node.check()
            node.hang_up()
        for node in self._nodes:
            node.wait(deadline_s)
            samples = records.read_lines(self._run.node_gpu(node.number))
            gpu_rows += [{**sample, "host": node.host.name} for sample in samples]
        if gpu_rows:
            records.write_lines(self._run.gpu, gpu_rows)
        for path in self._run.of_nodes:
            path.unlink(missing_ok=True)
        rows = [node.row() for node in self._nodes]
        differences = node_comparison.differences((row["host"], row["environment"]) for row in rows)
        if self._run.dir.is_dir():  # it may have been removed
            records.write_json(self._run.nodes, {"nodes": rows, "differences": list(differences.values())})


def _raise_first(problems: Sequence[str | None]) -> None:
    """Raise one LaunchError that names up to five problems."""
    if reasons := list(filter(None, problems)):
        raise LaunchError("; ".join(reasons[:5]) + (f"; and {len(reasons) - 5} more" if reasons[5:] else ""))
