"""Private folders in the temporary folder: what killed processes left is removed, and nothing else."""

import os
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
    first = scratch.Scratch(str(tmp_path))
    assert left.is_dir()  # its owner lives
    owner.kill()
    owner.wait()
    second = scratch.Scratch(str(tmp_path))
    assert set(tmp_path.iterdir()) == {first.path, second.path}
    assert second.path.stat().st_mode & 0o777 == 0o700
    first.remove()
    second.remove()
    second.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_only_private_folders_of_dsnb_are_removed(owned, tmp_path):
    left, owner = owned
    owner.kill()
    owner.wait()
    kept = [tmp_path / f"dsnb-{name}" for name in ("empty", "others", "linked", "link-to-lock", "file")]
    empty, others, linked, lock, file = kept
    empty.mkdir()  # nothing says whose it is, or it is just being made
    others.mkdir(mode=0o700)
    (others / scratch.LOCK).touch(0o644)  # dsnb makes it private
    real = tmp_path / "real"
    left.rename(real)
    linked.symlink_to(real)
    lock.mkdir(mode=0o700)
    (lock / scratch.LOCK).symlink_to(real / scratch.LOCK)
    file.touch()
    scratch.remove_abandoned(str(tmp_path))
    assert set(tmp_path.iterdir()) == {*kept, real}
    if os.geteuid() == 0:  # somebody else's, as dsnb would leave it
        real.rename(tmp_path / "dsnb-theirs")
        os.chown(tmp_path / "dsnb-theirs", 12345, 12345)
        scratch.remove_abandoned(str(tmp_path))
        assert (tmp_path / "dsnb-theirs" / scratch.LOCK).exists()


def test_a_temporary_folder_that_cannot_be_listed_is_no_trouble(tmp_path):
    scratch.remove_abandoned(str(tmp_path / "none"))


def test_sockets_need_a_short_name(monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp/" + 80 * "a")
    assert scratch.socket_home() == "/tmp"
