"""The charts of the explorer as Vega specifications, without data: `web/pictures.js` adds it.

What changes (titles, domains, labels, display factors, colours of the theme) is a signal, the type of a scale is set by
`web/chart.js`; colours and shapes of marks are part of the data.
"""

from typing import Any

Specification = dict[str, Any]
SIDES = [f"{side}_{part}" for side in "xy" for part in ("title", "low", "high", "factor", "ticks")]
SIGNALS = [*SIDES, "x_labels", "x_longest", "ink", "soft", "line", "hovered"]
"""All are set before a chart is drawn, except `hovered`: the run whose line is pointed at."""
INK, SOFT, FILL, SHAPE = (
    {"signal": "ink"},
    {"signal": "soft"},
    {"field": "fill"},
    {"field": "shape"},
)
FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
LANE_PX = 18
LANE = {
    "x": {"signal": "isValid(datum.x) ? scale('x', datum.x) : width * datum.share"},
    "y": {"signal": f"isValid(datum.y) ? scale('y', datum.y) : height - {LANE_PX / 2}"},
}
"""The position of failed runs: the memory that they needed if it is an axis, otherwise a lane at the bottom."""
TEXT: Specification = {"font": FONT, "align": "center", "baseline": "middle"}
LETTER_PX, ROOM_PX = 6.5, 15
"""Approximate widths of a letter and of a turned label; labels are turned if they do not fit side by side."""
RINGS = "rings"
"""The mark around points of the front, with their numbers beside it."""
CROSS = {"size": 80, "shape": "cross", "angle": 45, "fill": FILL, "opacity": 0.7}


def specifications() -> dict[str, Specification]:
    """Return the Vega specification of every chart by name."""
    return {
        "scatter": _chart(*_scatter(), lane_px=LANE_PX),
        "medians": _chart(*_medians(), lane_px=LANE_PX),
        "lines": _chart(*_lines()),
    }


def _chart(*marks: Specification, lane_px: int = 0) -> Specification:
    axis = {
        "labelFont": FONT, "titleFont": FONT, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "titlePadding": 8, "labelColor": SOFT, "titleColor": INK, "gridColor": {"signal": "line"}, "domainColor": SOFT,
        "tickColor": SOFT, "labelOverlap": True,
    }  # fmt: skip
    text = f"isArray(x_labels) ? (x_labels[datum.value] || '') : {_number('x_factor')}"
    across = {
        "labelSeparation": 5,
        "tickCount": {"signal": "length(x_labels || x_ticks || sequence(ceil(width / 40)))"},
        "labelOverlap": {"signal": f"!isArray(x_labels) || {ROOM_PX} * length(x_labels) > width"},
    }  # fmt: skip
    turned = f"isArray(x_labels) && {LETTER_PX} * (x_longest + 1) * length(x_labels) > width"
    labels = {
        "angle": f"{turned} ? -40 : 0",
        "align": f"{turned} ? 'right' : 'center'",
        "limit": f"{turned} ? 150 : 0",
    }
    return {
        "autosize": {"type": "fit-x", "contains": "padding"},
        "padding": 5,
        "width": 300,
        "height": 280,
        "config": {"aria": False},
        "signals": [{"name": name, "value": None} for name in SIGNALS],
        "data": [{"name": name} for name in dict.fromkeys(mark["from"]["data"] for mark in marks) if name != RINGS],
        "scales": [
            {"name": side, "type": "linear", "range": extent, "nice": False, "zero": False,
             "domain": [{"signal": f"{side}_low"}, {"signal": f"{side}_high"}]}
            for side, extent in (("x", "width"), ("y", [{"signal": f"height - {lane_px}"}, 0]))
        ],
        "axes": [
            {**axis, "scale": "y", "orient": "left", "grid": True, "title": {"signal": "y_title"},
             "tickCount": {"signal": "length(y_ticks || sequence(6))"}, "values": {"signal": "y_ticks"},
             **_labels(text=_number("y_factor"))},
            {**axis, **across, "scale": "x", "orient": "bottom", "title": {"signal": "x_title"},
             "values": {"signal": "isArray(x_labels) ? sequence(length(x_labels)) : x_ticks"},
             **_labels(text=text, **labels)},
        ],
        "marks": list(marks),
    }  # fmt: skip


def _number(factor: str) -> str:
    """Return the expression of a tick's label: its value in the display unit, with an SI prefix if large or tiny."""
    value = f"(datum.value * {factor})"
    return f"format({value}, abs({value}) >= 1e6 || ({value} != 0 && abs({value}) < 1e-3) ? '.3~s' : ',.5~r')"


def _labels(**expressions: str) -> Specification:
    return {
        "encode": {
            "labels": {"update": {name: {"signal": text} for name, text in expressions.items()}}
        }
    }


def _at(**fields: str) -> Specification:
    """Return the position of marks by the fields of their data, such as `y2="high"`."""
    return {channel: {"scale": channel[0], "field": field} for channel, field in fields.items()}


def _mark(kind: str, data: str, is_pointed_at: bool = False, **look: Any) -> Specification:
    """Return a mark for each datum; others let pointer events through."""
    encoded = {
        name: value if isinstance(value, dict) else {"value": value} for name, value in look.items()
    }
    tooltip = {"tooltip": {"value": True}} if is_pointed_at else {}
    return {
        "type": kind, "from": {"data": data}, "clip": kind != "text", "interactive": is_pointed_at,
        "encode": {"update": {**_at(x="x", y="y"), **tooltip, **encoded}},
    }  # fmt: skip


def _scatter() -> list[Specification]:
    """Draw the selected region, runs, the Pareto front of experiments, and the answer's setting."""
    return [
        *_capacity("x"),
        *_capacity("y"),
        _mark("rect", "region", fill="#9993", stroke="#999", **_at(x2="x2", y2="y2")),
        _mark("line", "front", interpolate="step-after", strokeWidth=1.5, stroke=SOFT),
        _mark("symbol", "points", True, size=44, opacity=0.7, fill=FILL, shape=SHAPE),
        *_predicted(_at(x="left", x2="right"), _at(y="low", y2="high")),
        _mark("symbol", "failed", True, **CROSS, **LANE),
        {
            **_mark("symbol", "front", size=170, strokeWidth=1.8, stroke=INK, opacity=0.7),
            "name": RINGS,
        },
        _mark("text", "best", **TEXT, fontSize=15, fill=INK, dx=-11, dy=-11, text="★"),
        _numbers(),
    ]


def _numbers() -> Specification:
    """Write the numbers of the front beside its rings, without overlap."""
    look = {
        "fontSize": 12,
        "fontWeight": "bold",
        "font": FONT,
        "fill": INK,
        "text": {"signal": "datum.datum.number"},
    }
    encoded = {
        name: value if isinstance(value, dict) else {"value": value} for name, value in look.items()
    }
    place = {
        "type": "label",
        "size": {"signal": "[width, height]"},
        "offset": [4],
        "padding": 12,
    }
    return {
        "type": "text", "from": {"data": RINGS}, "interactive": False, "encode": {"update": encoded},
        "transform": [{**place, "anchor": ["top-right", "bottom-right", "right", "bottom"]}],
    }  # fmt: skip


def _predicted(*ranges: Specification) -> list[Specification]:
    """Draw settings that were not run as hollow marks, with a line over the mean error of such predictions."""
    hollow = {"fill": "transparent", "stroke": FILL, "strokeWidth": 1.6, "size": 60, "shape": SHAPE}
    lines = [
        _mark("rule", "predicted", strokeWidth=1, opacity=0.6, stroke=FILL, **extent)
        for extent in ranges
    ]
    return [*lines, _mark("symbol", "predicted", True, **hollow)]


def _capacity(side: str) -> list[Specification]:
    """Draw the memory of a GPU as a labelled dashed line across the axis of memory."""
    across: dict[str, Any] = {
        "x": {"x": 0, "x2": {"signal": "width"}},
        "y": {"y": 0, "y2": {"signal": "height"}},
    }
    beside: dict[str, Any] = {
        "x": {"y": 8, "dx": -5},
        "y": {"x": {"signal": "width - 4"}, "dy": -6},
    }
    rule = {
        "strokeDash": [5, 4],
        "strokeWidth": 1.2,
        "stroke": SOFT,
        **across["y" if side == "x" else "x"],
    }
    text = {
        **TEXT,
        "fontSize": 11,
        "fill": SOFT,
        "align": "right",
        "text": {"field": "text"},
        **beside[side],
    }
    return [_mark("rule", f"capacity_{side}", **rule), _mark("text", f"capacity_{side}", **text)]


def _medians() -> list[Specification]:
    """Draw every run as a dot and the median of each experiment with a line over the range of its runs."""
    return [
        *_capacity("y"),
        _mark("symbol", "runs", True, size=22, opacity=0.4, fill=FILL, shape=SHAPE),
        # rules, since grouped lines need a dataflow for each of thousands of groups
        _mark(
            "rule", "segments", strokeWidth=1.2, opacity=0.55, stroke=FILL, **_at(x2="x2", y2="y2")
        ),
        _mark("rule", "medians", strokeWidth=2, stroke=FILL, **_at(y="low", y2="high")),
        _mark("symbol", "medians", True, size=90, fill=FILL, shape=SHAPE),
        *_predicted(_at(y="low", y2="high")),
        _mark("symbol", "failed", True, **CROSS, **LANE),
    ]


def _lines() -> list[Specification]:
    """Draw a path per run, in the units of its figures, and a cross where a run ended early.

    A wide invisible path over each is easier to point at.
    """
    place: dict[str, Any] = {
        "path": {"field": "path"},
        "scaleX": {"signal": "width / (x_high - x_low)"},
        "scaleY": {"signal": "-height / (y_high - y_low)"},
        "x": {"signal": "-x_low * width / (x_high - x_low)"},
        "y": {"signal": "height + y_low * height / (y_high - y_low)"},
    }
    opacity = {"signal": "hovered === null || hovered === datum.id ? 0.9 : 0.15"}
    return [
        _mark(
            "path",
            "lines",
            stroke=FILL,
            strokeWidth=1.4,
            strokeDash={"field": "dash"},
            opacity=opacity,
            **place,
        ),
        _mark("path", "lines", True, stroke="black", strokeWidth=9, opacity=0, **place),
        _mark("symbol", "ends", True, **CROSS),
    ]
