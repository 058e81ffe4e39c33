"""What a stored probe does to predictions: known ratios, limits, and whose probe counts."""

import json
from dataclasses import asdict

import pytest

import dsnb
from dsnb.prediction import gpus, probed
from dsnb.prediction import predict as module
from dsnb.prediction.predict import Hardware
from dsnb.prediction.step_time import DEFAULT
from tests.prediction.made_up import TRACE

USUAL = {"launch_us": 6.0, "gather_us": 100.0, "matmul_tflops": 750.0, "memory_gb_per_s": 4000.0}
USUAL |= {"link_gb_per_s": 300.0}
REFERENCE = {"gpu_name": "NVIDIA H200", "figures": USUAL, "rows": []}


def record(gpu="NVIDIA H200", host="own", date="2026-11-25T10:00:00+00:00", **figures):
    return {"host": host, "gpu_name": gpu, "date_utc": date, "figures": {**USUAL, **figures}}


def test_the_reference_itself_changes_nothing_and_ratios_are_by_hand():
    assert [*probed.ratios(record(), REFERENCE).values()] == pytest.approx([1.0] * len(USUAL))
    shipped = probed.ratios(probed.REFERENCE, probed.REFERENCE)
    assert shipped == pytest.approx(
        dict.fromkeys([*probed.HOST.values(), *probed.RATES.values()], 1.0)
    )
    by = probed.ratios(record(launch_us=12.0, gather_us=50.0, matmul_tflops=600.0), REFERENCE)
    changed = {name: ratio for name, ratio in by.items() if ratio != pytest.approx(1.0)}
    assert changed == pytest.approx(
        {"host_launch_us": 2.0, "host_gather_us": 0.5, "matmul_efficiency": 0.8}
    )
    a100 = gpus.find("A100")  # relative to its data sheet, which is lower
    theirs = record(
        "NVIDIA A100-SXM4-80GB", matmul_tflops=750 * a100.product_gain * a100.half_tflops / 989
    )
    assert probed.ratios(theirs, REFERENCE)["matmul_efficiency"] == pytest.approx(1.0, rel=1e-3)


def test_what_cannot_be_is_left_out_and_shares_end_at_one():
    odd = record(launch_us=0.0, gather_us="fast", matmul_tflops=1e9, memory_gb_per_s=6000.0)
    by = probed.ratios(odd, REFERENCE)
    assert set(by) == {"memory_efficiency", "link_efficiency"}
    assert probed.ratios(record(), {"figures": {}, "rows": []}) == {}


def test_a_prediction_says_which_probe_it_used(monkeypatch, tmp_path):
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    monkeypatch.setattr(probed, "REFERENCE", REFERENCE)
    monkeypatch.setattr(probed.socket, "gethostname", lambda: "own")
    monkeypatch.setattr(module, "traces", lambda experiments: [TRACE] * len(experiments))
    settings = [
        dsnb.Experiment(
            model="gpt2", device="cuda", precision="bf16", seq_len=128, micro_batch_size=32
        )
    ]

    def predicted(**options):
        (row,) = dsnb.predict(settings, "H200", **options).to_dict("records")
        return row["step_time_s"], row["probe"]

    usual_s, nothing = predicted()
    assert nothing == ""
    probed.save(record(host="other", date="2026-11-26", launch_us=3.0))
    probed.save(
        record(launch_us=12.0, gather_us=200.0, memory_gb_per_s=6000.0, link_gb_per_s=150.0)
    )
    probed.save(record(gpu="NVIDIA H100 80GB HBM3", launch_us=1.0))
    (tmp_path / "probes" / "damaged.json").write_text(
        json.dumps({"gpu_name": "NVIDIA H200", "figures": 1})
    )
    slow_s, words = predicted()
    assert words == "probe of own, which launches 0.5 times as fast as usual, 2026-11-25"
    assert 1.2 * usual_s < slow_s <= 2**0.5 * usual_s
    assert predicted(probe=False) == (usual_s, "")
    on = Hardware(gpus.find("H200"), gpus.link("pcie")).probed()
    expected = asdict(DEFAULT) | {
        "host_launch_us": 2**0.5 * DEFAULT.host_launch_us,
        "host_gather_us": 2**0.5 * DEFAULT.host_gather_us,
        "memory_efficiency": 1.0,  # of 1.5 times as much
    }
    assert asdict(on.constants) == pytest.approx(expected)
    on = Hardware(gpus.find("H200"), gpus.link("nvlink")).probed()
    assert on.constants.link_efficiency == pytest.approx(DEFAULT.link_efficiency / 2)
    monkeypatch.setenv("DSNB_CACHE", "off")
    assert probed.save(record()) is None
    assert predicted() == (usual_s, "")


def test_the_newest_probe_counts_where_this_host_has_none(monkeypatch, tmp_path):
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path))
    for host, date in (("a", "2026-11-24"), ("b", "2026-11-26"), ("c", "2026-11-25")):
        probed.save(record(host=host, date=date))
    assert probed.stored("H200")["host"] == "b"
    monkeypatch.setattr(probed.socket, "gethostname", lambda: "c")
    assert probed.stored("H200")["host"] == "c"
