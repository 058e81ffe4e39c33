"""Forecasts: measured runs in place of predictions, and what is said of both."""

import math

import pandas as pd
import pytest

import dsnb
from dsnb.analysis import ratio_errors
from dsnb.analysis.decide import MEASURED, PREDICTED
from dsnb.analysis.recommend import forecast
from dsnb.errors import SettingsError
from dsnb.prediction import predict
from dsnb.render import plan_answer
from tests.prediction.made_up import TRACE

SETTINGS = {"model": "opt-1.3b", "precision": "bf16", "seq_len": 2048, "micro_batch_size": 8, "gpus": 8}
STAGES = {**SETTINGS, "zero_stage": [0, 1, 3]}
NAMES = [f"opt-1.3b_zs{stage}_bf16_gpus8_bs8_sl2048" for stage in (0, 1, 3)]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setattr(predict, "traces", lambda experiments: [TRACE] * len(experiments))


def measured(rate, stage=3, status="ok", gpu_name="NVIDIA H200", peak=30.0):
    figures = {"tokens_per_s": rate, "peak_allocated_gib": peak, "status": status, "gpu_name": gpu_name}
    return {**SETTINGS, "zero_stage": stage, "grad_accum_dtype": "auto", **figures}


def found(*runs):
    return forecast(STAGES, "H200", pd.DataFrame(runs), tokens=8e9 * 86.4, price=2.0)


def test_without_runs_everything_is_predicted():
    made = forecast(STAGES, "H200", tokens=1e9, price=2.0)
    rows = made.table.set_index("experiment")
    asked = dsnb.predict([dsnb.Experiment(**{**STAGES, "zero_stage": stage, "device": "cuda"}) for stage in (0, 1, 3)],
                         "H200", tokens=1e9, price=2.0)  # fmt: skip
    assert set(rows["basis"]) == {PREDICTED}
    assert list(rows["days"]) == sorted(asked["days"])
    for name in ("tokens_per_s", "tokens_per_s_error_pct", "cost"):
        assert rows.loc[NAMES, name].tolist() == asked[name].tolist()


def test_a_measured_setting_replaces_its_prediction():
    """1 million tokens/s: 691.2 billion tokens take 8 days, 1,536 GPU-hours, 3,072 in money."""
    made = found(measured(0.9e6, peak=29.0), measured(1.1e6, peak=31.0), measured(9e9, gpu_name="NVIDIA A100"))
    rows = made.table.set_index("experiment")
    row = rows.loc[NAMES[2]]
    assert (row["basis"], row["fits"], row["tokens_per_s"], row["peak_allocated_gib"]) == (MEASURED, True, 1e6, 30.0)
    assert (row["days"], row["gpu_hours"], row["cost"]) == pytest.approx((8, 1536, 3072))
    assert math.isnan(row["tokens_per_s_error_pct"])
    assert math.isnan(row["peak_allocated_error_pct"])
    assert set(rows["basis"][NAMES[:2]]) == {PREDICTED}
    said = str(plan_answer.forecast_answer(made, 8e9 * 86.4, "€"))
    assert f"Fewest days for 691.2 billion tokens: {NAMES[2]} (measured), 1,000,000 tokens/s, 8 days" in said
    assert "1,536 GPU-hours, €3,072, 30.0 GiB.</li>" in said


def test_runs_on_the_same_gpu_calibrate_the_other_settings():
    """Three settings, each half as fast as predicted, and a fourth that was not measured."""
    sizes = (2, 4, 8)
    asked = [dsnb.Experiment(**{**SETTINGS, "micro_batch_size": size, "device": "cuda"}) for size in sizes]
    rates = dsnb.predict(asked, "H200")["tokens_per_s"] / 2
    runs = [{**measured(rate, 0), "micro_batch_size": size} for size, rate in zip(sizes, rates, strict=True)]
    other = {**SETTINGS, "micro_batch_size": 16}
    few, enough = (forecast(other, "H200", pd.DataFrame(rows)) for rows in (runs[:2], runs))
    assert (few.calibrated_on, enough.calibrated_on) == (0, 3)
    assert enough.table["tokens_per_s"][0] < 0.7 * few.table["tokens_per_s"][0]
    assert "Predicted speeds follow from 3 measured settings on H200." in str(plan_answer.fits(enough))


def test_a_run_out_of_memory_beats_the_prediction_that_it_fits():
    made = found(measured(None, stage=0, status="oom", peak=None), measured(None, stage=1, status="failed"))
    last = made.table.iloc[-1]
    assert (last["experiment"], last["basis"], last["fits"]) == (NAMES[0], MEASURED, False)
    assert set(made.table["basis"][:-1]) == {PREDICTED}
    assert "2 of 3 settings fit on H200, which has 140 GiB (2 predicted)." in str(plan_answer.fits(made))
    assert NAMES[0] not in str(plan_answer.forecast_answer(made, 1e9))


def test_what_does_not_fit_and_what_is_refused_is_said():
    made = forecast({**STAGES, "strategy": ["deepspeed", "ddp"]}, "A10")
    said = str(plan_answer.fits(made))
    assert "of 4 settings fit on A10, which has 22 GiB" in said
    assert "The smallest that does not fit is " in said
    assert "Refused and left out: zero_stage is 1, but strategy is &#x27;ddp&#x27;: DDP shards nothing" in said
    nothing = forecast({**SETTINGS, "zero_stage": 0}, "T4")
    assert "(none)" in str(plan_answer.fits(nothing))
    said = str(plan_answer.forecast_answer(nothing, 1e9))
    assert "<li>No setting fits: the smallest, opt-1.3b_zs0_bf16_gpus8_bs8_sl2048, needs " in said
    assert "<li>Predicted to fit, the smallest change first: opt-1.3b_zs0_bf16_gpus8_bs8_sl2048 with " in said
    out = measured(None, stage=0, status="oom", peak=None)
    alone = forecast({**SETTINGS, "zero_stage": 0}, "H200", pd.DataFrame([out]))
    assert "those that were predicted to fit ran out of memory" in str(plan_answer.forecast_answer(alone, 1e9))
    with pytest.raises(SettingsError, match="it is a single process"):
        forecast({**SETTINGS, "strategy": "plain"}, "H200")


def test_how_sure_it_is_depends_on_what_was_measured():
    best = forecast(STAGES, "H200").table.iloc[0]
    rate, name = best["tokens_per_s"], best["experiment"]
    stage = int(name.split("_zs")[1][0])
    others = [other for other in (0, 1, 3) if other != stage]
    close = str(plan_answer.forecast_answer(found(measured(0.99 * rate, others[0])), 1e9))
    assert f"1.0 % slower, within the error of {best['tokens_per_s_error_pct']:.1f} %: run {name} to decide." in close
    both = found(measured(2 * rate, others[0]), measured(1.9 * rate, others[1]))
    assert "both were measured, and 20_compare says" in str(plan_answer.forecast_answer(both, 1e9))
    apart = str(plan_answer.forecast_answer(found(measured(2 * rate, others[0])), 1e9))
    assert "100.0 % slower, more than the error of" in apart
    predicted = str(plan_answer.forecast_answer(forecast(STAGES, "H200"), 1e9))
    of_strategies = ratio_errors.DEFAULT_RATIOS["that differ only in strategy"]
    assert ratio_errors.words("that differ only in strategy", of_strategies) in predicted
    unseen = forecast({**STAGES, "gpus": 512}, "H200", link="ib:400")
    assert "Less sure than that: " in str(plan_answer.forecast_answer(unseen, 1e9))


def test_the_table_tells_measured_from_predicted():
    text = str(plan_answer.forecast_table(found(measured(1e6)), "€"))
    assert "<td>measured</td>" in text.replace(' class="text"', "")
    assert "cost (€)" in text
    assert "error of tokens/s, days and cost (%)" in text
    assert "outside" not in text


def test_each_task_has_an_answer_of_its_own():
    """Two lengths, measured at 1 and 2 million tokens/s: neither is ranked behind the other."""
    runs = [measured(rate) | {"seq_len": length} for rate, length in ((1e6, 2048), (2e6, 1024))]
    made = forecast({**SETTINGS, "zero_stage": 3, "seq_len": [2048, 1024]}, "H200", pd.DataFrame(runs), tokens=8.64e10)
    assert list(made.table["task"]) == ["opt-1.3b, sequence 2048", "opt-1.3b, sequence 1024"]
    said = str(plan_answer.forecast_answer(made, 8.64e10))
    for title, days in (("sequence 2048", "1 day"), ("sequence 1024", "12 hours")):
        part = said.partition(f"<h3>opt-1.3b, {title}</h3>")[2].partition("<h3>")[0]
        assert f"tokens/s, {days}," in part
        assert "slower" not in part
    assert str(plan_answer.fits(made)).count("1 of 1 setting fit on") == 2
    assert str(plan_answer.forecast_table(made)).count("<h3>") == 2
    assert "<h3>" not in str(plan_answer.forecast_answer(found(measured(1e6)), 1e9))


def test_a_forecast_of_years_is_no_answer():
    """8 GPUs at 1 million tokens/s: 8.64e13 tokens take 1,000 days, 192,000 GPU-hours; 30 days need 266.7 GPUs."""
    made = forecast({**SETTINGS, "zero_stage": 3}, "H200", pd.DataFrame([measured(1e6)]), tokens=8.64e13, price=2.0)
    said = str(plan_answer.forecast_answer(made, 8.64e13))
    assert "No setting trains on 86.4 trillion tokens within 365 days on 8 GPUs. The fastest is " in said
    assert "30 days would need 267 GPUs if each sustained 125,000 tokens/s, an extrapolation" in said
    assert "At that rate, the training takes 192,000 GPU-hours, $384,000." in said
    assert "1,000 days" not in said


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"tokens": 0}, "tokens is 0: give a finite number of more than 0"),
        ({"tokens": "many"}, "tokens is 'many': give a finite number of more than 0"),
        ({"price": -1}, "price is -1: give a finite number of 0 or more"),
        ({"price": "2 €"}, "price is '2 €': give a finite number of 0 or more"),
        ({"settings": {**SETTINGS, "gpus": 0}}, "gpus is 0"),
        ({"settings": {**SETTINGS, "gpus": -1}}, "gpus is -1"),
        ({"settings": {**SETTINGS, "gpus": 1.5}}, "gpus is 1.5"),
        ({"settings": {**SETTINGS, "gpus": "two"}}, "gpus is 'two'"),
    ],
)
def test_what_cannot_be_forecast_is_said(given, problem):
    with pytest.raises(SettingsError) as caught:
        forecast(**{"settings": SETTINGS, "gpu": "H200", **given})
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
