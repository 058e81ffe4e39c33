"""Figures as images: legible in a light and a dark theme, well-formed whatever a name holds, the same every time."""

import itertools
import math
import re
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import nbformat
import nbformat.v4 as nbf
import pytest
from matplotlib.colors import to_rgb

from dsnb.measure.execute import notebook
from dsnb.show.render import palette
from dsnb.show.render.picture import Picture


def drawn(title="t"):
    def draw():
        figure, axis = plt.subplots()
        axis.plot([1, 2], [3, 4], color=palette.BLUE)
        axis.set(title=title, xlabel="x")
        return figure

    return Picture(draw, 'a "figure"')


def contrast(*colours):
    """Give the contrast of two colours by WCAG 2.2."""
    luminances = []
    for colour in colours:
        linear = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
            for part in to_rgb(colour)
        ]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def test_text_is_legible_in_both_themes():
    """WCAG 2.2, 1.4.3 asks for 4.5 of text, 1.4.11 for 3 of graphics."""
    for text in (palette.INK, palette.SOFT_INK):
        assert contrast(text, palette.SURFACE) >= 4.5
        assert contrast(palette.DARK[text], palette.DARK[palette.SURFACE]) >= 4.5
    for line in palette.SERIES:
        assert contrast(palette.DARK.get(line, line), palette.DARK[palette.SURFACE]) >= 3, line
    for colour, card in itertools.product(
        palette.CATEGORIES, (palette.SURFACE, palette.DARK[palette.SURFACE])
    ):
        assert contrast(colour, card) >= 3, colour


def test_strategies_have_colours_of_their_own_whatever_else_was_run():
    names = [
        "plain",
        "DDP",
        "FSDP",
        *(f"ZeRO {stage}" for stage in range(4)),
        "PP 2 x ZeRO 1",
        "TP 2 x ZeRO 1",
    ]
    colours = palette.parallelism(names)
    for one, other in itertools.combinations(names, 2):
        assert math.dist(to_rgb(colours[one]), to_rgb(colours[other])) > 0.19, (one, other)
    assert palette.parallelism(names[3:])["ZeRO 0"] == colours["ZeRO 0"]


def test_every_colour_with_a_dark_counterpart_is_a_variable():
    svg = drawn().svg
    style = re.search(r"<style>.*?}}", svg)[0]
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    assert f"--c{palette.SURFACE[1:]}:{palette.SURFACE};" in light
    assert f"--c{palette.SURFACE[1:]}:{palette.DARK[palette.SURFACE]};" in dark
    rest = svg.replace(style, "")
    assert not [colour for colour in palette.DARK if colour in rest]
    assert f"var(--c{palette.INK[1:]})" in rest
    assert palette.BLUE in rest
    assert not re.findall(r"(?:fill|stroke): (?:#000|black)", rest)


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize(
    "title", ["$\\frac", "\x00\x1b[31m", "<script>&", "]]>", 'a > b style="c"']
)
def test_any_text_gives_well_formed_xml(title):
    texts = [
        element.text for element in ElementTree.fromstring(drawn(title).svg).iter() if element.text
    ]
    assert re.sub(r"[\x00\x1b]", "\ufffd", title) in texts


def test_an_image_has_a_description_and_no_date():
    shown = drawn()._repr_html_()
    assert shown.startswith('<img alt="a &quot;figure&quot;" width="640" src="data:image/svg+xml,')
    assert shown == drawn()._repr_html_()
    assert "<dc:date>" not in unquote(shown.split("svg+xml,")[1].split('"')[0])


@pytest.mark.process
def test_a_figure_that_a_notebook_draws_itself_is_shown_after_one_of_ours(tmp_path):
    ours = "import matplotlib.pyplot as plt\nfrom dsnb.show.render.picture import Picture\nPicture(plt.figure, 'ours')"
    cells = [nbf.new_code_cell(source) for source in (ours, "axis = plt.plot([1, 2])")]
    nbformat.write(nbf.new_notebook(cells=cells), tmp_path / "in.ipynb")
    notebook.execute(tmp_path / "in.ipynb", tmp_path / "out.ipynb", {})
    *_, own = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    assert ["image/png" in output.data for output in own.outputs] == [True]
