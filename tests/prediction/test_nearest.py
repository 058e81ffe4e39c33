"""The nearest measured run of a setting, and its sentence."""

import time

import pytest

import dsnb
from benchmarks import ranges
from dsnb.prediction import nearest
from dsnb.prediction.gpus import find
from dsnb.prediction.nearest import sentence
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import given, trace_nothing

SETTING = {
    "model": "llama-3.2-1b", "gpus": 1, "strategy": "plain", "precision": "bf16", "seq_len": 2048,
    "micro_batch_size": 8, "device": "cuda",
}  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """Return a function that makes given settings, with what else differs, the measured ones."""

    def use(*rows):
        made = []
        for row in rows:
            row = {"gpu": "H200", "tokens_per_s": 950.0, "is_own": True, **row}
            experiment = Experiment(**{**SETTING, **row.pop("settings", {})})
            gpu = find(row.pop("gpu"))
            traits, numbers = nearest.features(experiment, gpu, 1)
            (run, *_) = known
            made.append(run._replace(model=traits["model"], gpu=gpu.name, nodes=1, traits=traits, numbers=numbers,
                                     predicted=1000.0, **row))  # fmt: skip
        monkeypatch.setattr(nearest, "runs", lambda: tuple(made))
        nearest._columns.cache_clear()

    known = nearest.runs()
    yield use
    monkeypatch.undo()
    nearest._columns.cache_clear()


def said(gpu="H200", nodes=1, **settings):
    return sentence(Experiment(**{**SETTING, **settings}), find(gpu), nodes)


def test_the_run_of_the_same_setting_is_named(measured):
    measured({}, {"settings": {"micro_batch_size": 4}, "tokens_per_s": 900.0})
    assert said() == (
        "measured on H200: llama-3.2-1b, 1 GPU, plain, 950 tokens/s, 5 % slower than predicted"
    )
    assert said(micro_batch_size=4).endswith("900 tokens/s, 10 % slower than predicted")


def test_what_differs_is_named(measured):
    measured(
        {
            "settings": {"compile": "default", "seq_len": 1024, "lora_rank": 8},
            "tokens_per_s": 1004.0,
        }
    )
    assert said() == (
        "measured on H200: llama-3.2-1b, 1 GPU, plain, compiled, LoRA, sequences of 1,024, 1,004 tokens/s, "
        "as predicted"
    )


def test_other_programs_are_named(measured):
    measured({"is_own": False, "source": "pytorch/torchtitan", "tokens_per_s": 1200.0})
    assert said() == (
        "measured by pytorch/torchtitan on H200: llama-3.2-1b, 1 GPU, plain, 1,200 tokens/s, "
        "20 % faster than predicted"
    )


@pytest.mark.parametrize(
    ("near", "far"),
    [
        ({"gpu": "H200"}, {"gpu": "H100"}),
        ({"gpu": "H100"}, {"gpu": "A10"}),  # both are other GPUs, of other rates
        ({"settings": {"model": "llama-3.2-3b"}}, {"settings": {"model": "llama-3.1-8b"}}),
        ({"settings": {"seq_len": 1024}}, {"settings": {"seq_len": 512}}),
        (
            {"settings": {"strategy": "ddp", "gpus": 2}},
            {"settings": {"strategy": "fsdp", "gpus": 4}},
        ),
        ({"settings": {"compile": "default"}}, {"settings": {"lora_rank": 8}}),
        ({"settings": {"micro_batch_size": 1}}, {"settings": {"precision": "fp32"}}),
    ],
)
def test_nearer_runs_come_first(measured, near, far):
    asked = nearest.features(Experiment(**SETTING), find("H200"), 1)
    both = {**far, "tokens_per_s": 2.0}, {**near, "tokens_per_s": 1.0}
    for rows in (both, reversed(both)):
        measured(*rows)
        assert nearest.nearest(*asked).tokens_per_s == 1.0


def test_every_prediction_has_a_nearest_run_instead_of_a_warning(monkeypatch):
    trace_nothing(monkeypatch)
    table = dsnb.predict([given(model="llama-3.2-1b"), given()], "H100")
    assert table["nearest"].str.startswith("measured ").all()
    assert not table["outside"].str.contains("GPU H100|family llama").any()


def test_ten_are_found_in_less_than_a_tenth_of_a_second():
    said()
    start = time.perf_counter()
    for size in range(1, 11):
        said(micro_batch_size=size)
    assert time.perf_counter() - start < 0.1


@pytest.mark.docs
def test_the_table_of_measured_runs_is_that_of_today_s_constants():
    made = ranges.measured_runs()
    kept = nearest.runs()
    assert len(made) == len(kept)
    for run, known in zip(made, kept, strict=True):
        assert (run.source, run.gpu, run.model) == (known.source, known.gpu, known.model)
        assert (run.tokens_per_s, run.predicted) == pytest.approx(
            (known.tokens_per_s, known.predicted), rel=2e-5
        )
