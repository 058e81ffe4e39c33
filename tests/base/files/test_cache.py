"""The folder of the cache."""

from pathlib import Path

import pytest

from dsnb.base.files import cache


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, Path("/caches/dsnb")),
        ("", None),
        ("off", None),
        ("/x/y", Path("/x/y")),
        ("~nosuchuser/x", None),
    ],
)
def test_the_cache_is_where_the_environment_says(monkeypatch, chosen, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.delenv("DSNB_CACHE", raising=False)
    if chosen is not None:
        monkeypatch.setenv("DSNB_CACHE", chosen)
    assert cache.home() == expected
