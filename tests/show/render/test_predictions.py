"""Predicted figures as they are read: units, errors, and bounds where memory is tight."""

import pandas as pd

from dsnb.show.render.predictions import predicted_figures

PREDICTED = {
    "fits": True, "peak_allocated_gib": 12.34, "peak_allocated_error_pct": 2.5, "tokens_per_s": 1234.0,
    "tokens_per_s_error_pct": 1.0, "tokens_per_s_low": 1175.0, "tokens_per_s_high": 1300.0,
    "step_time_s": 0.25, "mfu": 0.375, "days_low": 2.0, "days_high": 3.0, "cost": 12.0,
}  # fmt: skip


def shown(**changes):
    table = predicted_figures(pd.DataFrame([{**PREDICTED, **changes}]), currency="€")
    return table.iloc[0].to_dict()


def test_figures_have_the_units_of_their_headings():
    texts = {
        "fits": "yes", "GiB": "12.3 ± 2.5 %", "tokens/s": "1,234 (1,170 to 1,300)", "ms a step": "250", "MFU": "38%",
        "days": "2.0 to 3.0", "cost": "€12",
    }  # fmt: skip
    assert shown().items() >= texts.items()


def test_a_tight_setting_has_bounds_alone():
    texts = {
        "fits": "tight", "tokens/s": "up to 1,234", "ms a step": "from 250", "days": "from 2",
        "cost": "from €12",
    }  # fmt: skip
    assert shown(tight=True).items() >= texts.items()
    assert shown(fits=False)["fits"] == "no"
    assert shown(fits=None)["fits"] == "unknown"


def test_each_memory_has_its_own_error():
    reserved = {"peak_reserved_gib": 20.0, "peak_reserved_error_pct": 7.5}
    host = {"host_memory_gib": 30.0, "host_memory_error_pct": 1.25}
    texts = shown(**reserved, **host)
    assert (texts["GiB"], texts["reserved"], texts["host GiB"]) == (
        "12.3 ± 2.5 %",
        "20.0 ± 7.5 %",
        "30 ± 1.2 %",
    )
