"""Measurements of dsnb itself; run one with `python -m benchmarks.NAME`."""
