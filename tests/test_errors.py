"""The tree of exceptions that `dsnb/errors.py` draws is the tree of its classes."""

import inspect
import re

from dsnb import errors


def drawn():
    """Give each exception of the drawing with the one that it is indented below, and the builtin that it names."""
    found, above = {}, []
    for line in inspect.getdoc(errors).splitlines():
        match = re.match(r"( *)(\w+(?:Error|Warning))\b(.*)", line)
        if not match:
            continue
        depth, name, about = len(match[1]) // 2, match[2], match[3]
        above = [*above[:depth], name]
        builtin = re.search(r"\((?:also )?an? (\w+)\)", about)
        found[name] = (above[depth - 1] if depth else None, builtin and builtin[1])
    return found


def defined():
    """Give the same of each class: the base that is defined beside it, and the first builtin beyond Exception."""
    classes = {name: one for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, Exception)}
    return {
        name: (
            next((base.__name__ for base in one.__bases__ if base.__name__ in classes), None),
            next(
                (base.__name__ for base in one.__bases__ if base.__module__ == "builtins" and base is not Exception),
                None,
            ),
        )
        for name, one in classes.items()
    }


def test_the_drawing_has_every_class_below_its_base():
    assert drawn() == defined()
    assert len(defined()) == 9
