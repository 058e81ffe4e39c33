"""The clock for the time limits and durations of a run, in the launching process and in its ranks.

It is monotonic, so a step of the system time (NTP, a resumed virtual machine, a user who sets the clock) neither ends a
run nor changes its figures. Linux has one such clock for all processes of a machine; for other hosts the time of the
launch is converted to their clock (`dsnb.launcher.hosts`).
"""

import os
import time

LAUNCHED_AT = "DSNB_LAUNCHED_AT"
"""The environment variable that passes the time of the launch to the ranks, in seconds of `now_s` on their host."""


def now_s() -> float:
    """Return the seconds of the monotonic clock."""
    return time.monotonic()


def launched_at() -> float:
    """Return the time of this rank's launch, on the clock of `now_s`."""
    return float(os.environ[LAUNCHED_AT])


def since_launch_s() -> float:
    """Return the seconds since this rank's launch."""
    return now_s() - launched_at()
