"""The loss that all strategies train: transformers' figures, whole and in chunks, without what need not be kept."""

import math

import pytest

from dsnb.formulas.model_shapes import PRESETS
from tests.support import lazy

torch, F = lazy.Module("torch"), lazy.Module("torch.nn.functional")
transformers = lazy.Module("transformers")
causal_loss = lazy.Module("dsnb.train.causal_loss")


def tiny(name, **more):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**{**PRESETS[name].config(), **more})
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])


@pytest.mark.parametrize("name", ["gpt2-tiny", "opt-tiny", "bloom-tiny"])
@pytest.mark.parametrize("chunked", [False, True], ids=["whole", "chunked"])
def test_loss_and_gradients_are_those_of_transformers(name, chunked, monkeypatch):
    monkeypatch.setattr("dsnb.train.chunked_loss.CHUNK_TOKENS", 8)  # seven chunks of eight tokens or three
    model = tiny(name)
    ids = torch.randint(model.config.vocab_size, (3, 17))
    theirs = model(input_ids=ids, labels=ids).loss
    expected = gradients(model, theirs)
    ours = causal_loss.CausalLoss(model, chunked)(ids)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    assert (gradients(model, ours) - expected).norm() < 1e-6 * expected.norm()


def test_a_known_loss():
    """Equal logits: every token has the probability 1 / vocabulary."""
    ids = torch.tensor([[0, 1, 2, 3]])
    assert causal_loss.causal_loss(torch.zeros(1, 4, 50), ids).item() == pytest.approx(math.log(50), abs=1e-6)
    certain = 100.0 * F.one_hot(causal_loss.next_tokens(ids).clamp(min=0), 50).float()
    assert causal_loss.causal_loss(certain, ids).item() == pytest.approx(0.0, abs=1e-6)


def test_chunks_keep_no_logits(monkeypatch):
    model = tiny("gpt2-tiny", vocab_size=3000)  # the logits are the largest tensor
    ids = torch.randint(model.config.vocab_size, (8, 64))
    logits = ids.numel() * model.config.vocab_size

    def largest_kept(module):
        sizes = [0]
        with torch.autograd.graph.saved_tensors_hooks(
            lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept
        ):
            module(ids)
        return max(sizes)

    monkeypatch.setattr("dsnb.train.chunked_loss.CHUNK_TOKENS", 8)
    assert largest_kept(causal_loss.CausalLoss(model)) == logits
    assert largest_kept(causal_loss.CausalLoss(model, chunked=True)) < logits / 2
