"""One run, from settings to a finished run folder: start the ranks, watch them, say how it ended.

Never imports torch: it waits in a notebook's kernel while the ranks measure.
"""
