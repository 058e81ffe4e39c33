"""Which contributed rows constants may be fitted to: those of GPUs that were measured on two hosts or more.

Hosts of one GPU differ by a factor of two where the CPU sets the pace, so one host's rows would fit
that host. Rows that are marked single have no spread, and say nothing about their own noise.
"""

import pandas as pd

from dsnb.prediction.gpus import known_gpu

MIN_HOSTS = 2
"""Hosts of a GPU from which its rows are fitted to."""


def for_fits(rows: pd.DataFrame, gpu_name: str = "") -> pd.DataFrame:
    """Return the ok rows that are not single, of GPUs with at least `MIN_HOSTS` hosts among these rows.

    With `gpu_name`, only those of one GPU. Two names of one GPU (`NVIDIA H100 80GB HBM3`, `H100`) are
    one GPU. A run on several nodes counts as one host, that of its first node.
    """
    usable = rows[(rows["status"] == "ok") & ~rows["single"].astype(bool)]
    gpu = usable["gpu_name"].map(_gpu)
    hosts = usable["host"].groupby(gpu).nunique()
    enough = set(hosts.index[hosts >= MIN_HOSTS])
    if gpu_name:
        enough &= {_gpu(gpu_name)}
    return usable[gpu.isin(enough)]


def _gpu(name: str) -> str:
    spec = known_gpu(name)
    return spec.name if spec else name
