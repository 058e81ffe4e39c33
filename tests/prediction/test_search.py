"""The search for the best candidate, with a made-up trace: what it traces, and that it finds what all traces find."""

import hashlib
import math
import re
from dataclasses import replace

import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction import memory, predict, search, traces
from dsnb.prediction.brief import warnings_of
from dsnb.prediction.candidates import Training, candidates, simplicity
from dsnb.prediction.explanation import out_of_reach
from dsnb.prediction.search import Search
from dsnb.prediction.target import Target
from dsnb.results.answers.decide import Question
from tests.prediction.made_up import given


def made_up(one):
    """Return what formulas say of a setting, up to 12 % more or less."""
    share = int(hashlib.sha256(one.name.encode()).hexdigest()[:4], 16) / 0xFFFF
    trace, factor = memory.untraced(one, likely=True), 0.88 + 0.24 * share
    loss, later = ((factor * size, done) for size, done in trace.moments)
    return replace(
        trace,
        kept=factor * trace.kept,
        forward_peak=factor * trace.forward_peak,
        moments=(loss, later),
    )


TRAINING = Training(
    "opt-1.3b", 8, 2048, 64, pinned={"tensor_parallel": 1, "mixed_precision": "native"}
)


@pytest.fixture
def traced(monkeypatch):
    """Return the settings that were traced; a trace is made up, and found again."""
    kept = {}

    def attempts(asked, make=True):
        if make:
            kept.update({one.name_with_model: one for one in asked})
        missing = SettingsError("it was not traced before")
        return [made_up(one) if one.name_with_model in kept else missing for one in asked]

    monkeypatch.setattr(search, "attempts", attempts)
    monkeypatch.setattr(predict, "traces", lambda asked: [made_up(one) for one in asked])
    return kept


@pytest.fixture
def without_zero_1(monkeypatch, traced):
    """Make the traces of candidates with ZeRO 1 fail."""
    attempts = search.attempts

    def some(asked, make=True):
        lost = SettingsError("the model could not be traced: it printed nothing")
        tried = zip(asked, attempts(asked, make), strict=True)
        return [lost if one.zero_stage == 1 else trace for one, trace in tried]

    monkeypatch.setattr(search, "attempts", some)


def best(asked, gpu="H200", objective="time", **settings):
    return searching(asked, gpu, objective).best()


def searching(asked, gpu="H200", objective="time"):
    return Search(asked, Target(gpu), Question(1e9, objective, max_days=math.inf))


@pytest.mark.parametrize("gpu", ["H200", "A100-40GB", "A10"])
def test_few_traces_find_what_all_traces_find(traced, gpu, monkeypatch):
    """Among speeds as predicted: the end of a range may make several equal."""
    monkeypatch.setattr(predict, "bounded", lambda table: table)
    asked = candidates(TRAINING)
    named = {one.name_with_model: one for one in asked}
    found = best(asked, gpu)
    few, kinds = (
        len({str(traces._canonical(one)) for one in some}) for some in (traced.values(), asked)
    )
    everything = dsnb.predict(asked, gpu, tokens=1e9)
    fitting = everything[everything["fits"]]
    assert few < kinds / 5
    assert found.options["tokens_per_s"].iloc[0] == fitting["tokens_per_s"].max()
    tied = fitting[fitting["days"] <= 1.02 * fitting["days"].min()]["experiment"]
    simplest = min((one for one in asked if one.name_with_model in set(tied)), key=simplicity)
    assert found.chosen[0] == simplest.name_with_model
    first, *others = [named[name] for name in found.chosen]
    assert len(others) == 3
    for kind in search.KINDS:
        assert any(
            getattr(other, name) != getattr(first, name) for other in others for name in kind
        )


def test_the_least_memory_is_found(traced):
    asked = [one for one in candidates(TRAINING) if one.micro_batch_size == 1]
    least = best(asked, objective="memory")
    everything = dsnb.predict(asked, "H200", tokens=1e9)
    assert least.options["memory_gib"].iloc[0] == everything["peak_allocated_gib"].min()


def test_of_equal_settings_the_simplest_is_taken(traced):
    """ZeRO 1 and 0 in the same mode are within 2 % where passes take long."""
    asked = [
        dsnb.Experiment(model="opt-1.3b", device="cuda", gpus=1, precision="bf16", micro_batch_size=8, seq_len=2048,
                        grad_accum=256, mixed_precision="autocast", zero_stage=stage)
        for stage in (2, 1, 0)
    ]  # fmt: skip
    found = best(asked)
    assert found.tied == 3
    assert found.chosen[0] == asked[2].name_with_model


def test_what_cannot_be_traced_is_left_out_unless_it_is_everything(traced, monkeypatch):
    asked = [
        one
        for one in candidates(TRAINING)
        if one.strategy in {"ddp", "fsdp"} and one.compile == "off"
    ]
    whole = search.attempts

    def failing(experiments, make=True):
        made = whole(experiments, make)
        return [SettingsError("no") if one.strategy == "ddp" else record
                for one, record in zip(experiments, made, strict=True)]  # fmt: skip

    monkeypatch.setattr(search, "attempts", failing)
    assert "fsdp" in best(asked).chosen[0]
    with pytest.raises(SettingsError, match="no"):
        best([one for one in asked if one.strategy == "ddp"])


def test_what_cannot_fit_is_said_with_its_least_need():
    training = Training("opt-13b", 8, 2048, 512, pinned={"tensor_parallel": 1})
    sentence = str(out_of_reach(searching(candidates(training), "H100")))
    found = re.findall(r"(\w+(?: \d)?) needs at least (\d+) of 7\d GiB", sentence)
    needs = {sharing: int(need) for sharing, need in found}
    assert set(needs) == {"DDP", "ZeRO 0", "ZeRO 1"}
    # 12.85 billion parameters in fp32 with gradients' buckets and two moments: 16 and 4 bytes more
    assert needs["DDP"] >= 16 * 12.85e9 / 2**30


@pytest.mark.parametrize(("simplest_is_tight", "expected"), [(False, "zs0"), (True, "zs1")])
def test_the_simplest_of_equal_settings_is_not_taken_if_its_memory_is_tight(
    traced, simplest_is_tight, expected
):
    """ZeRO 0 with 21.3 of 21.4 GiB was recommended, though ZeRO 1 was faster and smaller."""
    asked = [given(zero_stage=stage, gpus=8) for stage in (0, 1)]
    found = searching(asked)
    found.trace(list(found.asked))
    found.table = found.table.assign(
        tokens_per_s=[100.0, 101.0],
        fits=True,
        tight=[simplest_is_tight, False],
        memory_gib=[21.3, 15.0],
    )
    best_ = found.best()
    assert f"_{expected}_" in best_.chosen[0]
    assert best_.tied == (1 if simplest_is_tight else 2)


def test_alternatives_are_the_best_of_another_kind_the_fastest_first(traced):
    """One differs in sharing, one in compilation, one in recomputation; ZeRO 2 is the slower sharing."""
    ways = {
        100.0: {"zero_stage": 1},
        80.0: {"zero_stage": 1, "activation_checkpointing": True},
        70.0: {"zero_stage": 3},
        65.0: {"zero_stage": 2},
        60.0: {"zero_stage": 1, "compile": "default"},
    }
    asked = [given(**settings, gpus=8) for settings in ways.values()]
    found = searching(asked)
    found.trace(list(found.asked))
    found.table = found.table.assign(
        tokens_per_s=list(ways), fits=True, tight=False, memory_gib=15.0
    )
    names = [one.name_with_model for one in asked]
    assert found.best().chosen == [names[0], names[1], names[2], names[4]]


def test_what_cannot_fit_is_not_traced(traced):
    """Whole states of 13 billion parameters are 16 bytes each; a share of them is 26 GiB."""
    asked = [given(model="opt-13b", zero_stage=stage, gpus=8, loss="chunked") for stage in (0, 3)]
    assert best(asked).chosen == [asked[1].name_with_model]
    assert list(traced) == [asked[1].name_with_model]


def test_an_answer_says_how_many_settings_could_not_be_traced(without_zero_1):
    found = searching(candidates(TRAINING))
    result = found.best()
    row = result.options.loc[result.chosen[0]]
    assert found.asked[result.chosen[0]].zero_stage != 1
    lost = [one for one in found.asked.values() if one.zero_stage == 1]
    assert 0 < len(found.failed) <= len(lost)
    (warning,) = [one for one in warnings_of(found, result, row) if one.name == "warning.untraced"]
    why = "(the model could not be traced: it printed nothing)"
    assert str(warning).endswith(f"could not be traced: {len(found.failed)} {why}")


def test_an_answer_whose_settings_are_all_traced_says_nothing_of_it(traced):
    found = searching(candidates(TRAINING))
    result = found.best()
    row = result.options.loc[result.chosen[0]]
    names = [one.name for one in warnings_of(found, result, row)]
    assert "warning.untraced" not in names
