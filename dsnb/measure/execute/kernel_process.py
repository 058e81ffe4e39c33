"""A program: a notebook kernel that is killed when the process that started it ends.

ipykernel polls its parent itself, but not while it is suspended. `ipykernel_launcher` cannot be
used: it removes the current folder from `sys.path` even if PYTHONPATH names it.
"""

import os

from dsnb.base.system import signals

if __name__ == "__main__":
    signals.die_with_parent(int(os.environ.get("JPY_PARENT_PID") or os.getppid()))

    from ipykernel import kernelapp

    kernelapp.launch_new_instance()
