"""How wrong predictions are for measurements that other projects published: `python -m benchmarks.outside`."""
