"""The explorer in a page: one script, one style sheet, and the data of each explorer, all in one file.

The page works offline: its Content-Security-Policy allows this script alone, by its hash, and
forbids every connection. Vega compiles its expressions to functions, hence `unsafe-eval`; the
expressions are those of `charts.yaml`.
"""

import base64
import contextlib
import hashlib
import json
import re
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import vl_convert
import yaml
from nbformat import NotebookNode

from dsnb.base.files import cache as user_cache
from dsnb.base.files import json_files
from dsnb.settings.records import paths

WITHOUT_SCRIPT = (
    "The explorer needs JavaScript. The figures and tables of this page work without it."
)


@cache
def source() -> str:
    """Return the explorer's JavaScript, Vega first."""
    scripts = sorted(path for path in paths.WEB.glob("*.js") if path.stem != "widget")
    return "\n".join([_vega(), charts(), *map(own, scripts)])


def _vega() -> str:
    """Return Vega as a script, kept in the user's cache: it takes more than a second to bundle."""
    folder = user_cache.home()
    if folder is None:
        return _bundle()
    file = folder / "scripts" / f"vega-by-vl-convert-{version('vl-convert-python')}.js"
    kept = json_files.read_bytes(file)
    if kept:
        return kept.decode("utf-8", "replace")
    bundle = _bundle()
    with contextlib.suppress(OSError):  # it is bundled again next time
        json_files.write_text(file, bundle)
    return bundle


def _bundle() -> str:
    vega = f"/npm/vega@{vl_convert.get_vega_version()}/+esm"
    return str(
        vl_convert.javascript_bundle(
            f'import {{ View, parse }} from "{vega}"; window.vega = {{ View, parse }};'
        )
    )


def charts() -> str:
    """Return the charts as Vega specifications without data, a constant of the script."""
    content = yaml.safe_load((paths.WEB.parent / "charts.yaml").read_text(encoding="utf-8"))
    del content["fragments"]
    return f"const CHARTS = {json.dumps(content, separators=(',', ':'))};"


def own(path: Path) -> str:
    """Return a script without comments and indentation, which saves 20 kB a page."""
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def style() -> str:
    """Return the explorer's CSS."""
    return (paths.WEB / "style.css").read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the script of a page, which creates every explorer in it."""
    text = f"(function () {{\n{source()}\nmountAll();\n}})();"
    return re.sub("</(?=script)", r"<\\/", text, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def module() -> str:
    """Return the explorer's JavaScript as a module for anywidget."""
    return f"{source()}\n{own(paths.WEB / 'widget.js')}"


def digest_of(text: str) -> str:
    """Return the hash by which a Content-Security-Policy allows a script."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def policy() -> str:
    """Return the page's Content-Security-Policy."""
    digest = digest_of(script())
    allowed = (
        f"script-src 'sha256-{digest}' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:"
    )
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def inert_json(payload: Any) -> str:
    """Return data as JSON that cannot close the element that it is in."""
    data = json.dumps(payload, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    # Lone surrogates, which UTF-8 cannot encode, are replaced.
    data = data.encode("utf-8", "replace").decode()
    for character in "<>&\u2028\u2029":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return data


def fragment(payload: dict[str, Any], answer: str = "") -> str:
    """Return the HTML of one explorer: its root element, and its data as JSON that cannot close its own element.

    `answer` is the HTML of the answer, for readers without JavaScript.
    """
    data = inert_json(payload)
    root = f'<div class="dsnb-explorer">{answer}<p>{WITHOUT_SCRIPT}</p></div>'
    return f'<div>{root}<script type="application/json">{data}</script></div>'


def of_notebook(content: NotebookNode, title: str) -> str:
    """Return an executed notebook as a self-contained page without its code."""
    from nbconvert import HTMLExporter

    content.metadata.pop("widgets", None)
    exporter: Any = HTMLExporter(
        template_name="report",
        extra_template_basedirs=[str(paths.TEMPLATES)],
        exclude_input=True,
        exclude_input_prompt=True,
    )
    parts = {
        "dsnb_title": title,
        "dsnb_policy": policy(),
        "dsnb_style": style(),
        "dsnb_script": script(),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(exporter.from_notebook_node(content, resources=parts)[0])
