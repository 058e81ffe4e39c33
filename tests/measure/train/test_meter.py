"""The meter with a clock and an energy counter whose values are known, figures of samples, and skew over ranks."""

from types import SimpleNamespace

import pytest

import dsnb
from dsnb.base.files import json_files
from dsnb.base.system import launch_clock
from dsnb.measure.launcher.figures import gpu_figures
from tests.support import lazy

torch = lazy.Module("torch")
meters, over_ranks = (lazy.Module(f"dsnb.measure.train.{name}") for name in ("meter", "over_ranks"))
failure = lazy.Module("dsnb.measure.record.failure")


class FakeClock:
    """Marks fall at given times; a mark has passed once `now` has come to it."""

    def __init__(self, times_s, queued_s=None):
        self.times_s, self.queued_s, self.has_queue = times_s, queued_s, queued_s is not None
        self.count, self.now = 0, float("inf")

    def mark(self):
        self.count += 1
        return self.count - 1

    def passed(self, mark):
        return self.times_s[mark] <= self.now

    def seconds(self, first, second):
        return self.times_s[second] - self.times_s[first]

    def synchronize(self):
        self.now = float("inf")

    def host_s(self, first, second):
        return self.queued_s[second] - self.queued_s[first]


CPU_BOUND = {
    # queued, reached: zero, begin, then of two steps the ends of forward, backward and the rest; idle in the end
    "the device keeps up with every launch": (
        [0, 0, 2, 6, 7, 9, 13, 14, 20], [0, 0, 2.01, 6.02, 7.01, 9.01, 13.02, 14.01, 20], 0.99, 1.0),
    "the host is ahead, and waits once in each step": (
        [0, 0, 1, 3, 6.1, 8, 10, 13.1, 20], [0, 0, 2, 6, 7, 9, 13, 14, 20], 0.0, 0.0),
    # the optimizer asks the device about each tensor from 6 to 7.8, and from 14 to 15.8, then queues 0.2 s of work
    "only the rest of a step is CPU-bound": (
        [0, 0, 0.1, 0.3, 7.8, 8.1, 8.3, 15.8, 20], [0, 0, 2, 6, 8, 10, 14, 16, 20], 3.6 / 16, 3.6 / 16),
}  # fmt: skip


def step(meter, *sections, loss=1.0, skipped=False):
    for name in sections:
        with meter.section(name):
            pass
    meter.step(torch.tensor(loss), skipped=skipped)


@pytest.mark.parametrize(
    ("queued_s", "reached_s", "low", "high"), CPU_BOUND.values(), ids=CPU_BOUND
)
def test_the_share_in_which_the_host_sets_the_pace(queued_s, reached_s, low, high):
    clock = FakeClock(
        [5.0 + 1.001 * time_s for time_s in reached_s], queued_s
    )  # the device's clock runs faster
    meter = meters.Meter(None, 2, 64, torch.device("cpu"), launch_clock.now_s(), clock)
    meter.begin("timed", lambda: None)
    for _ in range(2):
        step(meter, "forward", "backward", "optimizer")
    meter.end()
    assert low - 1e-9 <= meter.cpu_bound <= high + 1e-9


def test_known_times_come_out_exactly(tmp_path):
    # zero, warm-up begins, two steps, timed begins after a pause, then of two steps: the first forward pass, the end
    clock = FakeClock([0.0, 1.0, 3.0, 4.0, 10.0, 10.25, 10.5, 11.0, 11.25])
    meter = meters.Meter(
        tmp_path / "steps.jsonl", 4, 64, torch.device("cpu"), launch_clock.now_s(), clock
    )
    for phase, sections in (
        ("warmup", ()),
        ("timed", ("forward", "backward", "forward", "optimizer")),
    ):
        meter.begin(phase, lambda: None)
        for loss in (2.0, 1.0):
            step(meter, *sections, loss=loss, skipped=phase == "warmup")
        meter.end()
    meter.close()
    assert (meter.times_s("timed"), meter.forwards_s("timed")) == ([0.5, 0.75], [0.25, 0.5])
    assert meter.cpu_bound is None  # a CPU has no queue
    assert meter.skipped_steps == 2
    rows = json_files.read_lines(tmp_path / "steps.jsonl")
    assert [row["step_time_s"] for row in rows] == [2.0, 1.0, 0.5, 0.75]
    described = [[row[name] for name in ("phase", "step", "loss", "skipped")] for row in rows]
    assert described[:2] == [["warmup", 1, 2.0, True], ["warmup", 2, 1.0, True]]
    assert described[2:] == [["timed", 3, 2.0, False], ["timed", 4, 1.0, False]]
    assert rows[3]["t_s"] - rows[2]["t_s"] == pytest.approx(0.75)
    assert "allocated_gib" not in rows[0]  # a CPU has no such figure: missing, not 0


def test_retries_of_the_allocator_are_those_of_the_timed_steps(monkeypatch):
    """The allocator counts from the start of the process: 3 while the model is built, 5 more in the warm-up."""
    meter = meters.Meter(None, 4, 64, torch.device("cpu"), launch_clock.now_s())
    counts = iter([3, 8, 8, 20])
    monkeypatch.setattr(meter, "_allocation_retries", lambda: next(counts))
    for phase in ("warmup", "timed"):
        meter.begin(phase, lambda: None)
        step(meter)
        step(meter)
        meter.end()
    assert meter.alloc_retries == 12


def test_a_cpu_has_no_count_of_retries():
    meter = meters.Meter(None, 1, 64, torch.device("cpu"), launch_clock.now_s())
    meter.begin("timed", lambda: None)
    step(meter)
    meter.end()
    assert meter.alloc_retries is None


def test_a_step_is_written_only_when_the_device_has_done_it(tmp_path):
    clock = FakeClock([0.0, 0.0, 1.0, 2.0])
    meter = meters.Meter(
        tmp_path / "steps.jsonl", 2, 64, torch.device("cpu"), launch_clock.now_s(), clock
    )
    meter.begin("timed", lambda: None)
    for now_s, written in ((0.5, []), (1.5, [1])):
        clock.now = now_s
        step(meter)
        meter._file.flush()
        assert [row["step"] for row in json_files.read_lines(tmp_path / "steps.jsonl")] == written


def test_skew_by_hand():
    times_s = torch.tensor([[1.0, 1.0, 1.0], [1.0, 2.0, 1.0], [1.5, 1.0, 4.0]])
    means_s = pytest.approx([1, 4 / 3, 6.5 / 3])
    assert over_ranks.compare(times_s) == {"skew": 1.0, "slowest": 2, "means_s": means_s}
    two = over_ranks.compare(torch.tensor([[1.0], [3.0]]))
    assert (two["skew"], two["slowest"]) == (0.5, 1)  # the median of two is their mean
    for nothing in (torch.tensor([[1.0, 2.0]]), torch.empty(2, 0)):
        assert set(over_ranks.compare(nothing).values()) == {None}


def test_a_latecomer_is_seen_in_the_forward_pass_alone(run_small, tmp_path):
    """One rank begins every step 0.3 s late: all steps take longer, but only its forward pass ends late."""
    result, run = run_small(worker="latecomer", gpus=2, zero_stage=1, steps=2)
    assert result.status == "ok", result.message()
    record = json_files.read_json(run.worker)
    assert min(record["rank_step_s"]) > 0.3
    assert record["step_skew"] < 0.2
    assert record["slowest_rank"] == 1
    assert record["rank_forward_s"][1] > record["rank_forward_s"][0] + 0.15
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert row["forward_skew"] == record["forward_skew"] > 0.1


class FakeGpu:
    """A GPU whose power is known, with a counter that is updated every 100 ms; reading it takes 3 ms."""

    def __init__(self, update_s=0.1):
        self.now_s, self.joules, self.shown, self.watts = 0.037, 5000.0, 5000.0, 120.0
        self.update_s = update_s

    def spend(self, seconds):
        end_s = self.now_s + seconds
        while (update_s := (self.now_s // self.update_s + 1) * self.update_s) <= end_s:
            self.joules += self.watts * (update_s - self.now_s)
            self.now_s, self.shown = update_s + 1e-9, self.joules
        self.joules += self.watts * (end_s - self.now_s)
        self.now_s = end_s

    def read(self):
        self.spend(0.003)
        return self.shown


@pytest.mark.parametrize(
    ("seconds", "update_s", "prepared", "expected"),
    [
        (0.35, 0.1, True, pytest.approx(700 * 0.35, rel=0.02)),
        (3.21, 0.1, True, pytest.approx(700 * 3.21, rel=0.02)),
        (3.21, 0.1, False, None),  # its begin was not put on an update
        (0.2, 0.1, True, None),
        (2.0, 1e9, True, None),
    ],
)
def test_the_energy_of_a_span_is_that_of_its_work_unless_it_is_short_or_the_counter_dead(
    seconds, update_s, prepared, expected
):
    fake = FakeGpu(update_s)
    meter = meters.EnergyMeter(fake.read, lambda: fake.now_s)
    fake.watts = 700.0
    fake.spend(0.5)  # warm-up steps, just before
    fake.watts = 120.0
    if prepared:
        meter.prepare()
    fake.spend(0.02)  # a barrier
    meter.begin()
    fake.watts = 700.0
    fake.spend(seconds)
    fake.watts = 120.0
    assert meter.end() == expected


def test_events_of_a_gpu_are_in_milliseconds_and_passed_once_it_has_done_the_work(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            self.is_done = False
            events.append(self)

        def record(self, stream):
            assert stream == "the device's"
            self.place = len(events)

        def query(self):
            return self.is_done

        def elapsed_time(self, other):
            return 1500.0 * (other.place - self.place)

    events = []
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device: "the device's")
    clock = meters.Clock(SimpleNamespace(type="cuda"))
    assert [clock.mark() for _ in range(3)] == [0, 1, 2]
    assert (clock.seconds(0, 1), clock.seconds(0, 2)) == (1.5, 3.0)
    events[1].is_done = True
    assert [clock.passed(mark) for mark in (0, 1, 2)] == [False, True, False]
    assert meters.Clock(torch.device("cpu")).has_queue is False


class Ramp:
    """A counter that is updated every 100 ms: 100 W, and 700 W from `begin_ms` to `end_ms`."""

    def __init__(self, begin_ms, end_ms):
        self.now_ms, self.begin_ms, self.end_ms = 0, begin_ms, end_ms

    def joules(self, now_ms):
        busy_ms = max(0, min(now_ms, self.end_ms) - self.begin_ms)
        return (100 * now_ms + 600 * busy_ms) / 1000

    def now_s(self):
        return self.now_ms / 1000

    def read(self):
        self.now_ms += 1
        return self.joules(self.now_ms // 100 * 100)


@pytest.mark.parametrize("idle_ms", [10, 90])
def test_energy_of_an_idle_gpu_before_and_after_the_span_is_subtracted(idle_ms):
    """The counter shows 100 ms and 1,600 ms: 100 W for 70 ms before the span, and `idle_ms` after it."""
    ramp = Ramp(170, 1600 - idle_ms)
    meter = meters.EnergyMeter(ramp.read, ramp.now_s)
    meter.prepare()
    assert ramp.now_ms == 100
    ramp.now_ms = ramp.begin_ms
    meter.begin()
    ramp.now_ms = ramp.end_ms
    assert meter.end() == pytest.approx(700 * (1.6 - 0.17 - idle_ms / 1000), abs=0.2)
    assert ramp.now_ms == 1700  # one more update shows the idle power


class Noted:
    """A clock, an energy meter and a barrier in one, which note the order of their calls."""

    has_queue = False

    def __init__(self):
        self.calls, self.marks = [], 0

    def mark(self):
        self.calls.append("mark")
        self.marks += 1
        return self.marks - 1

    def passed(self, mark):
        return True

    def seconds(self, first, second):
        return float(second - first)

    def synchronize(self):
        self.calls.append("synchronize")

    def barrier(self):
        self.calls.append("barrier")

    def prepare(self):
        self.calls.append("prepare")

    def begin(self):
        self.calls.append("begin")

    def end(self):
        self.calls.append("end")
        return 42.0


def test_a_phase_begins_when_all_ranks_and_their_devices_are_idle_and_energy_is_that_of_timed_steps():
    noted = Noted()
    gpu = meters.NvmlGpu(lambda: 3.5, noted)
    meter = meters.Meter(None, 2, 64, torch.device("cpu"), launch_clock.now_s(), noted, gpu)
    noted.calls.clear()
    meter.begin("warmup", noted.barrier)
    step(meter)
    meter.end()
    assert noted.calls == ["synchronize", "barrier", "mark", "mark", "synchronize"]
    assert (meter.energy_j, meter.peak_gib) == (None, {"device_memory_gib": 3.5})
    noted.calls.clear()
    meter.begin("timed", noted.barrier)
    # The counter is read before the barrier, which takes as long as the slowest rank.
    assert noted.calls == ["synchronize", "prepare", "barrier", "begin", "mark"]
    noted.calls.clear()
    step(meter)
    meter.end()
    assert noted.calls == ["mark", "synchronize", "end"]
    assert meter.energy_j == 42.0


def test_times_are_since_the_launch_and_a_phase_spans_its_steps(tmp_path, monkeypatch):
    clock = FakeClock([2.0, 3.0, 5.0, 6.0, 10.0, 10.5, 11.25])
    monkeypatch.setattr(launch_clock, "now_s", lambda: 107.0)
    wall = iter([20.0, 24.5, 30.0, 31.75])
    monkeypatch.setattr(
        "dsnb.measure.train.meter.time", SimpleNamespace(perf_counter=lambda: next(wall))
    )
    path = tmp_path / "steps.jsonl"
    meter = meters.Meter(path, 4, 64, torch.device("cpu"), 100.0, clock)
    for phase in ("warmup", "timed"):
        meter.begin(phase, lambda: None)
        step(meter)
        step(meter)
        meter.end()
    meter.close([4.0, 3.0, 2.0, 1.0])
    rows = json_files.read_lines(path)
    # The clock's 2 is 7 s after the launch.
    assert [row["t_s"] for row in rows] == [10.0, 11.0, 15.5, 16.25]
    assert meter.span_s == {"warmup": (8.0, 11.0), "timed": (15.0, 16.25)}
    assert meter.wall_s == {"warmup": 4.5, "timed": 1.75}
    assert [row["loss"] for row in rows] == [4.0, 3.0, 2.0, 1.0]  # the means over ranks
    assert {row["tokens"] for row in rows} == {64}


def test_a_gradient_norm_is_recorded_where_it_is_known(tmp_path):
    path = tmp_path / "steps.jsonl"
    meter = meters.Meter(path, 3, 64, torch.device("cpu"), launch_clock.now_s())
    meter.begin("timed", lambda: None)
    for norm in (None, 0.5, torch.tensor(0.25)):
        meter.step(torch.tensor(1.0), skipped=False, grad_norm=norm)
    meter.end()
    meter.close()
    found = [row.get("grad_norm", "missing") for row in json_files.read_lines(path)]
    assert found == ["missing", 0.5, 0.25]


def test_the_peak_of_a_run_is_the_largest_of_its_steps_peaks(tmp_path, monkeypatch):
    """A GPU's allocator without a GPU: 9 GiB while the model is built, then as much as each step takes."""
    full, device = torch.full, SimpleNamespace(type="cuda")
    peaks_gib, reset = iter([3, 5, 4]), []

    def stats():
        assert reset.pop() is True  # since the step before, or the phase's begin
        peak = next(peaks_gib) * 2**30
        return {
            name: {"all": {"peak": times * peak, "current": 1}, "small_pool": {"peak": 1}}
            for name, times in (("allocated_bytes", 1), ("reserved_bytes", 2))
        }

    for name, value in {
        "cuda.memory.memory_stats_as_nested_dict": stats,
        "cuda.memory_stats": lambda: {"num_alloc_retries": 0},
        "cuda.reset_peak_memory_stats": lambda: reset.append(True),
        "full": lambda shape, value, **_: full(shape, value),
    }.items():
        monkeypatch.setattr(f"torch.{name}", value)
    path = tmp_path / "steps.jsonl"
    meter = meters.Meter(path, 3, 64, device, launch_clock.now_s(), Noted())
    for phase, steps in (("warmup", 1), ("timed", 2)):
        reset.clear()
        meter.begin(phase, lambda: None)
        for _ in range(steps):
            step(meter)
        meter.end()
    meter.close()
    rows = json_files.read_lines(path)
    assert [row["allocated_gib"] for row in rows] == [3, 5, 4]
    assert [row["reserved_gib"] for row in rows] == [6, 10, 8]
    assert meter.peak_gib == {"peak_allocated_gib": 5.0, "peak_reserved_gib": 10.0}


def test_a_failed_run_keeps_the_steps_that_the_device_has_done(tmp_path):
    clock = FakeClock([0.0, 0.0, 1.0, 2.0])
    path = tmp_path / "steps.jsonl"
    meter = meters.Meter(path, 3, 64, torch.device("cpu"), launch_clock.now_s(), clock)
    meter.begin("timed", lambda: None)
    clock.now = 0.5
    step(meter)
    step(meter)
    clock.now = 1.5
    meter.abort()
    assert [row["step"] for row in json_files.read_lines(path)] == [1]


def test_the_part_of_a_step_that_a_rank_is_in_is_noted():
    position = failure.Position()
    meter = meters.Meter(None, 1, 64, torch.device("cpu"), launch_clock.now_s(), position=position)
    for name in ("forward", "optimizer"):
        with meter.section(name):
            assert position.phase == name


def test_a_pipelines_first_forward_pass_is_not_timed():
    meter = meters.Meter(
        None, 1, 64, torch.device("cpu"), launch_clock.now_s(), marks_forward=False
    )
    meter.begin("timed", lambda: None)
    step(meter, "forward", "backward")
    meter.end()
    assert (meter.forwards_s("timed"), len(meter.times_s("timed"))) == ([], 1)


def samples(*readings, host=None):
    names = ("t_s", "gpu", "power_w", "energy_j", "memory_used_gib")
    return [{**dict(zip(names, reading, strict=True)), "host": host} for reading in readings]


WORKER = {
    "timed_from_s": 10.0,
    "timed_to_s": 14.0,
    "phases_s": {"timed": 4.0},
    "steps_from_s": 8.0,
    "ended_s": 15.0,
}


def test_power_is_the_counters_energy_over_time():
    rows = samples((9, 0, 150, 1000, 30), (12, 0, 400, 2000, 40), (14.5, 0, 700, 4600, 50))
    figures = gpu_figures(rows, {**WORKER, "energy_j": 5600.0}, gpus=2)
    assert (figures["energy_j"], figures["power_w"]) == (5600, 700)  # the samples would say 400 W
    assert figures["run_energy_kwh"] is None  # the samples of the other GPU are missing
    one = gpu_figures(rows, {**WORKER, "energy_j": 2800.0}, gpus=1)
    assert (one["power_w"], one["run_energy_kwh"]) == (700, pytest.approx(3600 / 3.6e6))
    reset = gpu_figures([*rows, *samples((15, 0, 100, 7, 30))], WORKER, gpus=1)
    assert reset["run_energy_kwh"] is None  # the counter began again
    short = gpu_figures(rows, {**WORKER, "phases_s": {"timed": 0.21}, "energy_j": None}, gpus=1)
    assert (short["energy_j"], short["power_w"]) == (None, None)


def test_means_are_over_gpus_and_power_is_that_of_one():
    """Two GPUs of a host with many samples, and two of one with few: each GPU has the same weight."""
    rows = [
        {"t_s": t_s, "gpu": gpu, "host": host, "util_pct": share, "sm_clock_mhz": 10 * share}
        for host, gpu, t_s, share in (
            *(("a", 0, 10 + each, 100) for each in range(5)),
            *(("a", 1, 10 + each, 60) for each in range(5)),
            ("b", 0, 12, 10), ("b", 0, 13, 30),
            ("b", 1, 12, 20), ("b", 1, 16, 99),  # after the timed steps
        )
    ]  # fmt: skip
    worker = {"timed_from_s": 10.0, "timed_to_s": 15.0, "phases_s": {"timed": 5.0}}
    figures = gpu_figures(rows, {**worker, "energy_j": 6000.0}, gpus=4)
    assert figures["gpu_util_pct"] == (100 + 60 + 20 + 20) / 4
    assert figures["sm_clock_mhz"] == 500
    assert (figures["energy_j"], figures["power_w"]) == (6000.0, 300.0)  # of all, and of one


@pytest.mark.parametrize(("timed_s", "expected"), [(4.9, None), (5.0, 60.0)])
def test_utilization_needs_five_seconds(timed_s, expected):
    """NVML's readings are shares of up to a second: those of 0.4 s were 9 to 100 % between repeats."""
    rows = [
        {"t_s": t_s, "gpu": 0, "util_pct": share, "sm_clock_mhz": 1980}
        for t_s, share in ((10.2, 20), (14, 100))
    ]
    worker = {"timed_from_s": 10.0, "timed_to_s": 10.0 + timed_s, "phases_s": {"timed": timed_s}}
    figures = gpu_figures(rows, worker, gpus=1)
    assert figures["gpu_util_pct"] == expected
    assert figures["sm_clock_mhz"] == 1980


def test_memory_on_the_device_is_that_of_the_steps():
    rows = samples(
        (2, 0, 1, None, 99), (9, 0, 1, None, 30), (12, 1, 1, None, 40), (14.5, 0, 1, None, 98)
    )
    assert gpu_figures(rows, WORKER, gpus=2)["device_memory_gib"] == 40
    assert (
        gpu_figures(rows, {**WORKER, "device_memory_gib": 41.5}, gpus=2)["device_memory_gib"]
        == 41.5
    )
    assert (
        gpu_figures(rows, {}, gpus=2)["device_memory_gib"] == 99
    )  # of a run that did not reach its end
    for name in ("steps_from_s", "timed_to_s"):  # when the steps were is unknown
        assert gpu_figures(rows, {**WORKER, name: None}, gpus=2)["device_memory_gib"] is None
    first = samples((1, 0, 1, 100, 1), (5, 0, 1, 300, 1), host="a")
    second = samples((1, 0, 1, 50, 1), (5, 0, 1, 60, 1), host="b")
    assert gpu_figures(first + second, {}, gpus=2)["run_energy_kwh"] == pytest.approx(210 / 3.6e6)
