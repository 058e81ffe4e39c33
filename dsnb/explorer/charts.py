"""The charts of the explorer as Vega specifications, without data: `web/views.js` and `lines.js` add it.

They are written in Altair and compiled here, so that a page needs neither Altair nor Vega-Lite. What changes (titles,
domains, labels, display factors, colours of the theme) is a signal; colours and shapes of marks are part of the data.
"""

from functools import cache
from typing import Any

import altair as alt
import vl_convert

from dsnb.render import palette

VEGA_LITE = "v" + "_".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
SIGNALS: dict[str, Any] = {
    "ink": palette.INK,
    "soft": palette.SOFT_INK,
    "line": palette.GRID,
    "x_title": "",
    "y_title": "",
    "x_labels": None,
    "x_low": 1.0,
    "x_high": 10.0,
    "y_low": 1.0,
    "y_high": 10.0,
    "x_factor": 1.0,
    "y_factor": 1.0,
    "hovered": None,
}
MIN_TICK_STEP = alt.ExprRef("isArray(x_labels) ? 1 : 0")


@cache
def specifications() -> dict[str, dict[str, Any]]:
    """Return the Vega specification of every chart by name."""
    return {"scatter": _compile(_scatter()), "medians": _compile(_medians()), "lines": _with_paths(_compile(_lines()))}


def _number(factor: str) -> str:
    """Return the expression of a tick's label: its value in the display unit, with an SI prefix if large or tiny."""
    value = f"(datum.value * {factor})"
    return f"format({value}, abs({value}) >= 1e6 || ({value} != 0 && abs({value}) < 1e-3) ? '.3~s' : ',.5~r')"


def _x(field: str = "x") -> alt.X:
    scale = alt.Scale(domain=[alt.ExprRef("x_low"), alt.ExprRef("x_high")], nice=False, zero=False)
    label = f"isArray(x_labels) ? (x_labels[datum.value] || '') : {_number('x_factor')}"
    axis = alt.Axis(labelExpr=label, tickMinStep=MIN_TICK_STEP, grid=False, labelOverlap=True, labelSeparation=5)
    return alt.X(f"{field}:Q", scale=scale, title="x_title", axis=axis)


def _y(field: str = "y") -> alt.Y:
    scale = alt.Scale(domain=[alt.ExprRef("y_low"), alt.ExprRef("y_high")], nice=False, zero=False)
    return alt.Y(f"{field}:Q", scale=scale, title="y_title", axis=alt.Axis(labelExpr=_number("y_factor"), tickCount=6))


def _fill(channel: Any = alt.Color) -> Any:
    return channel("fill:N", scale=None, legend=None)


def _points(data: str, size: int, **more: Any) -> alt.Chart:
    return (
        alt.Chart(alt.NamedData(data), name=data)
        .mark_point(filled=True, size=size, clip=True, **more)
        .encode(x=_x(), y=_y(), color=_fill(), shape=alt.Shape("shape:N", scale=None), tooltip="id:N")
    )


def _scatter() -> Any:
    """Draw runs, the Pareto front of experiments, the answer's setting, and runs that are not ok in a lane below."""
    mark = alt.BrushConfig(fill=palette.GREY, fillOpacity=0.22, stroke=palette.GREY, strokeWidth=1)
    brush = alt.selection_interval(name="brush", encodings=["x", "y"], zoom=False, translate=False, mark=mark)
    front = alt.Chart(alt.NamedData("front")).encode(x=_x(), y=_y())
    line = front.mark_line(interpolate="step-after", strokeWidth=1.5, clip=True, color=alt.ExprRef("soft")).encode(
        order="order:Q"
    )
    rings = front.mark_point(size=170, strokeWidth=1.8, filled=False, color=alt.ExprRef("ink"))
    numbers = front.mark_text(dx=12, dy=-10, fontWeight="bold", fontSize=12, color=alt.ExprRef("ink")).encode(
        text="number:N"
    )
    line, rings, numbers = (
        layer.properties(name=f"front_{number}") for number, layer in enumerate((line, rings, numbers))
    )
    points = _points("points", 44).add_params(brush)
    layers = [
        *_capacity("x"),
        *_capacity("y"),
        line,
        points,
        *_predicted("x", "y"),
        *_failed(),
        rings,
        numbers,
        _best(),
    ]
    return alt.layer(*layers)


def _predicted(*sides: str) -> list[alt.Chart]:
    """Draw settings that were not run as hollow marks, with a line over the mean error of such predictions."""
    base = alt.Chart(alt.NamedData("predicted"))
    rule: dict[str, Any] = {"strokeWidth": 1, "opacity": 0.6, "clip": True}
    across = base.mark_rule(**rule).encode(x=_x("left"), x2="right:Q", y=_y(), color=_fill())
    up = base.mark_rule(**rule).encode(x=_x(), y=_y("low"), y2="high:Q", color=_fill())
    ranges = [{"x": across, "y": up}[side].properties(name=f"range_{side}") for side in sides]
    hollow = base.mark_point(filled=False, fill="transparent", strokeWidth=1.6, size=60, clip=True, opacity=1)
    shape = alt.Shape("shape:N", scale=None)
    marks = hollow.encode(x=_x(), y=_y(), color=_fill(), shape=shape, tooltip="id:N")
    return [*ranges, marks.properties(name="predicted")]


def _best() -> alt.Chart:
    """Draw a star beside the setting that the answer names."""
    base = alt.Chart(alt.NamedData("best"), name="best")
    return base.mark_text(text="★", fontSize=15, dx=-11, dy=-11, color=alt.ExprRef("ink")).encode(x=_x(), y=_y())


def _failed() -> list[alt.Chart]:
    """Draw runs that are not ok: at the memory that they needed if it is an axis, otherwise in a lane at the bottom."""
    mark = {"shape": "cross", "angle": 45, "filled": True, "size": 80, "clip": True}
    lane = alt.Chart(alt.NamedData("failed"), name="failed").mark_point(**mark)
    placed = alt.Chart(alt.NamedData("shortages"), name="shortages").mark_point(**mark)
    colour, y = _fill(), alt.value(alt.ExprRef("height - 9"))
    return [
        lane.encode(x=_x(), y=y, color=colour, tooltip="id:N"),
        placed.encode(x=_x(), y=_y(), color=colour, tooltip="id:N"),
    ]


def _capacity(side: str) -> list[alt.Chart]:
    """Draw the memory that a GPU has as a dashed line across the axis of memory, with its amount."""
    base = alt.Chart(alt.NamedData(f"capacity_{side}"))
    ink = alt.ExprRef("soft")
    place: dict[str, Any] = {"x": _x()} if side == "x" else {"y": _y()}
    beside: dict[str, Any] = {"y": alt.value(8)} if side == "x" else {"x": alt.value(alt.ExprRef("width - 4"))}
    offset: dict[str, Any] = {"dx": -5} if side == "x" else {"dy": -6}
    rule = base.mark_rule(strokeDash=[5, 4], strokeWidth=1.2, clip=True, color=ink).encode(**place)
    text = base.mark_text(align="right", fontSize=11, color=ink, **offset).encode(text="text:N", **place, **beside)
    return [layer.properties(name=f"capacity_{side}_{number}") for number, layer in enumerate((rule, text))]


def _medians() -> Any:
    """Draw every run as a dot and the median of each experiment with a line over the range of its runs."""
    medians = alt.Chart(alt.NamedData("medians")).encode(x=_x(), y=_y(), color=_fill())
    joined = (  # rules, since lines by group need a dataflow for each of thousands of groups
        alt.Chart(alt.NamedData("segments"))
        .mark_rule(strokeWidth=1.2, opacity=0.55, clip=True)
        .encode(x=_x(), y=_y(), x2="x2:Q", y2="y2:Q", color=_fill())
    )
    ranges = medians.mark_rule(strokeWidth=2, clip=True).encode(y=_y("low"), y2="high:Q")
    ticks = medians.mark_point(filled=True, size=90, clip=True, opacity=1).encode(
        shape=alt.Shape("shape:N", scale=None), tooltip="id:N"
    )
    runs = _points("runs", 22, opacity=0.4)
    return alt.layer(*_capacity("y"), runs, joined, ranges, ticks, *_predicted("y"), *_failed())


def _lines() -> Any:
    """Draw a cross where a run ended early; `_with_paths` adds a line per run."""
    ends = (
        alt.Chart(alt.NamedData("ends"))
        .mark_point(shape="cross", angle=45, filled=True, size=80)
        .encode(x=_x(), y=_y(), color=_fill(), tooltip="id:N")
    )
    return alt.layer(ends)


def _with_paths(vega: dict[str, Any]) -> dict[str, Any]:
    """Add a path per run, in the units of its figures, and a wide invisible one that is easier to point at.

    Vega-Lite has no path: its lines need a dataflow of their own for each run, built anew whenever the data changes.
    """
    place = {
        "path": {"field": "path"},
        "scaleX": {"signal": "width / (x_high - x_low)"},
        "scaleY": {"signal": "-height / (y_high - y_low)"},
        "x": {"signal": "-x_low * width / (x_high - x_low)"},
        "y": {"signal": "height + y_low * height / (y_high - y_low)"},
    }
    opacity = {"signal": "hovered === null || hovered === datum.id ? 0.9 : 0.15"}
    line = {
        "stroke": {"field": "fill"}, "strokeWidth": {"value": 1.4}, "strokeDash": {"field": "dash"}, "opacity": opacity,
    }  # fmt: skip
    wide = {
        "stroke": {"value": "black"}, "strokeWidth": {"value": 9}, "opacity": {"value": 0}, "tooltip": {"field": "id"},
    }  # fmt: skip
    paths = [
        {
            "type": "path",
            "name": name,
            "from": {"data": "lines"},
            "key": "id",
            "clip": True,
            "encode": {"update": style | place},
        }
        for name, style in (("line_paths", line), ("wide_paths", wide))
    ]
    vega["data"].append({"name": "lines"})
    vega["marks"][:0] = paths  # below the crosses
    return vega


def _compile(chart: Any) -> dict[str, Any]:
    colour = {name: alt.ExprRef(name) for name in ("ink", "soft", "line")}
    drawn = (
        chart.properties(width="container", height=280, background="transparent")
        .add_params(*(alt.param(name=name, value=value) for name, value in SIGNALS.items()))
        .configure(aria=False, font="system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif")
        .configure_axis(
            labelColor=colour["soft"], titleColor=colour["ink"], gridColor=colour["line"], domainColor=colour["soft"],
            tickColor=colour["soft"], labelFontSize=12, titleFontSize=12, titleFontWeight="normal", titlePadding=8,
        )
        .configure_view(stroke=None)
    )  # fmt: skip
    vega: dict[str, Any] = vl_convert.vegalite_to_vega(drawn.to_dict(), vl_version=VEGA_LITE)
    covering = ("brush_", "front", "capacity", "best", "range")  # they lie on points that must stay clickable
    for mark in vega["marks"]:
        if mark["name"].startswith(covering):
            mark["interactive"] = False
    for axis in vega["axes"]:
        if axis.get("title") in SIGNALS:
            axis["title"] = {"signal": axis["title"]}
    return vega
