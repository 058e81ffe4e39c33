"""`dsnb probe` on a CPU: the host's pieces are measured, the rest is left out with its reason, the result is kept."""

import json

import pytest

from dsnb.prediction import probed
from tests.cli.test_app import dsnb
from tests.support import lazy

torch, worker = lazy.Module("torch"), lazy.Module("dsnb.measure.train.probe")


@pytest.mark.process
def test_a_probe_of_a_cpu(monkeypatch, tmp_path):
    file = tmp_path / "probe.json"
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("dsnb.base.system.hardware.gpus", tuple)
    monkeypatch.setattr(
        probed, "REFERENCE", {"rows": [{"part": "host", "what": "launch", "value": 0.0125}]}
    )
    code, out, err = dsnb(monkeypatch, "probe", "--quick", "--output", file)
    assert code == 0, err
    record = json.loads(file.read_text())
    assert set(record["figures"]) == {"launch_us", "parameter_us", "gather_us"}
    assert all(value > 0 for value in record["figures"].values())
    assert "matrix products left out: it needs a GPU" in out
    assert "links left out: they need several GPUs" in out
    assert not (tmp_path / "cache").exists()  # a quick one is not accurate
    (launch,) = [line.split() for line in out.splitlines() if "launch" in line]
    assert launch == ["host", "launch", f"{record['figures']['launch_us']:,.4g}", "0.0125", "µs"]


def test_the_parts_of_a_gpu_work_on_any_device(monkeypatch):
    """At tiny sizes, on a CPU: rates of known work over measured times, and each figure once."""

    def seconds(work, *_):
        work()
        return 1e-3

    small = {"seconds": seconds, "SQUARES": (16, 32), "LAYERS": ((16, 32), (16, 17)), "HEADS": 1}
    for name, value in small.items():
        monkeypatch.setattr(f"dsnb.measure.train.probe.{name}", value)
    device = torch.device("cpu")
    rows = [*worker.products(device, 1.0, 64), *worker.attention(device, 1.0, 2048)]
    rows += [*worker.memory(device, 1.0, 1000), *worker.host_link(device, 1.0, 1000)]
    figures = {figure: value for _, value, _, figure in rows if figure}
    assert figures == pytest.approx({
        "matmul_tflops": 2 * 32**3 / 1e9,
        "unaligned_tflops": 6 * 64 * 16 * 17 / 1e9,
        "attention_tflops": 3.5 * 2 * 2048**2 * 64 / 1e9,  # two products forward, five back, half is masked
        "memory_gb_per_s": 2e-3,
        "host_link_gb_per_s": 1e-3,
    })  # fmt: skip


def test_the_time_of_a_call_is_the_median_of_batches(monkeypatch):
    asked, times_s = (
        [],
        iter([0.5, 1e-3, 1e-3, 3e-3, 1e-3, 2e-3, 9e-3]),
    )  # loading, one call, five batches
    monkeypatch.setattr(
        "dsnb.measure.train.probe.mean_s",
        lambda work, calls, device: asked.append(calls) or next(times_s),
    )
    assert worker.seconds(None, None, 0.05) == 2e-3
    assert asked == [2, 1, *[10] * 5]
