"""The environment of ranks."""

from dsnb.launcher import environment


def test_op_builder_architectures_lose_their_suffix(monkeypatch):
    assert environment.plain_architectures("8.0;9.0a 10.0f+PTX") == "8.0;9.0 10.0+PTX"
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    assert environment.for_ranks("cpu", 1, 0.0)["TORCH_CUDA_ARCH_LIST"] == "9.0"
