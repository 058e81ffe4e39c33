"""The settings for eight GPUs of one host are predicted before they run, and their table is right."""

import math

import pandas as pd

from benchmarks import eight_gpus


def test_each_setting_was_predicted_for_each_gpu():
    names = sorted(one.name_with_model for one in eight_gpus.experiments())
    before = pd.read_csv(eight_gpus.PREDICTED)
    assert len(names) == 41
    for gpu in eight_gpus.GPUS:
        assert sorted(before[before["gpu"] == gpu]["experiment"]) == names


def test_the_table_has_medians_beside_predictions_and_the_share_of_ideal_scaling():
    """8 GPUs with 7.6 times the speed of one scale to 95 %; what did not run alone has no scaling."""
    runs = pd.DataFrame(
        [
            ("gpt2", "gpt2_zs1_gpus1_bs8", 1, "ok", 100.0, 5.0),
            ("gpt2", "gpt2_zs1_gpus8_bs8", 8, "ok", 700.0, 4.0),
            ("gpt2", "gpt2_zs1_gpus8_bs8", 8, "ok", 760.0, 4.0),
            ("gpt2", "gpt2_zs1_gpus8_bs8", 8, "ok", 790.0, 4.0),
            ("gpt2", "gpt2_zs1_gpus8_bs8", 8, "failed", 9.0, 9.0),
            ("opt", "opt_zs3_gpus8_bs8", 8, "ok", 50.0, 9.0),
            ("opt", "opt_zs0_gpus8_bs8", 8, "oom", math.nan, math.nan),
        ],
        columns=[*eight_gpus.NAMES, "gpus", "status", *eight_gpus.FIGURES],
    )
    before = pd.DataFrame(
        [
            ("gpt2", "gpt2_zs1_gpus1_bs8", 110.0, 5.1, 101.0, 120.0, True),
            ("gpt2", "gpt2_zs1_gpus8_bs8", 722.0, 4.1, 650.0, 800.0, True),
            ("opt", "opt_zs3_gpus8_bs8", 50.0, 9.0, math.nan, 50.0, True),
            ("opt", "opt_zs0_gpus8_bs8", 60.0, 99.0, 50.0, 70.0, False),
        ],
        columns=[*eight_gpus.NAMES, *eight_gpus.FIGURES, *eight_gpus.RANGE, "fits"],
    )
    assert list(eight_gpus.lines(eight_gpus.compared(runs, before))) == [
        "| gpt2, zs1_gpus1_bs8 | 1 | 100 | 110 | +10.0 | no | 5.00 | 5.10 | 100.0 |",
        "| gpt2, zs1_gpus8_bs8 | 3 | 760 | 722 | -5.0 | yes | 4.00 | 4.10 | 95.0 |",
        "| opt, zs3_gpus8_bs8 | 1 | 50 | 50 | +0.0 | yes | 9.00 | 9.00 |  |",
        "| opt, zs0_gpus8_bs8 | 0 | oom | 60 |  |  | does not fit | 99.00 |  |",
    ]
