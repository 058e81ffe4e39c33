"""What torch reserves: the rules by hand, their fit, and what a setting without room for it is called."""

import json
import math

import pytest

import dsnb
from benchmarks import reserved_memory
from benchmarks.reserved_memory import Row
from dsnb.prediction import predict, reserved
from dsnb.prediction.reserved import RULES
from dsnb.results.answers import decide
from dsnb.results.answers.decide import Question
from dsnb.show.render.predictions import predicted_figures
from tests import ROOT
from tests.prediction.made_up import given, trace_nothing


def test_what_is_reserved_by_hand(monkeypatch):
    """FSDP on four GPUs: 10 % of 20 GiB, and 4 bytes for each of 1,315,758,080 / 4 parameters: 1.2254 GiB."""
    made_up = RULES["expandable"]["FSDP"]._replace(share=0.1, each=4.0)
    monkeypatch.setitem(RULES["expandable"], "FSDP", made_up)
    experiment = given(strategy="fsdp", gpus=4)
    assert reserved.rule(experiment).reserved_gib(experiment, 20.0) == pytest.approx(
        22 + 1.2254, abs=5e-5
    )
    monkeypatch.setitem(RULES["expandable"], "ZeRO 1", made_up._replace(share=0.0))
    split = given(zero_stage=1, gpus=4, tensor_parallel=2)
    assert reserved.rule(split).reserved_gib(split, 20.0) == pytest.approx(21.2254, abs=5e-5)
    assert (
        reserved.rule(given(zero_stage=1, compile="reduce-overhead")).expected.kind
        == "ZeRO 1, CUDA graphs"
    )
    assert (
        reserved.rule(given(zero_stage=2, compile="reduce-overhead")).expected.kind == "ZeRO 2"
    ), "too few of its own"
    assert reserved.rule(given(zero_stage=2, allocator="default")) == RULES["default"]["ZeRO 2"]


def test_a_share_and_bytes_a_parameter_are_found_again():
    made = [
        Row(f"m{place % 3}", 1.1 * gib + 2 * size, gib, size)
        for place, (gib, size) in enumerate(
            [(10.0, 1.0), (20.0, 1.0), (40.0, 3.0), (15.0, 0.5), (30.0, 2.0), (8.0, 4.0)]
        )
    ]
    assert reserved_memory.fitted(made) == pytest.approx((0.1, 2.0))
    assert reserved_memory.error(made).worst_pct == pytest.approx(0, abs=1e-9)
    falling = [row._replace(reserved=row.allocated) for row in made]
    assert reserved_memory.fitted(falling) == (0, 0), "never less than the tensors"


def test_the_documentation_has_the_rules():
    page = (ROOT / "docs" / "explanation" / "prediction_memory.md").read_text()
    for allocator, rules in RULES.items():
        for name, rule in rules.items():
            error = rule.expected.error
            row = (
                f"| {allocator} | {name} | {100 * rule.share:.1f} | {rule.each:.2f} | "
                f"{error.settings} | {error.mean_pct:.1f}"
            )
            assert f"{row} | {error.worst_pct:.1f} |" in page


def test_fsdp_of_a_7b_model_that_ran_at_half_its_speed_on_four_h100_is_tight(monkeypatch):
    """69.35 GiB of tensors, 77 of room and 77.6 reserved: 69.35 x 1.018 + 4.88 x 7.3e9 / 4 bytes are 78.9."""
    monkeypatch.setattr(reserved, "trained_parameters", lambda _: 7.3e9)
    accumulating, once = (
        given(strategy="fsdp", gpus=4, grad_accum=2),
        given(strategy="fsdp", gpus=4),
    )
    assert reserved.rule(accumulating).reserved_gib(accumulating, 69.35) > 77
    assert reserved.rule(once).reserved_gib(once, 61.9) < 77


@pytest.fixture
def tables(monkeypatch):
    """Return predictions of the same setting with 50 %, 2 % and too little room beyond its tensors."""
    trace_nothing(monkeypatch)
    need = dsnb.predict([given(zero_stage=1)], "H200")["peak_allocated_gib"][0]
    limits = (1.5 * need, 1.02 * need, 0.99 * need)
    return dsnb.predict(
        [given(zero_stage=1, memory_limit_gib=limit) for limit in limits], "H200", price=2
    )


def test_a_tight_setting_has_no_promised_speed(tables):
    assert list(tables["fits"]) == [True, True, False]
    assert list(tables["tight"]) == [False, True, False]
    roomy, tight, _ = tables.to_dict("records")
    assert tight["tokens_per_s"] == roomy["tokens_per_s"]
    assert math.isnan(tight["tokens_per_s_error_pct"])
    assert math.isnan(tight["days_high"])
    assert tight["days_low"] == tight["days"]
    assert tight["step_time_error_on"] == predict.TIGHT
    shown = predicted_figures(tables.set_index("experiment"))
    assert list(shown["fits"]) == ["yes", "tight", "no"]
    assert [text.split()[0] for text in shown["tokens/s"]][1] == "up"
    assert shown["days"].iloc[1].startswith("from ")
    assert json.loads(tables.to_json(orient="records"))[1]["tight"] is True


def candidates(**settings):
    import pandas as pd

    rows = [{"tokens_per_s": rate, "tight": tight} for rate, tight in settings.values()]
    common = {
        "gpus": 1,
        "kind": "H200",
        "is_unstable": False,
        "fits": True,
        "global_batch": 8,
        "basis": "predicted",
    }
    return pd.DataFrame(rows, index=list(settings)).assign(**common)


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        (
            {"full": (100, True), "close": (96, False), "slow": (50, False)},
            ["close", "slow", "full"],
        ),
        ({"full": (100, True), "far": (94, False)}, ["full", "far"]),  # 6.4 % more days
        ({"full": (100, True), "fuller": (99, True)}, ["full", "fuller"]),
        ({"roomy": (100, False), "full": (99, True)}, ["roomy", "full"]),
    ],
)
def test_a_tight_setting_is_never_first_while_another_within_5_pct_has_room(settings, order):
    assert list(decide.decide(candidates(**settings), Question(1e9)).options.index) == order
