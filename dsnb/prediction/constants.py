"""The few constants of the time model that only measurements tell, with their values and how uncertain these are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What is reached of nominal rates, and what the host needs; `dsnb.prediction.calibration` fits them.

    Attributes
    ----------
    matmul_efficiency, unaligned_efficiency, attention_efficiency
        Share of the data sheet's dense FLOP/s that large matrix products reach, those of a width that is no multiple
        of 8, and fused attention.
    memory_efficiency
        Share of the data sheet's memory bandwidth.
    kernel_us
        Of a kernel on the GPU, beyond its bytes and FLOPs.
    host_launch_us
        Of the host, to launch an operation from Python or autograd.
    host_parameter_us
        Of the host, for a parameter tensor in ZeRO's optimizer step.
    host_gather_us
        Of the host, for what ZeRO 3 fetches and frees once.
    link_efficiency, network_efficiency, host_link_efficiency
        Share of nominal bandwidth inside a node, between nodes, and to host memory.
    overlap
        Share of communication beside computation that is hidden.
    cpu_parameter_ns
        Of the CPU, to update a parameter.
    """

    matmul_efficiency: float = 0.8
    unaligned_efficiency: float = 0.11
    attention_efficiency: float = 0.4
    memory_efficiency: float = 0.8
    kernel_us: float = 1.5
    host_launch_us: float = 40.0
    host_parameter_us: float = 130.0
    host_gather_us: float = 150.0
    link_efficiency: float = 0.66
    network_efficiency: float = 0.5
    host_link_efficiency: float = 0.75
    overlap: float = 0.8
    cpu_parameter_ns: float = 1.8


DEFAULT = Constants()
