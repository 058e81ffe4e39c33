"""Tables of runs -> medians, trade-offs, scaling, memory against theory, slow nodes. Returns data, draws nothing.

`__all__` lists the modules for notebooks.
"""

__all__ = ["choices", "decide", "memory_use", "recommend", "scaling", "summary", "tasks"]
