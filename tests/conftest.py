"""Shared fixtures: small settings, a place for outputs, and one fork server for the whole session."""

import atexit
import contextlib
import fcntl
import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.cli.sweep import sweep
from dsnb.measure.launcher import local
from dsnb.measure.launcher.run import WORKER, launch
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from tests import ROOT
from tests.support import browser, kept_traces
from tests.support.waiting import wait_until

# OpenMP's threads spin while they wait for one that has no core: sixty steps beside two busy processes then take 20 s
# and more instead of 2 s. The ranks of every launch in a test inherit this.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "DSNB_CACHE" not in os.environ:
    os.environ["DSNB_CACHE"] = str(kept_traces.CACHE)
    kept_traces.unpack(kept_traces.CACHE)
# What dsnb starts does not look into the current folder for modules, such as the tests' workers and jobs.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
# Else a process with torch takes 3 s to collect garbage when it ends.
atexit.register(gc.freeze)
# Under `nohup`, or a script's `&`, this process and all that it starts ignore signals that some tests send.
for number, handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

SMALL: dict[str, Any] = {
    "model": "gpt2-tiny",
    "data": "stdlib",
    "precision": "fp32",
    "micro_batch_size": 2,
    "seq_len": 32,
    "warmup_steps": 1,
    "steps": 4,
    "time_limit_s": 240.0,
    "device": "cpu",
}
STARTS_PROCESSES = {"run_small", "trained", "losses", "swept", "chromium", "watched"}
"""Fixtures that start processes: a test that uses one is marked `process`."""
LONGEST = [
    "docs/test_code_blocks.py", "measure/train/test_strategies.py", "measure/train/test_worker.py",
    "models/test_adapted.py", "test_release.py", "measure/launcher/test_hosts.py", "show/explorer/test_page.py",
    "measure/sweep/test_slurm.py", "measure/sweep/test_run_stopped.py", "measure/sweep/test_run_faults.py",
    "measure/launcher/test_run.py", "measure/sweep/test_run.py", "show/test_report.py", "cli/test_app.py",
    "measure/sweep/test_own_script.py", "measure/record/test_two_ranks.py", "measure/record/test_failures.py",
    "test_outside.py", "settings/strategies/test_new_strategy.py", "test_published_notebooks.py",
    "show/explorer/test_state.py", "show/explorer/test_live.py", "show/form/test_recommend.py",
]  # fmt: skip
"""Workers take whole files, these first, so that all end at about the same time.

The first file that `imports_torch` stands for all of its place.
"""
FORK_SERVERS = 2


@functools.cache
def imports_torch(file: str) -> bool:
    """Return whether tests of a file import torch, DeepSpeed or transformers, which takes 7 s."""
    imports = r"lazy\.Module|strategies\.load|^ +(import|from) (torch|deepspeed|transformers)\b"
    return re.search(imports, (ROOT / file).read_text(), re.M) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give whole files to workers: those that import torch to one, or to two where one would be the last to end."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if not imports_torch(file):
                return file
            return "training" if file.startswith("tests/measure/") else "torch"

    return Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that start processes, and begin with the longest files (otherwise the order is kept)."""
    for item in items:
        if STARTS_PROCESSES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.process)
    order = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Leave the half million objects that test files import to no garbage collection, now or later.

    Every worker collects every file, so a file that imports torch at once would cost each of them 5 s.
    """
    had_torch = "torch" in sys.modules
    gc.disable()
    try:
        result = yield
    finally:
        gc.freeze()
        gc.enable()
    if "torch" in sys.modules and not had_torch:
        raise pytest.UsageError("a test file imports torch when it is collected: use lazy.Module")
    return result


_session = contextlib.ExitStack()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Let the workers share a few fork servers: each spends 5 s on imports, and trains one run after the other."""
    if find_spec("torch") and "not process" not in node.config.option.markexpr:
        place = int(node.gateway.id.removeprefix("gw"))
        if place < FORK_SERVERS:
            servers = {
                device: local.ForkServer(device) for device in {"cpu", hardware.default_device()}
            }
            for server in servers.values():
                _session.callback(server.close)
            _servers.append({device: str(server.socket) for device, server in servers.items()})
        node.workerinput["fork_servers"] = _servers[place % FORK_SERVERS]


_servers: list[dict[str, str]] = []
"""Of the process that starts the workers: device -> socket, for each of the fork servers."""


@functools.cache
def _share_fork_server(config: pytest.Config) -> None:
    """Let all launches of the session, those in notebook kernels too, share one warm fork server."""
    for device, path in getattr(config, "workerinput", {}).get("fork_servers", {}).items():
        log = Path(path).with_name("server.log")
        wait_until(lambda: b"ready" in log.read_bytes().splitlines(), f"{path} listens")  # noqa: B023
        os.environ[local.socket_variable(device)] = path
    if find_spec("torch"):  # where nothing can be trained, results can still be read
        _session.enter_context(local.shared_servers({"cpu", hardware.default_device()}))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the fork server before the first test that starts processes."""
    if item.get_closest_marker("process"):
        _share_fork_server(item.config)


def pytest_unconfigure() -> None:
    _session.close()


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one small real sweep, the same for all workers; give its folder, for tests that read or copy it.

    It is made in `$DSNB_SWEPT` if that is set, where an environment without torch finds it afterwards.
    """
    from tests.support.small_sweep import PARAMS

    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    home = Path(os.environ.get("DSNB_SWEPT", shared / "swept"))
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "made").exists():
            (home / "small.yaml").write_text(PARAMS)
            sweep(home / "small.yaml", output=home / "out")
            (home / "made").touch()
    return home / "out"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Give one Chromium for the whole session, without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, browser.launch(playwright) as chromium:
        yield chromium


@pytest.fixture(scope="session")
def tabs(chromium: Any) -> browser.Tabs:
    return browser.Tabs(chromium)


@pytest.fixture
def watched(tabs: browser.Tabs) -> Iterator[Callable[..., browser.Watched]]:
    """Open a file in a new tab, watched from the start; options are those of a browser's context."""
    yield tabs.open
    tabs.clear()


@pytest.fixture(scope="session")
def small() -> Callable[..., Experiment]:
    return lambda **settings: Experiment(**{**SMALL, **settings})


def launched(experiment: Experiment, folder: Path, worker: str) -> tuple[Result, RunPaths]:
    """Launch a run; a worker that is no module is one of the fakes."""
    os.environ["DSNB_TEST_FAKE"] = worker
    module = worker if "." in worker else "tests.workers.fakes"
    return launch(experiment, folder, progress=False, worker=module), RunPaths(folder)


@pytest.fixture
def run_small(
    tmp_path: Path, small: Callable[..., Experiment]
) -> Callable[..., tuple[Result, RunPaths]]:
    """Launch a small experiment in a new folder; `worker` may name a fake one."""
    count = iter(range(1, 1000))

    def run(worker: str = WORKER, **settings: Any) -> tuple[Result, RunPaths]:
        return launched(small(**settings), tmp_path / "small" / f"run{next(count)}", worker)

    return run


@pytest.fixture(scope="session")
def trained(
    tmp_path_factory: pytest.TempPathFactory, small: Callable[..., Experiment]
) -> Callable[..., tuple[Result, RunPaths]]:
    """Train a small experiment, once a session for each worker and settings; `run_small` trains anew."""
    runs: dict[str, tuple[Result, RunPaths]] = {}

    def train(worker: str = WORKER, **settings: Any) -> tuple[Result, RunPaths]:
        experiment = small(**settings)
        key = f"{worker} {experiment.model_dump_json()}"
        if key not in runs:
            runs[key] = launched(experiment, tmp_path_factory.mktemp("trained") / "run1", worker)
        runs[key][0].raise_for_status()
        return runs[key]

    return train


@pytest.fixture
def losses(trained: Callable[..., tuple[Result, RunPaths]]) -> Callable[..., list[float]]:
    """Give the losses of `trained`, warm-up included."""
    return lambda worker=WORKER, **settings: [
        step["loss"] for step in json_files.read_lines(trained(worker, **settings)[1].steps)
    ]
