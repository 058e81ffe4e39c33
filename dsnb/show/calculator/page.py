"""The pages of the calculator: one that looks answers up, offline, and a table for each model.

The page needs no explorer: its script is `web/calculator.js` behind the helpers that both share. Its
Content-Security-Policy allows this script alone, by its hash.
"""

import base64
import html
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dsnb.base.files import json_files
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.base.formulas.planning import GOAL_DAYS, MAX_DAYS
from dsnb.prediction.gpus import NODE_GPUS
from dsnb.prediction.shapes import shape
from dsnb.prediction.target import USUAL_NETWORK
from dsnb.results.answers.lines import as_html
from dsnb.results.answers.sentences import PHRASES, template
from dsnb.results.runs import labels
from dsnb.results.runs.number_text import HOURS, SIZES, amount, fixed
from dsnb.results.runs.templates import fill
from dsnb.settings.records import paths
from dsnb.show.calculator import data
from dsnb.show.calculator.data import GRID, SETTINGS, WHOLE, Cell, Table
from dsnb.show.explorer import page as explorer

WEB = Path(__file__).with_name("web")
WORDS: dict[str, Any] = PHRASES["calculator"]
START = {"model": "llama-3.1-8b", "gpu": "H100", "gpus": "8", "trained": WHOLE}
TITLE = "Can I train it? Setting, days, cost and memory"
TRAINED = {WHOLE: "all weights", data.ADAPTED: "LoRA, rank 16"}
CAPTIONS = {WHOLE: "All weights", data.ADAPTED: "LoRA adapters of rank 16"}
FOLDER = "train"
"""Folder of the models' pages beside the calculator."""


@cache
def script() -> str:
    """Return the page's JavaScript."""
    shared = [paths.WEB / name for name in ("dom.js", "fill.js")]
    parts = "\n".join(map(explorer.own, [*shared, WEB / "calculator.js"]))
    return f"(function () {{\n{parts}\n}})();"


def words(table: Table, linked: bool) -> dict[str, Any]:
    """Return what the page knows besides the answers: what may be asked, and its texts."""
    models = []
    for name in GRID.models:
        lengths = GRID.lengths(name)
        tokens = {way: data.usual_tokens(Cell(name, "", 1, 1, way)) for way in SETTINGS}
        models.append(
            {
                "name": name,
                "hub": PRESETS[name].hub_id or "",
                "lengths": lengths,
                "offered": [one for one in lengths if (name, one) in table.asked],
                "tokens": tokens,
                "page": f"{name}.html",
            }
        )
    trained = []
    for way, settings in SETTINGS.items():
        named = {"name": way, "words": TRAINED[way], "title": data.TITLES[way]}
        trained.append(named | {"settings": dict(settings)})
    texts = WORDS | {
        "lines": PHRASES["lines"],
        "hours": HOURS,
        "sizes": SIZES,
        "cost": template("cost"),
        "ofLines": PHRASES["of_lines"],
        "tight": template("warning.tight"),
        "tooSlow": template("warning.too_slow"),
        "maxDays": MAX_DAYS,
        "goalDays": GOAL_DAYS,
        "nodeGpus": NODE_GPUS,
        "network": USUAL_NETWORK,
    }
    start = dict(START)
    return {
        "models": models,
        "gpus": GRID.gpus,
        "counts": GRID.counts,
        "trained": trained,
        "start": {"model": GRID.models.index(start.pop("model")), "inputs": start},
        "words": texts,
        "linked": linked,
    }


def calculator(linked: bool = False) -> str:
    """Return the page; `linked` says that the models' pages are beside it."""
    table = data.load()
    answers = base64.b64encode(data.FILE.read_bytes()).decode()
    known = explorer.inert_json(words(table, linked))
    without = f"<p>{len(GRID.models)} models; the page needs JavaScript."
    if linked:
        without += f' Without it: <a href="{FOLDER}/index.html">a table for each model</a>.'
    body = f"""<h1>{html.escape(TITLE)}</h1>
<div class="calc"><noscript>{without}</p></noscript></div>
{_footer(table)}
<script type="application/json" id="calc-words">{known}</script>
<script type="text/plain" id="calc-answers">{answers}</script>
<script>{script()}</script>"""
    policy = f"script-src 'sha256-{explorer.digest_of(script())}'"
    return _page(TITLE, body, policy)


def _page(title: str, body: str, policy: str = "") -> str:
    allowed = f"default-src 'none'; {policy}; style-src 'unsafe-inline'; img-src data:"
    style = (WEB / "calculator.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{allowed}; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="description" content="{html.escape(title)}">
<title>{html.escape(title)}</title>
<style>{style}</style></head>
<body><main class="dsnb-calculator">
{body}
</main></body></html>
"""


def _footer(table: Table) -> str:
    texts = (
        f"Answers of dsnb {table.version} of {table.date} (constants {table.fingerprint}), "
        "predicted, not measured. A range covers 80 % of such predictions; ± is the mean error of "
        "memory. Over 8 GPUs, 400 Gbit/s for each GPU are assumed between nodes."
    )
    return f"<footer><p>{html.escape(texts)}</p></footer>"


def write(file: Path) -> Path:
    """Write the calculator as one file."""
    json_files.write_text(file, calculator())
    return file.absolute()


def write_site(folder: Path) -> None:
    """Write the calculator and a page for each model into a folder of the documentation."""
    json_files.write_text(folder / "calculator.html", calculator(linked=True))
    for name in GRID.models:
        json_files.write_text(folder / FOLDER / f"{name}.html", of_model(name))
    json_files.write_text(folder / FOLDER / "index.html", index())


def index() -> str:
    """Return the page that lists the models."""
    items = []
    for name in GRID.models:
        size = amount(float(f"{shape(name).parameters:.3g}"))
        items.append(f'<li><a href="{name}.html">{name}</a>, {size} parameters</li>')
    title = "Train a language model: fits on, days, cost"
    body = f"""<h1>{title}</h1><p><a href="../calculator.html">{html.escape(TITLE)}</a></p>
<ul class="calc-models">{"".join(items)}</ul>{_footer(data.load())}"""
    return _page(title, body)


def of_model(name: str) -> str:
    """Return the page of a model: on which GPUs it fits, and what its training takes."""
    table = data.load()
    title = fill(WORDS["pageTitle"], {"model": name})
    hub_id = PRESETS[name].hub_id
    known = f" ({hub_id})" if hub_id else ""
    size = amount(float(f"{shape(name).parameters:.3g}"))
    length = GRID.lengths(name)[0]
    parts = [f"<h1>{html.escape(title)}</h1>"]
    parts.append(
        f"<p>{html.escape(name + known)} has {size} parameters. Below, sequences have "
        f"{fixed(length)} tokens. Other lengths, tokens and prices: "
        f'<a href="../calculator.html#model={name}">the calculator</a>; '
        f'<a href="index.html">all models</a>.</p>'
    )
    for way in SETTINGS:
        parts.append(_table(table, name, length, way))
    parts.append(_footer(table))
    return _page(title, "\n".join(parts))


def _table(table: Table, name: str, length: int, way: str) -> str:
    """Return what a training takes by GPU and number of GPUs."""
    tokens = data.usual_tokens(Cell(name, "", 1, length, way))
    texts = {}
    for gpu in GRID.gpus:
        for number in GRID.counts:
            cell = Cell(name, gpu, number, length, way)
            texts[gpu, number] = _figures(cell, table.record(cell))
    counts = [one for one in GRID.counts if any(texts[gpu, one] for gpu in GRID.gpus)]
    if not counts:
        return ""
    rows = []
    for gpu in GRID.gpus:
        columns = "".join(f"<td>{texts[gpu, number]}</td>" for number in counts)
        rows.append(f'<tr><th scope="row">{html.escape(gpu)}</th>{columns}</tr>')
    best = ""
    shown = Cell(name, START["gpu"], int(START["gpus"]), length, way)
    record = table.record(shown)
    if record:
        best = f'<section class="dsnb-card">{as_html(data.lines(shown, record))}</section>'
    heads = "".join(f'<th scope="col">{labels.count(number, "GPU")}</th>' for number in counts)
    caption = f"{CAPTIONS[way]} on {amount(tokens)} tokens, by GPU and number of GPUs"
    return f"""<h2>{html.escape(caption)}</h2>{best}
<div class="dsnb-scroll" tabindex="0" role="region" aria-label="{html.escape(caption)}"><table>
<caption>{html.escape(caption)}</caption>
<thead><tr><th scope="col">GPU</th>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>"""


def _figures(cell: Cell, record: dict[str, Any] | None) -> str:
    """Return time with its range, GPU-hours and memory of a cell, or that it does not fit; empty if it is unknown."""
    if record is None:
        return ""
    if record["no"]:
        return str(WORDS["doesNotFit"])
    facts = data.time_facts(cell, record, data.usual_tokens(cell))
    least = facts["least"]
    texts: Sequence[str] = [
        f"{least} {facts['time']}".strip(),
        f"({facts['times']})",
        f"{least} {facts['hours']} GPU-hours".strip(),
        record["memory.0"],
    ]
    return "<br>".join(html.escape(text) for text in texts if text != "()")
