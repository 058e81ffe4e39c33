"""Counts of a trace beside those by hand, and beside what a configuration says."""

import inspect
import json
import textwrap
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest

from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.prediction import shapes, traces
from dsnb.prediction.predict import flops_per_token
from dsnb.prediction.work import work
from dsnb.settings.experiment import Experiment
from tests.support import lazy

observed = lazy.Module("dsnb.models.observe.work")


@pytest.fixture
def counted(monkeypatch):
    """Return a function that counts a model in this process."""

    def make(_, missing):
        traces._records.update(
            {key: observed.count(experiment) for key, experiment in missing.items()}
        )
        return {}

    for name, substitute in {"_file": lambda _: None, "_records": {}, "_make": make}.items():
        monkeypatch.setattr(traces, name, substitute)
    shapes.shape.cache_clear()
    yield traces.counts
    shapes.shape.cache_clear()


@pytest.mark.parametrize(("model", "limit"), [("gpt2", 0.25), ("opt-125m", 0.2)])
def test_a_trace_counts_what_was_counted_by_hand(counted, model, limit):
    """Products and tensors exactly, bytes of a step within a quarter; BLOOM's own gradient of GELU moves more."""
    record, by_hand = counted(model), shapes.shape(model)
    for name in (
        "hidden",
        "layers",
        "vocab",
        "parameters",
        "weights",
        "held",
        "numbers",
        "tensors",
        "root_tensors",
    ):
        assert record[name] == getattr(by_hand, name), name
    assert record["head"] == by_hand.head
    traced = shapes.Counts(**{**vars(by_hand), "traffic": record["traffic"]})
    for compile_mode, kind in (("off", "eager"), ("default", "compiled")):
        for settings in (
            {"precision": "bf16"},
            {"precision": "fp32"},
            {"precision": "bf16", "strategy": "plain"},
        ):
            experiment = Experiment(model=model, device="cuda", compile=compile_mode, **settings)
            found, expected = (
                sum(one.bytes for one in each.passes(experiment, kind))
                for each in (traced, by_hand)
            )
            assert found == pytest.approx(expected, rel=limit), (kind, settings)


def test_grouped_queries_experts_windows_and_caps_are_counted(counted):
    """Mixtral: 2 of 4 experts of 3 x 128 x 256, a router, 4 heads of 32 and 2 for keys and values."""
    one = shapes.shape("moe-tiny")
    attention, expert = 128 * (128 + 64 + 64 + 128), 3 * 128 * 256
    assert [one.weights, one.held] == [attention + 4 * 128 + number * expert for number in (2, 4)]
    assert (one.grouped, one.family, one.attention[0], one.capped) == (
        2 * expert,
        "mixtral",
        (128, None, 4),
        False,
    )
    rows = observed.torch.zeros(4, 6)
    assert [*map(observed.has_gaps, (rows, rows.T, rows[:2], rows[:, :2]))] == [
        False,
        False,
        False,
        True,
    ]
    gemma = shapes.shape("gemma2-tiny")
    assert gemma.attention == [(128, 64, 4), (128, None, 4)] * 2
    assert (gemma.capped, gemma.logits_capped, gemma.maskless) == (True, True, True)
    assert not shapes.shape(
        "falcon-tiny"
    ).maskless  # its classes ask for a mask where it is compiled
    common = {"device": "cuda", "precision": "bf16", "micro_batch_size": 2, "seq_len": 128}
    plain = work(Experiment(model="moe-tiny", strategy="plain", **common))
    # Experts are multiplied in fp32 under autocast, slowly; tokens x 6 FLOPs a weight.
    assert plain["fp32_flops"] == 1.25 * 4 * 6 * 2 * expert * 256
    assert plain["matmul_flops"] == 6 * 256 * (4 * (attention + 4 * 128) + 512 * 128)


@pytest.mark.parametrize("model", ["moe-tiny", "gemma2-tiny", "llama-3.2-1b"])
def test_the_counts_of_presets_are_those_of_a_trace(counted, model):
    """If not, `python -m benchmarks.preset_counts` makes the file anew."""
    assert shapes.shape(model) == shapes._of_record(counted(model))


def plugin(monkeypatch, count):
    """Let an installed package count a type of models."""
    point = SimpleNamespace(value="odd.work:counts", load=lambda: count)
    monkeypatch.setattr(
        shapes,
        "entry_points",
        lambda group, name: [point] * ((group, name) == ("dsnb.counts", "odd")),
    )
    shapes.shape.cache_clear()


def test_a_package_counts_models_that_cannot_be_followed(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "odd", "num_hidden_layers": 3}')
    one = shapes.shape("llama-tiny")
    plugin(monkeypatch, lambda config: replace(one, layers=config["num_hidden_layers"]))
    assert shapes.shape(str(tmp_path)) == replace(one, layers=3)


@pytest.mark.parametrize(
    ("count", "why"),
    [
        (lambda config: config["no"], r"odd\.work:counts could not count it \(KeyError: 'no'\)$"),
        (lambda config: config, r"odd\.work:counts returned no Counts$"),
    ],
)
def test_a_package_that_counts_wrongly_is_named(tmp_path, monkeypatch, count, why):
    (tmp_path / "config.json").write_text('{"model_type": "odd"}')
    plugin(monkeypatch, count)
    with pytest.raises(shapes.SettingsError, match=why):
        shapes.shape(str(tmp_path))


def test_the_example_of_a_package_predicts_a_step(tmp_path, monkeypatch):
    """The one in the docstring."""
    text = inspect.getdoc(shapes).split("# odd_llama/work.py")[1].split("\n", 1)[1]
    names = {}
    exec(textwrap.dedent(text), names)
    config = {"model_type": "odd", "num_hidden_layers": 2, "hidden_size": 128}
    config |= {"num_attention_heads": 4, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plugin(monkeypatch, names["counts"])
    found = work(Experiment(model=str(tmp_path), device="cuda", seq_len=128))
    assert found["matmul_flops"] > 0


def test_a_model_that_cannot_be_followed_can_be_measured(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.setattr(
        traces, "counts", mock.Mock(side_effect=shapes.SettingsError("it has odd blocks"))
    )
    with pytest.raises(shapes.SettingsError, match=r"it can be measured \(it has odd blocks\)"):
        shapes.shape(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"mlp_only_layers": [0]}, "its blocks differ in size"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 of keys and values"),
        ({"model_type": "mamba"}, "some of its blocks have no attention"),
    ],
)
def test_what_one_block_cannot_stand_for_is_refused(counted, tmp_path, monkeypatch, changes, why):
    monkeypatch.setattr(
        "dsnb.models.observe.work.LENGTH", 4
    )  # Mamba goes through tokens one by one
    (tmp_path / "config.json").write_text(json.dumps(PRESETS["qwen3-moe-tiny"].config() | changes))
    with pytest.raises(ValueError, match=why):
        counted(str(tmp_path))


def test_wide_mlps_of_gpt2_are_not_taken_for_usual_ones(counted, tmp_path):
    (tmp_path / "config.json").write_text(
        json.dumps(PRESETS["gpt2-tiny"].config() | {"n_inner": 8 * 128})
    )
    assert shapes.shape(str(tmp_path)).weights == 20 * 128 * 128


def test_flops_of_experts_are_those_that_work_on_a_token(counted, monkeypatch):
    """Mixtral 8x7B: 12.88 billion active parameters, 32 x 4096 of heads, no window (its configuration)."""
    monkeypatch.setattr(traces, "MODES", {"half": {"precision": "bf16"}})
    trace = SimpleNamespace(parameters=46_702_792_704, trainable=46_702_792_704)
    found = flops_per_token(Experiment(model="mixtral-8x7b", seq_len=4096), trace)
    assert found == pytest.approx(6 * 12_879_925_248 + 12 * 32 * 4096 * 4096, rel=1e-6)
