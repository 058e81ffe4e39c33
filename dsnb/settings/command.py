"""A user's own program as a run: `command: torchrun --nproc-per-node {gpus} train.py --lr {learning_rate}`.

A command is split into words as a shell does it, and then its placeholders are filled, so that no
value can become another word. There is no shell: variables, pipes and patterns mean nothing.
"""

import functools
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnb.base.errors import SettingsError
from dsnb.base.files.plain_text import short_repr
from dsnb.settings import flat_keys
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.tables import SHOWN
from dsnb.settings.training import Setting, Training, text

if TYPE_CHECKING:  # it imports this module
    from dsnb.settings.experiment import Experiment

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
TRAINER = "trainer_args"
"""The placeholder of several words: the arguments of transformers' Trainer."""


@dataclass(frozen=True)
class Placeholder:
    """A name in braces: `{gpus}`, or `{compile?--torch_compile}`, a text that is there if the setting is on."""

    name: str
    switched: str | None = None

    @property
    def is_switch(self) -> bool:
        """Whether it stands for its own text and not for a value."""
        return self.switched is not None


Word = tuple[str | Placeholder, ...]


@dataclass(frozen=True)
class Place:
    """Where a command runs: its run folder, and a free port."""

    run: RunPaths
    port: int


SOMEWHERE = Place(RunPaths(Path("run")), 0)
"""The place of a command that is only looked at."""


@functools.lru_cache(maxsize=64)
def words_of(command: str) -> tuple[Word, ...]:
    """Return the words of a command; a SettingsError says what cannot be read."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = f"{error}".lower()
        raise SettingsError(f"command is {short_repr(command)}: {why}; close it") from error
    if not words:
        raise SettingsError("command is blank: give a program and its arguments")
    return tuple(tuple(_parts(word)) for word in words)


def _parts(word: str) -> Iterator[str | Placeholder]:
    end = 0
    for match in _PART.finditer(word):
        if match.start() > end:
            yield word[end : match.start()]
        end = match.end()
        if match[0] in {"{{", "}}"}:
            yield match[0][0]
        elif match[1] is None:
            raise SettingsError(
                f"command has the word {short_repr(word)}: its {match[0]!r} is part of no placeholder; "
                f"write {match[0] * 2!r} for a brace, and quotes around a placeholder with spaces"
            )
        else:
            name, mark, switched = match[1].partition("?")
            yield Placeholder(name.strip(), switched if mark else None)
    if end < len(word):
        yield word[end:]


def placeholders(command: str) -> list[str]:
    """Return the names of the placeholders of a command."""
    parts = (part for word in words_of(command) for part in word)
    return list(dict.fromkeys(part.name for part in parts if isinstance(part, Placeholder)))


@dataclass(frozen=True)
class Made:
    """A placeholder for the path of a file that is written into the run folder."""

    files: tuple[str, ...]
    """The files by their names in `RunPaths`, the one of the path first."""
    exists: Callable[["Experiment"], bool]


def _uses_deepspeed(s: "Experiment") -> bool:
    return bool(s.complete.parallel_strategy.is_deepspeed)


MADE = {
    "deepspeed_json": Made(("deepspeed",), _uses_deepspeed),
    "deepspeed_auto_json": Made(("deepspeed_auto",), _uses_deepspeed),
    "accelerate_yaml": Made(("accelerate", "deepspeed_accelerate"), lambda s: True),
    "hostfile": Made(("hosts",), lambda s: bool(s.hostfile)),
}
OF_RUN: dict[str, Callable[["Experiment", Place], str]] = {
    "run_dir": lambda s, place: str(place.run.dir),
    "port": lambda s, place: str(place.port),
    "total_steps": lambda s, place: str(s.warmup_steps + s.steps),
}
"""Placeholders that are neither settings nor files."""


def arguments(s: "Experiment", place: Place) -> list[str]:
    """Return the filled words of the command of a run."""
    from dsnb.settings.exchange import programs  # it imports settings

    s = s.complete
    filled = []
    for word in words_of(s.command):
        if word == (Placeholder(TRAINER),):
            filled += programs.flags(programs.training_arguments(s))
            continue
        whole = "".join(_filled(part, s, place) for part in word)
        has_switch = any(isinstance(part, Placeholder) and part.is_switch for part in word)
        if whole or not has_switch:
            filled.append(whole)
    return filled


def _filled(part: str | Placeholder, s: "Experiment", place: Place) -> str:
    if isinstance(part, str):
        return part
    if part.switched is None:
        return value_of(part.name, s, place)
    return part.switched if is_on(part.name, s) else ""


def value_of(name: str, s: "Experiment", place: Place) -> str:
    """Return the value of a placeholder; that of a file which does not exist is empty."""
    if name in OF_RUN:
        return OF_RUN[name](s, place)
    if name in MADE:
        path: Path = getattr(place.run, MADE[name].files[0])
        return str(path) if MADE[name].exists(s) else ""
    value = setting_of(name, s)
    if isinstance(value, float):
        return repr(value)  # `text` rounds
    return "" if value is None else text(value)


def is_on(name: str, s: "Experiment") -> bool:
    """Return whether the setting of a placeholder is on, or its file exists."""
    off = SHOWN.get(name, {}).get("off", Setting("").off)
    return value_of(name, s, SOMEWHERE) not in {*off, ""}


def setting_of(name: str, s: "Experiment") -> Any:
    """Return the value of a setting or of one of its keys; None if it has none."""
    first, dot, key = name.partition(".")
    value = getattr(s, first, None)
    if dot:
        return value.get(key) if isinstance(value, Mapping) else None
    return value


def files(s: "Experiment", run: RunPaths) -> dict[str, Any]:
    """Return the content of the files that a command refers to, by their names in `RunPaths`."""
    from dsnb.settings.exchange import programs  # it imports settings

    s = s.complete
    content: dict[str, Callable[[], Any]] = {
        "deepspeed": lambda: programs.deepspeed_plain(s),
        "deepspeed_auto": lambda: programs.deepspeed_auto(s),
        "deepspeed_accelerate": lambda: programs.deepspeed_accelerate(s),
        "accelerate": lambda: programs.accelerate_config(s, str(run.deepspeed_accelerate)),
        "hosts": lambda: "".join(f"{host.name} slots={len(host.devices)}\n" for host in s.hosts),
    }
    made: dict[str, Any] = {}
    for name in placeholders(s.command):
        if name in MADE and MADE[name].exists(s):
            made |= {file: content[file]() for file in MADE[name].files}
    return {file: each for file, each in made.items() if each}


def received(s: "Experiment") -> tuple[list[str], dict[str, Any]]:
    """Return what a script is given of its settings: words and files; not of its place, such as its hosts."""
    alone = s.model_copy(update={"hostfile": ""})
    return arguments(alone, SOMEWHERE), files(alone, SOMEWHERE.run)


# What is known of the settings.
OWN = {"command", *flat_keys.NAMES, "steps", "warmup_steps", "profile", "memory_limit_gib"}
"""Settings of the training whose values are dsnb's to decide."""


def stated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings; beside a command, null is a setting that is not stated."""
    if not settings.get("command"):
        return dict(settings)
    return {name: value for name, value in settings.items() if value is not None}


def unknown(s: "Experiment", given: Mapping[str, Any]) -> list[str]:
    """Return the settings of a command that are neither given nor told to the script; none without a command."""
    if not s.command:
        return []
    told = placeholders(s.command)
    names = [name for name in Training.model_fields if name not in {*OWN, *given, *told}]
    if not {TRAINER, *MADE}.isdisjoint(told):
        key = (s.command, *(_kind(value) for value in vars(s).values()))
        if key not in _UNTOLD:
            _UNTOLD[key] = {name for name in Training.model_fields if not _is_told(s, name)}
        names = [name for name in names if name in _UNTOLD[key]]
    return names


_UNTOLD: dict[tuple[Any, ...], set[str]] = {}
"""By a command and the kinds of its settings, those that its words and files do not tell: finding them takes 50 ms."""


def _kind(value: Any) -> Any:
    """Return a value, of a number whether it is 0: the size of a batch decides no other setting."""
    if isinstance(value, Mapping):
        return tuple(value)
    return value if isinstance(value, str) else bool(value)


def _is_told(s: "Experiment", name: str) -> bool:
    """Return whether words and files would differ for any other value of a setting."""
    now = received(s)
    others = _others(name, getattr(s, name))
    return all(received(s.model_copy(update={name: value})) != now for value in others)


def _others(name: str, value: Any) -> list[Any]:
    """Return some other values of a setting, all of them if they are words."""
    words = Setting.of(name, Training.model_fields[name]).order
    if words:
        return [word for word in words if word != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, 2 * value + 2]
    return [f"{value}x"] if isinstance(value, str) else [value]


# What is refused.
def without_value(settings: Mapping[str, Any]) -> list[str]:
    """Return which placeholders have settings that are null."""
    try:
        told = placeholders(settings.get("command") or "true")
    except (SettingsError, TypeError, AttributeError):  # refused elsewhere
        return []
    empty = [name for name in told if name in settings and settings[name] is None]
    return [f"{name} is null, but the command has {{{name}}}: give it a value" for name in empty]


def without_command(s: "Experiment") -> Iterator[str]:
    """Yield the axes of a script for which there is no command."""
    for key in s.script:
        yield f"script.{key} is {short_repr(s.script[key])}, but there is no 'command' that it is for: give one"


def problems(s: "Experiment") -> Iterator[str]:
    """Yield why a command cannot be filled by its settings, one sentence each."""
    try:
        words = words_of(s.command)
    except SettingsError as error:
        yield from error.problems
        return
    told = placeholders(s.command)
    yield from _unknown_placeholders(s, told)
    for key, value in s.script.items():
        if f"script.{key}" not in told:
            missing = f"the command has no {{script.{key}}}: the runs would be equal"
            yield f"script.{key} is {short_repr(value)}, but {missing}"
    for word in words:
        if Placeholder(TRAINER) in word and len(word) > 1:
            yield f"command has {{{TRAINER}}} inside of a word: it is several words; put spaces around it"
        yield from _missing_files(s, word)
    for name in ("profile", "memory_limit_gib"):
        value = getattr(s, name)
        if value and name not in told:
            yield f"{name} is {value!r}: dsnb cannot apply it to a command; drop it, or give the command {{{name}}}"


def _unknown_placeholders(s: "Experiment", told: list[str]) -> Iterator[str]:
    from dsnb.settings.checks import hint  # it imports this module

    settings = [name for name in type(s).model_fields if name not in {"command", *flat_keys.NAMES}]
    keys = [f"{name}.{key}" for name in flat_keys.NAMES for key in getattr(s, name)]
    names = [*dict.fromkeys([*OF_RUN, *MADE, TRAINER, *settings]), *keys]
    for name in told:
        if flat_keys.is_key(name) and name not in keys:
            yield f"command has {{{name}}}, but {name} has no value: give it one below 'defaults:' or 'grid:'"
        elif name not in names:
            yield f"command has the unknown placeholder {{{name}}}: {hint(name, names, ', '.join(names))}"


def _missing_files(s: "Experiment", word: Word) -> Iterator[str]:
    """Yield which files of a word do not exist with these settings, unless a switch leaves the word out then."""
    parts = [part for part in word if isinstance(part, Placeholder)]
    guarded = {part.name for part in parts if part.is_switch}
    for part in parts:
        name = part.name
        if name not in MADE or name in guarded or MADE[name].exists(s):
            continue
        if name == "hostfile":
            yield "command has {hostfile}, but hostfile is empty: name the hosts in it, or drop the placeholder"
        else:
            yield (
                f"command has {{{name}}}, but strategy is {s.strategy!r}: write {{{name}?--deepspeed=}}{{{name}}}, "
                "which is left out without DeepSpeed"
            )


def equal_runs(experiments: Iterable["Experiment"]) -> list[str]:
    """Return which settings differ between experiments whose scripts would be given the same, one sentence each."""
    seen: dict[str, dict[str, Any]] = {}
    problems = []
    for s in experiments:
        if not s.command:
            continue
        allocator = s.allocator if s.device == "cuda" else None  # set by a variable
        now = _each(s)
        before = seen.setdefault(repr((received(s), allocator)), now)
        for name in dict.fromkeys([*before, *now]):
            if before.get(name) != now.get(name):
                problems.append(
                    f"{name} has several values, but reaches the command through no placeholder: the runs would be "
                    f"equal; add {{{name}}} to the command, or give {name} one value"
                )
    return list(dict.fromkeys(problems))


def _each(s: "Experiment") -> dict[str, Any]:
    """Return the settings of the training with every key as a separate one."""
    each = {name: getattr(s, name) for name in Training.model_fields if name not in flat_keys.NAMES}
    for name in flat_keys.NAMES:
        each |= {f"{name}.{key}": value for key, value in getattr(s, name).items()}
    return each


def local_files(command: str) -> list[str]:
    """Return the existing files that a command names, such as the script: an edited one is another input."""
    found = []
    for word in words_of(command)[1:]:
        if len(word) == 1 and isinstance(word[0], str):
            found.append(word[0].rpartition("=")[2])
    return [path for path in found if Path(path).is_file()]
