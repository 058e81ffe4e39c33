"""What theory says that a training takes of one GPU's memory: model states and activations, each with its source.

Pure functions of plain numbers; everything is in bytes. Theory is what cannot be done without: buckets, gathered
weights, temporary buffers, fragmentation and the CUDA context come on top, and are what a measurement adds.
"""

import math
from dataclasses import dataclass

HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class PerParameter:
    """Bytes that each trained parameter takes; `copies` are those that autocast makes of a weight for a micro-batch."""

    weights: float
    gradients: float
    optimizer: float
    copies: float = 0


MASTERS = PerParameter(2, 2, 12)
"""Half precision with fp32 master weights and Adam: 2 + 2 + K with K = 12 (Rajbhandari et al. 2020, arXiv:1910.02054,
section 3.1)."""
FULL = PerParameter(4, 4, 8)
"""Single precision with Adam: weights, gradients and two moments in fp32, 16 together as well."""
AUTOCAST = PerParameter(4, 4, 8, copies=2)
"""fp32 weights computed with in half precision: autocast keeps the copy that it makes of each weight until the forward
pass ends (PyTorch documentation of `torch.autocast`, `cache_enabled`)."""
MOMENTS = 8
"""Of the bytes of the optimizer, those of Adam's two moments."""


def per_parameter(precision: str, mixed_precision: str = "native", strategy: str = "deepspeed") -> PerParameter:
    """Give the bytes of a trained parameter: DeepSpeed keeps masters, FSDP gathers fp32 shards, DDP autocasts."""
    if precision not in HALF:
        return FULL
    if mixed_precision == "autocast" or strategy == "ddp":
        return AUTOCAST
    return FULL if strategy == "fsdp" else MASTERS


@dataclass(frozen=True)
class States:
    """Bytes of the model states on one GPU."""

    weights: float
    gradients: float
    optimizer: float
    copies: float = 0

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.copies


def model_states(
    parameters: float,
    each: PerParameter = MASTERS,
    zero_stage: int = 0,
    data_parallel: int = 1,
    model_parallel: int = 1,
    offload: str = "none",
    frozen: float = 0,
    moments: float | None = None,
) -> States:
    """Give the model states on one GPU.

    Parameters
    ----------
    parameters
        Those that are trained.
    zero_stage
        What data-parallel ranks share out: 1 optimizer states, 2 gradients too, 3 weights too (Rajbhandari et al. 2020,
        figure 1: 2P + 2P + KP/N, 2P + (2 + K)P/N, (2 + 2 + K)P/N). FSDP with whole sharding is 3.
    model_parallel
        Tensor times pipeline parallel, each of which divides everything; uneven parts are not looked at.
    offload
        `optimizer-...` leaves the weights on the GPU, and takes the gradients along where they are shared out (Ren et
        al. 2021, arXiv:2101.06840); `all-...` leaves nothing (Rajbhandari et al. 2021, arXiv:2104.07857).
    frozen
        Bytes of weights that are not trained: neither gradients nor states (LoRA; Hu et al. 2021, arXiv:2106.09685).
    moments
        Bytes of the optimizer's moments where they are not Adam's; see `adafactor_moments`.
    """
    own, ranks = parameters / model_parallel, data_parallel
    weights = own * each.weights + frozen / model_parallel
    gradients = own * each.gradients
    kept = each.optimizer if moments is None else each.optimizer - MOMENTS
    optimizer = own * kept + (moments or 0) / model_parallel
    what = offload.partition("-")[0]
    return States(
        0 if what == "all" else weights / (ranks if zero_stage >= 3 else 1),
        0
        if what == "all" or (what == "optimizer" and zero_stage >= 2)
        else gradients / (ranks if zero_stage >= 2 else 1),
        0 if what != "none" else optimizer / (ranks if zero_stage >= 1 else 1),
        own * each.copies if zero_stage < 3 else 0,
    )


def adafactor_moments(layers: int, hidden: int, vocab: int, positions: int | None = None) -> float:
    """Give the bytes of Adafactor's second moments, fp32, without a first one as torch has it.

    n + m numbers for a matrix of n x m, n for a vector (Shazeer and Stern 2018, arXiv:1804.04235, section 3). A block
    has h x 3h, h x h, h x 4h and 4h x h, and 13h in vectors; OPT's three matrices instead of the first are 2h more.
    """
    embeddings = vocab + hidden + (positions + hidden if positions else 0)
    return 4.0 * (layers * (16 + 13) * hidden + embeddings + 2 * hidden)


def lora_parameters(layers: int, hidden: int, rank: int, fused: bool = True) -> int:
    """Count LoRA's parameters on all linear layers of the blocks: rank x (n + m) for one of n x m (Hu et al. 2021).

    `fused`: queries, keys and values come from one layer (GPT-2, BLOOM) instead of three (OPT).
    """
    return layers * rank * hidden * (16 if fused else 18)


def block_activations(
    tokens: float,
    hidden: int,
    heads: int,
    seq_len: int,
    tensor_parallel: int = 1,
    width: int = 2,
    dropout: bool = True,
    fused: bool = False,
    relu: bool = False,
) -> float:
    """Give the bytes that one transformer block keeps of a micro-batch from its forward to its backward pass.

    Korthikanti et al. 2022 (arXiv:2205.05198), equations 1 and 2: s b h (10 + 24/t + 5 a s / (h t)), which is
    s b h (34 + 5 a s / h) at t = 1.

    Parameters
    ----------
    tokens
        Sequence length times micro-batch, s b.
    width
        Bytes of a number; 2 in half precision.
    dropout
        Without it, what the paper counts for it is not there: two masks of 1 byte, and of the 5 a s / h the mask (1)
        and what comes out of it (2).
    fused
        Fused attention computes its scores again instead of keeping them: nothing of 5 a s / h (Dao et al. 2022,
        arXiv:2205.14135; the paper's selective recomputation does the same).
    relu
        ReLU's gradient follows from its output, which the next layer keeps anyway: 4 numbers fewer (OPT).
    """
    everywhere = 4 * width + (2 if dropout else 0)
    shared = (8 if relu else 12) * width
    scores = 0 if fused else (2 * width + 1 if dropout else width)
    return tokens * (hidden * (everywhere + shared / tensor_parallel) + scores * heads * seq_len / tensor_parallel)


def kept_activations(
    layers: float, block: float, block_input: float, checkpoint_every: int = 0, offloaded: bool = False
) -> tuple[float, float]:
    """Give what all blocks keep of a micro-batch, and what the one that is recomputed takes meanwhile; bytes.

    A recomputed block keeps its input alone, 2 s b h in half precision (Korthikanti et al. 2022, section 5), or nothing
    where that waits in host memory. `checkpoint_every`: of so many blocks one is recomputed; 0 for none.
    """
    recomputed = math.ceil(layers / checkpoint_every) if checkpoint_every else 0
    inputs = 0 if offloaded else recomputed * block_input
    return (layers - recomputed) * block + inputs, block if recomputed else 0


def output_activations(tokens: float, hidden: int, vocab: int, tensor_parallel: int = 1, width: int = 2) -> float:
    """Give the bytes of what follows the blocks: 4 s b h (1 + v/h) / t (Korthikanti et al. 2022, section 4.3).

    The inputs of the last layer norm and of the output layer, and the logits in fp32.
    """
    return tokens * (2 * width * hidden + 4 * vocab) / tensor_parallel


@dataclass(frozen=True)
class Peak:
    """Bytes on one GPU at the fuller of two moments: the backward pass of the loss, and the optimizer's step."""

    weights: float
    gradients: float
    optimizer: float
    copies: float
    activations: float
    output: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradients + self.optimizer + self.copies + self.activations + self.output


def peak(states: States, kept: float, output: float, accumulated: float = 0) -> Peak:
    """Return what is on a GPU when it is fullest.

    When the backward pass begins, all activations are there, and of the gradients only those of earlier micro-batches:
    a backward pass frees a block's activations as it makes its gradients. In the optimizer's step all gradients are
    there and no activations. So accumulation costs memory: it keeps gradients through the backward passes that follow.

    Parameters
    ----------
    kept, output
        As `activations` returns them.
    accumulated
        Bytes of gradients that earlier micro-batches left; 0 without accumulation.
    """
    backward = Peak(states.weights, accumulated, states.optimizer, states.copies, kept, output)
    step = Peak(states.weights, states.gradients, states.optimizer, 0, 0, 0)
    return max(backward, step, key=lambda moment: moment.total)


def activations(
    kept: float, recomputed: float, output: float, stages: int = 1, micro_batches: int = 1
) -> tuple[float, float]:
    """Give the activations that a GPU keeps, and the larger of what is recomputed and the output layer; bytes.

    These two never exist together: the output layer is done when the first block is recomputed. Of a pipeline, the
    first stage keeps as many micro-batches as there are stages (Korthikanti et al. 2022, section 4.2.3), the last stage
    one and the output layer; the fuller of the two counts.

    Parameters
    ----------
    kept
        What the blocks of a whole model keep of one micro-batch.
    stages, micro_batches
        Pipeline stages, and micro-batches of a step.
    """
    if stages == 1:
        return kept, max(recomputed, output)
    first = min(stages, micro_batches) * kept / stages, recomputed
    last = kept / stages, max(recomputed, output)
    return max(first, last, key=sum)
