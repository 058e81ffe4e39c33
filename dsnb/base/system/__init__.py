"""The machine: GPUs, processes, signals, clocks, temporary folders."""
