"""Tables of runs -> medians, intervals, differences, flags, scaling. `__all__` lists the modules for notebooks."""

__all__ = ["choices", "memory_use", "scaling", "summary", "tasks"]
