"""Ranges of predicted speeds: known answers, what they cover, and that no range exceeds the best that was measured."""

import math

import numpy as np
import pytest

import dsnb
from benchmarks import ranges
from dsnb.base.formulas import metrics
from dsnb.prediction import accuracy, nearest, predict, speed_range
from dsnb.prediction.gpus import Link, find
from dsnb.prediction.predict import Hardware, flops_per_token
from dsnb.prediction.speed_range import (
    BEST_MFU,
    COVERED,
    OTHERS,
    OWN,
    SpeedRange,
    half_width_pct,
    own_kinds,
    place_of,
)
from dsnb.prediction.step_time import StepTime
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import given, runs, trace_nothing

LLAMA = {"model": "llama-3.1-8b", "strategy": "fsdp", "seq_len": 4096, "device": "cuda"}


def test_half_widths_by_hand():
    """Of nine errors the eighth covers 80 % of ten; of one, Student's t of one degree covers the next."""
    logs = [0.01 * number * sign for number, sign in zip(range(1, 10), [1, -1] * 5, strict=False)]
    assert half_width_pct(logs) == round(100 * math.expm1(0.08), 1)
    assert half_width_pct([0.1]) == round(100 * math.expm1(3.078 * 0.1), 1)
    assert half_width_pct([0.1, -0.1]) == round(100 * math.expm1(1.886 * 0.1), 1)


def test_few_settings_make_wide_ranges():
    widths = [half_width_pct([0.1] * number) for number in (1, 2, 4, 8, 16)]
    assert widths == sorted(widths, reverse=True)


@pytest.mark.parametrize("number", [3, 8, 9, 40])
def test_ranges_cover_80_per_cent_of_settings_to_come(number):
    """Of normal errors; with many draws the share is known to about one per cent."""
    draws = np.random.default_rng(0).normal(0, 0.1, (4000, number + 1))
    covered = [abs(row[-1]) <= math.log1p(half_width_pct(row[:-1]) / 100) for row in draws]
    assert np.mean(covered) == pytest.approx(COVERED, abs=0.02)


def test_a_range_in_words_and_as_a_factor():
    assert SpeedRange(0.8, 1.05, "").words == "20 % slower to 5 % faster"
    assert SpeedRange(0.8, 1.05, "").error_pct == 25.0
    assert SpeedRange(0.84, 0.94, "").words == "6 to 16 % slower"


def test_a_range_ends_at_a_share_of_the_predicted_speed():
    assert SpeedRange(0.8, 1.2, "").at_most(1.1) == (0.8, 1.1, "")
    assert SpeedRange(0.8, 1.2, "").at_most(0.9) == (pytest.approx(0.72), 0.9, "")


def test_kinds_of_own_runs():
    llama = Experiment(**LLAMA)
    assert own_kinds(llama, "H100", by_cpu=False, nodes=1) == [
        "H100: llama, limited by the GPU",
        "H100: families left out of the fit, limited by the GPU",
        "H100: limited by the GPU",
        "H100: all",
    ]
    opt = Experiment(model="opt-1.3b", zero_stage=2, device="cuda")
    assert (
        own_kinds(opt, "H200", by_cpu=True, nodes=1)[0]
        == "H200: ZeRO 2, limited by the CPU, one GPU"
    )
    assert own_kinds(opt, "H200", by_cpu=True, nodes=2) == []
    offloaded = opt.model_copy(update={"offload": "optimizer-cpu"})
    assert own_kinds(offloaded, "A100", by_cpu=True, nodes=2) == ["offload to the CPU"]


def on(gpu, nodes=1, by_cpu=False, **settings):
    hardware = Hardware(find(gpu), Link(network_gb_per_s=50.0))
    experiment = Experiment(**{**LLAMA, **settings, "gpus": 8 * nodes})
    return hardware.speed_ranges(experiment, by_cpu)


def test_dsnb_s_own_runs_and_those_of_other_programs_are_told_apart():
    found = on("H200")
    own = found.printed
    assert found.own == own
    settings, width_pct = OWN["H200: llama, limited by the GPU"][:2]
    assert own == SpeedRange(1 / (1 + width_pct / 100), 1 + width_pct / 100, own.on)
    assert own.on == f"{settings} settings, H200: llama, limited by the GPU"
    rows, _, low_pct, high_pct = OTHERS["A100, one node"]
    assert on("A100").own is None
    found = on("A100").printed
    assert found == SpeedRange(1 + low_pct / 100, 1 + high_pct / 100, found.on)
    assert found.on == f"{rows} settings of other programs, A100, one node"
    assert "other programs, H100, several nodes" in on("H100", nodes=2).printed.on
    assert "other programs, other GPUs, one node" in on("RTX 5090").printed.on
    assert on("A100", offload="all-cpu", zero_stage=3, strategy="deepspeed").printed.on.endswith(
        "offload to the CPU"
    )


def test_where_many_projects_measured_the_range_spans_both_bases(monkeypatch):
    monkeypatch.setitem(speed_range.OTHERS, "H100, one node", [26, 3, -40.0, 1.0])
    found = on("H100")
    assert found.printed.low == found.others.low == 0.6
    assert found.printed.high == found.own.high > 1.01
    assert found.printed.on == f"{found.own.on}, and {found.others.on}"
    monkeypatch.setitem(speed_range.OTHERS, "H100, one node", [26, 2, -40.0, 1.0])
    assert on("H100").printed == found.own
    offloaded = on("H100", offload="all-cpu", zero_stage=3, strategy="deepspeed")
    assert offloaded.others is None


def test_ranges_of_gpus_without_a_row_are_wider():
    def width(name):
        _, _, low_pct, high_pct = OTHERS[name]
        return math.log((1 + high_pct / 100) / (1 + low_pct / 100))

    for place in ("one node", "several nodes"):
        assert width(f"other GPUs, {place}") > width(f"H100, {place}")
        assert width(f"other GPUs, {place}") > width(f"A100, {place}")


def test_calibrated_predictions_have_the_ranges_of_their_own_runs():
    plain = Hardware(find("H200"), Link())
    made = runs({}, {"micro_batch_size": 4}, {"model": "gpt2"})
    calibrated = plain.calibrated(made)
    found = calibrated.speed_ranges(given(), False).printed
    assert found.on == "3 settings, all"
    assert found.high == 1 / found.low == 1 + calibrated.errors[accuracy.ALL].mean_pct / 100


def test_ranges_cover_what_they_say_of_the_measured_runs():
    """The stated ranges, on all rows that they were computed from, and on either basis alone."""
    own = {name: row[:2] for name, row in OWN.items()}
    checked = [run for run in nearest.runs() if run.is_checked]
    of_dsnb = ranges.coverage([run for run in checked if run.is_own], own, OTHERS)
    assert of_dsnb.runs > 400
    assert 0.78 <= of_dsnb.share <= 0.92
    assert of_dsnb.median_pct <= 20
    others = [run for run in checked if not run.is_own]
    found = ranges.coverage(others, own, OTHERS)
    assert found.runs > 200
    assert 0.75 <= found.share <= 0.95
    assert found.median_pct <= 20
    new = [run for run in others if run.source not in ranges.PUBLISHERS.values()]
    assert 0.8 <= ranges.coverage(new, own, OTHERS).share <= 0.95


def test_coverage_by_hand():
    """Two of three are within -20 to +5 %; the larger side of that is 25 %."""
    found = ranges.coverage(
        [made_up(log, "A100", "one") for log in (-0.1, 0.0, 0.1)],
        {},
        {"A100, one node": (3, 1, -20.0, 5.0), "other GPUs, one node": (3, 1, -50.0, 50.0)},
    )
    assert found == (3, pytest.approx(2 / 3), pytest.approx(25))


def test_ranges_cover_80_per_cent_of_the_rows_of_sources_that_are_left_out():
    found = ranges.Others(nearest.runs())
    margin = found.margin()
    missed = []
    for row in np.flatnonzero(found.usual):
        known = found.sources != found.sources[row]
        if (known & found.usual & (found.gpus == found.gpus[row])).any():
            ends = found.ends(found.gpus[row], found.places[row], known)
            wider = margin * (ends[1] - ends[0])
            missed.append(not ends[0] - wider <= found.logs[row] <= ends[1] + wider)
    assert 0.79 <= 1 - np.mean(missed) <= 0.83


def test_the_stated_ranges_follow_from_the_measured_runs():
    measured_runs = nearest.runs()
    own = {name: row[:2] for name, row in OWN.items()}
    assert ranges.own_ranges(measured_runs) == own
    assert ranges.Others(measured_runs).ranges().keys() == OTHERS.keys()
    for name, row in ranges.Others(measured_runs).ranges().items():
        assert row == pytest.approx(tuple(OTHERS[name]), abs=0.11), name
    for name, row in ranges.best_mfu(measured_runs).items():
        assert row == tuple(BEST_MFU[name])


def made_up(log, gpu, source, nodes=1):
    """Return a published row whose speed is off by the logarithm `log`."""
    (run, *_) = [run for run in nearest.runs() if not run.is_own]
    speed = math.exp(log)
    return run._replace(gpu=gpu, source=source, nodes=nodes, tokens_per_s=speed, predicted=1.0, by_sheet=1.0,
                        traits={**run.traits, "offload": "no offload"})  # fmt: skip


def test_a_group_of_many_sources_has_the_quantiles_of_its_own_rows():
    """Twenty sources of one row each, from 0.00 to 0.19: the tenth and ninetieth percentiles, drawn to the pool's."""
    rows = [made_up(number / 100, "A100", f"source {number}") for number in range(20)]
    found = ranges.Others([*rows, made_up(-0.1, "H100", "one"), made_up(-0.2, "H100", "one")])
    low, high = found.ends("A100", "one node", np.ones(22, dtype=bool))
    assert low == pytest.approx(0.015, abs=0.01)
    assert high == pytest.approx(0.175, abs=0.01)
    alone = found.ends("H100", "one node", np.ones(22, dtype=bool))
    assert -0.2 < alone[0] < low
    assert alone[1] < high


def test_a_source_that_is_off_by_a_factor_of_two_has_no_part_in_ranges():
    rows = [made_up(number / 100, "A100", f"source {number}") for number in range(20)]
    slow = [made_up(-1.0, "A100", "slow") for _ in range(20)]
    every = np.ones(40, dtype=bool)
    found = ranges.Others([*rows, *slow]).ends("A100", "one node", every)
    assert found == pytest.approx(ranges.Others(rows).ends("A100", "one node", every[:20]))


@pytest.mark.parametrize("gpu", ["A100", "H100", "H200", "RTX 4090", "RTX 5090", "MI300X"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "opt-1.3b"])
def test_no_range_exceeds_the_best_mfu_ever_measured(gpu, model, monkeypatch):
    trace_nothing(monkeypatch)
    settings = [
        Experiment(model=model, gpus=8, seq_len=2048, micro_batch_size=size, compile=mode, zero_stage=stage,
                   strategy="deepspeed", precision="bf16", device="cuda")
        for size in (1, 16) for mode in ("off", "default") for stage in (1, 3)
    ]  # fmt: skip
    hardware = predict.on_gpu(gpu, "nvlink", probe=False)
    counts = [predict.count_step(one, hardware.gpu, hardware.link) for one in settings]
    table = predict.tabulated(settings, counts, [None] * len(settings), hardware, tokens=1e9)
    best = BEST_MFU.get(f"{gpu}, half", BEST_MFU["other GPUs, half"])[1]
    for one, row in zip(settings, table.to_dict("records"), strict=True):
        for column in ("tokens_per_s_high", "others_high"):
            tflops = metrics.tflops(flops_per_token(one), row[column] / one.gpus)
            assert math.isnan(tflops) or tflops / find(gpu).half_tflops <= best * 1.0001
        assert row["tokens_per_s_low"] < row["tokens_per_s"] <= row["tokens_per_s_high"]
        parts_s = sum(row[name] for name in StepTime.__dataclass_fields__)
        assert parts_s == pytest.approx(row["step_time_s"])


def test_days_and_speeds_have_the_same_range(monkeypatch):
    trace_nothing(monkeypatch)
    table = dsnb.predict([given(), given(micro_batch_size=4)], "A100", tokens=1e9)
    for row in table.to_dict("records"):
        assert row["days_low"] * row["tokens_per_s_high"] * 86400 == pytest.approx(1e9)
        assert row["days_high"] * row["tokens_per_s_low"] * 86400 == pytest.approx(1e9)
        ends = (
            row["tokens_per_s"] / row["tokens_per_s_low"],
            row["tokens_per_s_high"] / row["tokens_per_s"],
        )
        assert row["tokens_per_s_error_pct"] == pytest.approx(100 * (max(ends) - 1), abs=0.06)


def test_arithmetic_that_was_never_measured_has_no_best():
    fp8 = Experiment(**LLAMA, matmul="fp8", precision="bf16")
    assert speed_range.best_mfu("H100", fp8) == math.inf
    assert speed_range.best_mfu("B200", Experiment(**LLAMA)) == BEST_MFU["other GPUs, half"][1]
    assert place_of(1) == "one node"
