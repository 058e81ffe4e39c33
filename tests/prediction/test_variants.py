"""Axes that are tried near the fastest settings: by hand, and as the documentation lists them."""

import re
from pathlib import Path

import pytest

from dsnb.base.errors import SettingsError
from dsnb.prediction import search
from dsnb.prediction.candidates import Training, candidates
from dsnb.prediction.search import Search
from dsnb.prediction.target import Target
from dsnb.prediction.variants import variants
from dsnb.results.answers.decide import Question
from dsnb.settings import training
from dsnb.settings.experiment import DEFAULTS, Experiment
from tests.prediction.made_up import TRACE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "search_space.md"
COMMON = {"model": "opt-1.3b", "device": "cuda", "precision": "bf16", "seq_len": 2048, "gpus": 8}
"""OPT's vocabulary of 50,272 is no multiple of 64."""
PADDED = {"pad_vocab": 64}
KEPT = {"gathered_weights": "micro-batch"}
RECOMPUTED = {"activation_checkpointing": True, "checkpoint_every": 2}


def changed(one, fixed=(), **settings):
    """Return what each variant of a setting changes."""
    start = Experiment(**{**COMMON, "micro_batch_size": 4, **settings})
    found = []
    for variant in variants(start, fixed):
        names = [name for name in DEFAULTS if getattr(variant, name) != getattr(start, name)]
        found.append({name: getattr(variant, name) for name in names})
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"zero_stage": 1}, [PADDED]),
        ({"zero_stage": 3}, [{"leaf_modules": "blocks"}]),  # whose weights are partitioned as built
        ({"zero_stage": 3, "compile": "default"}, []),
        ({"zero_stage": 1, "compile": "default"}, [{"compile_unit": "block"}, PADDED]),
        ({"zero_stage": 1, "compile": "reduce-overhead"}, [PADDED]),
        (
            {"zero_stage": 1, "compile": "default", **RECOMPUTED},
            [{"compile_unit": "model"}, PADDED, {"checkpoint_every": 3}, {"checkpoint_every": 4}],
        ),
        ({"strategy": "ddp"}, [{"gradient_compression": "bf16"}, PADDED]),
        ({"strategy": "ddp", "precision": "fp32"}, [PADDED]),
        ({"strategy": "fsdp", "compile": "default"}, [KEPT, PADDED]),
        ({"strategy": "fsdp", "grad_accum": 2}, [{"reduce_gradients": "step"}, KEPT, PADDED]),
        (
            {"zero_stage": 1, **RECOMPUTED},
            [PADDED, {"checkpoint_every": 3}, {"checkpoint_every": 4}, {"checkpoint_ops": "cheap"}],
        ),
        ({"zero_stage": 1, "model": "llama-3.2-1b"}, []),  # 128,256 are a multiple of 64
    ],
    ids=str,
)
def test_a_variant_differs_in_one_axis(settings, expected):
    small = {"micro_batch_size": 1} if "grad_accum" in settings else {}
    assert changed(COMMON, **settings, **small) == expected


def test_fixed_settings_stay():
    asked = {"strategy": "ddp", "compile": "default"}
    every = [{"compile_unit": "block"}, {"gradient_compression": "bf16"}, PADDED]
    assert changed(COMMON, **asked) == every
    assert changed(COMMON, ["gradient_compression", "pad_vocab"], **asked) == every[:1]


@pytest.mark.parametrize(
    ("size", "between"),
    [(1, []), (3, [4]), (6, [8]), (12, [16]), (24, [32]), (32, [])],
)
def test_micro_batches_between_two_candidates_divide_the_sequences(size, between):
    """A rank has 96 sequences; candidates are 1, 2, 3, 6, 12 and 24, and 65,536 tokens are the most."""
    one = {"zero_stage": 1, "micro_batch_size": size, "grad_accum": 96 // size}
    sizes = [change["micro_batch_size"] for change in changed(COMMON, ["pad_vocab"], **one)]
    assert sizes == between


@pytest.fixture
def limited(monkeypatch):
    """Return a function that sets the largest micro-batch that fits, by made-up traces."""
    most = {}

    def attempts(asked, make=True):
        """Return a trace that fits, or a reason that counts as too large."""
        too_large = SettingsError("too large")
        return [TRACE if one.micro_batch_size <= most["size"] else too_large for one in asked]

    monkeypatch.setattr(search, "attempts", attempts)
    monkeypatch.setattr(search, "need_gib", lambda one, likely=False: 0.0)
    return lambda size: most.update(size=size)


def searched(asked, objective="time", link="nvlink", fixed=()):
    made = Search(asked, Target("H100", link), Question(1e9, objective, max_days=1e9))
    before = made.best()
    return made, before, made.refined(before, fixed)


def test_the_largest_micro_batch_that_fits_is_found(limited):
    """Of 48 sequences of GPT-2 on one GPU, 8 fit: candidates are 1, 2, 3, 6 and 12."""
    limited(8)
    asked = candidates(
        Training("gpt2", 1, 256, 48, pinned={"strategy": "deepspeed", "compile": "off"})
    )
    made, before, after = searched(asked)
    assert {made.asked[name].micro_batch_size for name in before.chosen[:1]} == {6}
    assert made.asked[after.chosen[0]].micro_batch_size == 8
    assert made.asked[after.chosen[0]].global_batch_size == 48
    limited(6)
    made, before, after = searched(asked)
    assert made.asked[after.chosen[0]].micro_batch_size == 6


def test_ddp_rounds_its_gradients_where_messages_decide(limited):
    """Between nodes of 1 GB/s the message of fp32 gradients takes most of a step; half of it, about half as long."""
    limited(8)
    asked = candidates(Training("gpt2-xl", 16, 1024, 16, pinned={"strategy": "ddp", "nodes": 2}))
    made, before, after = searched(asked, link="ib:10")
    first, rounded = made.asked[before.chosen[0]], made.asked[after.chosen[0]]
    assert (first.gradient_compression, rounded.gradient_compression) == ("none", "bf16")
    times_s = after.table["step_time_s"]
    assert times_s[after.chosen[0]] < 0.7 * times_s[before.chosen[0]]
    made, before, after = searched(asked, link="ib:10", fixed=["gradient_compression"])
    assert after.chosen[0] == before.chosen[0]


def test_nothing_is_added_that_is_hardly_faster_or_cannot_be_told(limited):
    limited(8)
    asked = candidates(Training("opt-1.3b", 1, 2048, 8, pinned={"zero_stage": 1, "pad_vocab": 0}))
    for objective in ("time", "memory"):
        made, before, after = searched(asked, objective, fixed=["pad_vocab"])
        assert list(made.asked) == [one.name_with_model for one in asked]
        assert after.chosen == before.chosen


def documented():
    """Return setting -> whether it is compared, as the page lists them."""
    rows = re.findall(r"^\| `(\w+)` \| ([\w ]+) \| .*\|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert len(dict(rows)) == len(rows)
    return dict(rows)


def test_the_page_lists_every_setting_of_a_training():
    assert list(documented()) == list(training.Training.model_fields)


def test_the_page_says_what_is_compared():
    """Over one, eight and sixteen GPUs, in half precision and with a vocabulary that is no multiple of 64."""
    varied = {"always": set(), "near the fastest": set(), "if nothing fits": set()}

    def vary(how, ones, start):
        for one in ones:
            names = {name for name in DEFAULTS if getattr(one, name) != getattr(start, name)}
            varied[how] |= names

    for gpus in (1, 8, 16):
        asked = Training("opt-1.3b", gpus, 2048, 96 * gpus)
        found = candidates(asked)
        vary("always", found, found[0])
        for one in found:
            vary("near the fastest", variants(one), one)
        offloaded = candidates(asked, offloaded=True)
        vary("if nothing fits", offloaded, found[0])
    varied["near the fastest"] -= varied["always"]
    varied["if nothing fits"] -= varied["always"] | varied["near the fastest"]
    page = documented()
    for how, names in varied.items():
        assert {name for name, said in page.items() if said == how} == names, how
