"""Runs the ranks on the hosts of a hostfile: torchrun on each, started through ssh, or srun in a Slurm job.

The launcher holds a connection to each host (`dsnb.measure.launcher.on_host`). The ranks of a host
end with its connection, so none outlives the launcher. They write to the run folder, which all
hosts must share.
"""

import contextlib
import fnmatch
import json
import math
import os
import queue
import secrets
import shlex
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

from dsnb.base.errors import LaunchError, SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import interpreter, launch_clock
from dsnb.measure.launcher import code, environment
from dsnb.measure.launcher.on_host import MARK
from dsnb.settings import hostfile
from dsnb.settings.experiment import Experiment
from dsnb.settings.hostfile import Host
from dsnb.settings.records import node_comparison
from dsnb.settings.records.paths import RunPaths
from dsnb.version import __version__

HEARTBEAT_S, ANSWER_TIMEOUT_S, END_TIMEOUT_S = 1.0, 60.0, 15.0


def silence_s() -> float:
    """Return the seconds after which a silent host counts as lost: `$DSNB_SILENCE_S`, or 20."""
    text = os.environ.get("DSNB_SILENCE_S", "20")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise SettingsError(
            f"the environment variable DSNB_SILENCE_S is {text[:80]!r}: give seconds, at least 4"
        )
    return max(4.0, seconds)


def command(experiment: Experiment, host: Host, *words: str, **variables: str) -> list[str]:
    """Wrap a command to run on a host: in srun within a Slurm job, otherwise in ssh."""
    path = os.environ.get("PYTHONPATH")  # dsnb may be importable only through it
    if path:
        variables["PYTHONPATH"] = path
    there = list(words)
    if variables:
        there = ["env", *(f"{name}={value}" for name, value in variables.items()), *words]
    if experiment.hostfile == hostfile.SLURM:
        options = f"--nodes=1 --ntasks=1 --nodelist={host.name} --overlap --quiet --unbuffered"
        cpus = os.environ.get("SLURM_CPUS_PER_TASK")  # otherwise srun gives a step one CPU
        if cpus:
            options += f" --cpus-per-task={cpus}"
        return ["srun", *options.split(), "--kill-on-bad-exit=1", "--mpi=none", *there]
    # A new master connection would hold the pipes open. Keepalives detect a cut link; TCP alone
    # would take hours.
    options = "-T -x -o BatchMode=yes -o ConnectTimeout=10 -o ControlMaster=no"
    options += f" -o ServerAliveInterval={int(silence_s() / 4)} -o ServerAliveCountMax=3"
    if experiment.ssh_port:
        options += f" -p {experiment.ssh_port}"
    user = experiment.ssh_user or host.user
    if user:
        options += f" -l {user}"
    return ["ssh", *options.split(), "--", host.name, shlex.join(there)]


def torchrun_words(
    hosts: Sequence[Host], node: int, address: str, port: int, worker: str, run_dir: Path
) -> list[str]:
    """Return the arguments of torchrun on host number `node`."""
    options = (
        f"--nnodes {len(hosts)} --nproc-per-node {len(hosts[node].devices)} --node-rank {node} "
        f"--master-addr {address} --master-port {port} --log-dir {os.devnull}"
    )
    return [*options.split(), "-m", "dsnb.measure.train.start", worker, str(run_dir)]


def forwarded(experiment: Experiment) -> dict[str, str]:
    """Return the environment variables of this process to pass to the ranks on all hosts."""
    asked = list(map(str.strip, experiment.forward_env.split(",")))
    chosen = {}
    for name, value in environment.without_launcher(os.environ).items():
        is_usual = environment.matches(name, "recorded") or environment.matches(name, "forwarded")
        is_asked = any(fnmatch.fnmatchcase(name, pattern) for pattern in asked)
        if (is_usual or is_asked) and not environment.matches(name, "kept"):
            chosen[name] = value
    return chosen


class Node:
    """One host and the connection to it, which is opened at once.

    `facts` is the host's last answer, `end` how torchrun ended and `ended_s` when, `failure` how
    the host was lost or torchrun failed.
    """

    def __init__(
        self, experiment: Experiment, host: Host, run: RunPaths | None = None, first_rank: int = 0
    ) -> None:
        self.host = host
        self._run = run
        self.ranks = list(range(first_rank, first_rank + len(host.devices)))
        self.facts: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.ended_s = math.inf
        self.failure: str | None = None
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115
        agent = interpreter.command("-u", "-m", "dsnb.measure.launcher.on_host")
        words = command(experiment, host, *agent)
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,  # Ctrl-C must reach the launcher only
            )
        except OSError as error:
            raise LaunchError(
                f"{words[0]} cannot be started ({error.strerror}): install it or add it to PATH"
            ) from error
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, line: str) -> None:
        """Send a line, if the host still reads."""
        pipe = cast("IO[bytes]", self._process.stdin)
        with contextlib.suppress(OSError, ValueError):
            pipe.write(line.encode())
            pipe.flush()

    def _read(self) -> None:
        """Receive the host's messages, and append its ranks' output to the console, prefixed with the host's name."""
        answered = False  # a login shell may print before the first answer
        with open(self._run.console if self._run else os.devnull, "ab", buffering=0) as console:
            for raw in iter(lambda: cast("IO[bytes]", self._process.stdout).readline(2**16), b""):
                output, _, text = raw.partition(MARK.encode())
                message: dict[str, Any] = {}
                with contextlib.suppress(ValueError):  # a killed host may leave a partial message
                    message = json.loads(text or b"{}")
                if answered and output.strip():
                    with contextlib.suppress(OSError):  # a full disk is reported elsewhere
                        console.write(f"{self.host.name}: ".encode() + output.rstrip(b"\n") + b"\n")
                if "t_s" in message and self._run:
                    json_files.append_line(self._run.gpu, {**message, "host": self.host.name})
                elif "oom_kills" in message:
                    self.end = message
                    self.ended_s = time.monotonic()
                elif message:
                    answered = True
                    now = {"clock_s": time.time(), "monotonic_s": launch_clock.now_s()}
                    self._answers.put({**message, "received": now})
        self._answers.put(None)

    def _last_message(self) -> str:
        """Return why a connection ended: the last message of ssh, srun or Python."""
        code = self._process.wait()
        self._messages.seek(0)
        rows = self._messages.read().decode("utf-8", "replace").splitlines()
        kept = [row.strip() for row in rows if not row.startswith("Warning: Permanently added")]
        last = next(filter(None, reversed(kept)), "")[:400]
        if not last:
            return f"it ended without a message (exit code {code})"
        if "No module named" in last:
            last += f"; dsnb must be installed on {self.host.name} under the same path, in the same version as here"
        return last

    def wait_for_answer(self, deadline_s: float) -> None:
        """Wait for the answer to a request: `facts`, or a `failure`."""
        name = self.host.name
        try:
            answer = self._answers.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            self.failure = f"{name} gave no answer within {ANSWER_TIMEOUT_S:g} s"
            return
        if answer is None:
            self.failure = f"{name} was not reached: {self._last_message()}"
        elif answer["dsnb"] != __version__:
            self.failure = f"{name} has dsnb {answer['dsnb']} and this host {__version__}: install the same version"
        elif answer.get("code") != code.digest():
            self.failure = (
                f"{name} has dsnb {__version__} like this host, but other code: "
                "install the same files on both"
            )
        elif "error" in answer:
            self.failure = f"{name}: {answer['error']}"
        else:
            received = answer.pop("received")
            answer["clock_offset_s"] = round(answer["time"] - received["clock_s"], 4)
            answer["monotonic_offset_s"] = answer["monotonic_s"] - received["monotonic_s"]
            self.facts = answer

    def check(self) -> None:
        """Record the failure if the connection has broken or torchrun failed."""
        if self.failure or self._process.poll() is None:
            return
        self._reader.join(timeout=1.0)
        if not self.end:
            self.failure = f"the connection to {self.host.name} broke: {self._last_message()}"
        elif "error" in self.end:
            self.failure = f"{self.host.name}: {self.end['error']}"

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes of the ranks that have ended."""
        if not self.end or "error" in self.end:
            return {}
        codes = {int(rank): int(code) for rank, code in self.end.get("exit_codes", {}).items()}
        return codes or dict.fromkeys(self.ranks, 0)

    def hang_up(self) -> None:
        """Close the host's standard input, which ends all of its ranks; kill a lost connection."""
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        if self.failure or not self.facts:
            self._process.kill()

    def wait(self, deadline_s: float) -> None:
        """Wait for the end after `hang_up`; a host that cannot be reached ends its ranks by itself."""
        try:
            self._process.wait(timeout=max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self.failure = self.failure or f"{self.host.name} did not confirm the end of its ranks"
        self._reader.join(timeout=1.0)

    def row(self) -> dict[str, Any]:
        """Return this host's row of `nodes.json`."""
        return {
            "host": self.host.name,
            **{key: self.facts.get(key) for key in ("address", "interface", "clock_offset_s")},
            "ranks": self.ranks,
            "devices": list(self.host.devices),
            "exit_codes": {str(rank): code for rank, code in sorted(self.exit_codes().items())},
            "lost": self.failure,
            "oom_kills": self.end.get("oom_kills", 0),
            "environment": self.facts.get("environment", {}),
        }


def ask(
    experiment: Experiment, nodes: Sequence[Node], folder: Path, before_run: bool = False
) -> None:
    """Send a survey request (`dsnb.measure.launcher.on_host.survey`) to all hosts at once, and wait for their answers.

    Before a run, each host also checks whether it can run its ranks.
    """
    token = folder / f".shared-{secrets.token_hex(8)}"
    common = {
        "folder": str(folder),
        "token": token.name,
        "cwd": os.getcwd(),
        "env": forwarded(experiment),
    }
    deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
    with contextlib.suppress(OSError):
        token.touch()
    try:
        for number, node in enumerate(nodes):
            port = 0 if number else experiment.master_port
            ranks = {"device": experiment.device, "devices": node.host.devices, "master_port": port}
            node.send(json_files.line({**common, **(ranks if before_run else {})}))
        for node in nodes:
            node.wait_for_answer(deadline_s)
    finally:
        token.unlink(missing_ok=True)


@contextlib.contextmanager
def connected(experiment: Experiment, run: RunPaths | None = None) -> Iterator[list[Node]]:
    """Hold connections to all hosts of an experiment while the block runs; then end what runs there."""
    nodes: list[Node] = []
    try:
        for host in experiment.hosts:
            nodes.append(
                Node(experiment, host, run, first_rank=sum(len(node.ranks) for node in nodes))
            )
        yield nodes
    finally:
        deadline_s = time.monotonic() + END_TIMEOUT_S
        for node in nodes:
            node.hang_up()
        for node in nodes:
            node.wait(deadline_s)


class HostRanks:
    """All ranks of a run with a hostfile; raises LaunchError if a host cannot run its ranks."""

    gpus: Sequence[int] = ()
    """GPUs to sample on this machine: none, because each host samples its own."""

    def __init__(self, experiment: Experiment, run: RunPaths, launched_at_s: float) -> None:
        self._run = run
        self._launched_at_s = launched_at_s
        self._closed = threading.Event()
        self._connections = contextlib.ExitStack()
        self._nodes = self._connections.enter_context(connected(experiment, run))
        self.host_of = {rank: node.host.name for node in self._nodes for rank in node.ranks}
        try:
            ask(experiment, self._nodes, run.dir, before_run=True)
            _raise_first(node.failure for node in self._nodes)
            self.experiment = experiment.model_copy(update={"device": self._device(experiment)})
            _raise_first(map(self._misfit, self._nodes))
        except BaseException:
            self.end()
            raise
        self.environment: dict[str, Any] = self._nodes[0].facts["environment"]

    def _device(self, experiment: Experiment) -> str:
        """Return `cuda` if every host has the GPUs of its slots, `cpu` if no host has any."""
        counts = [int(node.facts["gpus"]) for node in self._nodes]
        if experiment.device == "cpu" or (experiment.device == "auto" and not any(counts)):
            return "cpu"
        for node, count in zip(self._nodes, counts, strict=True):
            last = max(node.host.devices)
            if count <= last:
                raise LaunchError(
                    f"{node.host.name} has {count} usable GPUs and {last + 1} slots: correct the hostfile or gpus"
                )
        return "cuda"

    def _misfit(self, node: Node) -> str | None:
        chosen, name = self.experiment.interface, node.host.name
        if not node.facts["sees_folder"]:
            return f"{name} does not see {self._run.dir}: choose outputs on a file system that all hosts share"
        if chosen and chosen not in node.facts["interfaces"]:
            there = ", ".join(sorted(node.facts["interfaces"]))
            return f"interface is {chosen!r}: {name} has no address on it; it has {there}"
        if node.facts["problem"]:
            return f"{name}: {node.facts['problem']}"
        return None

    def start(self, worker: str) -> None:
        """Start torchrun on every host."""
        experiment, first, chosen = self.experiment, self._nodes[0].facts, self.experiment.interface
        address = first["interfaces"][chosen] if chosen else first["address"]
        hosts = [node.host for node in self._nodes]
        for number, node in enumerate(self._nodes):
            request = {
                "torchrun": torchrun_words(
                    hosts, number, address, first["port"], worker, self._run.dir
                ),
                "device": experiment.device,
                "devices": node.host.devices,
                "allocator": experiment.allocator,
                "launched_at_s": self._launched_at_s + node.facts["monotonic_offset_s"],
                "silence_s": silence_s(),
                "interfaces": {"GLOO_SOCKET_IFNAME": chosen or node.facts["interface"]}
                | ({"NCCL_SOCKET_IFNAME": chosen} if chosen else {}),
            }
            node.send(json_files.line(request))
        threading.Thread(target=self._send_heartbeats, daemon=True).start()

    def _send_heartbeats(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            for node in self._nodes:
                node.send("\n")

    def exit_codes(self) -> dict[int, int]:
        """Return the exit codes so far: rank -> code, negative if killed by that signal, in the order of the ends."""
        nodes = sorted(self._nodes, key=lambda node: node.ended_s)
        return {rank: code for node in nodes for rank, code in node.exit_codes().items()}

    def ended(self) -> bool:
        """Return whether the ranks of all hosts have ended."""
        for node in self._nodes:
            node.check()
        return all(node.end for node in self._nodes)

    @property
    def external_failure(self) -> str | None:
        """How a host was lost, or why torchrun failed; None if neither."""
        return next((node.failure for node in self._nodes if node.failure), None)

    def oom_kills(self) -> int:
        """Return the number of out-of-memory kills on all hosts since the start."""
        return sum(node.end.get("oom_kills", 0) for node in self._nodes)

    def end(self) -> None:
        """End the ranks of all hosts and write `nodes.json`."""
        if self._closed.is_set():
            return
        self._closed.set()
        for node in self._nodes:
            node.check()
        self._connections.close()
        rows = [node.row() for node in self._nodes]
        differences = node_comparison.environment_differences(
            (row["host"], row["environment"]) for row in rows
        )
        if self._run.dir.is_dir():  # it may have been removed
            json_files.write_json(
                self._run.nodes, {"nodes": rows, "differences": list(differences.values())}
            )


def _raise_first(problems: Iterator[str | None]) -> None:
    """Raise one LaunchError that names up to five problems."""
    reasons = list(filter(None, problems))
    if reasons:
        raise LaunchError("; ".join(reasons[:5]))
