"""Locks that builds of DeepSpeed's ops left behind."""

import os

import psutil
import pytest

from dsnb.launcher import op_builds


@pytest.mark.process
def test_only_stale_op_build_locks_are_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    locks = {name: tmp_path / name / "lock" for name in ("stale", "young", "building")}
    for lock in locks.values():
        lock.parent.mkdir()
        lock.touch()
    for name in ("stale", "building"):
        os.utime(locks[name], (0, 0))
    builder = psutil.Popen(["sleep", "60"], cwd=locks["building"].parent)
    try:
        op_builds.remove_stale_locks()
    finally:
        builder.kill()
        builder.wait()
    assert [name for name, lock in locks.items() if lock.exists()] == ["young", "building"]
