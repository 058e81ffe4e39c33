"""How data, models and engines are set up; `test_strategies` trains with them."""

import inspect
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest

from tests.support import lazy

torch = lazy.Module("torch")
engine, data = (lazy.Module(f"dsnb.measure.train.{name}") for name in ("engine", "data"))
model = lazy.Module("dsnb.models.build")
offload = lazy.Module("deepspeed.runtime.zero.parameter_offload")


def test_gathers_wait_for_the_update():
    stream, updating = mock.Mock(), object()
    zero3 = SimpleNamespace(parameter_offload=SimpleNamespace(**{engine.GATHERING_STREAM: stream}))
    with mock.patch("torch.cuda.current_stream", return_value=updating):
        engine.order_gathers(SimpleNamespace(optimizer=zero3))
    stream.wait_stream.assert_called_once_with(updating)
    # DeepSpeed's name of the stream is private, so another release may have another.
    owner, _, name = engine.GATHERING_STREAM.removeprefix("_").partition("__")
    assert f"self.__{name} = " in inspect.getsource(getattr(offload, owner).__init__)


def test_an_untested_family_is_refused_in_one_sentence(monkeypatch):
    config = SimpleNamespace(model_type="gpt_neox", num_hidden_layers=2, num_attention_heads=2)
    settings = SimpleNamespace(tensor_parallel=2, pipeline_parallel=2)
    monkeypatch.setattr("dsnb.models.build.model_config", lambda _: config)
    why = "is 2: it is tested for gpt2, opt and bloom only, not for gpt_neox"
    with pytest.raises(ValueError, match=f"^tensor_parallel {why}"):
        model.parts.prepare(settings, SimpleNamespace(config=config))
    settings.tensor_parallel = 1
    with pytest.raises(ValueError, match=f"^pipeline_parallel {why}"):
        model.build_stage(settings, 0, torch.device("cpu"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [("~" * 20, "has 20 tokens: seq_len 32 needs more text"),
     ("~" * 100, "tokenizer 'bytes' gives token 126: the model's vocabulary ends at 49")],
)  # fmt: skip
def test_a_text_that_does_not_suit_the_settings(small, tmp_path, text, problem):
    (tmp_path / "text.txt").write_text(text)
    with pytest.raises(ValueError, match=problem):
        data.batches(small(data=str(tmp_path / "text.txt")), 50, 0, torch.device("cpu"))


def test_a_text_with_its_own_tokenizer(small, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        word: number for number, word in enumerate(["the", "cat", "sat", "on", "mat", "[UNK]"])
    }
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(
        tmp_path / "tok"
    )
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat " * 50)
    experiment = small(data=str(text), tokenizer=str(tmp_path / "tok"))
    assert data.tokenize(experiment).tolist() == [0, 1, 2, 3, 0, 4] * 50
    after = {0: {1, 4}, 1: {2}, 2: {3}, 3: {0}, 4: {0}}
    (batch,) = data.batches(experiment, 6, 0, torch.device("cpu"))(0)
    assert all(word in after[before] for ids in batch.tolist() for before, word in pairwise(ids))


def test_dropout_is_set(small):
    trained = model.build(small(dropout=0.5), {}, torch.device("cpu"))
    ids = torch.arange(32)[None]
    assert not torch.equal(trained(ids).logits, trained(ids).logits)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_large_weights_are_those_of_fp32_rounded(monkeypatch, dtype):
    """On GPUs, torch draws other numbers for tensors above 2 GiB, a size that fp32 reaches before half precision."""
    monkeypatch.setattr("dsnb.models.build.MAX_FILL_BYTES", 4 * 1000 - 1)
    weights = {}
    for name in ("float32", dtype):
        layer = torch.nn.Linear(10, 100, dtype=getattr(torch, name))
        before = {one: (one.data_ptr(), one.dtype) for one in layer.parameters()}
        torch.manual_seed(0)
        with model.large_weights_in_fp32(layer):
            assert layer.weight.dtype == torch.float32, "1,000 numbers"
            assert layer.bias.dtype == getattr(torch, name), "100 numbers"
            torch.nn.init.normal_(layer.weight)
        assert {one: (one.data_ptr(), one.dtype) for one in layer.parameters()} == before
        weights[name] = layer.weight.detach()
    assert torch.equal(weights[dtype], weights["float32"].to(getattr(torch, dtype)))
