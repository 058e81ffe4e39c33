"""`dsnb probe` on a CPU: the host's pieces are measured, the rest is left out with its reason, the result is kept."""

import json

import pytest

from dsnb.cli.doctor import launch_rate
from dsnb.cli.probe import tabulated, texts
from tests.cli.test_app import dsnb
from tests.support import lazy

torch, worker = lazy.Module("torch"), lazy.Module("dsnb.train.probe")


@pytest.mark.process
def test_a_probe_of_a_cpu(monkeypatch, tmp_path):
    file = tmp_path / "probe.json"
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    code, out, err = dsnb(monkeypatch, "probe", "--device", "cpu", "--quick", "--output", file)
    assert code == 0, err
    record = json.loads(file.read_text())
    assert set(record["figures"]) == {"launch_us", "parameter_us", "gather_us"}
    assert all(value > 0 for value in record["figures"].values())
    assert "matrix products left out: it needs a GPU" in out
    assert "links left out: they need several GPUs" in out
    assert not (tmp_path / "cache").exists()  # a quick one is not accurate
    code, out, err = dsnb(monkeypatch, "probe", "--device", "tpu")
    assert (code, err.strip()) == (1, "error: device is 'tpu': use cuda or cpu")


def test_the_parts_of_a_gpu_work_on_any_device(monkeypatch):
    """At tiny sizes, on a CPU: rates of known work over measured times, and each figure once."""

    def seconds(work, *_):
        work()
        return 1e-3

    small = {"seconds": seconds, "SQUARES": (16, 32), "LAYERS": ((16, 32),), "VOCABULARIES": (17, 24), "HEADS": 1}
    for name, value in small.items():
        monkeypatch.setattr(f"dsnb.train.probe.{name}", value)
    device = torch.device("cpu")
    rows = [*worker.products(device, 1.0, 64), *worker.attention(device, 1.0, 2048)]
    rows += [*worker.memory(device, 1.0, 1000), *worker.host_link(device, 1.0, 1000)]
    figures = {row["figure"]: row["value"] for row in rows if "figure" in row}
    assert figures == pytest.approx({
        "matmul_tflops": 2 * 32**3 / 1e9,
        "unaligned_tflops": 6 * 64 * 16 * 17 / 1e9,
        "attention_tflops": 3.5 * 2 * 2048**2 * 64 / 1e9,  # two products forward, five back, half is masked
        "memory_gb_per_s": 2e-3,
        "host_link_gb_per_s": 1e-3,
    })  # fmt: skip


def test_a_call_is_timed_over_batches(monkeypatch):
    calls = []
    time_s = worker.seconds(lambda: calls.append(sum(range(20_000))), torch.device("cpu"), 0.05)
    assert 0.02 < time_s * len(calls) < 0.5


def test_usual_values_stand_beside_those_of_the_same_part():
    rows = [{"part": "host", "what": "launch", "value": 12.0, "unit": "µs"}]
    record = {"rows": [*rows, {"part": "memory", "what": "copy", "value": 4000.0, "unit": "GB/s"}]}
    table = tabulated(record, {"rows": [{**rows[0], "value": 6.0}]})
    assert texts(table)[["value", "usual"]].to_numpy().tolist() == [["12", "6"], ["4,000", ""]]
    assert "usual" not in texts(tabulated(record, {"rows": []}))


def test_the_doctor_compares_launches_with_the_reference():
    slow, fine, alone = launch_rate(10.0, 6.0), launch_rate(7.0, 6.0), launch_rate(10.0, None)
    assert (slow.state, fine.state, alone.state) == ("warn", "ok", "ok")
    assert slow.found == "10.0 µs an operation, 6.0 usual"
    assert slow.advice == (
        "this host launches 0.6 times as fast as the reference: eager settings of small models will be CPU-bound"
    )
    assert alone.found == "10.0 µs an operation"
