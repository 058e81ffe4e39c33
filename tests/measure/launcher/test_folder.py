"""What a run's folder has before the launch."""

import pytest

from dsnb.base.errors import LaunchError
from dsnb.base.files import json_files
from dsnb.measure.launcher import folder
from dsnb.settings.records.paths import RunPaths


def test_a_folder_is_begun_anew_with_another_identity(small, tmp_path):
    run = RunPaths(tmp_path / "run1")
    folder.prepare(run, small())
    first = json_files.read_json(run.experiment)
    folder.prepare(run, small())  # it was used: the launch before has left its machine
    second = json_files.read_json(run.experiment)
    assert len(first["run_id"]) == 16
    assert first["run_id"] != second["run_id"]
    assert {**first, "run_id": ""} == {**second, "run_id": ""}
    assert (first["name"], first["model_name"]) == (small().name, "gpt2-tiny")
    for path in (run.steps, run.worker, run.failures, run.profile, run.result, run.notebook):
        path.write_text("{}")
    folder.begin(run, small(), {"order_place": 3})
    assert json_files.read_json(run.experiment)["order_place"] == 3
    assert sorted(path.name for path in run.dir.iterdir()) == ["experiment.json", "run.ipynb"]


def test_what_a_sweep_has_written_for_a_run_stays(small, tmp_path):
    run = RunPaths(tmp_path / "run1")
    folder.begin(run, small(), {"order_place": 3})
    written = json_files.read_json(run.experiment)
    folder.prepare(run, small())
    assert json_files.read_json(run.experiment) == written
    other = small(seed=5)
    folder.prepare(run, other)
    changed = json_files.read_json(run.experiment)
    assert (changed["seed"], changed["order_place"]) == (5, 3)
    assert changed["run_id"] != written["run_id"]


@pytest.mark.parametrize(("free_mib", "refused"), [(63, True), (64, False)])
def test_a_run_needs_some_room(tmp_path, monkeypatch, free_mib, refused):
    free = type("Usage", (), {"free": free_mib * 2**20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    if not refused:
        folder.check_free_space(tmp_path / "a" / "b")
        return
    said = rf"the disk is full \({free_mib} MiB free\); free 64 MiB and start again$"
    with pytest.raises(LaunchError, match=said):
        folder.check_free_space(tmp_path / "a" / "b")
