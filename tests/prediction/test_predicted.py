"""Predictions beside runs: known answers, what the section of a report says, and settings that were not run."""

import html
import itertools
import math
import re

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction import predicted as module
from dsnb.prediction.calibration import measured
from dsnb.prediction.memory import peak_memory
from dsnb.prediction.predicted import check, errors, parity, unmeasured
from dsnb.prediction.step_time import step_times
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.columns import FORMER_FIGURES
from dsnb.settings.records.paths import PROBE
from dsnb.show.render import comparison
from tests.prediction.made_up import TRACE, given

COMMON = {
    "sweep": "s", "repeat": 1, "status": "ok", "gpu_name": "NVIDIA H200", "gpu_memory_gib": 139.8, "timed_steps": 20,
    "model": "opt-1.3b", "strategy": "deepspeed", "precision": "bf16", "gpus": 1, "micro_batch_size": 8, "seq_len": 512,
    "device": "cuda", "compile": "off", "data": "synthetic",
}  # fmt: skip
MANY = [
    {"model": model, "zero_stage": stage, "micro_batch_size": size}
    for model, stage, size in itertools.product(["opt-1.3b", "gpt2-xl"], [0, 1, 3], [4, 8])
]


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Give every model the same made-up trace, without torch."""
    monkeypatch.setattr(
        module.traces, "attempts", lambda experiments, make=True: [TRACE] * len(experiments)
    )


def runs(*settings):
    """Return made-up runs that are as fast and as large as they are predicted to be."""
    rows = [{**COMMON, "step_time_mean_s": 1.0, **one} for one in settings]
    rows = [{"experiment": Experiment.of_row(row).name_with_model, **row} for row in rows]
    times = step_times([one.counts for one in measured(pd.DataFrame(rows))]).step_time_s
    peaks = [peak_memory(Experiment.of_row(row), TRACE).gib for row in rows]
    return pd.DataFrame(rows).assign(step_time_mean_s=times, peak_allocated_gib=peaks)


def text(parts):
    return html.unescape(
        re.sub(r"\s*<[^>]+>\s*", " ", " ".join(part._repr_html_() for part in parts))
    )


def test_ten_per_cent_are_ten_per_cent():
    table = runs(*MANY)
    table.loc[0, "step_time_mean_s"] /= 1.1  # predicted 10 % too slow
    table.loc[1, "peak_allocated_gib"] /= 0.9  # predicted 10 % too small
    found = parity(table)
    assert found["step_time_error_pct"][0] == pytest.approx(10)
    assert found["peak_allocated_error_pct"][1] == pytest.approx(-10)
    row = errors(found).loc["ZeRO 0"]
    assert row["peak_allocated_mean_pct"] == pytest.approx(10 / 4)
    assert row["peak_allocated_worst_pct"] == pytest.approx(10)
    assert row["peak_allocated_bias_pct"] == pytest.approx(-10 / 4)
    parts = comparison.with_predictions(table)
    said = text(parts)
    words = "peaks of allocated memory are predicted with a mean error of 0.8 % and at worst 10.0 % (12 settings)."
    assert words in said
    assert "Each step time is predicted without the runs of the same model" in said
    assert "not traced" not in said
    assert "at worst 10.0 % (12 settings)" in parts[2].description
    assert parts[2].svg.count("ZeRO 3") == 1  # in the legend


def test_the_runs_of_a_model_have_no_part_in_their_own_predictions():
    table = runs(*MANY)
    slow = table["model"] == "gpt2-xl"
    table.loc[slow, "step_time_mean_s"] *= 2
    assert parity(table)["step_time_error_pct"][slow].to_numpy() == pytest.approx(
        np.full(slow.sum(), -50)
    )


def test_repeats_are_one_setting_with_their_median():
    table = runs(*MANY[:4])
    again = [table.assign(repeat=repeat) for repeat in (1, 2, 3)]
    again[1]["step_time_mean_s"] *= 5
    again[2]["step_time_mean_s"] /= 5
    both = pd.concat(again, ignore_index=True)
    assert parity(both)["step_time_error_pct"].to_numpy() == pytest.approx(np.zeros(4), abs=1e-6)
    assert "without the runs of the same setting" in text(comparison.with_predictions(both))


def test_out_of_memory():
    table = runs(
        {"gpu_memory_gib": 2.0},
        {"micro_batch_size": 4},
        {"micro_batch_size": 2, "gpu_memory_gib": 1.0},
    )
    table = table.assign(status="oom", step_time_mean_s=math.nan, peak_allocated_gib=math.nan)
    found = parity(table)
    assert found["ran"].tolist() == [False] * 3
    assert found["fits"].tolist() == [False, True, False]
    assert found[["step_time_error_pct", "peak_allocated_error_pct"]].isna().all(axis=None)
    assert errors(found).loc["all", "step_time_settings"] == 0
    (only,) = comparison.with_predictions(table)
    assert "Predicted not to fit: 2 of 3 settings that ran out of memory." in text([only])
    both = pd.concat([runs({}), table.iloc[:1].assign(micro_batch_size=64, experiment="other")])
    said = text(comparison.with_predictions(both))
    assert "Predicted not to fit: 1 of 1 setting that ran out of memory, 0 of 1 that ran." in said
    assert "fitted to the other settings here on the same GPU, if there are any" in said


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_name": None, "device": "cpu"}, {"gpu_name": "GTX 9"}, {"status": "failed"}, {"status": "interrupted"},
        {"model": None}, {"micro_batch_size": None}, {"strategy": None}, {"experiment": f"x{PROBE}8"},
        {"zero_stage": None}, {"grad_accum": None}, {"activation_checkpointing": None},
    ],
)  # fmt: skip
def test_runs_that_cannot_be_compared(change):
    table = runs({}).assign(**change)
    assert parity(table) is None
    assert comparison.with_predictions(table) == []


def test_a_strategy_without_zero_needs_no_stage():
    table = runs({"strategy": "plain"}).assign(zero_stage=None)
    assert parity(table)["kind"].tolist() == ["plain loop"]


def test_memory_without_a_trace_is_counted(monkeypatch):
    monkeypatch.setattr(
        module.traces, "attempts", lambda experiments, make: [None] * len(experiments)
    )
    found = parity(runs(*MANY))
    assert found["peak_allocated_error_pct"].isna().all()
    assert found["step_time_error_pct"].notna().all()
    said = text(comparison.with_predictions(runs(*MANY)))
    assert (
        "The memory of 12 settings is not predicted: this machine has no trace of the model."
        in said
    )
    assert "memory: settings" not in said
    monkeypatch.setattr(module, "MAX_SETTINGS", 5)
    assert len(parity(runs(*MANY))) == 5


PARAMS = """
name: asked
defaults: {model: opt-1.3b, precision: bf16, seq_len: 512, micro_batch_size: 8, gpus: auto}
grid: {zero_stage: [0, 1, 2, 3]}
"""


@pytest.fixture
def asked(tmp_path):
    (tmp_path / "asked.yaml").write_text(PARAMS)
    return tmp_path / "asked.yaml"


def test_what_was_not_run_is_predicted_on_the_gpu_of_the_runs(asked):
    measured = runs({"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 1, "micro_batch_size": 4})
    found = unmeasured(measured, asked)
    assert [name.split("_")[1] for name in found.table["experiment"]] == ["zs2", "zs3"]
    assert set(found.table["gpu_name"]) == {"NVIDIA H200"}
    assert set(found.table["gpus"]) == {1}  # auto, as in the runs
    assert found.notes == (
        "Predicted for NVIDIA H200, with a time model that is fitted to the 3 settings that were measured on it here. "
        "Ranges of speed cover 80 % of such predictions; ± is the mean error of memory.",
    )
    experiments = [dsnb.Experiment(**{**SETTINGS, "zero_stage": stage}) for stage in (2, 3)]
    for few in (runs({}, {"zero_stage": 1}), runs({}).assign(status="oom")):
        assert "fitted to dsnb's own runs on H200" in unmeasured(few, asked).notes[0]
    with pytest.MonkeyPatch.context() as patch:  # the same figures as without a page
        patch.setattr(
            "dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments)
        )
        table = dsnb.predict(experiments, "H200", calibrate=measured).rename(columns=FORMER_FIGURES)
    for name in ("tokens_per_s", "step_time_mean_s", "peak_allocated_gib"):
        assert found.table[name].tolist() == pytest.approx(table[name].tolist())
    assert (
        found.table["tokens_per_s_error_pct"].tolist() == table["tokens_per_s_error_pct"].tolist()
    )


SETTINGS = {
    "model": "opt-1.3b", "precision": "bf16", "seq_len": 512, "micro_batch_size": 8, "gpus": 1, "device": "cuda",
}  # fmt: skip


def test_whose_settings_are_left_to_predict(asked, tmp_path):
    """Only a run that has ended takes its setting out; a sweep's folder stands for its own params."""
    for status, left in {"ok": 3, "failed": 3, "interrupted": 4}.items():
        measured_before = runs({"zero_stage": 0, "micro_batch_size": 2})
        table = pd.concat([measured_before, runs({"zero_stage": 1}).assign(status=status)])
        assert len(unmeasured(table, asked).table) == left
    (tmp_path / "params.yaml").write_text(PARAMS)
    assert len(unmeasured(runs({}), tmp_path).table) == 3
    assert len(unmeasured(runs({}), [tmp_path, asked, str(asked)]).table) == 3  # each setting once
    experiment = dsnb.Experiment(**{**SETTINGS, "zero_stage": 3, "grad_accum": 4})
    assert len(unmeasured(runs({}), [asked, experiment]).table) == 4


def test_what_is_refused_or_cannot_be_predicted_is_said(asked):
    asked.write_text(
        PARAMS
        + "include: [{strategy: plain, gpus: 2}, {micro_batch_size: auto}, {micro_batch_size: auto, zero_stage: 1}]"
    )
    notes = unmeasured(runs({}), asked).notes
    assert notes[1].startswith("Left out 1 setting: gpus is 2, but strategy is 'plain'")
    assert notes[2].startswith(
        "Left out 2 settings: micro_batch_size is 'auto': give a whole number; "
    )


def test_without_torch_speed_is_predicted_and_memory_is_unknown(asked, monkeypatch):
    def missing(experiments, make=True):
        if make:
            raise SettingsError("torch or transformers is missing")
        return [None] * len(experiments)

    monkeypatch.setattr(module.traces, "attempts", missing)
    monkeypatch.setattr(module, "can_trace", lambda: False)
    found = unmeasured(runs({}), asked)
    assert found.table["peak_allocated_gib"].isna().all()
    assert (found.table["tokens_per_s"] > 0).all()
    assert set(found.table["fits"]) == {None}
    why = "torch or transformers, with which models are traced, is missing"
    assert found.notes[-1] == f"The memory of 3 predicted settings is unknown: {why}."


def test_several_nodes_are_predicted_with_a_network_only(asked):
    experiment = dsnb.Experiment(**{**SETTINGS, "zero_stage": 2, "gpus": 16})
    assert (
        "gpus is 16, on 2 nodes: say how these are connected"
        in unmeasured(runs({}), [experiment]).notes[0]
    )
    found = {link: unmeasured(runs({}), [experiment], link).table for link in ("ib:100", "ib:400")}
    slow, fast = (table["tokens_per_s"].iloc[0] for table in found.values())
    assert slow < fast
    wide = runs({"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 3}).assign(gpus=16)
    assert "the 3 settings" in unmeasured(wide, [experiment], "ib:400").notes[0]
    assert (
        "dsnb's own runs" in unmeasured(wide, [experiment.model_copy(update={"gpus": 8})]).notes[0]
    )
    assert parity(wide) is None
    assert parity(wide, link="ib:400")["predicted_step_time_mean_s"].notna().all()
    with pytest.raises(SettingsError, match="link is 'x'"):
        check(wide, [experiment], "x")


def test_settings_without_rules_and_models_that_are_not_here_have_no_rules_for_memory():
    for settings in (
        {"zero_stage": 3, "gpus": 2, "zeropp": "weights"},
        {"zero_stage": 3, "deepspeed": {"zero_optimization": {"sub_group_size": 1000}}},
        {"model": "someone/model"},
    ):
        assert not module.is_covered(given(**settings))
    assert module.is_covered(given())
    assert module.is_covered(
        given(zero_stage=3, deepspeed={"zero_optimization": {"reduce_bucket_size": 1000}})
    )


def test_a_setting_that_ran_once_out_of_two_times_has_run():
    table = pd.concat([runs({}).assign(status="oom", step_time_mean_s=math.nan), runs({})])
    (row,) = parity(table.assign(repeat=[1, 2])).to_dict("records")
    assert row["ran"]
    assert row["step_time_error_pct"] == pytest.approx(0, abs=1e-6)


def test_sweeps_are_compared_apart():
    both = pd.concat([runs({}), runs({}).assign(sweep="other")])
    assert len(parity(both)) == 2


def test_predictions_are_for_the_gpu_of_most_settings_and_auto_is_its_most_gpus(asked):
    small = {"zero_stage": 3, "micro_batch_size": 2}
    on_h100 = runs(small).assign(gpu_name="NVIDIA H100")
    on_h200 = runs({**small, "gpus": 2}, {**small, "gpus": 4})
    table = unmeasured(pd.concat([on_h100, on_h200]), asked).table
    assert set(table["gpu_name"]) == {"NVIDIA H200"}
    assert set(table["gpus"]) == {4}
    assert table["tokens_per_s_per_gpu"].tolist() == (table["tokens_per_s"] / 4).tolist()


def test_files_on_nvme_have_no_rules_for_memory(tmp_path):
    nvme = {"zero_stage": 3, "nvme_path": str(tmp_path)}
    assert not module.is_covered(given(**nvme, offload="optimizer-nvme"))
    assert module.is_covered(given(zero_stage=3, offload="optimizer-cpu"))
