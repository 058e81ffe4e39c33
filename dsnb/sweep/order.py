"""The order of the runs of a sweep: all settings once, then all of them again, in another order within each repeat.

Otherwise a machine that gets slower during each repeat would favour the settings that are listed first every time.
"""

import hashlib
from collections.abc import Iterable


def of_repeat(names: Iterable[str], repeat: int, seed: int | None) -> list[str]:
    """Return experiments in the order of one repeat.

    The place of each is drawn from its own name, so that the order of the others stays the same if a resumed sweep has
    other experiments or more repeats.

    Parameters
    ----------
    names
        Names of the experiments, as listed.
    repeat
        Number of the repeat, from 1.
    seed
        Another seed gives another order; None keeps the listed one.
    """
    if seed is None:
        return list(names)
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {repeat} {name}".encode()).digest())
