"""torch.compile: no graph breaks in any family, and what is counted."""

import functools
from unittest import mock

import pytest

from dsnb.settings.experiment import Experiment
from tests.support import lazy

torch = lazy.Module("torch")
causal_loss, models = lazy.Module("dsnb.train.causal_loss"), lazy.Module("dsnb.train.model")


def made(**settings):
    experiment = Experiment(device="cpu", precision="fp32", seq_len=16, micro_batch_size=2, **settings)
    model = models.build(experiment, {}, torch.device("cpu"))
    return experiment, causal_loss.CausalLoss(model, experiment.loss == "chunked")


@pytest.mark.process
@pytest.mark.parametrize(
    ("model", "settings", "parts"),
    [
        ("gpt2-tiny", {"loss": "chunked"}, 2),  # up to the output layer, and what is between a chunk's products
        ("opt-tiny", {"lora_rank": 4, "activation_checkpointing": True}, 1),
        ("bloom-tiny", {}, 1),
    ],
)
def test_each_family_is_one_graph(model, settings, parts):
    torch._dynamo.reset()
    graphs, breaks = causal_loss.compiled_graphs(), causal_loss.graph_breaks()
    _, module = made(model=model, **settings)
    module.compile_inside(backend="eager")
    made_in = []
    for _ in range(2):
        module(torch.randint(500, (2, 16))).backward()
        made_in.append(causal_loss.compiled_graphs() - graphs)
    assert made_in == [parts] * 2
    assert causal_loss.graph_breaks() == breaks


@pytest.mark.process
@pytest.mark.parametrize("model", ["gpt2-tiny", "bloom-tiny"])
def test_compiled_blocks_share_one_graph(model):
    """A graph a block would exceed dynamo's limit: the rest of them would not be compiled."""
    torch._dynamo.reset()
    graphs, breaks = causal_loss.compiled_graphs(), causal_loss.graph_breaks()
    experiment, module = made(model=model, compile="default", compile_unit="block")
    with mock.patch("torch.compile", functools.partial(torch.compile, backend="eager")):
        causal_loss.compile_model(experiment, module)
    for _ in range(2):
        module(torch.randint(500, (2, 16))).backward()
    assert causal_loss.compiled_graphs() - graphs == 3, "a block, the output layer, and the loss"
    assert causal_loss.graph_breaks() == breaks


def test_graph_breaks_are_counted():
    import torch  # what is traced must not import it

    torch._dynamo.reset()
    breaks = causal_loss.graph_breaks()

    def broken(numbers):
        torch._dynamo.graph_break()
        return numbers + 1

    torch.compile(broken, backend="eager")(torch.ones(2))
    assert causal_loss.graph_breaks() == breaks + 1


def test_modes_are_torchs():
    for mode in ("reduce-overhead", "max-autotune", "default"):
        options = {} if mode == "default" else {"mode": mode}
        assert causal_loss.compile_options(Experiment(device="cpu", compile=mode)) == options
    experiment, module = made(model="gpt2-tiny")
    causal_loss.compile_model(experiment, module)
    assert not module.is_compiled


@pytest.mark.parametrize("settings", [{}, {"compile_unit": "block"}], ids=str)
def test_what_is_compiled_for_one_precision_is_not_taken_for_another(settings):
    """Torch 2.11 takes it, and GPT-2 in bf16 ran the graph of fp16."""
    from torch._inductor.codecache import FxGraphHashDetails

    keys, eager = [], functools.partial(torch.compile, backend="eager")
    with mock.patch("torch.compile", eager), torch.compiler.config.patch(cache_key_tag=""):
        for precision in ("bf16", "fp16"):
            experiment, module = made(model="gpt2-tiny", compile="default", **settings)
            causal_loss.compile_model(experiment.model_copy(update={"precision": precision}), module)
            keys.append(FxGraphHashDetails(None, [], {}, []).cache_key_tag)
    assert keys == ["bf16", "fp16"]
