"""The meter with a clock and an energy counter whose values are known, figures of samples, and skew over ranks."""

import pytest

import dsnb
from dsnb.files import records
from dsnb.launcher.outcome import gpu_figures
from dsnb.system import launch_clock
from tests.support import lazy

torch = lazy.Module("torch")
meters, over_ranks = lazy.Module("dsnb.train.meter"), lazy.Module("dsnb.train.over_ranks")


class FakeClock:
    """Marks fall at given times; a mark has passed once `now` has come to it."""

    has_queue = False

    def __init__(self, times_s):
        self.times_s, self.count, self.now = times_s, 0, float("inf")

    def mark(self):
        self.count += 1
        return self.count - 1

    def passed(self, mark):
        return self.times_s[mark] <= self.now

    def seconds(self, first, second):
        return self.times_s[second] - self.times_s[first]

    def synchronize(self):
        self.now = float("inf")


class FakeQueue(FakeClock):
    """Marks are queued by the host at some times, and the device, whose clock runs faster, comes to them at others."""

    has_queue = True

    def __init__(self, queued_s, reached_s, drift=1.001):
        super().__init__([5.0 + drift * time_s for time_s in reached_s])
        self.queued_s = queued_s

    def host_s(self, first, second):
        return self.queued_s[second] - self.queued_s[first]


CPU_BOUND = {
    # queued, reached: zero, begin, then of two steps the ends of forward, backward and the rest; idle in the end
    "the device keeps up with every launch": (
        [0, 0, 2, 6, 7, 9, 13, 14, 20], [0, 0, 2.01, 6.02, 7.01, 9.01, 13.02, 14.01, 20], 0.99, 1.0),
    "the host is ahead by more than a step": (
        [0, 0, 0.1, 0.3, 0.4, 0.5, 0.7, 0.8, 20], [0, 0, 2, 6, 7, 9, 13, 14, 20], 0.0, 0.0),
    "the host is ahead, and waits once in each step": (
        [0, 0, 1, 3, 6.1, 8, 10, 13.1, 20], [0, 0, 2, 6, 7, 9, 13, 14, 20], 0.0, 0.0),
    # the optimizer asks the device about each tensor from 6 to 7.8, and from 14 to 15.8, then queues 0.2 s of work
    "only the rest of a step waits for the host": (
        [0, 0, 0.1, 0.3, 7.8, 8.1, 8.3, 15.8, 20], [0, 0, 2, 6, 8, 10, 14, 16, 20], 3.6 / 16, 3.6 / 16),
}  # fmt: skip


@pytest.mark.parametrize(("queued_s", "reached_s", "low", "high"), CPU_BOUND.values(), ids=CPU_BOUND)
def test_the_share_in_which_the_host_sets_the_pace(queued_s, reached_s, low, high):
    meter = meters.Meter(None, 2, 64, torch.device("cpu"), launch_clock.now_s(), FakeQueue(queued_s, reached_s))
    meter.begin("timed", lambda: None)
    for _ in range(2):
        for name in ("forward", "backward", "optimizer"):
            with meter.section(name):
                pass
        meter.step(torch.tensor(1.0), skipped=False)
    meter.end()
    assert low - 1e-9 <= meter.cpu_bound <= high + 1e-9


def test_known_times_come_out_exactly(tmp_path):
    # zero, warm-up begins, two steps, timed begins after a pause, two steps
    clock = FakeClock([0.0, 1.0, 3.0, 4.0, 10.0, 10.5, 11.25])
    meter = meters.Meter(tmp_path / "steps.jsonl", 4, 64, torch.device("cpu"), launch_clock.now_s(), clock)
    for phase in ("warmup", "timed"):
        meter.begin(phase, lambda: None)
        for loss in (2.0, 1.0):
            meter.step(torch.tensor(loss), skipped=phase == "warmup")
        meter.end()
    meter.close()
    rows = records.read_lines(tmp_path / "steps.jsonl")
    assert [row["step_time_s"] for row in rows] == [2.0, 1.0, 0.5, 0.75]
    assert [row["phase"] for row in rows] == ["warmup", "warmup", "timed", "timed"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["loss"] for row in rows] == [2.0, 1.0, 2.0, 1.0]
    assert [row["skipped"] for row in rows] == [True, True, False, False]
    assert rows[3]["t_s"] - rows[2]["t_s"] == pytest.approx(0.75)
    assert "allocated_gib" not in rows[0]  # a CPU has no such figure: missing, not 0


def test_the_first_forward_pass_of_each_step_is_timed(tmp_path):
    # zero, timed begins, then of two steps: the first forward pass, the end
    clock = FakeClock([0.0, 1.0, 1.25, 3.0, 3.5, 4.0])
    meter = meters.Meter(None, 3, 64, torch.device("cpu"), launch_clock.now_s(), clock)
    meter.begin("timed", lambda: None)
    for _ in range(2):
        for name in ("forward", "backward", "forward", "optimizer"):
            with meter.section(name):
                pass
        meter.step(torch.tensor(1.0), skipped=False)
    meter.end()
    assert meter.times_s("timed") == [2.0, 1.0]
    assert meter.forwards_s("timed") == [0.25, 0.5]
    assert meter.cpu_bound is None  # a CPU has no queue
    assert (meter.times_s("warmup"), meter.forwards_s("warmup")) == ([], [])


def test_a_step_is_written_only_when_the_device_has_done_it(tmp_path):
    clock = FakeClock([0.0, 0.0, 1.0, 2.0])
    meter = meters.Meter(tmp_path / "steps.jsonl", 2, 64, torch.device("cpu"), launch_clock.now_s(), clock)
    meter.begin("timed", lambda: None)
    clock.now, meter._flushed_at = 0.5, float("-inf")
    meter.step(torch.tensor(1.0), skipped=False)
    assert records.read_lines(tmp_path / "steps.jsonl") == []
    clock.now, meter._flushed_at = 1.5, float("-inf")
    meter.step(torch.tensor(1.0), skipped=False)
    assert [row["step"] for row in records.read_lines(tmp_path / "steps.jsonl")] == [1]


def test_skew_by_hand():
    times_s = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.5, 1.0, 4.0]])
    means_s = pytest.approx([1, 4 / 3, 6.5 / 3])
    assert over_ranks.compare(times_s) == {"skew": 1.0, "slowest": 2, "means_s": means_s}
    two = over_ranks.compare(torch.tensor([[1.0], [3.0]]))
    assert (two["skew"], two["slowest"]) == (0.5, 1)  # the median of two is their mean
    nothing = {"skew": None, "slowest": None, "means_s": None}
    assert over_ranks.compare(torch.tensor([[1.0, 2.0]])) == over_ranks.compare(torch.empty(2, 0)) == nothing


def test_a_latecomer_is_seen_in_the_forward_pass_alone(run_small, tmp_path):
    """One rank begins every step 0.3 s late: all steps become longer, and only its forward pass ends late."""
    result, run = run_small(worker="tests.workers.latecomer", gpus=2, zero_stage=1)
    assert result.status == "ok", result.message()
    record = records.read_json(run.worker)
    assert min(record["rank_step_s"]) > 0.3
    assert record["step_skew"] < 0.2
    assert record["slowest_rank"] == 1
    assert record["rank_forward_s"][1] > record["rank_forward_s"][0] + 0.15
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert row["forward_skew"] == record["forward_skew"] > 0.1


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
    meter = meters.EnergyMeter(fake.read, fake.clock)
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
    meter = meters.EnergyMeter(fake.read, fake.clock)
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
