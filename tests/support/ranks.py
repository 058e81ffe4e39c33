"""Run training programs of tests on ranks forked from the session's server, which has imported torch (8 s each)."""

import time
from pathlib import Path

from dsnb.measure.launcher.local import ForkedRanks
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from tests.support.waiting import wait_until

LIMIT_S = 250.0


def run_ranks(worker: str, folder: Path, count: int = 2) -> str:
    """Call `main(folder)` of a module, which returns 0, on some ranks; return what they printed."""
    run = RunPaths(folder)
    settings = Experiment(model="gpt2-tiny", device="cpu", precision="fp32", gpus=count)
    ranks = ForkedRanks(settings, run, time.time())
    ranks.start(worker)
    try:
        wait_until(ranks.ended, f"{worker} has ended", LIMIT_S)
    finally:
        ranks.end()
    printed = run.console.read_text()
    assert ranks.exit_codes() == dict.fromkeys(range(count), 0), printed[-3000:]
    return printed
