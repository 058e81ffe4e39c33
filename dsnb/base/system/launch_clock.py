"""The clock for the time limits and durations of a run, in the launching process and in its ranks.

It is monotonic, so changes of the system time neither end a run nor alter its figures. All
processes of a Linux machine share it; for other hosts the time of the launch is converted to their
clock (`dsnb.measure.launcher.hosts`).
"""

import os
import time

LAUNCHED_AT = "DSNB_LAUNCHED_AT"
"""Environment variable with the time of the launch, in seconds of `now_s` on the ranks' host."""


def now_s() -> float:
    """Return the seconds of the monotonic clock."""
    return time.monotonic()


def launched_at() -> float:
    """Return the time of this rank's launch, on the clock of `now_s`."""
    return float(os.environ[LAUNCHED_AT])


def since_launch_s() -> float:
    """Return the seconds since this rank's launch."""
    return now_s() - launched_at()
