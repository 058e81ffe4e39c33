"""Runs on test hosts to which something happens, and how long it takes until that is noticed and nothing is left.

The ranks are fakes that hang with a child each, forked by the real fork server without torch: the supervision is what
is tried out, and a host that was switched off is ready again in a second.
"""

import contextlib
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import dsnb
from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.launcher.hosts.remote import SERVERS
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.system import signals
from tests import ROOT
from tests.support.hosts import cluster
from tests.support.namespaces import HOST_ENV
from tests.support.waiting import WAIT_S, wait_until

SETTINGS = {"model": "gpt2-tiny", "seq_len": 32, "micro_batch_size": 1, "warmup_steps": 1, "steps": 4, "device": "cpu"}
SILENCE_S = 5.0
"""Long enough for a host whose cores other tests keep busy."""
LAUNCH = "a launch of the test lab"
HANGER, SILENT = "tests.workers.hanger", "tests.workers.silent"


@contextlib.contextmanager
def lab(folder, count=2, slots=2):
    """Boot hosts with light fork servers; in the block this thread, and those it starts, are where launchers are."""
    before = dict(os.environ)
    with cluster(count, slots, folder) as hosts, hosts.entered():
        os.environ |= {"DSNB_SILENCE_S": str(SILENCE_S), "PYTHONPATH": str(ROOT), "PATH": hosts.env["PATH"]}
        made = Lab(hosts, folder)
        try:
            made.furnish(*hosts.names)
            yield made
        finally:
            made.close()
            for name in ("DSNB_SILENCE_S", "PYTHONPATH", SERVERS):
                os.environ.pop(name, None)
                os.environ.update({name: before[name]} if name in before else {})


class Lab:
    """Test hosts with a light fork server each. Made by `lab`."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder = hosts, folder
        self.outputs = folder / "outputs"
        self.outputs.mkdir()
        self._sockets = Path(tempfile.mkdtemp(prefix="lab-"))
        self._servers, self._processes, self._own, self._count = {}, [], set(), 0

    def furnish(self, *names, size="80m"):
        """Give hosts a /tmp of their own, in which only what tests need of the machine's is seen, and a server."""
        needed = [path for path in (self.folder, self._sockets, ROOT, Path(sys.prefix)) if path.is_relative_to("/tmp")]
        lines = ["set -e", "mkdir /run/tmp", "mount --bind /tmp /run/tmp", f"mount -t tmpfs -o size={size} none /tmp"]
        for path in sorted(needed):
            inside = Path("/run/tmp") / path.relative_to("/tmp")
            lines += [f"mkdir -p {shlex.quote(str(path))}", shlex.join(["mount", "--rbind", str(inside), str(path)])]
        for name in names:
            done = self.hosts.run_on(name, ["sh", "-c", "\n".join(lines)])
            assert done.returncode == 0, done
        self.serve(*names)

    def in_tmp(self, which):
        """Give what dsnb has left in a host's /tmp."""
        return sorted(path.name for path in self.hosts.path_on(which, "/tmp").glob("dsnb-*"))

    def serve(self, *names):
        """Start the servers of hosts."""
        for name in names:
            path = self._sockets / f"{name}-{time.monotonic_ns()}"
            command = [*self.hosts.prefix(name), sys.executable, "-m", "tests.support.light_server", str(path)]
            env = {**HOST_ENV, "PYTHONPATH": str(ROOT)}
            self._processes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
            self._servers[name] = path
        for name in names:
            wait_until(lambda name=name: listens(self._servers[name]), f"a server is on {name}")
            line = f"tests.support.light_server {self._servers[name]}"
            self._own |= {pid for pid, words in self.hosts.processes(name) if words.endswith(line)}
        os.environ[SERVERS] = json.dumps({f"{name} cpu": str(path) for name, path in self._servers.items()})

    def keep(self):
        """Take what is on the hosts now for nothing that a run leaves: a sweep's servers."""
        self._own |= {pid for name in self.hosts.names for pid, _ in self.hosts.processes(name)}

    def close(self):
        """End the servers."""
        for process in self._processes:
            process.kill()
            process.wait()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def boot(self, which):
        """Switch a host on again, with a server."""
        self.hosts.boot(which)
        self.hosts.switch.ip("neigh flush all")  # or connections fail for a second: it was not there just now
        self.furnish(self.hosts._name(which))

    def mend(self):
        """Make all hosts whole again, whatever befell them."""
        for name in self.hosts.names:
            if not self.hosts._host(name).alive:
                self.boot(name)
            self.hosts.heal(name)
            if not self.hosts._listens(name):
                self.hosts.start_sshd(name)
            for pid, _ in self.left(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while self.hosts.run_on(name, ["umount", self.outputs]).returncode == 0:
                pass
            for path in self.hosts.path_on(name, "/tmp").glob("dsnb-*"):
                shutil.rmtree(path)
        self.hosts.trust(*self.hosts.names)

    def settings(self, **settings):
        """Give the settings of a run on all hosts."""
        room = {"gpus": 2 * len(self.hosts.names), "forward_env": "DSNB_TEST_*"}
        return {**SETTINGS, "hostfile": str(self.hosts.hostfile), **room, **settings}

    def folder_of_next(self):
        self._count += 1
        return self.outputs / f"run{self._count}"

    def run(self, worker=SILENT, **settings):
        """Make a run from its start to its end."""
        return Run(self, worker, settings).wait()

    def start(self, worker=HANGER, outside=False, **settings):
        """Start a run in a thread or, before any is in a thread, in a process of its own."""
        return Run(self, worker, settings, outside)

    def begin(self, worker=HANGER, outside=False, **settings):
        """Start a run, in a thread or in a process of its own, and wait until all its ranks are there."""
        return Run(self, worker, settings, outside).until_ranks()

    def start_on(self, which, argv):
        """Start somebody else's process on a host, and wait until it has printed a line."""
        command = [*self.hosts.prefix(which), *argv]
        process = subprocess.Popen(command, env=HOST_ENV, stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        return process

    def alive(self, run):
        """Give the ranks of a run that are there."""
        found = []
        for path in run.paths.dir.glob("pids*"):
            rank = int(path.name.removeprefix("pids"))
            if self.hosts.run_on(1 + rank // 2, ["kill", "-0", path.read_text().split()[0]]).returncode == 0:
                found.append(rank)
        return found

    def left(self, *which):
        """Give what is on hosts beside their servers and sshd."""
        return [
            one for host in which or self.hosts.names for one in self.hosts.processes(host) if one[0] not in self._own
        ]


def listens(path):
    """Return whether a server takes connections on a socket, which is a file somewhat earlier."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


class Run:
    """A run under way."""

    def __init__(self, lab, worker, settings, outside=False):
        self.lab, self.paths = lab, RunPaths(lab.folder_of_next())
        self.settings, self.worker = lab.settings(**settings), worker
        self.process = self.error = None
        self.began = time.monotonic()
        if outside:
            # A fork while a thread launches may copy a lock that the thread holds, and wait for it for ever.
            assert not [one for one in threading.enumerate() if one.name == LAUNCH], "fork first"
            self.process = multiprocessing.get_context("fork").Process(target=self._launch_and_listen)
            self.process.start()
        else:
            self.thread = threading.Thread(target=self._launch, name=LAUNCH)
            self.thread.start()

    def _launch(self):
        try:
            launch(dsnb.Experiment(**self.settings), self.paths.dir, progress=False, worker=self.worker)
        except LaunchError as error:
            self.error = error

    def _launch_and_listen(self):
        """Launch as the command line does, which takes SIGTERM for an interrupt."""
        signals.install_handlers()
        with contextlib.suppress(KeyboardInterrupt):
            self._launch()

    def until_ranks(self):
        """Wait until every rank has started its child."""

        def there():
            assert not self.paths.result.exists(), self.paths.result.read_text()
            return len([path for path in self.paths.dir.glob("pids*") if path.read_text()]) == self.settings["gpus"]

        wait_until(there, "all ranks are there")
        self.began = time.monotonic()
        return self

    def kill_rank(self, rank, which):
        """Kill a rank as its host would."""
        pid = (self.paths.dir / f"pids{rank}").read_text().split()[0]
        assert self.lab.hosts.run_on(which, ["kill", "-9", pid]).returncode == 0

    def agents(self, which):
        """Give the agent of this run on a host."""
        return [pid for pid, line in self.lab.left(which) if line.endswith("dsnb.launcher.hosts.agent")]

    def wait(self, limit_s=WAIT_S):
        """Wait for the end of the launch, and give this run with what it recorded and after how long."""
        if self.process:
            self.process.join(limit_s)
            assert not self.process.is_alive(), "the launcher does not end"
        else:
            self.thread.join(limit_s)
            assert not self.thread.is_alive(), "the launch does not end"
        self.recorded_s = time.monotonic() - self.began
        record = records.read_json(self.paths.result) or {}
        self.status, self.cause = record.get("status"), record.get("cause")
        self.nodes = {row["host"]: row for row in (records.read_json(self.paths.nodes) or {}).get("nodes", [])}
        return self

    def until_empty(self, *which, limit_s=WAIT_S):
        """Wait until hosts have no process of a run any more, and give the seconds since the run began or was hit."""
        wait_until(lambda: not self.lab.left(*which), "hosts have no process of a run", limit_s)
        return time.monotonic() - self.began
