"""What the form predicts by itself: for this machine's GPU, or the one that is chosen."""

import math
from types import SimpleNamespace

import pytest

import dsnb
from dsnb.designer import predicting
from dsnb.designer.gpu_prediction import this_gpu
from dsnb.errors import SettingsError
from dsnb.system import hardware
from tests.prediction.made_up import TRACE

SETTINGS = {"model": "opt-350m", "gpus": 1, "zero_stage": [0, 1, 3], "micro_batch_size": 8, "seq_len": 2048}


def no_loop():
    raise RuntimeError("no running event loop")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    """Predict while the form waits, whatever loop another test has left running in this thread."""
    monkeypatch.setattr(predicting, "asyncio", SimpleNamespace(get_running_loop=no_loop))


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments))


def form(tmp_path, **given):
    return dsnb.design(SETTINGS, name="x", folder=tmp_path / "params", outputs=tmp_path / "outputs", **given)


def has_gpu(name):
    return lambda: [hardware.Gpu(0, name, "GPU-0", 80.0, (9, 0))] if name else []


@pytest.mark.parametrize(("name", "known"), [("", ""), ("NVIDIA H200", "H200"), ("NVIDIA GeForce GT 710", "")])
def test_the_gpu_of_this_machine_is_taken_if_it_is_known(monkeypatch, name, known):
    monkeypatch.setattr(hardware, "gpus", has_gpu(name))
    assert this_gpu() == known


def test_without_a_gpu_one_is_to_be_chosen(monkeypatch, tmp_path, traced):
    monkeypatch.setattr(hardware, "gpus", has_gpu(""))
    made = form(tmp_path)
    assert "Nothing is predicted: choose the GPU to predict for" in made.plan_view.value
    made.form.gpu.value = "H200"
    assert "Predicted on H200: " in made.plan_view.value
    on_h200 = made.plan.seconds
    made.form.gpu.value = "A100"
    assert "Predicted on A100: " in made.plan_view.value
    assert made.plan.seconds > on_h200


def test_figures_are_those_of_predict_with_their_errors(tmp_path, traced):
    made = form(tmp_path, gpu="NVIDIA H200")
    experiments = [run.experiment for run in made.plan.sweep.runs if run.repeat == 1]
    wanted = dsnb.predict(experiments, "H200").sort_values("tokens_per_s").iloc[-1]
    assert made.plan.unknown_runs == 0
    assert made.plan.seconds == pytest.approx(4 * sum(25 * made.plan.predicted["step_time_s"] + 20))
    (best,) = made.plan.best("time").values()
    assert best["tokens_per_s"] == pytest.approx(wanted["tokens_per_s"])
    assert f"± {wanted['peak_allocated_error_pct']:.2g} %" in made.plan_view.value
    assert f"± {wanted['tokens_per_s_error_pct']:.2g} %" in made.plan_view.value


def test_what_does_not_fit_is_named_for_the_chosen_gpu(tmp_path, traced):
    made = form(tmp_path, gpu="T4")
    assert sorted(made.plan.unfit) == sorted(made.plan.predicted["experiment"])
    made.form.gpu.value = "H200"
    assert made.plan.unfit == []


def test_what_cannot_be_predicted_is_left_open_beside_what_can(tmp_path, traced):
    made = form(tmp_path, gpu="H200")
    made.form.rows["model"].field.value = "opt-350m, someone/a-model"
    known = made.plan.predicted["step_time_s"].notna()
    assert list(made.plan.predicted["experiment"].str.startswith("opt-350m")) == list(known)
    assert made.plan.predicted["fits"].isna().sum() == 3
    assert "12 runs of unknown time not counted" in made.plan_view.value
    made.form.rows["model"].field.value = "someone/a-model"
    assert "Nothing is predicted: model is &#x27;someone/a-model&#x27;: a prediction needs" in made.plan_view.value
    assert math.isnan(made.plan.predicted["step_time_s"].max())


def test_an_own_prediction_has_no_gpu_to_choose(tmp_path):
    asked = []
    made = form(tmp_path, predict=asked.append)
    assert asked
    assert made.form.gpu not in made.form.box.children
    assert made.form.gpu.value == ""


@pytest.mark.parametrize("given", [{"gpu": "H900"}, {"link": "string"}])
def test_unknown_gpus_and_links_are_refused(tmp_path, given):
    with pytest.raises(SettingsError, match=next(iter(given.values()))):
        form(tmp_path, **given)
