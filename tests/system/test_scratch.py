"""Private folders in the temporary folder: what killed processes left is removed, and nothing else."""

import subprocess
import sys

import pytest

from dsnb.system import scratch

OWNER = """
import sys
from dsnb.system.scratch import Scratch
print(Scratch(sys.argv[1]).path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def owned(tmp_path):
    """Give a folder that another process owns, and that process."""
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        yield tmp_path / owner.stdout.readline().strip(), owner


@pytest.mark.process
def test_the_next_start_removes_what_a_killed_process_left(owned, tmp_path):
    left, owner = owned
    (left / "file").touch()
    kept = [tmp_path / "dsnb-empty", tmp_path / "other"]  # nothing says whose they are
    for folder in kept:
        folder.mkdir()
    first = scratch.Scratch(str(tmp_path))
    assert left.is_dir()  # its owner lives
    owner.kill()
    owner.wait()
    second = scratch.Scratch(str(tmp_path))
    assert set(tmp_path.iterdir()) == {first.path, second.path, *kept}
    assert second.path.stat().st_mode & 0o777 == 0o700
    first.remove()
    second.remove()
    second.remove()
    assert set(tmp_path.iterdir()) == set(kept)


def test_sockets_need_a_short_name(monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp/" + 80 * "a")
    assert scratch.socket_home() == "/tmp"
