"""The clock that the limits and durations of a run go by, in the launching process and in its ranks alike.

It is monotonic, so a stepped date (NTP, a virtual machine that is resumed, somebody who sets the clock) neither ends
a run nor changes what was measured. Linux has one such clock for all processes of a machine; on other hosts the moment
of the launch is first converted to their own clock (`dsnb.launcher.hosts.remote`).
"""

import os
import time

LAUNCHED_AT = "DSNB_LAUNCHED_AT"
"""The variable that tells ranks when their run was launched, in seconds of `now_s` on their host."""
SUSPENDED_S = 3.0
"""A machine that slept for longer than this during a run has not measured it."""
_PATIENCE_S = 0.5


def now_s() -> float:
    """Return the seconds of the monotonic clock; the date is not among what it knows."""
    return time.monotonic()


def launched_at() -> float:
    """Return when the run of this rank was launched, on the clock of `now_s`."""
    return float(os.environ[LAUNCHED_AT])


def since_launch_s() -> float:
    """Return the seconds since this rank's run was launched."""
    return now_s() - launched_at()


def slept_s() -> float:
    """Return the seconds that this machine has been suspended since it was booted.

    CLOCK_BOOTTIME goes on while a machine sleeps, the monotonic clock does not. A process may be stopped between two
    readings, which would look like sleep, so they are taken again until they lie close together.
    """
    while True:
        before, since_boot, after = now_s(), time.clock_gettime(time.CLOCK_BOOTTIME), now_s()
        if after - before < _PATIENCE_S:
            return since_boot - (before + after) / 2


class Stopwatch:
    """Measures one run from the launching side."""

    def __init__(self) -> None:
        self.began_s = now_s()
        self._slept_s = slept_s()

    def elapsed_s(self) -> float:
        """Return the seconds since the start."""
        return now_s() - self.began_s

    def suspended_s(self) -> float:
        """Return for how long the machine has been suspended since the start; 0 for less than `SUSPENDED_S`."""
        asleep_s = slept_s() - self._slept_s
        return asleep_s if asleep_s > SUSPENDED_S else 0.0
