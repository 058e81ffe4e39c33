"""How dsnb starts Python: always this interpreter, and never with modules from the current folder.

Python puts the current folder first on its path for `python -m`. A `random.py` beside somebody's results would then be
executed in place of the standard library's.
"""

import os
import sys

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""What keeps the current folder off the path of a process and of those that it starts in turn."""


def command(*words: str) -> list[str]:
    """Return the command that runs this interpreter with these arguments and a safe path."""
    return [sys.executable, "-P", *words]


def drop_current_folder() -> None:
    """Take the folder off the path that `python -m` has put there; for a module that runs as a program."""
    if sys.flags.safe_path:
        return
    del sys.path[0]
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    if home not in sys.path:  # not installed, but run from a checkout: what is started later must find it too
        sys.path.append(home)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), home]))
