"""One run, from settings to a finished run folder: starts the ranks, supervises them, and records how they ended.

It never imports torch, because it waits in a notebook's kernel while the ranks measure.
"""
