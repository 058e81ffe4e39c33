"""What a notebook shows while a cell waits: without it, a minute of work looks like a hang."""

import html
import sys
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any

REFRESH_S = 0.5
"""Seconds between refreshes."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


def until_done(futures: Collection[Future[Any]], what: str) -> None:
    """Wait for futures; a notebook shows meanwhile what for, how many of them are done, and for how long."""
    if not in_notebook():
        wait(futures)
        return
    from IPython.display import HTML, display

    began_s = time.monotonic()
    output = display(HTML(""), display_id=True)
    while True:
        done = sum(future.done() for future in futures)
        seconds = time.monotonic() - began_s
        bar = f'<progress value="{done}" max="{len(futures)}" aria-label="progress"></progress>'
        text = html.escape(f"{what}: {done} of {len(futures)}, {seconds:.0f} s")
        output.update(HTML(f"{bar} {text}"))
        if not wait(futures, REFRESH_S).not_done:
            break
    output.update(HTML(""))
