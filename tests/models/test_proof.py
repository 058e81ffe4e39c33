"""Before a run each change of its model is compared with transformers' computation, on a small model of its kind."""

import json

import pytest

from benchmarks import families
from dsnb.base.formulas.model_shapes import PRESETS
from tests.support import lazy

torch = lazy.Module("torch")
attention, build, logits, proof, witness = (
    lazy.Module(f"dsnb.models.{name}")
    for name in ("attention", "build", "logits", "proof", "witness")
)
ALL = {"loss": "chunked", "pad_vocab": 64, "activation_checkpointing": True}
CPU = "cpu"


@pytest.fixture
def adapted(small, tmp_path):
    """Give settings with every adaptation, of a preset or of a tiny model with these fields."""

    def settings(kind, seq_len=64, **fields):
        model = kind
        if kind not in PRESETS:
            path = tmp_path / "model.json"
            path.write_text(json.dumps(families.configuration(kind) | fields))
            model = str(path)
        experiment = small(model=model, seq_len=seq_len)
        return experiment.model_copy(update=ALL)

    return settings


def differing(experiment):
    return proof.differing(experiment, torch.device(CPU))


@pytest.mark.parametrize("kind", families.KINDS)
def test_every_kind_has_the_loss_and_gradients_of_transformers(kind, adapted):
    """With causal attention without a mask, a padded vocabulary, chunks, and recomputed blocks at once."""
    assert differing(adapted(kind)) == []


@pytest.mark.parametrize(
    "name", ["gpt2-xl", "bloom-560m", "llama-3.1-70b", "gemma-3-1b", "mixtral-8x7b", "phi-2"]
)
def test_large_models_have_small_witnesses(name, adapted):
    experiment = adapted(name, seq_len=1024)
    config = witness.smallest(experiment.model_copy(update=witness.ALONE))
    whole = build.model_config(experiment)
    assert config.num_attention_heads <= witness.HEADS
    assert (
        config.hidden_size // config.num_attention_heads
        == whole.hidden_size // whole.num_attention_heads
    )
    assert config.num_hidden_layers == 2
    kinds = getattr(whole, "layer_types", None) or [None]
    assert set(getattr(config, "layer_types", None) or [None]) == set(kinds)
    assert differing(experiment) == []


def test_windows_are_in_proportion(adapted):
    """Half the run's sequences: half the witness's, which attention without a mask would not notice."""
    for window, length in ((32, 64), (64, 64), (256, 64)):
        experiment = adapted("mistral", seq_len=length, sliding_window=window)
        config = witness.smallest(experiment.model_copy(update=witness.ALONE))
        assert config.sliding_window == witness.TOKENS * window // length


def broken(monkeypatch, name):
    """Make one adaptation compute something else."""
    if name == "attention":
        wrong = lambda *_, **__: None  # noqa: E731
        monkeypatch.setitem(
            attention.AttentionMaskInterface._global_mapping, attention.CAUSAL, wrong
        )
    else:
        monkeypatch.setattr(logits.LogitMap, "slope", lambda made, values: 1.01 * made.scale)


@pytest.mark.parametrize("name", ["attention", "loss"])
def test_what_computes_something_else_is_named(name, adapted, monkeypatch):
    experiment = (
        adapted("granite", sliding_window=8)
        if name == "loss"
        else adapted("mistral", sliding_window=8)
    )
    assert differing(experiment) == []
    broken(monkeypatch, name)
    assert differing(experiment) == [name]


def test_only_changes_of_the_model_are_compared(small, monkeypatch):
    monkeypatch.setattr("dsnb.models.proof._computed", lambda *_: pytest.fail("a model was built"))
    unadapted = small(attention="eager", loss="whole")
    assert differing(unadapted) == []


def test_a_proof_leaves_random_numbers_and_threads_alone(adapted):
    torch.manual_seed(7)
    expected = torch.rand(3)
    threads = torch.get_num_threads()
    torch.manual_seed(7)
    differing(adapted("llama"))
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == threads


def test_a_model_that_cannot_be_small_is_said(adapted, monkeypatch):
    monkeypatch.setattr("dsnb.models.witness.MAX_PARAMETERS", 1000)
    with pytest.raises(
        ValueError, match=r"^no small model of the same kind can be built \(it would have 0 million"
    ):
        differing(adapted("llama"))
