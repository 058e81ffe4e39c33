"""Typed errors: their messages, what they carry, and what other exceptions they are."""

from pathlib import Path

import pytest

from dsnb.base import errors

MESSAGES = {
    errors.SettingsError: (["a is 1: use 2", "b is 3: use 4"], "a is 1: use 2\nb is 3: use 4"),
    errors.LaunchError: ("the ranks ended: try again", "the ranks ended: try again"),
    errors.KernelDiedError: ("the kernel ended", "the kernel ended"),
    errors.PublishedError: ("unknown table 'a'", "unknown table 'a'"),
}
"""One argument of each class, and the whole message."""


@pytest.mark.parametrize(("kind", "about"), MESSAGES.items(), ids=lambda part: str(part)[:40])
def test_a_message_is_whole_in_every_form(kind, about):
    given, words = about
    error = kind(given)
    assert str(error) == words
    assert error._render_traceback_() == [f"{kind.__name__}: {words}"]


def test_every_error_has_a_test():
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type)}
    derived = {kind for kind in kinds if issubclass(kind, errors.DsnbError)}
    assert derived - {errors.DsnbError} == {*MESSAGES, errors.LogError}


def test_errors_of_a_user_are_errors_of_python():
    assert issubclass(errors.SettingsError, ValueError)
    assert issubclass(errors.PublishedError, KeyError)
    assert issubclass(errors.DsnbWarning, UserWarning)


def test_what_errors_carry():
    assert errors.SettingsError("a").problems == ["a"]
    assert errors.SettingsError(("a", "b")).problems == ["a", "b"]
    assert errors.LaunchError("a").log is None
    assert errors.LaunchError("a", Path("run.log")).log == Path("run.log")


@pytest.mark.parametrize(
    ("line", "words"), [(None, "a.log is damaged"), (3, "a.log, line 3 is damaged")]
)
def test_an_error_of_a_log_names_the_file_and_the_line(line, words):
    error = errors.LogError("a.log", "is damaged", line)
    assert str(error) == words
    assert (error.path, error.line) == (Path("a.log"), line)
