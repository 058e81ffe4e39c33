"""Settings that were not run: which they are, for which GPU they are predicted, what is left out and why."""

import pandas as pd
import pytest

import dsnb
from dsnb.analysis import parity as of_parity
from dsnb.analysis import unmeasured as module
from dsnb.analysis.unmeasured import check, unmeasured
from dsnb.errors import SettingsError
from tests.analysis.test_parity import runs
from tests.prediction.made_up import TRACE

PARAMS = """
name: asked
defaults: {model: opt-1.3b, precision: bf16, seq_len: 512, micro_batch_size: 8, gpus: auto}
grid: {zero_stage: [0, 1, 2, 3]}
"""


@pytest.fixture(autouse=True)
def traced(monkeypatch):
    """Give every model the same made-up trace, without torch."""
    monkeypatch.setattr(of_parity.traces, "attempts", lambda experiments, make=True: [TRACE] * len(experiments))


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
        "± is the mean error of such predictions.",
    )
    experiments = [dsnb.Experiment(**{**SETTINGS, "zero_stage": stage}) for stage in (2, 3)]
    for few in (runs({}, {"zero_stage": 1}), runs({}).assign(status="oom")):
        assert "fitted to dsnb's own runs on H200" in unmeasured(few, asked).notes[0]
    with pytest.MonkeyPatch.context() as patch:  # the same figures as without a page
        patch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments))
        table = dsnb.predict(experiments, "H200", calibrate=measured)
    for name in ("tokens_per_s", "step_time_s", "peak_allocated_gib"):
        assert found.table[name].tolist() == pytest.approx(table[name].tolist())
    assert found.table["tokens_per_s_error_pct"].tolist() == table["tokens_per_s_error_pct"].tolist()


SETTINGS = {
    "model": "opt-1.3b", "precision": "bf16", "seq_len": 512, "micro_batch_size": 8, "gpus": 1, "device": "cuda",
}  # fmt: skip


def test_only_a_run_that_has_ended_takes_its_setting_out(asked):
    for status, left in {"ok": 3, "failed": 3, "interrupted": 4}.items():
        table = pd.concat([runs({"micro_batch_size": 2}), runs({"zero_stage": 1}).assign(status=status)])
        assert len(unmeasured(table, asked).table) == left


def test_a_sweeps_folder_stands_for_its_own_params(asked, tmp_path):
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
    assert notes[2] == "Left out 2 settings: micro_batch_size is 'auto': a step time is predicted for a number."


@pytest.mark.parametrize(
    "table", [runs({}).assign(gpu_name=None), runs({}).assign(status="interrupted"), runs({}).iloc[:0]]
)
def test_runs_on_no_known_gpu_are_one_sentence(asked, table):
    for ask in (unmeasured, check):
        with pytest.raises(SettingsError, match="predict: no run has succeeded, or run out of") as caught:
            ask(table, asked)
        assert "\n" not in str(caught.value)


def test_without_torch_speed_is_predicted_and_memory_is_unknown(asked, monkeypatch):
    def missing(experiments, make=True):
        if make:
            raise SettingsError("torch or transformers is missing")
        return [None] * len(experiments)

    monkeypatch.setattr(of_parity.traces, "attempts", missing)
    monkeypatch.setattr(module, "can_trace", lambda: False)
    found = unmeasured(runs({}), asked)
    assert found.table["peak_allocated_gib"].isna().all()
    assert (found.table["tokens_per_s"] > 0).all()
    assert set(found.table["fits"]) == {None}
    why = "torch or transformers, with which models are traced, is missing"
    assert found.notes[-1] == f"The memory of 3 predicted settings is unknown: {why}."


def test_several_nodes_are_predicted_with_a_network_only(asked):
    experiment = dsnb.Experiment(**{**SETTINGS, "zero_stage": 2, "gpus": 16})
    assert "gpus is 16, on 2 nodes: say how these are connected" in unmeasured(runs({}), [experiment]).notes[0]
    found = {link: unmeasured(runs({}), [experiment], link).table for link in ("ib:100", "ib:400")}
    slow, fast = (table["tokens_per_s"].iloc[0] for table in found.values())
    assert slow < fast
    wide = runs({"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 3}).assign(gpus=16)
    assert "the 3 settings" in unmeasured(wide, [experiment], "ib:400").notes[0]
    assert "dsnb's own runs" in unmeasured(wide, [experiment.model_copy(update={"gpus": 8})]).notes[0]
    assert of_parity.parity(wide) is None
    assert of_parity.parity(wide, link="ib:400")["predicted_step_time_s"].notna().all()
    with pytest.raises(SettingsError, match="link is 'x'"):
        check(wide, [experiment], "x")
