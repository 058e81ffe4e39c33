"""The sizes of one rank that decide what memory holds besides activations, and how gradients add to a trace."""

from dataclasses import dataclass

import numpy as np

from dsnb.formulas.memory import HALF, MOMENTS
from dsnb.prediction.moments import Moment, Trace
from dsnb.settings.derived import compiles_blocks
from dsnb.settings.experiment import Experiment

BUCKET = 500_000_000
"""Elements of ZeRO's reduction bucket, `reduce_bucket_size`."""


@dataclass(frozen=True)
class Engine:
    """The sizes that the rules are about.

    Attributes
    ----------
    width
        Bytes of a weight as the model computes with it: 2 if a half-precision copy is what trains, else 4.
    trained, frozen
        Elements of a rank.
    ranks
        Data-parallel ranks.
    moments
        Bytes of the optimizer's moments over all parameters.
    """

    experiment: Experiment
    trace: Trace
    width: int
    trained: float
    frozen: float
    ranks: int
    moments: float

    @property
    def accumulates(self) -> bool:
        """Whether gradients of earlier micro-batches are in memory when the last one is computed."""
        return self.experiment.grad_accum > 1

    @property
    def keeps_masters(self) -> bool:
        """Whether there are fp32 weights beside the half-precision ones."""
        return self.width == 2

    @property
    def bucket(self) -> float:
        """Bytes of one bucket of gradients."""
        given = self.experiment.deepspeed.get("zero_optimization.reduce_bucket_size", 0)
        return self.width * float(given or self.experiment.bucket_elements or BUCKET)

    @property
    def buckets(self) -> float:
        """Bytes of all buckets: two alternate if communication overlaps with computation.

        Under DeepSpeed's autocast, weights of linear layers have a bucket of their own, unless LoRA trains no others
        (`torch_autocast.get_all_comm_dtypes`). ZeRO 3's is in half precision, the others' in that of the gradients.
        """
        experiment, one = self.experiment, self.bucket
        if experiment.mixed_precision == "autocast" and experiment.precision in HALF:
            linear = one / 2 if experiment.zero_stage == 3 else one
            one = linear if experiment.lora_rank else one + linear
        return one * (2 if experiment.overlap_comm == "on" else 1)

    @property
    def is_one_graph(self) -> bool:
        """Whether the whole model is compiled: all gradients then leave its backward pass at once, at its end."""
        settings = vars(self.experiment)
        return settings["compile"] not in {"off", "deepcompile"} and not compiles_blocks(settings)


def engine_of(experiment: Experiment, trace: Trace, moments: float | None = None) -> Engine:
    """Return the sizes of a setting; `moments` are the optimizer's bytes if it is not Adam."""
    # Embeddings, with which the output layer is tied, are whole on every tensor-parallel rank and on the outer stages.
    whole = trace.of_root / trace.parameters
    split = 1 / (whole + (1 - whole) / (experiment.tensor_parallel * experiment.pipeline_parallel))
    native = experiment.precision in HALF and experiment.mixed_precision == "native"
    width = 2 if native and experiment.strategy == "deepspeed" else 4
    trained = trace.trainable / split
    states = MOMENTS * trained if moments is None else moments / split
    frozen = (trace.parameters - trace.trainable) / split
    return Engine(experiment, trace, width, trained, frozen, experiment.data_parallel, states)


def passes(engine: Engine, base: Moment, gradient: float, held: float, later: float = 0) -> list[Moment]:
    """Return the forward pass of the last micro-batch, the backward pass of its loss, and the peak of the rest of it.

    Parameters
    ----------
    base
        What is there before it, gradients of earlier micro-batches included.
    gradient
        Bytes of a gradient that stays; 0 if it is added to one that is there.
    held
        The most bytes of gradients that are there besides, because they have not been reduced yet.
    later
        Bytes that are allocated when the first gradient leaves the backward pass.
    """
    trace, width = engine.trace, engine.width
    loss = trace.moments[0][0]
    logits = max(0.0, loss - trace.kept)
    found = [
        base.with_more("forward", activations=trace.forward_peak),
        base.with_more("loss", activations=loss - logits, logits=logits),
    ]
    sizes, done = trace.after_loss
    if len(sizes):
        computed = done * (engine.trained / max(1, trace.trainable))
        gradients = gradient * computed + np.minimum(held, width * computed)
        most = int(np.argmax(sizes + gradients))
        parts = {"activations": float(sizes[most]), "gradients": float(gradients[most]), "buffers": later}
        if engine.is_one_graph:
            parts["buffers"] = 0
            found.append(base.with_more("backward", gradients=width * engine.trained, buffers=later))
        found.append(base.with_more("backward", **parts))
    return found


def frozen_bytes(engine: Engine) -> float:
    """Return the bytes of the weights that LoRA freezes, which are in half precision where there is one."""
    return (2 if engine.experiment.precision in HALF else 4) * engine.frozen
