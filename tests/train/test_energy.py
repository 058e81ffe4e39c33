"""Energy and power: a counter whose updates are known, and samples with figures that can be done in the head."""

import pytest

from dsnb.launcher.outcome import gpu_figures
from dsnb.train.meter import EnergyMeter


class FakeGpu:
    """A GPU whose power is known, with a counter that is updated every 100 ms; reading it takes 3 ms."""

    def __init__(self, update_s=0.1, reading_s=0.003):
        self.now_s, self.joules, self.shown, self.watts = 0.037, 5000.0, 5000.0, 120.0
        self.update_s, self.reading_s = update_s, reading_s

    def spend(self, seconds):
        end_s = self.now_s + seconds
        while (update_s := (self.now_s // self.update_s + 1) * self.update_s) <= end_s:
            self.joules += self.watts * (update_s - self.now_s)
            self.now_s, self.shown = update_s + 1e-9, self.joules
        self.joules += self.watts * (end_s - self.now_s)
        self.now_s = end_s

    def read(self):
        self.spend(self.reading_s)
        return self.shown

    def clock(self):
        return self.now_s


def energy_of(seconds, watts, **gpu):
    fake = FakeGpu(**gpu)
    meter = EnergyMeter(fake.read, fake.clock)
    fake.watts = watts
    fake.spend(0.5)  # warm-up steps, just before
    fake.watts = 120.0
    meter.prepare()
    fake.spend(0.02)  # a barrier
    meter.begin()
    fake.watts = watts
    fake.spend(seconds)
    fake.watts = 120.0
    return meter.end()


@pytest.mark.parametrize("seconds", [0.35, 0.5, 1.0, 3.21])
def test_the_energy_of_a_span_is_that_of_its_own_work(seconds):
    assert energy_of(seconds, watts=700.0) == pytest.approx(700 * seconds, rel=0.02)


def test_a_short_span_or_a_dead_counter_has_no_energy():
    assert energy_of(0.2, watts=700.0) is None
    assert energy_of(2.0, watts=700.0, update_s=1e9) is None
    fake = FakeGpu()
    meter = EnergyMeter(fake.read, fake.clock)
    meter.begin()
    fake.spend(1)
    assert meter.end() is None  # its begin was not put on an update


def samples(*readings, host=None):
    names = ("t_s", "gpu", "power_w", "energy_j", "memory_used_gib")
    return [{**dict(zip(names, reading, strict=True)), "host": host} for reading in readings]


WORKER = {"timed_from_s": 10.0, "timed_to_s": 14.0, "phases_s": {"timed": 4.0}, "steps_from_s": 8.0, "ended_s": 15.0}


def test_power_is_the_counters_energy_over_time():
    rows = samples((9, 0, 150, 1000, 30), (12, 0, 400, 2000, 40), (14.5, 0, 700, 4600, 50))
    figures = gpu_figures(rows, {**WORKER, "energy_j": 5600.0}, gpus=2)
    assert (figures["energy_j"], figures["power_w"]) == (5600, 700)  # the samples would say 400 W
    assert figures["run_energy_kwh"] == pytest.approx(3600 / 3.6e6)
    short = gpu_figures(rows, {**WORKER, "phases_s": {"timed": 0.21}, "energy_j": None}, gpus=1)
    assert (short["energy_j"], short["power_w"]) == (None, None)


@pytest.mark.parametrize(("timed_s", "expected"), [(4.9, None), (5.0, 60.0)])
def test_utilization_needs_five_seconds(timed_s, expected):
    """NVML's readings are shares of up to a second: those of 0.4 s were 9 to 100 % between repeats."""
    rows = [
        {"t_s": 10.0 + t_s, "gpu": 0, "util_pct": share, "sm_clock_mhz": 1980} for t_s, share in ((0.2, 20), (4, 100))
    ]
    region = {"timed_from_s": 10.0, "timed_to_s": 10.0 + timed_s}
    figures = gpu_figures(rows, {**region, "phases_s": {"timed": timed_s}}, gpus=1)
    assert figures["gpu_util_pct"] == expected
    assert figures["sm_clock_mhz"] == 1980


def test_memory_on_the_device_is_that_of_the_steps():
    rows = samples((2, 0, 1, None, 99), (9, 0, 1, None, 30), (12, 1, 1, None, 40), (14.5, 0, 1, None, 98))
    assert gpu_figures(rows, WORKER, gpus=2)["device_memory_gib"] == 40
    assert gpu_figures(rows, {**WORKER, "device_memory_gib": 41.5}, gpus=2)["device_memory_gib"] == 41.5
    assert gpu_figures(rows, {}, gpus=2)["device_memory_gib"] == 99  # of a run that did not reach its end
    first = samples((1, 0, 1, 100, 1), (5, 0, 1, 300, 1), host="a")
    second = samples((1, 0, 1, 50, 1), (5, 0, 1, 60, 1), host="b")
    assert gpu_figures(first + second, {}, gpus=2)["run_energy_kwh"] == pytest.approx(210 / 3.6e6)
