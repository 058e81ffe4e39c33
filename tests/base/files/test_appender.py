"""Records reach a file without delaying the caller, whatever the disk does."""

import os
import threading

import pytest

from dsnb.base.files import appender, json_files
from dsnb.base.files.appender import Appender
from tests.support.waiting import wait_until

ROWS = [{"step": number} for number in range(1, 6)]


def test_records_reach_the_file_soon_in_their_order(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("of the last attempt\n")
    file = Appender(path)
    for row in ROWS:
        file.append(row)
    wait_until(
        lambda: json_files.read_lines(path) == ROWS, "the records are written without a flush"
    )
    file.append({"step": 6})
    file.flush()
    assert json_files.read_lines(path) == [*ROWS, {"step": 6}]
    file.append({"step": 7})
    for _ in range(2):
        file.close()
    assert json_files.read_lines(path) == [*ROWS, {"step": 6}, {"step": 7}]


def test_a_disk_that_hangs_delays_only_flush_and_close(tmp_path, monkeypatch):
    """Before, the call that found a quarter of a second gone by waited for the disk."""
    writes, may_write = threading.Event(), threading.Event()
    write = Appender._write

    def hang(self, raw):
        writes.set()
        may_write.wait()
        write(self, raw)

    monkeypatch.setattr(Appender, "_write", hang)
    monkeypatch.setattr(appender, "EVERY_S", 0.0)
    file = Appender(tmp_path / "steps.jsonl")
    file.append(ROWS[0])
    assert writes.wait(60)
    for row in ROWS[1:]:  # returns, though the disk has not taken the first one yet
        file.append(row)
    assert json_files.read_lines(tmp_path / "steps.jsonl") == []
    may_write.set()
    file.close()
    assert json_files.read_lines(tmp_path / "steps.jsonl") == ROWS


def test_a_full_disk_is_reported_to_the_caller(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Appender, "_write", fail)
    file = Appender(tmp_path / "steps.jsonl")
    file.append(ROWS[0])
    for call in (file.flush, lambda: file.append(ROWS[1]), file.close):
        with pytest.raises(OSError, match="No space left on device"):
            call()


def test_a_disk_that_takes_a_part_gets_the_rest(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(appender.os, "write", lambda handle, raw: write(handle, raw[:5]))
    file = Appender(tmp_path / "steps.jsonl")
    file.append(ROWS[0])
    file.close()
    assert json_files.read_lines(tmp_path / "steps.jsonl") == ROWS[:1]
