"""A benchmark of planners, programs that predict memory or speed of a training: `python -m benchmarks.planners`."""
