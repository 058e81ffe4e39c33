"""The Pareto front and what one change costs, with figures that can be done in the head."""

import pandas as pd
import pytest

from dsnb.analysis.noise import beyond_noise
from dsnb.analysis.tradeoffs import effects, pareto_front
from dsnb.render import answer
from dsnb.run_folder.table_columns import RUN_COLUMNS as COLUMNS
from dsnb.runs import labels


def table(*rows):
    """Give runs: experiment, repeat, ZeRO stage, precision, tokens/s/GPU (None: out of memory), GiB."""
    made = []
    for experiment, repeat, stage, precision, rate, memory in rows:
        status = "ok" if rate else "oom"
        made.append(
            {"sweep": "s", "experiment": experiment, "repeat": repeat, "status": status, "zero_stage": stage,
             "precision": precision, "tokens_per_s_per_gpu": rate, "peak_allocated_gib": memory, "model": "m"}
        )  # fmt: skip
    return pd.DataFrame(made, columns=COLUMNS).astype({"tokens_per_s_per_gpu": float, "peak_allocated_gib": float})


RUNS = table(
    ("a", 1, 1, "bf16", 100, 10),
    ("a", 2, 1, "bf16", 104, 10),  # median 102, standard deviation 2.83
    ("b", 1, 3, "bf16", 50, 7),
    ("b", 2, 3, "bf16", 54, 7),  # 52: 49 % less
    ("c", 1, 0, "bf16", None, None),
    ("c", 2, 0, "bf16", None, None),
    ("d", 1, 1, "fp32", 99, 20),  # one run: nothing is known about noise
    ("e", 1, 3, "fp32", 20, 14),  # differs from a in two settings
)


def test_the_front_is_what_nothing_else_beats():
    speed = pd.Series({"slow": 1.0, "light": 2.0, "good": 5.0, "heavy": 5.0, "fast": 6.0, "unknown": float("nan")})
    memory = pd.Series({"slow": 3.0, "light": 1.0, "good": 2.0, "heavy": 4.0, "fast": 5.0, "unknown": 0.0})
    assert pareto_front(memory, speed, "lower", "higher") == ["light", "good", "fast"]
    assert pareto_front(memory, speed, "lower", "lower") == ["light", "slow"]
    assert pareto_front(speed, memory, "higher", "lower") == ["fast", "good", "light"]
    assert pareto_front(speed.head(0), memory.head(0), "lower", "higher") == []


def test_one_change_alone_is_compared_and_ordered_by_axis_and_value():
    found = effects(RUNS, "a", ["zero_stage", "precision"], ["tokens_per_s_per_gpu", "peak_allocated_gib"])
    assert list(found["experiment"]) == ["c", "b", "d"]
    assert list(zip(found["axis"], found["before"], found["after"], strict=True)) == [
        ("zero_stage", 1, 0),
        ("zero_stage", 1, 3),
        ("precision", "bf16", "fp32"),
    ]
    assert list(found["n"]) == [0, 2, 1]
    assert list(found["n_failed"]) == [2, 0, 0]
    changes = found["tokens_per_s_per_gpu_change"]
    assert changes.isna().tolist() == [True, False, False]
    assert changes[1] == pytest.approx(52 / 102 - 1)
    assert changes[2] == pytest.approx(99 / 102 - 1)
    assert found["peak_allocated_gib_change"][1] == pytest.approx(-0.3)
    assert found["tokens_per_s_per_gpu_beyond_noise"].tolist() == [None, True, None]


def test_noise_is_what_repeats_differ_by():
    assert beyond_noise(100, 110, 4, 5) is True
    assert beyond_noise(100, 109, 4, 5) is False
    assert beyond_noise(100, 91, 4, 5) is False
    assert beyond_noise(100, 200, float("nan"), 5) is None


def test_one_run_alone_says_nothing_about_noise_in_any_view():
    twins = table(("a", 1, 0, "bf16", 100, 7), ("b", 1, 1, "bf16", 100, 7), ("b", 2, 1, "bf16", 98, 7))
    (change,) = effects(twins, "a", ["zero_stage"], ["tokens_per_s_per_gpu"]).to_dict("records")
    assert change["tokens_per_s_per_gpu_beyond_noise"] is None
    text = answer.answer(twins).text
    assert "(noise unknown)" in text
    assert "as fast" not in text


def test_the_answer_says_what_each_axis_is_worth():
    text = answer.answer(RUNS).text
    minus = answer.MINUS
    assert f"<b>ZeRO stage</b> (1 in the fastest): at 0, none of 2 runs succeeded; at 3, {minus}49 % tokens/s" in text
    assert f"{minus}30 % memory" in text
    assert (
        f"<b>precision</b> (bf16 in the fastest): at fp32, {minus}2.9 % tokens/s (noise unknown), +100 % memory."
        in text
    )
    assert "2 of 8 runs are not ok: 2 oom." in text


def test_the_answer_hides_no_failed_repeat_and_no_missing_figure():
    rows = [("a", 1, 0, "bf16", 100, None), ("a", 2, 0, "bf16", 101, None), ("a", 3, 0, "bf16", None, None)]
    rows += [("b", 1, 1, "bf16", 95, 7), ("b", 2, 1, "bf16", None, None), ("b", 3, 1, "bf16", 95.5, 7)]
    text = answer.answer(table(*rows)).text
    assert "(median of 2 runs; 1 of 3 runs not ok)" in text
    assert "with 7.00 GiB of GPU memory, 5 % slower; 1 of 3 runs not ok." in text
    assert f"at 1, {answer.MINUS}5.2 % tokens/s (1 of 3 runs not ok)." in text
    assert "nan" not in text
    unknown = table(("a", 1, 0, "bf16", 100, 7)).assign(tokens_per_s_per_gpu=float("nan"))
    assert "No run measured speed, so the fastest setting is unknown." in answer.answer(unknown).text
    assert "The run succeeded." in answer.answer(unknown).text


def test_gpus_are_not_compared_as_if_they_were_settings():
    both = pd.concat(
        [
            RUNS.assign(gpu_name="H200"),
            RUNS.assign(gpu_name="A100", tokens_per_s_per_gpu=RUNS["tokens_per_s_per_gpu"] / 4),
        ]
    )
    both["experiment"] = both["gpu_name"] + "/" + both["experiment"]
    text = answer.answer(both).text
    assert text.count("Fastest: ") == 2
    assert f"{answer.MINUS}75 %" not in text


def test_models_are_not_compared_with_each_other():
    both = pd.concat([RUNS, RUNS.assign(model="<b>n", tokens_per_s_per_gpu=RUNS["tokens_per_s_per_gpu"] * 10)])
    both["experiment"] = both["model"] + "_" + both["experiment"]
    text = answer.answer(both).text
    assert text.count("Fastest: ") == 2
    assert "<h3>&lt;b&gt;n</h3>" in text
    assert "(m in" not in text


def test_what_goes_without_saying_is_not_mentioned():
    axis = labels.AXES["tensor_parallel"]
    assert [axis.describe_unusual(value) for value in (1, 2)] == ["", "TP 2"]
    assert labels.AXES["zero_stage"].describe_unusual(0) == "ZeRO 0"
