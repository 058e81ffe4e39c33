"""The explorer in a page: one script, one style, and for each explorer its data, all of it inside the file.

Nothing is fetched and nothing else runs: the Content-Security-Policy names this script by its hash and forbids every
connection. Vega makes functions of its expressions, hence `unsafe-eval`; the expressions are those of `charts`.
"""

import base64
import hashlib
import json
import re
from functools import cache
from typing import Any

import vl_convert

from dsnb.explorer.charts import VEGA_LITE
from dsnb.run_folder import paths

MODULES = ["dom", "model", "chart", "views", "tables", "controls", "detail", "main"]
WITHOUT_SCRIPT = "The explorer needs JavaScript. The figures and tables of this page do not."


@cache
def source() -> str:
    """Give the explorer's JavaScript, Vega first."""
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    own = "\n".join((paths.web() / f"{name}.js").read_text(encoding="utf-8") for name in MODULES)
    return f"{bundle}\n{own}"


def style() -> str:
    """Give the explorer's CSS."""
    return (paths.web() / "style.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Give the page's one script: it mounts every explorer once the page is read."""
    text = f"(function () {{\n{source()}\nmountAll();\n}})();"
    return re.sub("</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def module() -> str:
    """Give the same as a module for anywidget."""
    render = (paths.web() / "widget.js").read_text(encoding="utf-8")
    return f"{source()}\n{render}"


def policy() -> str:
    """Give the page's Content-Security-Policy."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    allowed = f"script-src 'sha256-{digest}' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def fragment(payload: dict[str, Any]) -> str:
    """Give one explorer: its place, and its data as JSON in which nothing can end the element that holds it."""
    data = json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    data = data.encode("utf-8", "replace").decode()  # halves of characters, which no file can hold
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    place = f'<div class="dsnb-explorer"><p>{WITHOUT_SCRIPT}</p></div>'
    return f'<div>{place}<script type="application/json">{data}</script></div>'


def resources(title: str) -> dict[str, str]:
    """Give what the template of a page puts around its pieces."""
    return {"dsnb_title": title, "dsnb_policy": policy(), "dsnb_style": style(), "dsnb_script": script()}
