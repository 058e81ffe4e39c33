"""The params file of four small runs."""

import pytest

from tests.support.small_sweep import PARAMS


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(PARAMS)
    return path
