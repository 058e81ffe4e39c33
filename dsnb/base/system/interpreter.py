"""Starts Python: always this interpreter, and never with modules from the current folder.

`python -m` puts the current folder first on `sys.path`. A `random.py` beside the user's results
would then be imported instead of the standard library's.
"""

import os
import sys
from typing import Any

SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""Environment that keeps the current folder off `sys.path` in a process and its children."""


def command(*words: str) -> list[str]:
    """Return the command that runs this interpreter with these arguments and without the current folder on its path."""
    return [sys.executable, "-P", *words]


def ask(module: str, *words: str, given: str = "", timeout_s: float = 120) -> Any:
    """Return the JSON that a module prints last as a program; None if it fails or takes too long."""
    # Not at the top: this module is imported while the current folder is still on the path.
    import json
    import subprocess

    try:
        done = subprocess.run(
            command("-m", module, *words),
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, OSError, ValueError, IndexError):
        return None


def end_quickly() -> None:
    """Let this process collect no garbage at its end, which takes seconds after torch was imported."""
    # Not at the top, as in `ask`.
    import atexit
    import gc

    atexit.register(gc.freeze)


def drop_current_folder() -> None:
    """Remove the folder that `python -m` has put on `sys.path`; for modules that run as programs."""
    if sys.flags.safe_path:
        return
    del sys.path[0]
    home = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
    if home not in sys.path:  # run from a checkout: child processes must find the package, too
        sys.path.append(home)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, [os.environ.get("PYTHONPATH"), home])
        )
