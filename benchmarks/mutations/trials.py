"""Try mutations: copies of the tree, one forked pytest per mutation, and what came of it."""

import contextlib
import ctypes
import importlib
import importlib.util
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.mutations.listed import Mutation

LIBRARIES = (
    "numpy",
    "pandas",
    "pydantic",
    "torch",
    "transformers",
    "deepspeed",
    "peft",
    "matplotlib.pyplot",
    "seaborn",
    "papermill",
    "nbclient",
    "ipywidgets",
    "playwright.sync_api",
    "typer",
)
"""What tests import, imported once; nothing of dsnb or of its tests, which a mutation changes."""
SINGLE_THREADED = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""A process that has started threads must not fork."""
NOT_COPIED = (".*", "__pycache__", "_build")
OPTIONS = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not gpu and not docs")
PAUSE_S = 0.05
SHOWN = 2000
"""Characters of pytest's output that are shown if it could not run the tests."""
PR_SET_CHILD_SUBREAPER = 36

RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
"""Exit statuses of pytest with which it has run all tests that it was given."""

NOTICED = "noticed"
SURVIVED = "SURVIVED"
ERROR = "ERROR"


@dataclass(frozen=True)
class Outcome:
    """What came of a mutation; `reason` is the first test that failed, or why there is none."""

    mutation: Mutation
    verdict: str
    reason: str
    seconds: float


@dataclass(frozen=True)
class Job:
    """Tests to run, with a mutation or, to see what fails anyway, without."""

    tests: tuple[str, ...]
    mutation: Mutation | None = None


@dataclass(eq=False)  # pytest hashes its plugins
class Record:
    """A pytest plugin that orders tests, counts those that passed and names those that failed."""

    status: int | None = None
    """pytest's exit status."""
    passed: int = 0
    failed: list[str] = field(default_factory=list)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Begin with the tests that start no process: they take the least time to notice."""
        items.sort(key=lambda item: item.get_closest_marker("process") is not None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count a test once, when it was called; a failure may come before or after."""
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
        if report.passed and report.when == "call":
            self.passed += 1

    def pytest_collectreport(self, report: Any) -> None:
        """Name a file that cannot be imported."""
        if report.failed:
            self.failed.append(report.nodeid)


@dataclass
class Ended:
    """How a job ended: what its pytest recorded, unless it was stopped or died."""

    job: Job
    record: Record | None
    seconds: float
    said: str
    """The end of what pytest printed."""


class Worker:
    """A copy of the tree, in which one job runs at a time."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.tree = folder / "tree"
        self.scratch = folder / "scratch"
        self.cache = str(self.scratch / "cache")
        self.log = folder / "log"
        self.result = folder / "result.json"
        self.job: Job | None = None
        self.pid = 0
        self.started = 0.0
        shutil.copytree(root, self.tree, ignore=shutil.ignore_patterns(*NOT_COPIED))

    def start(self, job: Job) -> None:
        """Fork a process that runs the job's tests on the mutated copy."""
        self.job = job
        if job.mutation:
            text = (self.root / job.mutation.file).read_text()
            self._write(job.mutation.file, job.mutation.mutated(text))
        self.result.unlink(missing_ok=True)
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.started = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            self._run_tests()

    def ended(self, limit_s: float) -> Ended | None:
        """Return how the job ended, or None while it runs; stop it after its time."""
        assert self.job
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.started
        if not pid and seconds < limit_s:
            return None
        self.stop()
        said = self.log.read_text(errors="replace")[-SHOWN:]
        ended = Ended(self.job, self._record(), seconds, said)
        if self.job.mutation:
            shutil.copy2(self.root / self.job.mutation.file, self.tree / self.job.mutation.file)
            self._forget_bytecode(self.job.mutation.file)
        self.job = None
        return ended

    def stop(self) -> None:
        """Kill the process if it runs, and all that it has started."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.pid)
            family = [process, *process.children(recursive=True)]
        family += self._left_behind()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family)

    def _left_behind(self) -> list[psutil.Process]:
        """Return the adopted processes of this worker, which have its cache in their environment."""
        found = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("DSNB_CACHE") == self.cache:
                    found.append(process)
        return found

    def _record(self) -> Record | None:
        if not self.result.exists():
            return None
        return Record(**json.loads(self.result.read_text()))

    def _write(self, file: str, text: str) -> None:
        (self.tree / file).write_text(text)
        self._forget_bytecode(file)

    def _forget_bytecode(self, file: str) -> None:
        """Remove the compiled file: one of the same second and size would pass for the new one."""
        if file.endswith(".py"):
            Path(importlib.util.cache_from_source(str(self.tree / file))).unlink(missing_ok=True)

    def _run_tests(self) -> None:
        """Run pytest in this forked process, and end it."""
        status = 1
        try:
            os.setsid()
            _redirect_output(self.log)
            os.chdir(self.tree)
            sys.path[0] = str(self.tree)
            for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
                del sys.modules[name]
            for name in SINGLE_THREADED:
                os.environ.pop(name, None)
            os.environ["PYTHONPATH"] = str(self.tree)
            os.environ["DSNB_CACHE"] = self.cache
            self._record_tests()
            status = 0
        finally:
            os._exit(status)

    def _record_tests(self) -> None:
        assert self.job
        record = Record()
        arguments = [*OPTIONS, f"--basetemp={self.scratch / 'tmp'}", *self.job.tests]
        if self.job.mutation:
            arguments.append("-x")
        record.status = int(pytest.main(arguments, plugins=[record]))
        sys.stdout.flush()
        self.result.write_text(json.dumps(vars(record)))


def _redirect_output(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def prepare(log: Path, libraries: Iterable[str] = LIBRARIES) -> None:
    """Import the libraries, so that no forked process has to, and adopt what these leave behind."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in SINGLE_THREADED:
        os.environ[name] = "1"
    kept = os.dup(1), os.dup(2)
    _redirect_output(log)
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)


def run(jobs: Iterable[Job], workers: list[Worker], limit_s: float) -> Iterator[Ended]:
    """Run each job in the first worker that is free; yield how they ended, as they do."""
    waiting = list(jobs)[::-1]
    try:
        while waiting or any(worker.job for worker in workers):
            for worker in workers:
                ended = None
                if worker.job:
                    ended = worker.ended(limit_s)
                if ended:
                    yield ended
                if not worker.job and waiting:
                    worker.start(waiting.pop())
            time.sleep(PAUSE_S)
    finally:
        for worker in workers:
            if worker.job:
                worker.stop()


def try_mutations(
    mutations: Iterable[Mutation],
    workers: list[Worker],
    limit_s: float,
    report: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Try each mutation, `report` what came of it, and return the outcomes, less false ones."""
    jobs = [Job(mutation.tests, mutation) for mutation in mutations]
    outcomes = []
    for ended in run(jobs, workers, limit_s):
        outcome = _outcome(ended)
        report(outcome)
        outcomes.append(outcome)
    return _checked(outcomes, workers, limit_s)


def _outcome(ended: Ended) -> Outcome:
    assert ended.job.mutation
    record = ended.record
    if record is None:
        verdict = NOTICED
        reason = "the tests did not end, or their process died"
    elif record.failed:
        verdict = NOTICED
        reason = record.failed[0]
    elif record.passed and record.status == pytest.ExitCode.OK:
        verdict = SURVIVED
        reason = f"{record.passed} tests passed"
    else:
        verdict = ERROR
        reason = f"pytest could not run the tests:\n{ended.said}"
    return Outcome(ended.job.mutation, verdict, reason, ended.seconds)


def _checked(outcomes: list[Outcome], workers: list[Worker], limit_s: float) -> list[Outcome]:
    """Run the tests that noticed without a mutation; one that fails anyway has noticed nothing."""
    noticed = [outcome for outcome in outcomes if outcome.verdict == NOTICED]
    named = sorted({outcome.reason for outcome in noticed if "::" in outcome.reason})
    shares = [tuple(named[place :: len(workers)]) for place in range(len(workers))]
    jobs = [Job(share) for share in shares if share]
    failing = _failing(run(jobs, workers, limit_s * len(named)))
    # What did not end in its time must do so without the mutation.
    unnamed = {outcome.mutation.tests for outcome in noticed if "::" not in outcome.reason}
    failing |= _failing(run([Job(tests) for tests in unnamed], workers, limit_s))
    return [_unless_failing(outcome, failing) for outcome in outcomes]


def _failing(jobs: Iterable[Ended]) -> set[str]:
    """Return the tests that failed, or all of a job that could not run them."""
    failing: set[str] = set()
    for ended in jobs:
        if ended.record is None or ended.record.status not in RAN:
            failing.update(ended.job.tests)
        else:
            failing.update(ended.record.failed)
    return failing


def _witnesses(outcome: Outcome) -> tuple[str, ...]:
    if outcome.verdict != NOTICED:
        return ()
    if "::" in outcome.reason:
        return (outcome.reason,)
    return outcome.mutation.tests


def _unless_failing(outcome: Outcome, failing: set[str]) -> Outcome:
    for test in _witnesses(outcome):
        if any(name == test or name.startswith(f"{test}::") for name in failing):
            reason = f"{test} fails, or takes too long, without the mutation, too"
            return Outcome(outcome.mutation, ERROR, reason, outcome.seconds)
    return outcome
