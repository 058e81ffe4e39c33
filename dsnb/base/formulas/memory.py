"""Memory of one GPU in a training: the parts that it consists of, and a theory of them with sources.

`MemoryParts` is the breakdown of all memory that dsnb tells: of the theory here, of the peak that
`dsnb.prediction.memory` predicts from a trace of the model, and of host memory.

Pure functions of plain numbers; everything is in bytes. Theory is a lower bound: buckets, gathered
weights, temporary buffers, fragmentation and the CUDA context come on top, and only a measurement
includes them.
"""

import math
from typing import Any, NamedTuple

HALF = ("fp16", "bf16")


class MemoryParts(NamedTuple):
    """Bytes on one GPU at a moment of a step, or of one trained parameter, by what they hold."""

    weights: float = 0  #: Weights that the forward pass uses.
    gradients: float = 0  #: Gradients kept until the optimizer step.
    optimizer: float = 0  #: The optimizer's moments and fp32 master weights.
    copies: float = 0  #: Half-precision copies that autocast makes of the weights.
    activations: float = 0  #: Activations kept for the backward pass.
    output: float = (
        0  #: The logits; in theory the output layer, or the recomputed block if that is larger.
    )
    buffers: float = (
        0  #: Communication buckets, gathered weights, and temporaries of the optimizer.
    )
    workspace: float = 0  #: Workspaces of cuBLAS and the like.
    moment: str = ""  #: `forward`, `loss`, `backward`, `reduction`, `optimizer` or `second step`.

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return sum(self[:-1])

    @property
    def gib(self) -> float:
        """The sum of all parts in GiB."""
        return self.total / 2**30

    def plus(self, moment: str = "", **more: float) -> "MemoryParts":
        """Return the parts with more bytes in some of them."""
        larger: dict[str, Any] = {name: getattr(self, name) + size for name, size in more.items()}
        return self._replace(moment=moment or self.moment, **larger)


MASTERS = MemoryParts(2, 2, 12)
"""Half precision with fp32 master weights and Adam, 2 + 2 + K with K = 12 (Rajbhandari et al. 2020,
arXiv:1910.02054, section 3.1)."""
FULL = MemoryParts(4, 4, 8)
"""Single precision with Adam, that is weights, gradients and two moments in fp32, also 16 bytes."""
AUTOCAST = MemoryParts(4, 4, 8, copies=2)
"""fp32 weights, half-precision arithmetic. Autocast keeps its copy of each weight until the end of
the forward pass (PyTorch documentation of `torch.autocast`, `cache_enabled`)."""
PURE = MemoryParts(2, 2, 4)
"""Everything in bf16, also both moments: no number is kept in fp32."""
MOMENTS = 8
"""Bytes of Adam's two moments, in fp32."""
MOMENTS_8_BIT = 2 * (1 + 4 / 256)
"""Bytes of two moments of 8 bits, with an fp32 scale for each block of 256 (Dettmers et al. 2021, arXiv:2110.02861)."""


def model_states(
    parameters: float,
    each: MemoryParts = MASTERS,
    zero_stage: int = 0,
    data_parallel: int = 1,
    model_parallel: int = 1,
    offload: str = "none",
    frozen: float = 0,
    moments: float | None = None,
) -> MemoryParts:
    """Return the model states on one GPU.

    Parameters
    ----------
    parameters
        Trained parameters.
    zero_stage
        What data-parallel ranks partition: 1 optimizer states, 2 gradients too, 3 weights too
        (Rajbhandari et al. 2020, figure 1: 2P + 2P + KP/N, 2P + (2 + K)P/N, (2 + 2 + K)P/N). FSDP
        with full sharding is 3.
    model_parallel
        Tensor-parallel times pipeline-parallel size, which divides everything equally.
    offload
        `optimizer-...` leaves the weights on the GPU, and the gradients unless they are partitioned
        (Ren et al. 2021, arXiv:2101.06840); `all-...` leaves nothing (Rajbhandari et al. 2021,
        arXiv:2104.07857).
    frozen
        Bytes of frozen weights, without gradients and optimizer states (LoRA; Hu et al. 2021,
        arXiv:2106.09685).
    moments
        Bytes of the optimizer's moments if it is not Adam; see `adafactor_moments`.
    """
    per_rank = parameters / model_parallel
    weights = per_rank * each.weights + frozen / model_parallel
    gradients = per_rank * each.gradients
    optimizer = per_rank * each.optimizer
    copies = per_rank * each.copies
    if moments is not None:
        masters = max(0, each.optimizer - MOMENTS)
        optimizer = per_rank * masters + moments / model_parallel
    if zero_stage >= 1:
        optimizer /= data_parallel
    if zero_stage >= 2:
        gradients /= data_parallel
    if zero_stage >= 3:
        weights /= data_parallel
        copies = 0
    offloaded = offload.partition("-")[0]
    if offloaded in {"optimizer", "all"}:
        optimizer = 0
    if offloaded == "all" or (offloaded == "optimizer" and zero_stage >= 2):
        gradients = 0
    if offloaded == "all":
        weights = 0
    return MemoryParts(weights, gradients, optimizer, copies)


NF4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
"""Bytes of a weight of 4 bits, with a scale of 8 bits for each block of 64 and a factor of 32 for each 256 scales:
4.127 bits in all (Dettmers et al. 2023, arXiv:2305.14314, section 3)."""


def adafactor_moments(layers: int, hidden: int, vocab: int, positions: int | None = None) -> float:
    """Return the bytes of Adafactor's second moments in fp32; like torch's, it has no first moment.

    n + m numbers for a matrix of n x m, n for a vector (Shazeer and Stern 2018, arXiv:1804.04235,
    section 3). A block has h x 3h, h x h, h x 4h and 4h x h, and 13h in vectors; OPT's three
    matrices instead of the first are 2h more.
    """
    embeddings = vocab + hidden + (positions + hidden if positions else 0)
    return 4.0 * (layers * (16 + 13) * hidden + embeddings + 2 * hidden)


def lora_parameters(layers: int, hidden: int, rank: int, fused: bool = True) -> int:
    """Return LoRA's parameters on all linear layers of the blocks: rank x (n + m) for one of n x m (Hu et al. 2021).

    `fused`: queries, keys and values come from one layer (GPT-2, BLOOM) instead of three (OPT).
    """
    return layers * rank * hidden * (16 if fused else 18)


def block_activations(
    tokens: float,
    hidden: int,
    heads: int,
    seq_len: int,
    tensor_parallel: float = 1,
    width: int = 2,
    dropout: bool = True,
    fused: bool = False,
    relu: bool = False,
) -> float:
    """Return the bytes that one transformer block keeps of a micro-batch from its forward to its backward pass.

    Korthikanti et al. 2022 (arXiv:2205.05198), equations 1 and 2: s b h (10 + 24/t + 5 a s / (h
    t)), which is s b h (34 + 5 a s / h) at t = 1.

    Parameters
    ----------
    tokens
        Sequence length times micro-batch, s b.
    width
        Bytes of a number; 2 in half precision.
    dropout
        Without it, the paper's terms for it are left out: two masks of 1 byte, and of the 5 a s / h
        the mask (1) and the output of dropout (2).
    fused
        Fused attention recomputes its scores instead of keeping them: no 5 a s / h (Dao et al.
        2022, arXiv:2205.14135; the paper's selective recomputation does the same).
    relu
        ReLU's gradient follows from its output, which the next layer keeps anyway: 4 numbers less
        (OPT).
    """
    everywhere = 4 * width + (2 if dropout else 0)
    shared = (8 if relu else 12) * width
    scores = 2 * width + 1 if dropout else width
    if fused:
        scores = 0
    of_hidden = hidden * (everywhere + shared / tensor_parallel)
    return tokens * (of_hidden + scores * heads * seq_len / tensor_parallel)


def recomputed_blocks(layers: float, checkpoint_every: int) -> int:
    """Return the number of recomputed blocks: every k-th one from the first; 0 for `checkpoint_every` 0."""
    if checkpoint_every:
        return math.ceil(layers / checkpoint_every)
    return 0


def kept_activations(
    layers: float,
    block: float,
    block_input: float,
    checkpoint_every: int = 0,
    offloaded: bool = False,
) -> tuple[float, float]:
    """Return the bytes that all blocks keep of a micro-batch, and those of the block that is being recomputed.

    A recomputed block keeps only its input, 2 s b h in half precision (Korthikanti et al. 2022,
    section 5), or nothing if the input is offloaded to host memory. `checkpoint_every`: recompute
    every k-th block; 0 for none.
    """
    recomputed = recomputed_blocks(layers, checkpoint_every)
    inputs = 0 if offloaded else recomputed * block_input
    return (layers - recomputed) * block + inputs, block if recomputed else 0


def output_activations(
    tokens: float, hidden: int, vocab: int, tensor_parallel: int = 1, width: int = 2
) -> float:
    """Return the bytes of the layers after the blocks: 4 s b h (1 + v/h) / t (Korthikanti et al. 2022, section 4.3).

    The inputs of the last layer norm and of the output layer, and the logits in fp32.
    """
    return tokens * (2 * width * hidden + 4 * vocab) / tensor_parallel


def peak(states: MemoryParts, kept: float, output: float, accumulated: float = 0) -> MemoryParts:
    """Return the memory of a GPU at its peak.

    When the backward pass starts, memory holds all activations but only the gradients of earlier
    micro-batches: the backward pass frees the activations of a block while it computes its
    gradients. In the optimizer step, memory holds all gradients and no activations. So accumulation
    costs memory: it keeps gradients through later backward passes.

    Parameters
    ----------
    kept, output
        As returned by `activations`.
    accumulated
        Bytes of the gradients of earlier micro-batches; 0 without accumulation.
    """
    backward = states._replace(gradients=accumulated, activations=kept, output=output)
    return max(backward, states._replace(copies=0), key=lambda moment: moment.total)


def activations(
    kept: float, recomputed: float, output: float, stages: int = 1, micro_batches: int = 1
) -> tuple[float, float]:
    """Return the bytes of the activations that a GPU keeps, and of the recomputed block or the output layer.

    Of the latter two the larger counts: the output layer is done when the first block is
    recomputed. In a pipeline, the first stage keeps as many micro-batches as there are stages
    (Korthikanti et al. 2022, section 4.2.3), the last stage one and the output layer; the larger of
    the two counts.

    Parameters
    ----------
    kept
        Bytes that all blocks of the model keep of one micro-batch.
    stages, micro_batches
        Pipeline stages, and micro-batches per step.
    """
    if stages == 1:
        return kept, max(recomputed, output)
    first = min(stages, micro_batches) * kept / stages, recomputed
    last = kept / stages, max(recomputed, output)
    return max(first, last, key=sum)
