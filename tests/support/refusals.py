"""Whole messages of typed errors."""

from collections.abc import Callable

import pytest

from dsnb.base.errors import DsnbError


def message_of(call: Callable[[], object], kind: type[DsnbError]) -> str:
    """Return the whole message of the error that a call raises; it is of exactly this kind."""
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    return str(caught.value)
