"""Tables of runs -> decisions, and the sentences that say them. `__all__` lists the modules for notebooks."""

__all__ = ["decide"]
