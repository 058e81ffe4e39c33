"""The few constants of the time model that only measurements tell, with their values and how to fit them again."""

from dataclasses import dataclass


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


PRIOR = Constants(
    matmul_efficiency=0.8,  # docs/LOG.md: large products reach 75 to 78 % with their bytes
    unaligned_efficiency=0.11,  # docs/LOG.md: 108 ms for three products of GPT-2 XL's output layer
    attention_efficiency=0.4,
    memory_efficiency=0.8,
    kernel_us=1.5,
    host_launch_us=40.0,
    host_parameter_us=130.0,
    host_gather_us=200.0,
    link_efficiency=0.66,  # docs/LOG.md: 298 of 450 GB/s
    network_efficiency=0.5,
    host_link_efficiency=0.75,
    overlap=0.8,
    cpu_parameter_ns=1.8,
)
"""What is known before any run is fitted: single measurements of docs/LOG.md, and what is usual."""

DEFAULT = Constants(
    matmul_efficiency=0.794,
    unaligned_efficiency=0.131,
    attention_efficiency=0.46,
    memory_efficiency=0.723,
    kernel_us=1.68,
    host_launch_us=35,
    host_parameter_us=156,
    host_gather_us=255,
    link_efficiency=0.651,
    network_efficiency=0.5,
    host_link_efficiency=0.983,
    overlap=0.44,
    cpu_parameter_ns=0.975,
)
"""Fitted on one to four H200 with a 16-core host, torch 2.11 and DeepSpeed 0.19.8, from `PRIOR` on the settings that
`python -m benchmarks.prediction_errors` names, but those of 2026-11-24, which are held out;
`python -m benchmarks.prediction_errors fit` fits them again."""
FITTED_SETTINGS = 254
"""Settings that `DEFAULT` was fitted to."""
