"""The loop around DeepSpeed's engine, and what the engine shows of its settings; `test_strategies` trains with it."""

import inspect
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.support import lazy

torch, engine = lazy.Module("torch"), lazy.Module("dsnb.train.engine")
offload = lazy.Module("deepspeed.runtime.zero.parameter_offload")
verify_engine = lazy.Module("dsnb.train.verify_engine")


def test_gathers_wait_for_the_update():
    stream, updating = mock.Mock(), object()
    zero3 = SimpleNamespace(parameter_offload=SimpleNamespace(**{engine.GATHERING_STREAM: stream}))
    with mock.patch("torch.cuda.current_stream", return_value=updating):
        engine.order_gathers(SimpleNamespace(optimizer=zero3))
    stream.wait_stream.assert_called_once_with(updating)


def test_deepspeed_still_has_the_stream():
    """Its name is private, so another release may have another."""
    owner, _, name = engine.GATHERING_STREAM.removeprefix("_").partition("__")
    assert f"self.__{name} = " in inspect.getsource(getattr(offload, owner).__init__)


def test_a_family_that_is_not_tested_is_refused_in_one_sentence(monkeypatch):
    model = torch.nn.Module()
    model.config = SimpleNamespace(model_type="gpt_neox", num_hidden_layers=2, num_attention_heads=2)
    model.layers = torch.nn.ModuleList([torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)])
    settings = SimpleNamespace(tensor_parallel=2, pipeline_parallel=2)
    with pytest.raises(
        ValueError, match="tensor_parallel is 2: it is tested for gpt2, opt and bloom only, not for gpt_"
    ):
        engine.model_parts.prepare(settings, model)
    monkeypatch.setattr("dsnb.train.engine.build_part", lambda experiment, device, part: part(model))
    with pytest.raises(
        ValueError, match="pipeline_parallel is 2: it is tested for gpt2, opt and bloom only, not for gpt"
    ):
        engine.build_stage(settings, 0, torch.device("cpu"))


def test_a_key_that_the_engine_does_not_use_as_given_is_named():
    zero = SimpleNamespace(overlap_comm=False)
    engine = SimpleNamespace(_config=SimpleNamespace(zero_config=zero, _param_dict={"communication_data_type": "bf16"}))
    found = [
        verify_engine.configured(engine, path) for path in ("zero_optimization.overlap_comm", "zero_optimization.x")
    ]
    assert found == [False, None]
    assert verify_engine.configured(engine, "communication_data_type") == "bf16"
    assert verify_engine.configured(engine, "aio.block_size") is None
