"""Figures as images that are light or dark like the page around them.

No text colour has a contrast of 4.5 on both white and JupyterLab's dark background (the maximum is
4.34). JupyterLab removes SVG elements from notebooks that it does not trust, such as those that
papermill executed. A figure is therefore an SVG within an `img` element, whose colour scheme it
follows. It has its own background, so that it is legible even on a page that does not declare its
scheme.
"""

import html
import io
import re
import textwrap
from collections.abc import Callable
from urllib.parse import quote

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from dsnb.show.render import palette

STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.edgecolor": palette.GREY,
    "axes.facecolor": palette.SURFACE,
    "axes.labelcolor": palette.INK,
    "figure.facecolor": palette.SURFACE,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # equally wide
    "grid.color": palette.GRID,
    "legend.labelcolor": palette.INK,
    "savefig.dpi": 180,  # of the points that `plots` rasterizes
    "svg.fonttype": "none",
    "svg.hashsalt": "dsnb",
    "text.color": palette.INK,
    "text.parse_math": False,
    "xtick.color": palette.SOFT_INK,
    "ytick.color": palette.SOFT_INK,
}
PIXELS_PER_INCH = 100
# If it were loaded within `rc_context`, the backend would not show the figures that a notebook
# draws.
plt.switch_backend(plt.get_backend())
PLAIN_TICKS = StrMethodFormatter("{x:,.10g}")
"""Ticks as plain numbers with thousands separators, without an offset or a power of ten beside the
axis."""
IN_ADDRESS = " '=:/;,(){}@!*+$?[]|^`"
"""Characters that an address in an attribute may contain unquoted, which makes it shorter than
base64."""
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_ROOT = re.compile(r"<svg [^>]*>")
_TAG = re.compile("<[^>]*>")
_INVISIBLE = re.compile(r"^.*?(?=<svg )|<metadata>.*?</metadata>|(?<=>)\s*\n\s*(?=<)", re.DOTALL)
_COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_DECIMALS = re.compile(r"(\.\d)\d+|\n")
_STYLE = re.compile(r' style="([^"]*)"')
_QUOTED = re.compile('="([^"\']*)"')


class Picture:
    """A figure that notebooks and reports display as an image with a description."""

    def __init__(self, draw: Callable[[], Figure], description: str) -> None:
        with plt.rc_context(STYLE):
            self.figure = draw()
            written = io.StringIO()
            self.figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(self.figure)
        self.svg, self.description = _compact(_themed(written.getvalue())), description

    def _repr_html_(self) -> str:
        data = quote(self.svg, safe=IN_ADDRESS)
        width = int(self.figure.get_figwidth() * PIXELS_PER_INCH)
        text = html.escape(self.description)
        return f'<img alt="{text}" width="{width}" src="data:image/svg+xml,{data}">'


def note(axis: Axes, text: str) -> None:
    """Write a sentence into the middle of empty axes, without a scale."""
    axis.set(xticks=[], yticks=[])
    axis.grid(visible=False)
    axis.text(
        0.5, 0.5, text, ha="center", va="center", transform=axis.transAxes, color=palette.SOFT_INK
    )


def wrapped(name: str, width: int) -> str:
    """Return a name on lines of at most `width` characters, which end behind commas if they can."""
    parts = name.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    lines = textwrap.fill(parts, width, break_on_hyphens=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def shared_legend(figure: Figure, loc: str, columns: int = 0, title: str = "") -> None:
    """Replace the legends of all axes by one outside them, by default in one row, with each entry once."""
    entries: dict[str, Artist] = {}
    for axis in figure.axes:
        entries |= {
            label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        legend = axis.get_legend()
        if legend:
            legend.remove()
    if entries:
        figure.legend(
            entries.values(),
            entries,
            loc=f"outside {loc}",
            ncols=columns or len(entries),
            frameon=False,
            title=title or None,
        )


def _themed(svg: str) -> str:
    """Replace the colours that differ in a dark theme by variables, and characters that are invalid in XML."""
    names = {colour: f"--c{colour[1:]}" for colour in palette.DARK}
    light = "".join(f"{name}:{colour};" for colour, name in names.items())
    dark = "".join(f"{names[colour]}:{shown};" for colour, shown in palette.DARK.items())
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    for colour, name in names.items():
        svg = svg.replace(colour, f"var({name})")
    return _NOT_XML.sub("\ufffd", _ROOT.sub(rf"\g<0>{style}", svg, count=1))


def _compact(svg: str) -> str:
    """Remove what is invisible, shorten coordinates, write each style once, and use quotes that `IN_ADDRESS` has."""
    classes: dict[str, str] = {}

    def shorter(tag: re.Match[str]) -> str:  # only in tags, since a text may look like a style
        text = _COORDINATES.sub(lambda match: _DECIMALS.sub(r"\1", match[0]), tag[0])
        text = _STYLE.sub(
            lambda match: f' class="{classes.setdefault(match[1], f"s{len(classes)}")}"', text
        )
        return _QUOTED.sub(r"='\1'", text)

    svg = _TAG.sub(shorter, _INVISIBLE.sub("", svg).replace(" xlink:href=", " href="))
    rules = "".join(f".{name}{{{style}}}" for style, name in classes.items())
    return svg.replace("</style>", f"{rules}</style>", 1)
