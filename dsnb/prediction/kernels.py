"""What one transformer block launches and moves besides its matrix products: counts read from the models' source.

Bytes are counted as numbers of hidden size that are read or written per token: a kernel that reads two tensors and
writes one counts 3. Eager counts follow transformers 5.17's forward functions line by line, and autograd's formulas
for the backward pass; compiled counts assume that neighbouring elementwise operations are fused into one kernel.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """One pass through one block.

    Attributes
    ----------
    residual
        Numbers of hidden size, in the width of the residual stream: layer norms, residual sums, dropout.
    inner
        Numbers of hidden size that tensor parallelism divides: activation function, biases, heads moved about.
    casts
        Casts of an input of hidden size between fp32 and half precision, under autocast.
    kernels, cast_kernels
        Kernels on the GPU, and further ones for casts under autocast.
    """

    residual: float
    inner: float
    casts: float
    kernels: float
    cast_kernels: float


LINEAR_LAYERS = {"gpt2": 4, "bloom": 4, "opt": 6}
"""Linear layers of a block: OPT's queries, keys and values come from three."""
TENSORS = {"gpt2": 12, "bloom": 12, "opt": 16}
"""Parameter tensors of a block."""
_FUSED = {"compiled", "megatron"}
# Activation functions on 4 x hidden numbers. ReLU reads 1 and writes 1, its backward pass reads 2 and writes 1. GPT-2's
# and BLOOM's GELU by tanh is eight kernels, and about twelve backward, unless something fuses them.
_ACTIVATION = {"relu": (8, 12), "gelu": (72, 100)}
# Layer norms read 1 and write 1, backward 2 and 1, sums of residuals 2 and 1. Fused with each other they read the
# stream and the branch, and write the stream and its norm.
_RESIDUAL = {"eager": (10, 12), "fused": (8, 10)}
_KERNELS = {"relu": (14, 32), "gelu": (21, 48), "fused": (11, 24)}


def passes(family: str, mode: str, autocast: bool, dropout: bool) -> tuple[Pass, Pass]:
    """Return the forward and the backward pass of a block, attention's own kernels counted, but not its bytes.

    Parameters
    ----------
    mode
        `eager`, `compiled`, or `megatron` (hand-written fused kernels).
    """
    fused, linear = mode in _FUSED, LINEAR_LAYERS.get(family, 4)
    kind = "relu" if family == "opt" else "gelu"
    residual = _RESIDUAL["fused" if fused else "eager"]
    activation = _ACTIVATION["relu" if fused else kind]
    kernels = _KERNELS["fused" if fused else kind]
    casts = 0 if fused or not autocast else linear - 2
    # Each linear layer casts its weight, its bias and, behind a norm, its input; the backward pass casts them back.
    cast_kernels = 0 if fused or not autocast else 2 * linear + casts
    drops = (6, 6) if dropout and not fused else (0, 0)
    heads, biases = (2, 4) if fused else (4, 8), 4 if fused else 9
    extra = drops[0] / 2
    forward = Pass(residual[0] + drops[0], activation[0] + heads[0], casts, kernels[0] + extra, cast_kernels)
    inner = activation[1] + heads[1] + biases
    return forward, Pass(residual[1] + drops[1], inner, casts, kernels[1] + extra, cast_kernels)


# Bytes a score of attention that is not fused: products, scaling, mask, casts to fp32 and back, softmax.
SCORE_BYTES = {"eager": (32, 36), "compiled": (10, 12), "megatron": (8, 12)}
# Bytes a logit: written, cast to fp32, log-softmax, its gradient, cast back, read by two products (half precision);
# compiled, the casts and sums are fused into the passes that read them.
LOGIT_BYTES = {"eager": 42.0, "compiled": 14.0, "megatron": 24.0}
CHUNKED_LOGIT_BYTES = {"eager": 36.0, "compiled": 14.0}
"""In chunks, where the gradient overwrites the log-softmax; output layer and loss alone took about 22 bytes more in
eager mode than compiled (OPT-1.3B and GPT-2, 8 x 1024, one H200)."""
