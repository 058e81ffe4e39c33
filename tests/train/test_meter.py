"""The meter with a clock whose times are known, and how far the slowest rank is off the others."""

import pytest

import dsnb
from dsnb.files import records
from dsnb.system import launch_clock
from tests.support import lazy

torch = lazy.Module("torch")
meters, over_ranks = lazy.Module("dsnb.train.meter"), lazy.Module("dsnb.train.over_ranks")


class FakeClock:
    """Marks fall at given times; a mark has passed once `now` has come to it."""

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
