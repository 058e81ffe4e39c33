"""Chunks of the loss, without torch: predictions ask how large they are, too."""

from dsnb.settings.training import CHUNK_TOKENS


def chunk_tokens(tokens: int) -> int:
    """Return the number of tokens in a chunk of the loss of a micro-batch; the last chunk may be smaller.

    >>> chunk_tokens(2048), chunk_tokens(2049), chunk_tokens(6000)
    (2048, 1025, 2000)
    """
    return -(-tokens // -(-tokens // CHUNK_TOKENS))
