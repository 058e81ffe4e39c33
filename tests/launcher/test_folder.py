"""The folder of a run that is launched."""

import pytest

from dsnb.errors import LaunchError
from dsnb.launcher.folder import create_single_run_dir
from dsnb.launcher.run import launch


def test_two_launches_at_once_get_folders_of_their_own(small, tmp_path, monkeypatch):
    monkeypatch.setenv("DSNB_OUTPUTS", str(tmp_path))
    assert {create_single_run_dir(small()).name for _ in range(3)} == {"run1", "run2", "run3"}


@pytest.mark.process
def test_a_folder_that_cannot_be_written(small, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match="file/run1 cannot be written: Not a directory; choose another folder"):
        launch(small(), tmp_path / "file" / "run1", progress=False)
