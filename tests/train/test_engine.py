"""The loop around DeepSpeed's engine; `test_strategies` trains with it."""

import inspect
from types import SimpleNamespace
from unittest import mock

from tests.support import lazy

torch, engine = lazy.Module("torch"), lazy.Module("dsnb.train.engine")
offload = lazy.Module("deepspeed.runtime.zero.parameter_offload")


def test_gathers_wait_for_the_update():
    stream, updating = mock.Mock(), object()
    zero3 = SimpleNamespace(parameter_offload=SimpleNamespace(**{engine.GATHERING_STREAM: stream}))
    with mock.patch("torch.cuda.current_stream", return_value=updating):
        engine.order_gathers(SimpleNamespace(optimizer=zero3))
    stream.wait_stream.assert_called_once_with(updating)


def test_what_gathers_nothing_or_has_no_streams_is_left_alone():
    on_cpu = SimpleNamespace(parameter_offload=SimpleNamespace(**{engine.GATHERING_STREAM: None}))
    for optimizer in (SimpleNamespace(), on_cpu):
        engine.order_gathers(SimpleNamespace(optimizer=optimizer))


def test_deepspeed_still_has_the_stream():
    """Its name is private, so another release may have another."""
    owner, _, name = engine.GATHERING_STREAM.removeprefix("_").partition("__")
    assert f"self.__{name} = " in inspect.getsource(getattr(offload, owner).__init__)
