"""The few constants of the time model that only measurements tell, with their values and how to fit them again."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Constants:
    """What is reached of nominal rates, and what the host needs; `dsnb.prediction.calibration` fits them.

    Efficiencies are shares of the data sheet's rates, of the links and of the network.
    """

    matmul_efficiency: float  # of matrix products, besides the time of their operands' bytes
    unaligned_efficiency: float  # of those of a width that is no multiple of 8
    attention_efficiency: float  # of fused attention
    memory_efficiency: float
    kernel_us: float  # of a kernel on the GPU, beyond its bytes and FLOPs
    host_launch_us: float  # of the host, to launch an operation from Python or autograd
    host_parameter_us: float  # of the host, to ask the GPU about one parameter tensor in ZeRO 0's optimizer step
    host_gather_us: float  # of the host, to fetch and free a parameter or block at ZeRO 3
    link_efficiency: float  # inside a node
    network_efficiency: float  # between nodes
    host_link_efficiency: float  # to host memory
    overlap: float  # share of communication beside computation that is hidden
    cpu_parameter_ns: float  # of the CPU, to update a parameter whose optimizer state is in host memory


DEFAULT = Constants(**json.loads(Path(__file__).with_name("constants.json").read_text(encoding="utf-8")))
"""Fitted on one to four H200 with a 16-core host, torch 2.11 and DeepSpeed 0.19.8, on the settings that
`python -m benchmarks.prediction_errors` names, but those of 2026-11-24, which are held out;
`python -m benchmarks.prediction_errors fit` fits them again, from the `PRIOR` there."""
FITTED_SETTINGS = 254
"""Settings that `DEFAULT` was fitted to."""
