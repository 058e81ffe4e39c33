"""The memory of a model of many blocks from those of two models of a few: blocks are alike, or every k-th one is."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsnb.train.live_bytes import Size


@dataclass(frozen=True)
class Section:
    """A part of the backward pass, up to the gradient of one parameter.

    Attributes
    ----------
    block
        The block of the parameter; None outside of all blocks.
    done
        Elements of the gradients that had been computed before.
    peaks
        The sizes that can have been the peak.
    """

    block: int | None
    done: int
    peaks: Sequence[Size]

    def moved(self, more: Size, times: float, done: int) -> "Section":
        """Return the same part where more is kept and more gradients have been computed."""
        return Section(self.block, self.done + done, [one.plus(more, times) for one in self.peaks])


@dataclass(frozen=True)
class Pass:
    """The memory of a forward and a backward pass.

    Attributes
    ----------
    kept
        What the blocks keep from the forward to the backward pass.
    added
        What the blocks have added at the end of the last one, in the forward pass.
    forward
        The sizes that can have been the peak of the forward pass.
    sections
        The backward pass, from the last block to the first.
    """

    kept: Size
    added: Size
    forward: Sequence[Size]
    sections: Sequence[Section]


def few_layers(layers: int, period: int) -> int:
    """Return the blocks of a model that is enough to know that of `layers`; one of `period` more is needed too.

    Parameters
    ----------
    period
        Every how many blocks the same follows.
    """
    few = 2 * period + layers % period
    return layers if layers <= few + period else few


def with_more_blocks(few: Pass, more: Pass, layers: tuple[int, int, int]) -> Pass:
    """Return the memory of a model of many blocks.

    Parameters
    ----------
    few, more
        Those of models of fewer blocks.
    layers
        The blocks of `few`, `more` and the model asked for.
    """
    least, next_one, asked = layers
    period = next_one - least
    times = (asked - least) // period
    kept, added = more.kept.plus(few.kept, -1), more.added.plus(few.added, -1)
    first_half = _below(few, least - period)
    first, end = _below(more, least), _below(more, least - period)
    done = more.sections[end].done - few.sections[first_half].done
    sections = [one.moved(kept, times, 0) for one in few.sections[:first_half]]
    for number in range(times):
        sections += [one.moved(kept, times - 1 - number, number * done) for one in more.sections[first:end]]
    sections += [one.moved(kept, 0, times * done) for one in few.sections[first_half:]]
    forward = [one.plus(added, times) for one in few.forward]
    return Pass(few.kept.plus(kept, times), few.added.plus(added, times), forward, sections)


def _below(one: Pass, block: int) -> int:
    """Return the place of the first section of a block before the given one."""
    return next(
        place for place, section in enumerate(one.sections) if section.block is not None and section.block < block
    )
