"""Trains as usual, and records how many bytes are in use whenever a forward pass begins."""

import ctypes
import json
import os
from pathlib import Path

M_MMAP_THRESHOLD = -3
LARGE = 16 * 1024
"""Allocations of so many bytes are mapped one by one, so that the C library counts them, whatever thread frees them."""


class Mallinfo2(ctypes.Structure):
    """What the C library says of its allocations (mallinfo(3)); `hblkhd` are the bytes that are mapped."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def main(run_dir: str) -> int:
    """Write the bytes of each forward pass of this rank to `in_use-RANK.json`."""
    import torch

    from dsnb.train import worker
    from dsnb.train.causal_loss import CausalLoss

    torch.backends.mkldnn.set_flags(False)  # oneDNN keeps copies of weights
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    libc.mallopt(M_MMAP_THRESHOLD, LARGE)
    found = []
    forward = CausalLoss.forward

    before = libc.mallinfo2().hblkhd

    def counted(self, ids):
        found.append(libc.mallinfo2().hblkhd - before)
        return forward(self, ids)

    CausalLoss.forward = counted
    code = worker.main(run_dir)
    Path(run_dir, f"in_use-{os.environ['RANK']}.json").write_text(json.dumps(found))
    return code
