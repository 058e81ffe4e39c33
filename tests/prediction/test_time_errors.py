"""Errors on runs that were left out of the calibration, as the documentation and every prediction state them."""

from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from benchmarks import prediction_errors
from dsnb.prediction.constants import DEFAULT
from dsnb.prediction.measured import measured
from dsnb.prediction.step_time import stack, step_times
from dsnb.prediction.time_errors import (
    ALL,
    DEFAULT_ERRORS,
    ELSEWHERE,
    HOST_CONSTANTS,
    TimeError,
    by_kind,
    error_of,
    expected_error,
    kind,
    kinds,
    left_out,
    limited_by_cpu,
)
from dsnb.settings.experiment import Experiment
from tests import ROOT
from tests.prediction.made_up import TRACE


def runs(*settings):
    """Return made-up runs that take exactly as long as the default constants say."""
    common = {"gpu_name": "NVIDIA H200", "step_time_s": 1.0, "model": "opt-1.3b", "micro_batch_size": 8, "seq_len": 512}
    found = measured(pd.DataFrame([{**common, **one} for one in settings]))
    times = step_times([one.setting for one in found]).step_time_s
    return [replace(one, step_time_s=float(seconds)) for one, seconds in zip(found, times, strict=True)]


def assert_rounded_alike(found, printed):
    """Another machine's linear algebra may round the last digit to the other side."""
    assert found.keys() == printed.keys()
    for name, errors in found.items():
        assert vars(errors) == pytest.approx(vars(printed[name]), abs=0.11)


def test_the_stated_errors_are_those_of_settings_that_nothing_was_fitted_to():
    found, errors = prediction_errors.unseen()
    assert_rounded_alike(by_kind(found, errors), DEFAULT_ERRORS)
    fitted = {run.setting for run in prediction_errors.h200_runs(with_held_out=False)}
    assert not fitted & {run.setting for run in found}
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    assert "\n".join(prediction_errors.lines(DEFAULT_ERRORS)) in page


def test_an_error_is_stated_as_it_was_on_other_unseen_runs():
    """Each sweep's error beside what the other sweeps would have it: the documentation shows how far hosts differ."""
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    rows = [row.split(" | ") for row in prediction_errors.confirmed()]
    assert sum(int(row[1]) for row in rows) == DEFAULT_ERRORS[ALL].settings
    stated = next(part for part in page.split("\n\n") if part.startswith("| sweep |")).splitlines()[2:]
    for row, line in zip(rows, stated, strict=True):
        assert row[0] == line.split(" | ")[0]
        assert [float(cell.strip(" |")) for cell in row[1:]] == pytest.approx(
            [float(cell.strip(" |")) for cell in line.split(" | ")[1:5]], abs=0.11
        )


def test_published_tables_of_gpus_that_nothing_was_calibrated_on(monkeypatch):
    by_table, by_gpu_and_nodes = prediction_errors.elsewhere()
    assert_rounded_alike(by_gpu_and_nodes, ELSEWHERE)
    assert sum(one.settings for one in by_table.values()) == ELSEWHERE[ALL].settings
    page = (ROOT / "docs" / "explanation" / "prediction.md").read_text()
    for found in (by_table, by_gpu_and_nodes):
        assert "\n".join(prediction_errors.lines(found)) in page
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE for _ in experiments])
    one = Experiment(model="gpt2", precision="bf16", device="cuda")
    for gpu, gpus, link, name in [
        ("A100", 1, "nvlink", "A100, one node"),
        ("A100", 16, "ib:100", "A100, several nodes"),
        ("B200", 1, "nvlink", "one node"),
        ("MI250X", 1, "nvlink", "one node"),  # a single row tells too little
    ]:
        table = dsnb.predict([one.model_copy(update={"gpus": gpus})], gpu, link=link)
        assert table["step_time_error_on"].tolist() == [f"{ELSEWHERE[name].settings} settings, {name}"]
        assert table["tokens_per_s_error_pct"].tolist() == [ELSEWHERE[name].mean_pct]


def test_lambdas_runs_are_predicted_with_the_attention_that_they_had():
    by_table, _ = prediction_errors.elsewhere()
    assert by_table["lambda_1cc_opt"].worst_pct < 15  # with SDPA, OPT-350M is 33 % off
    assert set(dsnb.published("lambda_1cc_opt")["attention"]) == {"eager"}


def test_a_run_has_no_part_in_its_own_prediction():
    """A model that takes twice as long than the others foretell is predicted in half its time."""
    made = runs({}, {"micro_batch_size": 16}, {"model": "gpt2-xl"})
    made[2] = replace(made[2], step_time_s=2 * made[2].step_time_s)
    errors = left_out(made)
    assert errors[2] == pytest.approx(-50)
    assert errors[0] > 5  # predicted from the slow one


def test_runs_of_one_model_are_left_out_by_setting():
    made = runs({"micro_batch_size": 4}, {}, {"micro_batch_size": 16})
    made[1] = replace(made[1], step_time_s=2 * made[1].step_time_s)
    assert left_out([*made, made[1]])[1] == pytest.approx(-50)  # its repeat is left out with it


def test_errors_by_hand_are_factors():
    """Half and twice the measured time are both wrong by a factor of two."""
    assert error_of([-50, 100]) == TimeError(2, 100.0, 100.0, 0.0)
    assert error_of([25, -20, 25]) == TimeError(3, 25.0, 25.0, 7.7)  # the cube root of 1.25


SMALL = {"model": "gpt2", "micro_batch_size": 1, "seq_len": 128}


def test_errors_by_kind_by_hand():
    made = runs({"strategy": "ddp", "gpus": 2, "micro_batch_size": 64}, {"micro_batch_size": 64}, SMALL)
    assert by_kind(made, [25, -20, 100]) == {
        "DDP, limited by the GPU, several GPUs": TimeError(1, 25.0, 25.0, 25.0),
        "ZeRO 0, limited by the CPU, one GPU": TimeError(1, 100.0, 100.0, 100.0),
        "ZeRO 0, limited by the GPU, one GPU": TimeError(1, 25.0, 25.0, -20.0),
        "limited by the CPU, one GPU": TimeError(1, 100.0, 100.0, 100.0),
        "limited by the GPU, one GPU": TimeError(1, 25.0, 25.0, -20.0),
        "limited by the GPU, several GPUs": TimeError(1, 25.0, 25.0, 25.0),
        "limited by the CPU": TimeError(1, 100.0, 100.0, 100.0),
        "limited by the GPU": TimeError(2, 25.0, 25.0, 0.0),
        ALL: TimeError(3, 46.2, 100.0, 26.0),  # the cube roots of 1.25 * 1.25 * 2 and 1.25 / 1.25 * 2
    }


def test_the_cpu_limits_a_step_that_a_slower_host_would_lengthen():
    made = runs(SMALL, {"micro_batch_size": 64}, {"strategy": "plain", "compile": "reduce-overhead"})
    settings = stack([run.setting for run in made])
    assert list(limited_by_cpu(settings)) == [True, False, False]
    slow = replace(DEFAULT, **{name: 10 * getattr(DEFAULT, name) for name in HOST_CONSTANTS})
    assert list(limited_by_cpu(settings, slow)) == [True, True, False]  # CUDA graphs start nothing one by one


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"zero_stage": 3, "gpus": 2}, "ZeRO 3"),
        ({"zero_stage": 2, "offload": "optimizer-cpu"}, "offload to the CPU"),
        ({"zero_stage": 1, "tensor_parallel": 2, "gpus": 2}, "tensor and pipeline parallel"),
        ({"lora_rank": 8}, "LoRA"),
        ({"strategy": "plain"}, "plain loop"),
    ],
)
def test_kinds(settings, name):
    one = Experiment(**settings, device="cuda")
    assert kind(one) == name
    count = "one GPU" if one.gpus == 1 else "several GPUs"
    wider = [f"limited by the CPU, {count}", "limited by the CPU", ALL]
    assert list(kinds(one, True)) == ([name, ALL] if one.offload != "none" else [f"{name}, {wider[0]}", *wider])


def test_the_narrowest_kind_of_at_least_five_settings_counts():
    one = Experiment(strategy="plain", device="cuda")
    known = {name: TimeError(5 + place, 1.0, 1.0, 1.0) for place, name in enumerate(kinds(one, False))}
    assert expected_error(kinds(one, False), known)[0] == "plain loop, limited by the GPU, one GPU"
    known["plain loop, limited by the GPU, one GPU"] = TimeError(4, 1.0, 1.0, 1.0)
    assert expected_error(kinds(one, False), known)[0] == "limited by the GPU, one GPU"
    assert expected_error(kinds(one, True), {ALL: TimeError(1, 2.0, 2.0, 2.0)}) == (ALL, TimeError(1, 2.0, 2.0, 2.0))


def test_predictions_state_the_error_of_their_kind(monkeypatch):
    one = Experiment(**SMALL, zero_stage=3, device="cuda")
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE for _ in experiments])
    big = Experiment(model="opt-1.3b", micro_batch_size=64, seq_len=512, strategy="plain", device="cuda")
    table = dsnb.predict([one, big], "H200")
    names = ["ZeRO 3, limited by the CPU, one GPU", "plain loop, limited by the GPU, one GPU"]
    assert table["step_time_error_on"].tolist() == [
        f"{DEFAULT_ERRORS[name].settings} settings, {name}" for name in names
    ]
    assert table["limited_by"].tolist() == ["CPU", "GPU"]
    factors = 1 + table["tokens_per_s_error_pct"] / 100
    assert list(table["days"] / factors) == pytest.approx(list(table["days_low"]))
    assert list(table["days"] * factors) == pytest.approx(list(table["days_high"]))
