"""Parameters that papermill passed to a notebook, compared with those that it has.

papermill only warns about a name that the notebook does not have: it would run with its defaults,
on the runs of a demo, and exit with code 0. It passes parameters in a cell of its own, behind the
one tagged `parameters`. IPython keeps the text of both in `In`.
"""

import ast
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.settings import checks

INJECTED = "# Parameters\n"
"""How the cell begins that papermill adds."""


def check_parameters(names: Mapping[str, Any]) -> None:
    """Raise a SettingsError for each parameter of papermill that a notebook does not have.

    Without papermill, nothing is checked: a notebook may have any other names.

    Parameters
    ----------
    names
        The `globals()` of the notebook.

    Examples
    --------
    The first line after the parameters of a notebook of your own:

    >>> dsnb.check_parameters(globals())
    """
    if problems := list(unknown(names)):
        raise SettingsError(problems)


def unknown(names: Mapping[str, Any], also: Collection[str] = ()) -> Iterator[str]:
    """Yield a sentence for each passed parameter that is neither in the parameters cell nor in `also`."""
    cells = [str(cell) for cell in names.get("In", ())]
    injected = [cell for cell in cells if cell.startswith(INJECTED)]
    if not injected:
        return
    place = cells.index(injected[0])
    own = list(_assigned(cells[place - 1])) if place else []
    known = [*own, *also]
    for name in _assigned(injected[0]):
        if name not in known:
            allowed = ", ".join(own) or "none"
            yield f"unknown parameter {name!r}: {checks.hint(name, known, allowed)}"


def passed(names: Mapping[str, Any]) -> set[str]:
    """Return the names of the parameters that papermill passed."""
    cells = [str(cell) for cell in names.get("In", ())]
    injected = (cell for cell in cells if cell.startswith(INJECTED))
    return {name for cell in injected for name in _assigned(cell)}


def _assigned(cell: str) -> Iterator[str]:
    """Yield the names that the text of a cell assigns."""
    for statement in ast.parse(cell).body:
        targets = getattr(statement, "targets", [getattr(statement, "target", None)])
        yield from (target.id for target in targets if isinstance(target, ast.Name))
