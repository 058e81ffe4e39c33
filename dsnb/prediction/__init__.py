"""Predictions of memory and step time, without a GPU: rules and an analytic model, calibrated on measured runs.

`__all__` lists the modules for notebooks.
"""

__all__ = ["recommend"]
