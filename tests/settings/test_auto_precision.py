"""What `precision: auto` stands for: by the GPU, or by the times of a product on the CPU, which are kept."""

import platform

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.system import hardware
from dsnb.measure.sweep.params import load_sweep
from dsnb.settings import auto_precision
from dsnb.settings.experiment import Experiment
from tests.settings.test_experiment import V100

H100 = hardware.InstalledGpu(1, "NVIDIA H100 80GB HBM3", "GPU-2", 79.6, (9, 0))


@pytest.fixture
def timings(monkeypatch, tmp_path):
    """Return the times that the next measurements yield, and forget earlier ones before and after."""
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hardware, "gpus", tuple)
    times: list[dict[str, float]] = []
    monkeypatch.setattr(auto_precision, "_seconds", lambda: times.pop(0))
    auto_precision._timed.cache_clear()
    yield times
    auto_precision._timed.cache_clear()


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [((), "bf16"), ((H100,), "bf16"), ((V100,), "fp32"), ((H100, V100), "fp32")],
)
def test_a_gpu_has_bf16_products_or_not(monkeypatch, gpus, expected):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    assert auto_precision.precision_of("cuda") == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({"fp32": 0.001, "bf16": 0.0005}, "bf16"),
        ({"fp32": 0.001, "bf16": 0.002}, "bf16"),  # half as fast
        ({"fp32": 0.001, "bf16": 0.0021}, "fp32"),
        ({}, "fp32"),  # without torch
        ({"fp32": 0.0, "bf16": 0.0}, "fp32"),
    ],
)
def test_a_cpu_is_timed(timings, seconds, expected):
    timings.append(seconds)
    assert Experiment(precision="auto", device="cpu").name == f"zs0_{expected}_gpus1_bs8_sl128"


def test_times_are_kept_until_the_instructions_change(timings, monkeypatch):
    timings += [{"fp32": 1.0, "bf16": 1.0}, {"fp32": 1.0, "bf16": 30.0}]
    assert auto_precision.precision_of("cpu") == "bf16"
    auto_precision._timed.cache_clear()  # as in another process
    assert (auto_precision.precision_of("cpu"), len(timings)) == ("bf16", 1)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert (auto_precision.precision_of("cpu"), len(timings)) == ("fp32", 0)


def test_a_failed_measurement_is_not_kept(timings):
    timings += [{}, {"fp32": 1.0, "bf16": 1.0}]
    assert auto_precision.precision_of("cpu") == "fp32"
    auto_precision._timed.cache_clear()
    assert auto_precision.precision_of("cpu") == "bf16"


def test_auto_is_a_value_of_any_params_file_and_of_the_command_line(timings, tmp_path):
    timings.append({"fp32": 1.0, "bf16": 50.0})
    file = tmp_path / "mine.yaml"
    file.write_text(
        "name: mine\ndefaults: {device: cpu, precision: auto}\ngrid: {zero_stage: [0, 1]}\n"
    )
    names = [run.name for run in load_sweep(file, {"order": "listed"}).runs]
    assert names == ["zs0_fp32_gpus1_bs8_sl128", "zs1_fp32_gpus1_bs8_sl128"]
    both = load_sweep(file, {"precision": ["fp32", "auto"]})  # equal here, so merged
    assert {run.experiment.precision for run in both.runs} == {"fp32"}
    assert len(both.runs) == 2


def test_other_hosts_are_not_this_machine(timings, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\n")
    with pytest.raises(SettingsError) as caught:
        Experiment(precision="auto", hostfile=str(hosts), gpus=2)
    assert caught.value.problems == [
        "precision is 'auto': it is measured on this machine, but the run is for other hosts; use 'bf16' or 'fp32'"
    ]


@pytest.mark.process
@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="oneDNN's name of an x86 instruction set"
)
def test_emulated_bf16_is_slow(monkeypatch):
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    seconds = auto_precision._seconds()
    assert seconds["bf16"] > 5 * seconds["fp32"] > 0
