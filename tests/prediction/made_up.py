"""A trace of a small made-up model, for tests that need no torch."""

from dsnb.prediction.moments import Trace

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
