"""A trace of a small made-up model, for tests that need no torch."""

from dataclasses import asdict

from dsnb.prediction.moments import ELEMENTS, ModelTrace, Trace

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
    width_of_head=2048,
    block_input=32 * MIB,
)
MODEL_TRACE = ModelTrace(
    forward=[(0, 900 / 8 * MIB)],
    kept=(0, 600 / 8 * MIB),
    block_input=(0, 4 * MIB),
    moments=[(200 * MIB, 100 * MIB, 0), (0, 500 / 8 * MIB, 5e8), (50 * MIB, 0, 1e9)],
    elements={name: getattr(TRACE, name) for name in ELEMENTS},
)
"""A trace that is `TRACE` at a micro-batch of 8."""
RECORD = {**asdict(MODEL_TRACE), **MODEL_TRACE.elements}
"""The same as traces are kept."""
