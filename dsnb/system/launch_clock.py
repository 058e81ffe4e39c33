"""The clock for the time limits and durations of a run, in the launching process and in its ranks.

It is monotonic, so a step of the system time (NTP, a resumed virtual machine, a user who sets the clock) neither ends a
run nor changes its figures. Linux has one such clock for all processes of a machine; for other hosts the time of the
launch is converted to their clock (`dsnb.launcher.hosts`).
"""

import os
import time

LAUNCHED_AT = "DSNB_LAUNCHED_AT"
"""The environment variable that passes the time of the launch to the ranks, in seconds of `now_s` on their host."""
SUSPENDED_S = 3.0
"""If the machine was suspended for longer than this during a run, the run is discarded."""


def now_s() -> float:
    """Return the seconds of the monotonic clock."""
    return time.monotonic()


def launched_at() -> float:
    """Return the time of this rank's launch, on the clock of `now_s`."""
    return float(os.environ[LAUNCHED_AT])


def since_launch_s() -> float:
    """Return the seconds since this rank's launch."""
    return now_s() - launched_at()


def slept_s() -> float:
    """Return the seconds for which this machine has been suspended since boot.

    CLOCK_BOOTTIME advances during suspension, the monotonic clock does not.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - now_s()


class Stopwatch:
    """Measures the duration of a run in the launching process."""

    def __init__(self) -> None:
        self.began_s = now_s()
        self._slept_s = slept_s()

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return now_s() - self.began_s

    def suspended_s(self) -> float:
        """Return the seconds of suspension since the start; 0 if below `SUSPENDED_S`."""
        asleep_s = slept_s() - self._slept_s
        return asleep_s if asleep_s > SUSPENDED_S else 0.0
