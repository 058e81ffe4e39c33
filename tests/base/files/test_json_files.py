"""What reaches the disk, and what comes back of damaged files."""

import json
import os
from pathlib import Path

import pytest

from dsnb.base.errors import DsnbWarning
from dsnb.base.files import json_files


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    json_files.write_json(path, {"a": 1})
    monkeypatch.setattr(
        os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        json_files.write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_files_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        json_files.write_text(tmp_path / "written", "a")
        json_files.append_line(tmp_path / "appended", {})
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}


def test_numbers_that_json_does_not_know_are_missing(tmp_path):
    path = tmp_path / "a.json"
    json_files.write_json(path, {"x": float("nan"), "y": [float("inf"), 1.5]})
    assert json_files.read_json(path) == {"x": None, "y": [None, 1.5]}
    path.write_text('{"cause": "NaN", "n": NaN, "m": [-Infinity]}')
    assert json_files.read_json(path) == {"cause": "NaN", "n": None, "m": [None]}


def test_missing_empty_and_foreign_json(tmp_path):
    path = tmp_path / "result.json"
    assert json_files.read_json(path) is None
    half_a_character = b'{"cause": "\\ud83d out"}'
    for content in (b"", b"[1]", b"{", b"[" * 100_000, bytes(range(256)), half_a_character):
        path.write_bytes(content)
        with pytest.warns(DsnbWarning, match=r"result\.json is left out"):
            assert json_files.read_json(path) is None


def test_a_cut_last_line_is_left_out_with_one_warning(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3, "lo')
    with pytest.warns(DsnbWarning) as caught:
        assert json_files.read_lines(path) == [{"step": 1}, {"step": 2}]
    assert [str(warning.message) for warning in caught] == [
        f"{path}: 1 line(s) left out, cut off or damaged (line 3)"
    ]


def test_what_is_no_file_is_left_out(tmp_path):
    (tmp_path / "steps.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("steps.jsonl", "pipe"):
        with pytest.warns(DsnbWarning, match="is left out: it is not a regular file"):
            assert json_files.read_lines(tmp_path / name) == []
    for path in (
        tmp_path / "steps.jsonl",
        tmp_path / "pipe",
        Path("/dev/zero"),
    ):  # the last one has no end
        assert list(json_files.Tail(path).new()) == []


def test_tail_gives_each_record_once_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "steps.jsonl"
    tail = json_files.Tail(path)
    assert list(tail.new()) == []
    path.write_text('{"step": 1}\n{"st')
    assert list(tail.new()) == [{"step": 1}]
    with path.open("a") as file:
        file.write('ep": 2}\n')
    assert list(tail.new()) == [{"step": 2}]
    assert list(tail.new()) == []
    path.write_text('{"step": 1}\n')  # written anew
    assert list(tail.new()) == [{"step": 1}]


def test_files_that_are_too_long_or_nested_too_deeply_are_left_out(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": 1}')
    assert json_files.read_bytes(path, 8) == b'{"a": 1}'
    with pytest.warns(DsnbWarning, match=r"a\.json is left out: it has more than 7 bytes"):
        assert json_files.read_bytes(path, 7) is None
    for depth, is_read in ((63, True), (65, False)):
        path.write_text('{"a": ' + "[" * depth + "]" * depth + "}")
        if is_read:
            assert json_files.read_json(path)
            continue
        with pytest.warns(DsnbWarning, match="it is nested more than 64 levels deep"):
            assert json_files.read_json(path) is None


def test_appended_lines_follow_those_that_are_there(tmp_path):
    path = tmp_path / "failures.jsonl"
    for number in (1, 2):
        json_files.append_line(path, {"number": number})
    assert path.read_text() == '{"number":1}\n{"number":2}\n'
    assert json_files.read_end(path, 13) == b'{"number":2}\n'
    assert json_files.read_end(path, 1000) == path.read_bytes()
