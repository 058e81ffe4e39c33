"""Executes one run: starts the ranks, supervises them, and records how they ended.

Never imports torch, because it waits in a notebook's kernel while the ranks measure.
`__all__` lists the modules for notebooks.
"""

__all__ = ["folder"]
