"""Reads what a pickle says without running it: objects stay inert, nothing is imported or called.

A pickle is a program, and Python's own reader runs it. `torch.save` writes pickles, and so does
transformers for its arguments (`training_args.bin`). Here the opcodes are walked: plain values become
plain values, and a class or function becomes its name, with the arguments and the state that it was
to get.
"""

import io
import pickletools
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 16 * 2**20
"""Files of arguments have kilobytes; larger ones hold tensors."""
ERRORS = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, EOFError,
    OSError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Exceptions for a file that is damaged, too large or no pickle."""


@dataclass(eq=False)
class Inert:
    """What a pickle says of an object: the name of its class, its arguments and its state."""

    name: str
    """Module and name, such as `torch.float16`."""
    args: tuple[Any, ...] = ()
    state: dict[str, Any] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """Return the value of an enumeration's member, the name of a class or function, else the value itself."""
    if not isinstance(value, Inert) or value.state:
        return value
    if len(value.args) == 1 and isinstance(value.args[0], str | int):
        return value.args[0]
    return value.name


def read(path: Path) -> Any:
    """Return the object of a file of `torch.save`, or of a plain pickle; raise one of `ERRORS` for others."""
    if zipfile.is_zipfile(path):
        return _first(io.BytesIO(_from_archive(path)))
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("it is too large")
    stream = io.BytesIO(content)
    value = _first(stream)
    while not isinstance(value, Inert) and stream.tell() < len(content):
        value = _first(stream)  # before version 1.6, torch wrote its version and sizes first
    return value


def _from_archive(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith("data.pkl") and entry.file_size <= MAX_BYTES:
                with archive.open(entry) as file:
                    return file.read(MAX_BYTES)
    raise ValueError("it has no pickle of a usual size")


def _first(stream: io.BytesIO) -> Any:
    machine = _Machine()
    for opcode, argument, _ in pickletools.genops(stream):
        machine.step(opcode.name, argument)
    return machine.stack[-1]


class _Machine:
    """The stack of a pickle; marks are the lengths of it where a group of values begins."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        """Apply one opcode."""
        if name in _VALUES:
            self.stack.append(_VALUES[name]())
        elif name in _OPCODES:
            _OPCODES[name](self, argument)
        elif argument is not None and not name.startswith(("PROTO", "FRAME")):
            self.stack.append(argument)

    def group(self) -> list[Any]:
        """Remove the values since the last mark and return them."""
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def last(self, count: int) -> list[Any]:
        """Remove the last values and return them."""
        begin = len(self.stack) - count
        self.marks.append(begin)
        return self.group()


_VALUES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": list,
}


def _remember(machine: _Machine, place: int | None) -> None:
    if place is None:
        place = len(machine.memo)
    machine.memo[place] = machine.stack[-1]


def _extend(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, list):
        target.extend(values)


def _set(machine: _Machine, values: list[Any]) -> None:
    target = machine.stack[-1]
    if isinstance(target, dict):
        target.update(_pairs(values))


def _pairs(values: list[Any]) -> Iterator[tuple[str | int, Any]]:
    """Yield keys and values; a key of another type is left out, since hashing it may never end."""
    for key, value in zip(values[::2], values[1::2], strict=True):
        if isinstance(key, str | int):
            yield key, value


def _call(machine: _Machine, count: int = 2) -> None:
    """Note the arguments of a class or function, and call nothing."""
    made, *arguments = machine.last(count)
    name = str(getattr(made, "name", ""))
    values = arguments[0]
    if not isinstance(values, tuple):
        values = ()
    machine.stack.append(Inert(name, values))


def _instance(machine: _Machine, name: str) -> None:
    machine.stack.append(Inert(name.replace(" ", "."), tuple(machine.group())))


def _object(machine: _Machine, _: Any) -> None:
    made, *arguments = machine.group()
    machine.stack.append(Inert(str(getattr(made, "name", "")), tuple(arguments)))


def _build(machine: _Machine, _: Any) -> None:
    [state] = machine.last(1)
    target = machine.stack[-1]
    if isinstance(state, tuple) and state:  # of a class with slots
        state = state[0]
    if isinstance(target, Inert) and isinstance(state, dict):
        target.state = target.state or state  # not copied: a file may build one object very often


def _global(machine: _Machine, _: Any) -> None:
    words = [word for word in machine.last(2) if isinstance(word, str)]
    machine.stack.append(Inert(".".join(words)))


_OPCODES: dict[str, Callable[[_Machine, Any], object]] = {
    "MARK": lambda m, _: m.marks.append(len(m.stack)),
    "POP": lambda m, _: m.last(1),
    "POP_MARK": lambda m, _: m.group(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), _remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, at: m.stack.append(m.memo[at])),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.group())),
    "TUPLE1": lambda m, _: m.stack.append(tuple(m.last(1))),
    "TUPLE2": lambda m, _: m.stack.append(tuple(m.last(2))),
    "TUPLE3": lambda m, _: m.stack.append(tuple(m.last(3))),
    "LIST": lambda m, _: m.stack.append(m.group()),
    "FROZENSET": lambda m, _: m.stack.append(m.group()),
    "DICT": lambda m, _: m.stack.append(dict(_pairs(m.group()))),
    "APPEND": lambda m, _: _extend(m, m.last(1)),
    **dict.fromkeys(("APPENDS", "ADDITEMS"), lambda m, _: _extend(m, m.group())),
    "SETITEM": lambda m, _: _set(m, m.last(2)),
    "SETITEMS": lambda m, _: _set(m, m.group()),
    "GLOBAL": lambda m, name: m.stack.append(Inert(name.replace(" ", "."))),
    "STACK_GLOBAL": _global,
    "INST": _instance,
    "OBJ": _object,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), lambda m, _: _call(m)),
    "NEWOBJ_EX": lambda m, _: _call(m, 3),
    "BUILD": _build,
    "BINPERSID": lambda m, _: m.stack.append(Inert("", tuple(m.last(1)))),
    **dict.fromkeys(("EXT1", "EXT2", "EXT4"), lambda m, _: m.stack.append(Inert(""))),
    **dict.fromkeys(("READONLY_BUFFER", "NEXT_BUFFER"), lambda m, _: m.stack.append(None)),
}
