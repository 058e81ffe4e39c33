"""Odd words on the command line: one line and an exit code, never a traceback, and nothing waits for ever."""

import contextlib
import io
import os
import signal
import sys
import warnings

import pytest

from dsnb.cli import app as command_line
from tests.support import made_up

QUICK = ["sweep", "params/quickstart.yaml", "--dry-run", "--only", "zs3_bf16*"]
NOT_UTF_8 = os.fsdecode(b"\xff")


def dsnb(monkeypatch, *words):
    """Run a command in this process; give its exit code and what it printed."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how) for how in ("strict", "backslashreplace"))
    monkeypatch.setattr(sys, "argv", ["dsnb", *map(str, words)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of this process stay as they are
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        try:
            command_line.main()
        except SystemExit as end:
            code = end.code
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    assert all(one.isprintable() or one == "\n" for text in said for one in text)
    return code, *said


REFUSED = {
    "--set": ["self=1", "1=2", "=3", "[", "steps=2024-99-99", "data=\x1b[31m", "repeats=x", "model=a\nb"],
    "--only": ["", "[", "\x1b[31m", NOT_UTF_8],
    "--sub-cluster": ["0", "two", "1,1", "2,,4"],
    "--hostfile": [NOT_UTF_8, "FOLDER"],
}  # fmt: skip


@pytest.mark.parametrize("option", REFUSED)
def test_a_sweep_refuses_odd_words_in_one_sentence(monkeypatch, option):
    for word in REFUSED[option]:
        code, out, err = dsnb(monkeypatch, *QUICK, option, word)
        assert (code, out) == (1, ""), (word[:80], out, err)
        assert err.startswith("error: "), word[:80]


@pytest.mark.parametrize("format_", ["table", "csv", "markdown", "json"])
def test_names_reach_the_terminal_as_text(monkeypatch, tmp_path, format_):
    made_up.write_folders(made_up.runs(3), tmp_path / "out", steps=3)
    next((tmp_path / "out").iterdir()).rename(tmp_path / "out" / "=a\x1b[2J\u202e|b")
    code, out, err = dsnb(monkeypatch, "summary", tmp_path / "out", "--format", format_)  # looks at every character
    assert (code, err) == (0, "")
    shown = {
        "table": "=a?[2J?|b",
        "csv": "\n'=a?[2J?|b,",
        "markdown": "=a?\\[2J?\\|b",
        "json": '"=a\\u001b[2J\\u202e|b"',
    }
    assert shown[format_] in out
