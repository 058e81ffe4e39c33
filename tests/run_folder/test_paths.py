"""Where dsnb keeps its files: the folders that environment variables choose, and the defaults."""

from pathlib import Path

import pytest

from dsnb.run_folder import paths


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch, tmp_path):
    for name in ("DSNB_CACHE", "XDG_CACHE_HOME", "DSNB_OUTPUTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_the_cache_is_in_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert paths.cache_home() == tmp_path / "caches" / "dsnb"


@pytest.mark.parametrize(
    ("chosen", "expected"), [("", None), ("off", None), ("/x/y", Path("/x/y")), ("~nosuchuser/x", None)]
)
def test_dsnb_cache_wins(monkeypatch, chosen, expected):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    monkeypatch.setenv("DSNB_CACHE", chosen)
    assert paths.cache_home() == expected


def test_without_a_home_there_is_no_cache(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert paths.cache_home() is None
