"""Measured settings beside their predictions: known answers, generated settings, and runs that cannot be compared."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from dsnb.analysis import parity as module
from dsnb.analysis.parity import errors, parity
from dsnb.errors import SettingsError
from dsnb.prediction.measured import measured, recorded
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.step_time import step_times
from tests.prediction.made_up import TRACE

COMMON = {
    "sweep": "s", "repeat": 1, "status": "ok", "gpu_name": "NVIDIA H200", "gpu_memory_gib": 139.8, "timed_steps": 20,
    "model": "opt-1.3b", "strategy": "deepspeed", "precision": "bf16", "gpus": 1, "micro_batch_size": 8, "seq_len": 512,
    "device": "cuda", "compile": "off", "data": "synthetic",
}  # fmt: skip


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Give every model the same made-up trace, without torch."""
    monkeypatch.setattr(module.traces, "kept", lambda experiments: [TRACE] * len(experiments))


def runs(*settings):
    """Return made-up runs that are as fast and as large as they are predicted to be."""
    rows = [{**COMMON, "step_time_s": 1.0, **one} for one in settings]
    rows = [{"experiment": recorded(row).name_with_model, **row} for row in rows]
    times = step_times([one.setting for one in measured(pd.DataFrame(rows))]).step_time_s
    peaks = [peak_memory(recorded(row), TRACE).peak_allocated_gib for row in rows]
    return pd.DataFrame(rows).assign(step_time_s=times, peak_allocated_gib=peaks)


MANY = [
    {"model": model, "zero_stage": stage, "micro_batch_size": size}
    for model, stage, size in itertools.product(["opt-1.3b", "gpt2-xl"], [0, 1, 3], [4, 8])
]


def test_ten_per_cent_are_ten_per_cent():
    table = runs(*MANY)
    table.loc[0, "step_time_s"] /= 1.1  # predicted 10 % too slow
    table.loc[1, "peak_allocated_gib"] /= 0.9  # predicted 10 % too small
    found = parity(table).table
    assert found["step_time_error_pct"][0] == pytest.approx(10)
    assert found["peak_allocated_error_pct"][1] == pytest.approx(-10)
    row = errors(found).loc["ZeRO 0"]
    assert row["peak_allocated_mean_pct"] == pytest.approx(10 / 4)
    assert row["peak_allocated_worst_pct"] == pytest.approx(10)
    assert row["peak_allocated_bias_pct"] == pytest.approx(-10 / 4)


def test_the_runs_of_a_model_have_no_part_in_their_own_predictions():
    table = runs(*MANY)
    slow = table["model"] == "gpt2-xl"
    table.loc[slow, "step_time_s"] *= 2
    found = parity(table).table
    assert found["step_time_error_pct"][slow].to_numpy() == pytest.approx(np.full(slow.sum(), -50))


def test_repeats_are_one_setting_with_their_median():
    table = runs(*MANY[:4])
    again = [table.assign(repeat=repeat) for repeat in (1, 2, 3)]
    again[1]["step_time_s"] *= 5
    again[2]["step_time_s"] /= 5
    found = parity(pd.concat(again, ignore_index=True))
    assert found.left_out == "setting"
    assert len(found.table) == 4
    assert found.table["step_time_error_pct"].to_numpy() == pytest.approx(np.zeros(4), abs=1e-6)


def test_all_out_of_memory():
    table = runs({"micro_batch_size": 8, "gpu_memory_gib": 2.0}, {"micro_batch_size": 4})
    table = table.assign(status="oom", step_time_s=math.nan, peak_allocated_gib=math.nan)
    found = parity(table).table
    assert found["ran"].tolist() == [False, False]
    assert found["fits"].tolist() == [False, True]
    assert found[["step_time_error_pct", "peak_allocated_error_pct"]].isna().all(axis=None)
    assert errors(found).loc["all", "step_time_settings"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_name": None, "device": "cpu"},
        {"gpu_name": "GTX 9"},
        {"status": "failed"},
        {"status": "interrupted"},
        {"model": None},
        {"micro_batch_size": None},
        {"strategy": None},
        {"experiment": "gpt2_zs0_probe_probe-bs8", "only": "probes"},
    ],
)
def test_runs_that_cannot_be_compared(change):
    table = runs({})
    if change.pop("only", None):
        change["experiment"] = f"x{module.PROBE}8"
    assert parity(table.assign(**change)) is None


def test_memory_without_a_trace_is_counted(monkeypatch):
    monkeypatch.setattr(module.traces, "kept", lambda experiments: [None] * len(experiments))
    found = parity(runs(*MANY))
    assert found.untraced == len(MANY)
    assert found.table["peak_allocated_error_pct"].isna().all()
    assert found.table["step_time_error_pct"].notna().all()


def test_traces_are_made_if_asked_and_torch_is_there(monkeypatch):
    monkeypatch.setattr(module.traces, "kept", lambda experiments: [None] * len(experiments))
    asked = []
    monkeypatch.setattr(
        module.traces, "attempts", lambda experiments: asked.extend(experiments) or [TRACE] * len(asked)
    )
    assert parity(runs(*MANY), trace=True).untraced == 0
    assert len(asked) == len(MANY)

    def missing(_):
        raise SettingsError("torch or transformers is missing")

    monkeypatch.setattr(module.traces, "attempts", missing)
    assert parity(runs(*MANY), trace=True).untraced == len(MANY)
