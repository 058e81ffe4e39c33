"""A job that trains nothing, in the place of `dsnb.measure.sweep.job`: says when it was there, and how it is to end.

`$DSNB_TEST_MEETING` is a folder: the first two jobs that know it wait there for each other.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from dsnb.base.files import json_files
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from tests.support import whole
from tests.support.waiting import wait_until


def main() -> int:
    folder = Path(sys.argv[1])
    if "--owned" in sys.argv:
        threading.Thread(target=end_with_owner, daemon=True).start()
    began, plan = time.time(), folder / "seconds"
    # Tests change the plan once the job has begun: it must have been read by then.
    seconds = float(plan.read_text() if plan.exists() else os.environ.get("DSNB_TEST_JOB_S", "0.1"))
    (folder / "began").touch()
    if (folder / "kill").exists():
        when, run = (folder / "kill").read_text(), RunPaths(folder)
        if when != "before":
            run.console.touch()
        if when == "at the end":
            whole.leave(run, json_files.read_json(run.experiment)["steps"])
            json_files.write_json(run.worker, {"ended_s": 1.0})
        os.kill(os.getpid(), signal.SIGKILL)
    if (folder / "die").exists():
        print("no such thing")
        return 7
    if meeting := os.environ.get("DSNB_TEST_MEETING"):
        Path(meeting, str(os.getpid())).touch()
        wait_until(lambda: len(os.listdir(meeting)) > 1, "another job has begun")
    time.sleep(seconds)
    if (folder / "silent").exists():
        return 0
    (folder / "times.json").write_text(json.dumps({"began": began, "ended": time.time()}))
    run = RunPaths(folder)
    whole.leave(run, (json_files.read_json(run.experiment) or {}).get("steps", 1))
    Result(
        "ok", None, {0: 0}, {"wall": 0.1}, {"tokens_per_s": 1000.0, "loss_last": 2.5}, folder
    ).write()
    return 0


def end_with_owner():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
