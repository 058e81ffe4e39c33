"""How far a reader walks through the code: `python -m benchmarks.walks`; `-v` also lists every stop.

A *stop* is a function, method or property of `dsnb/` that is called; comprehensions, lambdas and
`__dunder__` methods are none, and each counts once. The table has four figures with a goal:

* a question: stops of `dsnb recommend gpt2 --gpu H100`, from the command's function, with warm
  caches, that call another stop; beside it all stops, their modules, and how often the walk, in
  the order of first calls, returns to a module that it has left;
* a setting: stops of a sweep of one run, in all its processes until a rank calls
  `deepspeed.initialize`, that hand the setting on: they return it, or are given it and call a stop
  that is given it too. The setting is the experiment, the value of `learning_rate`, or what holds
  one of them at most two levels deep;
* strategies: files with a string that is a strategy's name, except those of `OWN`; beside it those
  that compare something with such a name;
* tuned numbers: numbers other than 0 and 1 in constants of modules of the predictor. Data files
  hold the others.
"""

import ast
import contextlib
import importlib
import io
import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import dsnb

PACKAGE = Path(dsnb.__file__).parent
COMMANDS = "dsnb.cli.predict"
OWN = "settings/strategies"
PREDICTORS = ("prediction", "predict")
STRATEGIES = {"plain", "ddp", "fsdp", "deepspeed"}
ENGINE = os.path.join("deepspeed", "__init__.py")
RATE = 0.000123457
"""A learning rate that is no other number's value."""
PARAMS = f"""
name: walks
defaults: {{model: gpt2-tiny, device: cpu, precision: fp32, seq_len: 16, steps: 2, warmup_steps: 1}}
include: [{{zero_stage: 1, learning_rate: {RATE}}}]
repeats: 1
"""


def stop_of(frame: FrameType) -> str:
    """Return the module and the name of the stop that a frame is a call of, or an empty text."""
    code = frame.f_code
    if not code.co_filename.startswith(f"{PACKAGE}{os.sep}") or code.co_name.startswith(
        ("<", "__")
    ):
        return ""
    return f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()} {code.co_qualname}"


def question() -> tuple[list[str], list[str]]:
    """Return the stops of `recommend` in the order of their first calls, and those that call others."""
    recommend: Any = importlib.import_module(COMMANDS).recommend
    stops: dict[str, bool] = {}
    called: list[str] = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        stop = stop_of(frame) if event in {"call", "return"} else ""
        if not stop:
            return
        if event == "return":
            called.pop()
            return
        stops.setdefault(stop, False)
        if called and called[-1] != stop:
            stops[called[-1]] = True
        called.append(stop)

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        recommend(Path("gpt2"), gpu=["H100"])
        sys.setprofile(profile)
        try:
            recommend(Path("gpt2"), gpu=["H100"])
        finally:
            sys.setprofile(None)
    return list(stops), [stop for stop, is_passing in stops.items() if is_passing]


def holds(value: Any, levels: int = 2) -> bool:
    """Return whether a value is the setting or the experiment, or holds one of them."""
    if type(value).__name__ == "Experiment" or (isinstance(value, float) and value == RATE):
        return True
    if levels and type(value).__module__.startswith("dsnb."):
        value = getattr(value, "__dict__", {})
    if isinstance(value, Mapping):
        value = list(value.values())
    return (
        levels > 0
        and isinstance(value, list | tuple)
        and any(holds(part, levels - 1) for part in value)
    )


def follow(record: str) -> None:
    """Append the stops of this process and of its forks that hand the setting on to a file, as they do it."""
    given: set[str] = set()

    def write(line: str) -> None:
        with open(record, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def profile(frame: FrameType, event: str, returned: object) -> None:
        stop, code = stop_of(frame), frame.f_code
        if event == "call" and code.co_name == "initialize" and code.co_filename.endswith(ENGINE):
            write(ENGINE)
        if event == "return" and stop and holds(returned):
            write(stop)
        if event != "call" or not stop:
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if stop not in given and not any(holds(frame.f_locals.get(name)) for name in arguments):
            return
        given.add(stop)
        caller = frame.f_back
        while caller and not stop_of(caller):
            caller = caller.f_back
        if caller and stop_of(caller) in given - {stop}:
            write(stop_of(caller))

    sys.setprofile(profile)
    threading.setprofile(profile)


def setting() -> list[str]:
    """Return the stops that hand a setting on between the params file and DeepSpeed."""
    with tempfile.TemporaryDirectory() as folder:
        record, params = Path(folder, "stops"), Path(folder, "walks.yaml")
        params.write_text(PARAMS)
        Path(folder, "sitecustomize.py").write_text(
            f"import benchmarks.walks\nbenchmarks.walks.follow({str(record)!r})\n"
        )
        places = os.pathsep.join([folder, str(PACKAGE.parent)])
        command = [sys.executable, "-m", "dsnb", "sweep", str(params), "--output", f"{folder}/runs"]
        subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": places},
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        lines = record.read_text().splitlines()
    return list(dict.fromkeys(lines[: lines.index(ENGINE)]))


def names_strategy(node: ast.AST) -> bool:
    """Return whether a piece of code has a string that is the name of a strategy."""
    return any(
        isinstance(part, ast.Constant) and part.value in STRATEGIES for part in ast.walk(node)
    )


def tuned_numbers(name: str, tree: ast.Module) -> Iterator[str]:
    """Yield each number in the constants of a module of the predictor."""
    if not name.startswith(PREDICTORS):
        return
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value:
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            for part in ast.walk(node.value):
                is_number = isinstance(part, ast.Constant) and type(part.value) in {int, float}
                if is_number and ast.unparse(part) not in {"0", "0.0", "1", "1.0"}:
                    yield f"{name} {target}: {ast.unparse(part)}"


def main() -> None:
    """Print the table, and what was counted with `-v`."""
    stops, passing = question()
    modules = [stop.partition(" ")[0] for stop in stops]
    returns = [
        f"{before} to {module}"
        for place, (before, module) in enumerate(itertools.pairwise(modules), 1)
        if module != before and module in modules[:place]
    ]
    trees = {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text())
        for path in PACKAGE.rglob("*.py")
    }
    naming = [
        name for name, tree in trees.items() if names_strategy(tree) and not name.startswith(OWN)
    ]
    comparing = [
        name
        for name in naming
        if any(
            isinstance(node, ast.Compare) and names_strategy(node) for node in ast.walk(trees[name])
        )
    ]
    rows = [
        ("recommend: functions that call others", "50", passing),
        ("recommend: all functions", "", stops),
        ("recommend: modules", "", dict.fromkeys(modules)),
        ("recommend: returns to a module", "", returns),
        ("functions that hand a setting on", "25", setting()),
        ("files that name a strategy", "10", sorted(naming)),
        ("files that compare the name of a strategy", "", sorted(comparing)),
        (
            "tuned numbers",
            "0",
            [number for name, tree in trees.items() for number in tuned_numbers(name, tree)],
        ),
    ]
    print(f"{'':42} today  goal")
    for title, goal, found in rows:
        print(f"{title:42} {len(found):5}  {goal:>4}")
        if "-v" in sys.argv:
            print("".join(f"    {each}\n" for each in found))


if __name__ == "__main__":
    main()
