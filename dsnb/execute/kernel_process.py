"""`python -m dsnb.execute.kernel_process`: the kernel of a notebook, which ends when the process that started it does.

ipykernel looks for that itself, but not while it is stopped. Nor does `ipykernel_launcher` do: it takes the current
folder off the path even where PYTHONPATH names it.
"""

import os

from dsnb.system import signals


def main() -> None:
    """Run the kernel that the command line describes."""
    parent = os.environ.get("JPY_PARENT_PID")
    signals.die_with_parent()
    if parent and os.getppid() != int(parent):  # it was gone before that
        raise SystemExit("the process that started this kernel is gone")

    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
