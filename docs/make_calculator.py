"""Compute the answers of the calculator: `python -m docs.make_calculator`, again after predictions change.

Every model of `GRID` on every GPU, number of GPUs and sequence length, trained whole and by LoRA, is asked of
`dsnb.prediction.recommend.found`, the search of `dsnb recommend`. Answers are kept in the user's cache and in the
package, so an interrupted build goes on where it was; `--pack` writes what there is, and `--known` finds what needs no
new trace of a model. A process finds the answers of all GPUs at a time: what candidates need and do does not depend on
the GPU, and is computed once (`shared`).

`--check 300` compares as many random cells with `dsnb recommend`.
"""

import argparse
import datetime
import hashlib
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.files import cache as user_cache
from dsnb.base.files import json_files
from dsnb.prediction import (
    accuracy,
    brief,
    candidates,
    explanation,
    nearest,
    predict,
    recommend,
    search,
    step_time,
    traces,
)
from dsnb.prediction.recommend import Found, Scope, found
from dsnb.prediction.target import Budget, Target
from dsnb.results.answers import card
from dsnb.results.answers.decide import is_tight
from dsnb.results.runs import number_text
from dsnb.settings.experiment import Experiment
from dsnb.show.calculator import data
from dsnb.show.calculator.data import GRID, Cell

SEED = 1
PROCESSES = 2
OF_TOKENS = ("warning.too_slow", "warning.tight")
"""Warnings that the page makes itself."""
FIRST = (
    "llama-3.1-8b", "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-70b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-8b",
    "mistral-7b", "gpt2", "gpt2-xl", "opt-1.3b", "llama-2-7b", "pythia-1.4b", "gemma-2-2b", "phi-4", "mixtral-8x7b",
)  # fmt: skip
"""Models that are asked for most."""
MAKE = traces._make
COUNT_ORDER = (8, 1, 4, 2, 16, 64, 32)
"""Numbers of GPUs in the order of use: an unfinished build has the first of all models."""


def recommended(cell: Cell, tokens: float | None = None) -> tuple[Scope, Target, Budget]:
    """Return the arguments of a recommendation for a cell."""
    scope = Scope(cell.model, cell.gpus, cell.seq_len, settings=data.settings(cell))
    return scope, Target(cell.gpu, data.link(cell)), Budget(tokens)


def record(one: Found) -> dict[str, Any]:
    """Return what the calculator shows of an answer: texts by their names, and speeds in tokens/s."""
    result = one.result
    search_ = one.search
    shown = list(brief.lines(search_, result, (), one.least_gpus, offloaded=True))
    if not result.chosen:
        return {"no": "\n".join(one.cells[0] for one in shown[1:])}
    name = result.chosen[0]
    best = result.options.loc[name]
    experiment = search_.asked[name]
    cells: dict[str, Any] = {"gpus": experiment.gpus}
    place = 0
    for line in shown:
        role = line.role
        if role == "alternative":
            place += 1
            role = f"alternative{place}"
        if role in data.CELLS:
            cells |= {f"{role}.{column}": text for column, text in enumerate(line.cells[1:])}
    within = card.within_range(best)
    cells["rate"] = within["tokens_per_s"]
    cells["error"] = best["tokens_per_s_error_pct"]
    cells["low"] = best["tokens_per_s_low"]
    cells["high"] = best["tokens_per_s_high"]
    cells["least"] = result.options["gpu_hours"].min() * 3600 / search_.question.tokens
    cells["tight"] = int(is_tight(best))
    warnings = brief.warnings_of(search_, result, best)
    cells["warnings"] = "; ".join(one for one in warnings if one.name not in OF_TOKENS)
    on = search_.target.hardware
    cells["nearest"] = nearest.in_short(experiment, on.gpu, on.link.nodes(experiment))
    return cells


def remembered(home: Any, name: str, key: Callable[..., Any]) -> Callable[[], None]:
    """Replace a function by one that computes each value once; return the way back."""
    original = getattr(home, name)
    values: dict[Any, Any] = {}

    def value(*arguments: Any, **named: Any) -> Any:
        place = key(*arguments, **named)
        if place not in values:
            values[place] = (original(*arguments, **named), arguments)  # which keeps their ids
        return values[place][0]

    setattr(home, name, value)
    return lambda: setattr(home, name, original)


def _by_identity(*arguments: Any, **named: Any) -> Any:
    return (*(id(one) for one in arguments), *named.items())


def _by_link(experiment: Experiment, link: Any) -> Any:
    return id(experiment), link


def _by_training(training: Any, offloaded: bool = False) -> Any:
    return repr(training), offloaded


def _by_fixed(experiment: Experiment, fixed: Any = ()) -> Any:
    return id(experiment), tuple(fixed)


REMEMBERED: list[tuple[Any, str, Callable[..., Any]]] = [
    (candidates, "candidates", _by_training),
    (search, "variants", _by_fixed),
    (search, "need_gib", _by_identity),
    (recommend, "need_gib", _by_identity),
    (predict, "peak_memory", _by_identity),
    (recommend, "peak_memory", _by_identity),
    (step_time, "work", _by_identity),
    (step_time, "traffic", _by_identity),
    (search.host_memory, "of_node", _by_link),
    (search, "simplicity", _by_identity),
    (predict, "reserved_rule", _by_identity),
    (traces, "_canonical", _by_identity),
    (traces, "_key", lambda kind, settings: (kind, settings)),
]
"""Functions of a candidate alone, where searches find them."""


@contextmanager
def shared() -> Iterator[None]:
    """Compute what does not depend on the GPU once."""
    named = Experiment.name_with_model
    names: dict[int, tuple[str, Experiment]] = {}

    def name(one: Experiment) -> str:
        if id(one) not in names:
            names[id(one)] = (named.fget(one), one)
        return names[id(one)][0]

    made = traces.MemoryTrace.of

    @cache
    def trace(key: int, micro_batch: int) -> Any:
        return made(records[key], micro_batch)

    records: dict[int, Any] = {}

    def of(kept: Any, micro_batch: int) -> Any:
        records[id(kept)] = kept
        return trace(id(kept), micro_batch)

    ways_back = [remembered(*one) for one in REMEMBERED]
    Experiment.name_with_model = property(name)  # type: ignore[method-assign]
    traces.MemoryTrace.of = of  # type: ignore[method-assign]
    try:
        yield
    finally:
        for way_back in ways_back:
            way_back()
        Experiment.name_with_model = named  # type: ignore[method-assign]
        traces.MemoryTrace.of = made  # type: ignore[method-assign]


def answered(cell: Cell) -> dict[str, Any]:
    """Return the record of a cell."""
    try:
        return record(found(*recommended(cell)))
    except SettingsError as error:
        return {"no": str(error)}


class _Untraced(Exception):
    """A model has to be traced, or could not be."""


def _refuse(*_: Any) -> Any:
    raise _Untraced


def _strictly(make: Callable[..., Any], kind: str, missing: Any) -> Any:
    """Trace settings as `traces._make` does, but lose none: an answer without it may be another one."""
    problems = make(kind, missing)
    if problems:
        raise _Untraced("; ".join({str(problem) for problem in problems.values()}))
    return problems


def group(cells: list[Cell], known: bool = False) -> None:
    """Keep the records of cells that differ in the GPU only; if `known`, not those that need a trace of a model."""
    started = time.time()
    traces.WORKERS = 1
    traces._records.clear()
    traces._make = partial(_strictly, MAKE)
    if known:
        traces._make = _refuse  # type: ignore[assignment]
    records = {}
    try:
        with shared():
            for cell in cells:
                records[cell.gpu] = answered(cell)
    except _Untraced as problem:
        print(cells[0], problem, file=sys.stderr, flush=True)
        return
    json_files.write_json(_file(cells[0]), records)
    first = cells[0]
    print(
        f"{first.model}, {first.gpus} GPUs, {first.seq_len}, {first.trained}: "
        f"{time.time() - started:.1f} s",
        flush=True,
    )


@cache
def _code() -> str:
    """Return a hash of the modules that find and word an answer, beside constants and templates."""
    code = hashlib.sha256()
    for module in (accuracy, brief, explanation, search, number_text):
        code.update(Path(str(module.__file__)).read_bytes())
    return code.hexdigest()[:8]


def _home() -> Path:
    home = user_cache.home()
    if home is None:
        sys.exit("answers are kept in the cache of dsnb, and there is none: set DSNB_CACHE")
    named = [data.fingerprint(), data.wording(), _code()]
    return home / "calculator" / "-".join(named)


def _file(cell: Cell) -> Path:
    name = f"{cell.model}_{cell.gpus}_{cell.seq_len}_{cell.trained}.json"
    return _home() / name


def groups() -> list[list[Cell]]:
    """Return the cells of each file, those that are asked for most first."""
    cells: dict[Path, list[Cell]] = {}
    for cell in GRID.cells():
        cells.setdefault(_file(cell), []).append(cell)

    def order(of_file: list[Cell]) -> tuple[int, int, bool]:
        cell = of_file[0]
        usual = GRID.lengths(cell.model).index(cell.seq_len)
        place = COUNT_ORDER.index(cell.gpus) + 2 * (cell.trained != data.WHOLE)
        return usual, place, cell.model not in FIRST

    return sorted(cells.values(), key=order)


def unpack(table: data.Table) -> int:
    """Keep the answers of the package, unless something has changed that they rest on; return the number of groups."""
    if (table.fingerprint, table.wording, table.code) != (
        data.fingerprint(),
        data.wording(),
        _code(),
    ):
        return 0
    unpacked = 0
    for cells in groups():
        records = {cell.gpu: table.record(cell) for cell in cells}
        if not _file(cells[0]).exists() and None not in records.values():
            json_files.write_json(_file(cells[0]), records)
            unpacked += 1
    return unpacked


def build(processes: int, known: bool) -> None:
    """Find the answers that are not kept yet."""
    print(f"{unpack(data.load())} groups of answers taken from the package")
    asked = [one for one in groups() if not _file(one[0]).exists()]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for _ in pool.imap_unordered(partial(group, known=known), asked):
            pass


def pack() -> None:
    """Write the file of the package from the answers that are kept."""
    records = {}
    for of_file in groups():
        if _file(of_file[0]).exists():
            kept = json_files.read_json(_file(of_file[0]))
            records |= {cell: kept[cell.gpu] for cell in of_file if cell.gpu in kept}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    data.FILE.write_bytes(data.packed(records, today, _code()))
    size = data.FILE.stat().st_size
    print(f"{len(records):,} answers, {size / 2**20:.2f} MiB: {data.FILE}")


def check(number: int, processes: int) -> list[str]:
    """Return how random cells differ from what `dsnb recommend` says now."""
    table = data.load()
    cells = [cell for cell in GRID.cells() if table.record(cell)]
    some = random.Random(SEED).sample(cells, number)
    found_: list[str] = []
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for differing in pool.imap_unordered(_differences, some):
            found_ += differing
    return found_


def _differences(cell: Cell) -> list[str]:
    return list(differences([cell], data.load()))


def differences(cells: list[Cell], table: data.Table) -> Iterator[str]:
    """Yield what differs between cells and the answers of `dsnb recommend`."""
    for cell in cells:
        try:
            (answer,) = recommend.recommend(*recommended(cell))
        except SettingsError as error:
            if str(error) != table.record(cell)["no"]:
                yield f"{cell}: {error}"
            continue
        expected = [one.cells for one in answer.lines]
        kept = [one.cells for one in data.lines(cell, table.record(cell))]
        first = expected[0][0].removesuffix(" *")
        if [(first,), *expected[1:]] != kept:
            yield f"{cell}: {kept} instead of {expected}"
        for row in answer.table.head(1).to_dict("records"):
            for name in ("low", "high"):
                speed = row[f"tokens_per_s_{name}"]
                if abs(table.record(cell)[name] / speed - 1) > 1e-5:
                    yield f"{cell}: {name} {table.record(cell)[name]} instead of {speed}"


def main() -> None:
    """Build and write the answers, or compare some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pack", action="store_true", help="write what is kept, find nothing")
    parser.add_argument("--known", action="store_true", help="find what needs no trace of a model")
    parser.add_argument("--check", type=int, help="compare as many cells with `dsnb recommend`")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    options = parser.parse_args()
    started = time.time()
    if options.check:
        found_ = check(options.check, options.processes)
        print(*found_, sep="\n")
        print(f"{len(found_)} of {options.check} cells differ; {time.time() - started:.0f} s")
        sys.exit(bool(found_))
    if not options.pack:
        build(options.processes, options.known)
        print(f"{(time.time() - started) / 60:.0f} minutes")
    pack()


if __name__ == "__main__":
    main()
