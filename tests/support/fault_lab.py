"""Runs on test hosts to which something happens, and how long it takes until that is noticed and nothing is left.

The ranks are fakes without torch that hang with a child each: the supervision is what is tried out.
"""

import contextlib
import multiprocessing
import os
import threading
import time

import dsnb
from dsnb.errors import LaunchError
from dsnb.files import records
from dsnb.launcher.run import launch
from dsnb.run_folder.paths import RunPaths
from dsnb.system import signals
from tests import ROOT
from tests.support.hosts import cluster
from tests.support.waiting import WAIT_S, wait_until

SETTINGS = {"model": "gpt2-tiny", "seq_len": 32, "micro_batch_size": 1, "warmup_steps": 1, "steps": 4, "device": "cpu"}
SILENCE_S = 5.0
LAUNCH = "a launch of the test lab"
HANGER, SILENT = "tests.workers.hanger", "tests.workers.silent"


@contextlib.contextmanager
def lab(folder, count=2, slots=2):
    """Boot hosts; in the block this thread, and those it starts, are where launchers are."""
    names = ("DSNB_SILENCE_S", "PYTHONPATH")
    before = {name: os.environ.get(name) for name in names}
    with cluster(count, slots, folder) as hosts, hosts.entered():
        os.environ |= {"DSNB_SILENCE_S": str(SILENCE_S), "PYTHONPATH": str(ROOT)}
        try:
            yield Lab(hosts, folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None)
                os.environ.update({name: value} if value else {})


class Lab:
    """Test hosts. Made by `lab`."""

    def __init__(self, hosts, folder):
        self.hosts, self.folder, self.outputs = hosts, folder, folder / "outputs"
        self.outputs.mkdir()
        self._count = 0

    def mend(self):
        """Make all hosts whole again, whatever befell them."""
        for name in self.hosts.names:
            if not self.hosts.is_up(name):
                self.hosts.boot(name)
                self.hosts.switch.ip("neigh flush all")  # or connections fail for a second: it was not there just now
            self.hosts.heal(name)
            self.hosts.start_sshd(name)
            while self.hosts.run_on(name, ["umount", self.outputs]).returncode == 0:
                pass

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

    def begin(self, worker=HANGER, outside=False, **settings):
        """Start a run, in a thread or in a process of its own, and wait until all its ranks are there."""
        return Run(self, worker, settings, outside).until_ranks()

    def alive(self, run):
        """Give the ranks of a run that are there, where each host has one."""
        found = []
        for path in run.paths.dir.glob("pids*"):
            rank = int(path.name.removeprefix("pids"))
            if self.hosts.run_on(1 + rank, ["kill", "-0", path.read_text().split()[0]]).returncode == 0:
                found.append(rank)
        return sorted(found)

    def left(self, *which):
        """Give what is on hosts beside sshd."""
        return [line for host in which or self.hosts.names for _, line in self.hosts.processes(host)]


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

    def torchrun(self, which):
        """Give the torchrun of this run on a host."""
        return [pid for pid, line in self.lab.hosts.processes(which) if "dsnb.launcher.on_host" in line]

    def wait(self, limit_s=WAIT_S):
        """Wait for the end of the launch, and give this run with what it recorded and after how long."""
        launching = self.process or self.thread
        launching.join(limit_s)
        assert not launching.is_alive(), "the launch does not end"
        self.recorded_s = time.monotonic() - self.began
        record = records.read_json(self.paths.result) or {}
        self.status, self.cause = record.get("status"), record.get("cause")
        self.nodes = {row["host"]: row for row in (records.read_json(self.paths.nodes) or {}).get("nodes", [])}
        self.lost = {name: row["lost"] for name, row in self.nodes.items() if row["lost"]}
        return self

    def until_empty(self, *which):
        """Wait until hosts have no process of a run any more, and give the seconds since the run began or was hit."""
        wait_until(lambda: not self.lab.left(*which), "hosts have no process of a run")
        return time.monotonic() - self.began
