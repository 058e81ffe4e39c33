"""What all strategies have in common: a rank that goes through the micro-batches of a recording, step by step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from dsnb.prediction.memory import GIB, WORKSPACE_GIB
from dsnb.prediction.replay.allocator import Block, CachingAllocator
from dsnb.prediction.replay.recording import ALLOCATED, FREED, Recording
from dsnb.settings.experiment import Experiment

STEPS = 3
"""Moments appear in the first step, DDP rebuilds its buckets in the second; the third is like all later ones, unless
memory is short: what is given back is reserved again in other pieces, step by step."""
MICRO_BATCHES = 3
"""The first one finds no gradients, the last one reduces them; those between are alike."""


class Replay(ABC):
    """The allocations of one rank.

    Parameters
    ----------
    rank
        Its number among the data-parallel ranks, which decides what it updates.

    Attributes
    ----------
    elements
        Elements of each trained weight, by its number, in the order of the model.
    trained
        The sum of them.
    """

    def __init__(
        self, experiment: Experiment, recording: Recording, allocator: CachingAllocator, rank: int = 0
    ) -> None:
        self.experiment, self.allocator, self.rank = experiment, allocator, rank
        self.ranks = experiment.data_parallel
        self.micro_batches = min(experiment.grad_accum, MICRO_BATCHES)
        self.tensors = recording.tensors
        self.elements = {number: one.elements for number, one in enumerate(recording.tensors) if one.trained}
        self.trained = sum(self.elements.values())
        self.width = next((one.width for one in recording.tensors if one.trained), 0)
        self._size = int(experiment.micro_batch_size)
        self._events = recording.events

    def run(self, steps: int = STEPS) -> None:
        """Go through everything from the model to the end of the last step.

        Raises
        ------
        OutOfMemoryError
            If the allocator's limit is too low.
        """
        self.prepare()
        self.new(WORKSPACE_GIB * GIB)  # of the libraries, with the first matrix product
        for number in range(steps):
            self.step(number)

    @abstractmethod
    def prepare(self) -> None:
        """Allocate the model and what the strategy holds before the first step."""

    @abstractmethod
    def step(self, number: int) -> None:
        """Go through one optimizer step."""

    def new(self, number_of_bytes: float) -> Block:
        """Allocate."""
        return self.allocator.allocate(number_of_bytes)

    def free(self, blocks: Iterable[Block]) -> None:
        """Free what has been allocated."""
        for block in blocks:
            self.allocator.release(block)

    def temporarily(self, number_of_bytes: float) -> None:
        """Allocate what is freed at once."""
        self.allocator.release(self.new(number_of_bytes))

    def model(self) -> dict[int, Block]:
        """Allocate weights and buffers, each on its own, as they are built."""
        return {number: self.new(one.elements * one.width) for number, one in enumerate(self.tensors)}

    def micro_batch(self, gradient: Callable[[int, Block | None], bool]) -> None:
        """Go through the forward and the backward pass of one micro-batch.

        Parameters
        ----------
        gradient
            Called with each weight whose gradient has been computed and with the block that holds the gradient; it
            returns whether it keeps the block, which is freed otherwise.
        """
        blocks: list[Block | None] = []
        for kind, first, second in self._events:
            if kind == ALLOCATED:
                blocks.append(self.new(first + self._size * second))
            elif kind == FREED:
                _release(self.allocator, blocks, int(first))
            elif gradient(int(first), blocks[int(second)] if second >= 0 else None) and second >= 0:
                blocks[int(second)] = None
        for number in range(len(blocks)):
            _release(self.allocator, blocks, number)


def _release(allocator: CachingAllocator, blocks: list[Block | None], number: int) -> None:
    """Free a block of a pass, unless it has been freed or kept."""
    if block := blocks[number]:
        allocator.release(block)
        blocks[number] = None
