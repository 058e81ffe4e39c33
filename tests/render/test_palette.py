"""Colours of the explorer: each is seen on the cards of both themes, and no two are alike."""

import itertools

import pytest
from matplotlib.colors import to_rgb

from dsnb.render import palette


def luminance(colour):
    """WCAG 2.2, relative luminance."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("card", [palette.SURFACE, palette.DARK[palette.SURFACE]])
def test_values_of_a_setting_have_the_contrast_of_graphics_in_both_themes(card):
    for colour in palette.CATEGORIES:
        low, high = sorted((luminance(colour), luminance(card)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_strategies_have_colours_of_their_own_whatever_else_was_run():
    names = ["plain", "DDP", "FSDP", *(f"ZeRO {stage}" for stage in range(4)), "PP 2 x ZeRO 1", "TP 2 x ZeRO 1"]
    colours = palette.strategies(names)
    for one, other in itertools.combinations(names, 2):
        apart = sum((a - b) ** 2 for a, b in zip(to_rgb(colours[one]), to_rgb(colours[other]), strict=True)) ** 0.5
        assert apart > 0.19, (one, other)
    assert palette.strategies(names[3:])["ZeRO 0"] == colours["ZeRO 0"]
