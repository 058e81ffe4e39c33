"""Figures of memory: names that fit beside the bars, which stay where they belong."""

import warnings

import pandas as pd

from dsnb.render import memory_plots

LONG = "h200_zero3/gpt2-xl_zs3_bf16_gpus2_bs24_sl1024_compile_stage3_max_live_parameters-10000000000_{}"


def footprint(names):
    parts = {f"{part}_gib": [1.0] * len(names) for part in memory_plots.PARTS}
    return pd.DataFrame({"experiment": names, "measured_gib": [float(one) for one in range(len(names))], **parts})


def test_long_names_are_abbreviated_and_numbered_if_they_are_then_the_same():
    long = [LONG.format(end) for end in ("a" * 30, "b" * 30)]
    first, second, short = memory_plots.abbreviations([*long, "zs0"])
    assert first == f"{LONG[11:37]}…{'a' * 25}"
    assert second.endswith("b")
    assert short == "zs0"
    assert max(map(len, (first, second))) == memory_plots.LONGEST
    assert memory_plots.abbreviations(["a/x", "b/y"]) == ["x", "y"]
    assert memory_plots.abbreviations(["a/x", "b/x"]) == ["a/x", "b/x"]
    alike = [f"{'a' * 40}{middle}{'b' * 40}" for middle in "xy"]
    assert [name[-6:] for name in memory_plots.abbreviations(alike)] == ["bb (1)", "bb (2)"]


def test_bars_and_dots_are_those_of_their_rows():
    names = [*(LONG.format(f"{middle}{'b' * 200}") for middle in "xy"), "zs0", "zs0"]
    with warnings.catch_warnings(action="error"):
        axis = memory_plots.parts(footprint(names)).figure.axes[0]
    assert len(axis.get_yticklabels()) == 4
    (dots,) = axis.collections
    assert dots.get_offsets().tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert sorted({bar.get_y() + bar.get_height() / 2 for bar in axis.patches}) == [0, 1, 2, 3]
    assert axis.get_ylim() == (3.5, -0.5)
    assert axis.get_position().width > 0.3
