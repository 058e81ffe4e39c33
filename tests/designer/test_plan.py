"""What a draft comes to: runs, refused combinations, predictions, time and cost, and how they are shown."""

import math
from pathlib import Path

import pandas as pd
import pytest

from dsnb.analysis.decide import OBJECTIVES
from dsnb.designer import markup
from dsnb.designer import plan as module
from dsnb.designer.draft import Draft
from dsnb.designer.gpu_prediction import predict_on
from dsnb.designer.plan import plan
from dsnb.designer.predicted import BEST
from dsnb.errors import SettingsError
from dsnb.settings.experiment import DEFAULTS, Experiment

SHARED = {"model": ["gpt2-tiny"], "device": ["cpu"], "precision": ["fp32"], "warmup_steps": [5], "steps": [20]}
AXES = {"zero_stage": [0, 1, 2], "strategy": ["deepspeed", "ddp"]}
REASON = (
    "zero_stage is {}, but strategy is 'ddp': DDP shards nothing; leave zero_stage at 0, or use strategy 'deepspeed'"
)


UNKNOWN = predict_on(str, "nvlink")


def planned(predict=UNKNOWN, start_s=0.0, leave_out_unfit=False, repeats=2, **settings):
    draft = Draft("x", "Why?", {**SHARED, **AXES, **settings}, repeats)
    return plan(draft, Path("params/x.yaml"), Path("outputs/x"), predict, start_s, leave_out_unfit)


def by_stage(step_time_s, fits=(True, True, True), memory=(3.0, 2.0, 1.0)):
    """Predict from the ZeRO stage."""

    def predict(experiments):
        return pd.DataFrame(
            {
                "experiment": [one.name for one in experiments],
                "fits": [fits[one.zero_stage] for one in experiments],
                "peak_allocated_gib": [memory[one.zero_stage] for one in experiments],
                "tokens_per_s": [1000.0 * (1 + one.zero_stage) for one in experiments],
                "step_time_s": [step_time_s[one.zero_stage] for one in experiments],
            }
        )

    return predict


def html_of(made, objective="time"):
    return markup.plan_html(made, 0.0, objective, "")


def test_runs_are_counted_and_refused_combinations_left_out():
    made = planned()
    assert made.refused == {REASON.format(n): [{"zero_stage": n, "strategy": "ddp"}] for n in (1, 2)}
    names = [f"{way}_fp32_gpus1_bs8_sl128" for way in ("ddp", "zs0", "zs1", "zs2")]
    assert sorted(run.name for run in made.sweep.runs) == sorted(names * 2)
    assert (made.problems, made.unsupported, made.unfit) == ([], [], [])
    text = html_of(made)
    assert "8 runs: 4 experiments x 2" in text
    assert "Refused and left out: 2 combinations" in text
    assert "<li>zero_stage 1, strategy ddp</li>" in text
    assert "Nothing is predicted: choose the GPU to predict for" in text


def test_every_combination_is_checked_once(monkeypatch):
    """Of a form over thousands of them, each takes its time; reading the params file back would check them again."""
    made = []
    monkeypatch.setattr(module, "Experiment", lambda **settings: made.append(settings) or Experiment(**settings))
    assert len(planned().sweep.runs) == 8
    assert len(made) == 6


def test_time_and_cost_by_hand():
    """25 steps of 2, 4 and 8 s (DDP like ZeRO 0), 10 s around them, two repeats, 2 ranks at 36 an hour."""
    made = planned(by_stage((2, 4, 8)), start_s=10, gpus=[2], price_per_gpu_hour=[36.0])
    seconds = 2 * (60 + 60 + 110 + 210)
    assert made.seconds == seconds == 880
    assert made.gpu_hours == pytest.approx(2 * seconds / 3600)
    assert made.cost == pytest.approx(36 * 2 * seconds / 3600) == 17.6
    text = markup.plan_html(made, 10.0, "time", "L4")
    assert "Predicted on L4: 15 min, 0.49 GPU-hours, cost 17.6, with 10 s to start and end each run." in text


def test_what_is_not_known_is_not_counted():
    made = planned(by_stage((2, math.nan, 8), fits=(True, None, False)))
    assert made.seconds == 2 * 2 * 50
    assert made.unknown_runs == 2 * 2
    assert "at least 3.3 min" in html_of(made)
    assert "4 runs of unknown time not counted" in html_of(made)


def test_what_does_not_fit_is_named_and_left_out_if_asked():
    predict = by_stage((1, 1, 1), fits=(True, False, True))
    made = planned(predict)
    assert made.unfit == ["zs1_fp32_gpus1_bs8_sl128"]
    assert len(made.sweep.runs) == 8
    left_out = planned(predict, leave_out_unfit=True)
    assert {run.name for run in made.sweep.runs} - {run.name for run in left_out.sweep.runs} == set(made.unfit)
    assert left_out.unfit == made.unfit
    assert "Predicted not to fit: 1" in html_of(left_out)
    assert "<details><summary>1 experiment</summary><ul><li>zs1_fp32" in html_of(left_out)
    nothing = planned(by_stage((1, 1, 1), fits=(False,) * 3), leave_out_unfit=True)
    assert nothing.problems == ["nothing is predicted to fit: change a setting"]


@pytest.mark.parametrize("objective", BEST)
def test_the_best_predicted_setting_is_one_that_fits(objective):
    made = planned(by_stage((1, 1, 1), fits=(True, True, False)))
    (best,) = made.best(objective).values()
    assert best["experiment"].startswith("zs1")
    assert planned().best(objective) == {}


def test_the_best_setting_is_named_for_each_task():
    """A longer sequence has more tokens/s here, and a smaller model needs less memory: these are other tasks."""
    made = planned(by_stage((1, 1, 1)), seq_len=[64, 128], model=["gpt2-tiny", "opt-125m"])
    titles = ["gpt2-tiny, sequence 64", "gpt2-tiny, sequence 128", "opt-125m, sequence 64", "opt-125m, sequence 128"]
    assert sorted(made.best("time")) == sorted(titles)
    assert all(title.split(",")[0] in row["experiment"] for title, row in made.best("memory").items())
    shown = html_of(made)
    assert all(f"<p>Predicted highest throughput of {title}: " in shown for title in titles)
    assert "<p>Predicted highest throughput: zs2" in html_of(planned(by_stage((1, 1, 1))))


def test_every_objective_has_a_name_and_a_figure():
    assert list(OBJECTIVES) == list(BEST) == list(markup.TITLES)


def test_the_objective_decides():
    made = planned(by_stage((1, 1, 1), memory=(1.0, 2.0, 3.0)))
    (fastest,), (smallest,) = (made.best(objective).values() for objective in ("time", "memory"))
    assert fastest["experiment"].startswith("zs2")
    assert smallest["experiment"].startswith(("zs0", "ddp"))
    assert "Predicted least memory: " in html_of(made, "memory")
    assert "(1,000 tokens/s, 1 GiB)" in html_of(made, "memory")


def test_figures_that_are_not_finite_are_unknown():
    made = planned(by_stage((1, math.inf, -math.inf), memory=(math.inf, 1.0, 1.0)))
    assert made.unknown_runs == 2 * 2
    assert "(3,000 tokens/s, 1 GiB)" in html_of(made)


def fails(experiments):
    raise KeyError("no such model")


def refuses(experiments):
    raise SettingsError("gpu is 'X': choose H100 or H200")


@pytest.mark.parametrize(
    ("predict", "note"),
    [
        (fails, "Nothing is predicted: KeyError: 'no such model'"),
        (refuses, "Nothing is predicted: gpu is 'X': choose H100 or H200"),
        (lambda _: pd.DataFrame({"fits": [True]}), "Nothing is predicted: 1 rows were returned for 4 experiments."),
        (lambda _: None, "Nothing is predicted: AttributeError: 'NoneType' object has no attribute 'reindex'"),
    ],
)
def test_a_prediction_that_fails_is_a_note(predict, note):
    made = planned(predict)
    assert made.note == note
    assert len(made.sweep.runs) == 8
    assert math.isnan(made.predicted["run_s"].max())


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"zero_stage": [1], "strategy": ["ddp"]}, "every combination is refused: change a setting"),
        ({"seed": list(range(2000))}, "grid: 24,000 runs: at most 10,000 are allowed; split the sweep"),
        ({"steps": [5, 6]},
         "two experiments are named 'zs0_fp32_gpus1_bs8_sl128': they differ only in steps; put each into its "
         "own sweep"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_a_sentence(settings, problem):
    made = planned(**settings)
    assert made.problems == [problem]
    assert made.sweep is None
    assert "This cannot be run" in html_of(made)


def test_a_name_that_is_no_folder():
    made = plan(Draft("../x", "", SHARED), Path("params/x.yaml"), Path("x"), UNKNOWN)
    assert made.problems == ["params file 'params/x.yaml': name is '../x': use letters, digits, '.', '_' and '-' only"]


def test_what_this_machine_cannot_run_is_said(monkeypatch):
    monkeypatch.setattr("dsnb.system.hardware.gpus", tuple)
    made = planned(device=["cuda"])
    assert made.unsupported == ["device is 'cuda': this machine has no usable NVIDIA GPU; use 'cpu' or 'auto'"]
    assert "This machine cannot run it" in html_of(made)


def test_names_of_several_models_and_equal_experiments():
    made = planned(by_stage((1, 1, 1)), model=["gpt2-tiny", "gpt2"], zero_stage=[0], gpus=["auto", 2])
    assert len(made.sweep.runs) == 2 * 4  # `auto` is 2 on a CPU
    assert set(made.predicted["experiment"]) == {run.name for run in made.sweep.runs}


def test_whatever_is_typed_is_escaped():
    made = planned(model=["<script>alert(1)</script>"])
    assert "<script>" not in html_of(made)
    assert "&lt;script&gt;" in html_of(made)
    assert markup.sentence("<b>") == '<p role="status">&lt;b&gt;</p>'


@pytest.mark.parametrize(
    ("seconds", "wanted"), [(0.4, "0.4 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (260_000, "3 days")]
)
def test_durations(seconds, wanted):
    assert markup.duration(seconds) == wanted


def test_every_setting_can_be_an_axis_of_one_value():
    """The form writes what it was given, whatever the setting."""
    defaults = {name: [value] for name, value in DEFAULTS.items() if value not in ({}, "")}
    made = plan(Draft("x", "", {**defaults, **SHARED}), Path("x.yaml"), Path("x"), UNKNOWN)
    assert made.problems == []
    assert made.sweep.runs[0].experiment == Experiment(**{name: values[0] for name, values in SHARED.items()})
