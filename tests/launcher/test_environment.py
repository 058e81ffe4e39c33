"""The environment of ranks."""

import subprocess
import sys

import pytest

from dsnb.launcher import environment

LOOPS = "TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION"


def test_op_builder_architectures_lose_their_suffix(monkeypatch):
    assert environment.plain_architectures("8.0;9.0a 10.0f+PTX") == "8.0;9.0 10.0+PTX"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    assert environment.for_ranks("cpu", 1, 0.0)["TORCH_CUDA_ARCH_LIST"] == "9.0"


@pytest.mark.process
def test_inductor_does_not_reorder_loops(monkeypatch):
    """Said by torch in a process with the environment of a rank; who sets the variable decides otherwise."""
    asked = [sys.executable, "-c", "from torch._inductor import config; print(config.loop_ordering_after_fusion)"]
    monkeypatch.delenv(LOOPS, raising=False)
    env = environment.for_ranks("cpu", 1, 0.0)
    assert subprocess.run(asked, env=env, capture_output=True, text=True, check=True).stdout == "False\n"
    monkeypatch.setenv(LOOPS, "1")
    assert environment.for_ranks("cpu", 1, 0.0)[LOOPS] == "1"
