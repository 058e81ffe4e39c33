"""What an engine shows of its settings; `test_strategies` has real ones."""

from types import SimpleNamespace

import pytest

from tests.support import lazy

verify_engine = lazy.Module("dsnb.train.verify_engine")


def test_an_engine_that_is_not_what_was_asked_for(monkeypatch):
    right = {"ZeRO stage": 2, "optimizer offloaded to": "cpu"}
    monkeypatch.setattr("dsnb.train.verify_engine.expected", lambda experiment: right)
    monkeypatch.setattr("dsnb.train.verify_engine.actual", lambda engine, keys: {**right, **engine.differing})
    settings = SimpleNamespace(deepspeed={})
    verify_engine.check(settings, SimpleNamespace(differing={}))
    with pytest.raises(RuntimeError, match="ZeRO stage 1 instead of 2, optimizer offloaded to none instead of"):
        verify_engine.check(settings, SimpleNamespace(differing={"ZeRO stage": 1, "optimizer offloaded to": "none"}))


def test_a_key_that_the_engine_does_not_use_as_given_is_named():
    zero = SimpleNamespace(overlap_comm=False)
    engine = SimpleNamespace(_config=SimpleNamespace(zero_config=zero, _param_dict={"communication_data_type": "bf16"}))
    found = [
        verify_engine.configured(engine, path) for path in ("zero_optimization.overlap_comm", "zero_optimization.x")
    ]
    assert found == [False, None]
    assert verify_engine.configured(engine, "communication_data_type") == "bf16"
    assert verify_engine.configured(engine, "aio.block_size") is None
