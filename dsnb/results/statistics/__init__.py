"""Tables of runs -> medians, intervals, differences, flags, scaling. `__all__` lists the modules for notebooks."""

__all__ = ["memory_use", "scaling", "setting_axes", "summary", "tasks"]
