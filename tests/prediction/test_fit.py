"""Whether settings fit on this machine, with made-up machines and traces."""

import pytest

from dsnb.errors import SettingsError
from dsnb.prediction import fit
from dsnb.prediction.calibration import PEAK_ERRORS, PredictionError
from dsnb.prediction.fit import Fit, fits_here, is_covered, room_here
from dsnb.prediction.memory import CONTEXT_GIB, NCCL_GIB, Room, peak_memory
from dsnb.system.hardware import InstalledGpu
from tests.prediction.made_up import TRACE, given


@pytest.fixture
def cards(monkeypatch):
    """Give this machine two GPUs, one of them smaller."""
    found = tuple(InstalledGpu(n, "NVIDIA H200", f"GPU-{n}", size, (9, 0)) for n, size in enumerate((140.0, 80.0)))
    monkeypatch.setattr("dsnb.system.hardware.gpus", lambda: found)


@pytest.fixture
def no_torch(monkeypatch):
    odd = SettingsError("no trace")
    monkeypatch.setattr(fit, "attempts", lambda asked: [odd if one.seq_len == 7 else TRACE for one in asked])


def test_the_room_is_the_smallest_gpus_or_the_limit(cards, monkeypatch):
    assert room_here(given()) == Room(80.0)
    assert room_here(given()).tensors_gib == 80.0 - CONTEXT_GIB
    assert room_here(given(gpus=2)).tensors_gib == 80.0 - CONTEXT_GIB - NCCL_GIB
    assert room_here(given(memory_limit_gib=20)) == Room(20.0, context_gib=0.0)
    assert room_here(given(memory_limit_gib=200)) == Room(80.0)
    cpu = {"device": "cpu", "precision": "fp32"}
    assert room_here(given(**cpu)) is None
    assert room_here(given(**cpu, memory_limit_gib=2)).tensors_gib == 2
    # The GPUs of a Slurm job are not those of this machine.
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    job = given().model_copy(update={"hostfile": "slurm"})
    assert room_here(job) is None
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    assert room_here(job) == Room(80.0)


def test_what_is_within_the_worst_error_of_the_limit_is_not_too_large():
    """104.2 less 5 % is 98.99."""
    error = PredictionError(settings=9, mean_pct=1.0, worst_pct=5.0)
    fits = [Fit(gib, Room(98.98 + CONTEXT_GIB), error) for gib in (98.0, 103.0, 104.2, 150.0)]
    assert [fit.is_too_large for fit in fits] == [False, False, True, True]
    assert str(Fit(147.4, Room(140.0), PredictionError(21, 0.14, 0.52))) == (
        "needs 149.2 GiB of 140.0 (error of such predictions 0.1 %, at worst 0.5 %)"
    )


def test_settings_without_rules_and_models_of_other_families_are_not_covered(tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    for settings in (
        {"zero_stage": 3, "gpus": 2, "zeropp": "weights"},
        {"zero_stage": 3, "gpus": 2, "compile": "deepcompile"},
        {"zero_stage": 3, "gpus": 2, "offload": "all-nvme", "nvme_path": "/nvme"},
        {"zero_stage": 3, "deepspeed": {"zero_optimization": {"sub_group_size": 1000}}},
        {"model": str(path)},
    ):
        assert not is_covered(given(**settings))
    assert is_covered(given())
    assert is_covered(given(zero_stage=3, deepspeed={"zero_optimization": {"reduce_bucket_size": 1000}}))


def test_each_setting_has_its_fit_or_none(cards, no_torch):
    asked = [given(zero_stage=0), given(seq_len=7), given(memory_limit_gib=20)]
    known, untraced, limited = fits_here(asked)
    assert untraced is None
    assert known.peak_gib == peak_memory(given(zero_stage=0), TRACE).peak_allocated_gib
    assert known.error == PEAK_ERRORS["ZeRO 0"]
    assert (known.is_too_large, limited.is_too_large) == (False, True)
