"""Recommendations on several kinds of GPUs: the figures of each, the best first, prices by GPU."""

from dataclasses import replace

import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction.by_gpu import compared
from dsnb.prediction.target import Budget
from tests.cli.test_app import dsnb as command
from tests.prediction.made_up import trace_nothing

FEW = {"strategy": "deepspeed", "zero_stage": 1, "compile": "off", "offload": "none"}
ASKED = {"gpus": 8, "tokens": 1e9, "global_batch": 64, "settings": FEW}


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def rows(answer):
    """Return the cells of each GPU by its name."""
    return {one.cells[0]: one.cells[1:] for one in answer.lines if one.role == "gpu"}


def test_the_figures_of_a_gpu_are_those_of_its_own_recommendation():
    prices = {"H100": 2.5, "a100": 1.6}
    both = dsnb.recommend("opt-1.3b", ["A100", "H100"], price=prices, **ASKED)
    assert both.table["gpu"].tolist() == ["H100", "A100"]
    for name, price in prices.items():
        alone = dsnb.recommend("opt-1.3b", name, price=price, **ASKED)
        lines = {one.role: one.cells for one in alone.lines}
        time, times, cost, memory, _ = rows(both)[f"8 {name.upper()}"]
        assert (time, times) == lines["time"][1:3]
        assert f", {cost} at ${price:.2f}" in lines["time"][3]
        assert memory == lines["memory"][1]


def test_the_fastest_and_the_cheapest_are_named_and_the_objective_orders():
    prices = {"": 1.0, "H100": 9.0}
    for objective, first in (("days", "8 H100"), ("cost", "8 A100")):
        found = dsnb.recommend(
            "opt-1.3b", ["A100", "H100"], price=prices, objective=objective, **ASKED
        )
        shown = rows(found)
        assert next(iter(shown)) == first
        assert found.table["worse_pct"].iloc[0] == 0 < found.table["worse_pct"].iloc[1]
        assert shown["8 H100"][-1].endswith(", fastest")
        assert shown["8 A100"][-1].endswith(", cheapest")


def test_a_gpu_whose_memory_is_too_small_is_named_with_the_number_that_fits():
    found = dsnb.recommend("opt-1.3b", ["3080", "H100"], **ASKED | {"gpus": 1})
    assert [*rows(found)] == ["1 H100"]
    (unfit,) = [one.cells[0] for one in found.lines if one.role == "note"]
    assert unfit.startswith("Does not fit on 1 RTX 3080. The smallest power of two")


def test_gpus_without_any_measured_run_are_named():
    found = dsnb.recommend("opt-1.3b", ["L4", "H100"], **ASKED)
    assert found.lines[-1].cells[0].endswith("Nothing was measured on L4.")
    known = dsnb.recommend("opt-1.3b", ["A100", "H100"], **ASKED)
    assert "Nothing was measured" not in known.lines[-1].cells[0]
    assert all(cells[2].endswith(" GPU-hours") for cells in rows(known).values())


def test_a_price_of_another_gpu_is_refused():
    with pytest.raises(SettingsError, match="price has A100, but the GPUs are H100"):
        dsnb.recommend("opt-1.3b", "H100", price={"A100": 1.0}, **ASKED)


def test_runs_are_not_measured_on_several_gpus():
    with pytest.raises(SettingsError, match="leave out the other GPUs"):
        dsnb.recommend("opt-1.3b", ["A100", "H100"], measure=3, **ASKED)


def test_the_command_compares_gpus(monkeypatch, tmp_path):
    settings = [word for name, value in FEW.items() for word in ("--set", f"{name}={value}")]
    asked = ["recommend", "opt-1.3b", "--gpus", "8", "--gpu", "A100", "--gpu", "H100", *settings]
    code, out, _ = command(monkeypatch, *asked, "--price", "H100=2.5", "--price", "1.6")
    assert code == 0
    title, first, second, *_ = out.splitlines()
    assert title.startswith("opt-1.3b on 8 GPUs: ")
    assert first.startswith("8 H100  ")
    assert second.startswith("8 A100  ")
    code, _, err = command(monkeypatch, *asked, "--write", str(tmp_path / "plan"))
    assert code
    assert "write is for one GPU" in err
    code, _, err = command(monkeypatch, *asked, "--price", "H100=much")
    assert code
    assert "write a price such as 2.50, or H100=2.50" in err


def test_tight_memory_promises_no_time_and_comes_last():
    firsts = dsnb.recommend("opt-1.3b", "A100", price=1.0, **ASKED)
    tight = replace(firsts, table=firsts.table.assign(tight=True, days=0.1))
    room = dsnb.recommend("opt-1.3b", "H100", price=1.0, **ASKED)
    found = compared({"A100": tight, "H100": room}, Budget(1e9, 1.0), 8)
    second = rows(found)["8 A100"]
    assert [*rows(found)] == ["8 H100", "8 A100"]
    assert second[0] == "≥ 2.4 hours"
    assert second[1] == ""
    assert second[2].startswith("≥ $")
    assert second[-1].endswith("memory is tight")


def test_gpus_whose_difference_does_not_matter_are_equally_fast():
    one = dsnb.recommend("opt-1.3b", "H100", **ASKED)
    for factor, is_equal in ((1.01, True), (1.1, False)):
        slower = replace(one, table=one.table.assign(days=factor * one.table["days"]))
        found = compared({"H100": one, "H200": slower}, Budget(1e9), 8)
        remarks = [cells[-1] for cells in rows(found).values()]
        assert remarks[0].endswith(", fastest")
        assert remarks[1].endswith(", fastest") == is_equal
