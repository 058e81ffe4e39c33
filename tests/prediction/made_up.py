"""A trace of a small made-up model, for tests that need no torch, and the predicted step of a single setting."""

from dataclasses import asdict

from dsnb.prediction import gpus, links
from dsnb.prediction.constants import DEFAULT
from dsnb.prediction.moments import ELEMENTS, ModelTrace, Trace
from dsnb.prediction.step_time import parts, setting

MIB = 2.0**20
PARAMETERS = 1_000_000_000
TRACE = Trace(
    forward_peak=900 * MIB,
    kept=600 * MIB,
    moments=((1000 * MIB, 0.0), (500 * MIB, 0.5e9), (50 * MIB, 1e9)),
    parameters=PARAMETERS,
    trainable=PARAMETERS,
    of_block=45_000_000,
    of_root=100_000_000,
    largest=90_000_000,
    layers=20,
    hidden=2048,
    vocab=50_000,
)
MODEL_TRACE = ModelTrace(
    forward=[(0, 900 / 8 * MIB)],
    kept=(0, 600 / 8 * MIB),
    moments=[(200 * MIB, 100 * MIB, 0), (0, 500 / 8 * MIB, 5e8), (50 * MIB, 0, 1e9)],
    elements={name: getattr(TRACE, name) for name in ELEMENTS},
)
"""A trace that is `TRACE` at a micro-batch of 8."""
RECORD = {**asdict(MODEL_TRACE), **MODEL_TRACE.elements}
"""The same as traces are kept."""


def step_time(experiment, gpu, link, constants=DEFAULT):
    """Return the parts of a step; GPU and link are objects or their names."""
    gpu = gpus.find(gpu) if isinstance(gpu, str) else gpu
    link = links.link(link) if isinstance(link, str) else link
    return parts(setting(experiment, gpu, link), constants)


def compute_s(step):
    return step.matmul_s + step.attention_s + step.memory_bound_s


def communication_s(step):
    data = step.all_reduce_s + step.reduce_scatter_s + step.all_gather_s + step.all_to_all_s
    return data + step.tensor_all_reduce_s + step.point_to_point_s
