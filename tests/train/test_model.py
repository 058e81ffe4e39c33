"""How models are built; `test_strategies` trains them."""

import pytest

from tests.support import lazy

torch, model = lazy.Module("torch"), lazy.Module("dsnb.train.model")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_weights_are_those_of_fp32_rounded(monkeypatch, dtype):
    """On GPUs, torch draws other numbers for more than 2 GiB, which fp32 has sooner than half precision."""
    monkeypatch.setattr("dsnb.train.model.PART_BYTES", 4 * 1000 - 1)
    weights = {}
    for name in ("float32", dtype):
        layer = torch.nn.Linear(10, 100, dtype=getattr(torch, name))
        before = {one: (one.data_ptr(), one.dtype) for one in layer.parameters()}
        torch.manual_seed(0)
        with model.large_ones_in_fp32(layer):
            assert layer.weight.dtype == torch.float32, "1,000 numbers"
            assert layer.bias.dtype == getattr(torch, name), "100 numbers"
            torch.nn.init.normal_(layer.weight)
        assert {one: (one.data_ptr(), one.dtype) for one in layer.parameters()} == before
        weights[name] = layer.weight.detach()
    assert torch.equal(weights[dtype], weights["float32"].to(getattr(torch, dtype)))
