"""The connections between GPUs: inside a node by NVLink or PCIe, between nodes by a network."""

import math
import re
from dataclasses import dataclass

from dsnb.errors import SettingsError
from dsnb.prediction.gpus import Gpu
from dsnb.settings.experiment import Experiment

NODE_GPUS = 8
"""GPUs of a node, where an experiment does not say on how many nodes it runs."""
SYNTAX = re.compile(r"ib:(\d+(?:\.\d+)?)(/node)?")


@dataclass(frozen=True)
class Link:
    """How GPUs are connected.

    Attributes
    ----------
    nvlink
        Whether the GPUs of a node use NVLink if they have it; otherwise PCIe.
    network_gb_per_s
        Bandwidth between nodes for each GPU in one direction, in GB/s; 0 where there is no network.
    """

    nvlink: bool = True
    network_gb_per_s: float = 0.0

    def nodes(self, experiment: Experiment) -> int:
        """Return the number of nodes of an experiment."""
        return max(int(experiment.nodes or 1), math.ceil(experiment.gpus / NODE_GPUS))

    def inside_gb_per_s(self, gpu: Gpu, members: int, node_gpus: int) -> float:
        """Return the bandwidth of a GPU to `members` - 1 others of its node, which has `node_gpus`, in one direction.

        Without a switch, each pair has its share of the links: two of four V100 have a third of them.
        """
        if not self.nvlink or not gpu.nvlink_gb_per_s:
            return gpu.pcie_gb_per_s
        share = 1.0 if gpu.switched or node_gpus <= 2 else max(1, members - 1) / (node_gpus - 1)
        return gpu.nvlink_gb_per_s * share


def link(text: str = "nvlink") -> Link:
    """Return the link that a text describes.

    Parameters
    ----------
    text
        `nvlink` or `pcie` for one node; `ib:400` for NVLink inside nodes and 400 Gbit/s for each GPU between them;
        `ib:100/node` for 100 Gbit/s that the GPUs of a node share.

    Raises
    ------
    SettingsError
        If the text is none of these.
    """
    if text in {"nvlink", "pcie"}:
        return Link(nvlink=text == "nvlink")
    match = SYNTAX.fullmatch(text)
    if not match or float(match[1]) <= 0:
        raise SettingsError(f"link is {text!r}: use nvlink, pcie, ib:400 (Gbit/s for each GPU) or ib:100/node")
    return Link(network_gb_per_s=float(match[1]) / 8 / (NODE_GPUS if match[2] else 1))
