"""What a step loses to each cause: by the model of time with and without it, and by signs of runs."""

import pytest

from dsnb.prediction.check import setup
from dsnb.prediction.check.claims import Claim, Seen
from dsnb.prediction.check.gaps import CAUSES, SWITCHES, Case, gaps

STATED = {
    "model": "llama-3.1-8b",
    "gpus": 8,
    "strategy": "fsdp",
    "micro_batch_size": 2,
    "seq_len": 4096,
    "compile": "default",
    "activation_checkpointing": False,
    "attention": "auto",
    "precision": "bf16",
}


def case(slowdown=1.0, seen=None, gpu="H100", link=None, **changes):
    """Return a training that takes some times as long as predicted; a setting of None is unknown."""
    stated = {**STATED, **changes}
    stated = {name: value for name, value in stated.items() if value is not None}
    on = setup.of_claim(Claim(stated, gpu, link, tokens_per_s=1.0))
    return Case(on, on.tokens_per_s / slowdown, seen or Seen())


def named(*arguments, **changes):
    return {gap.cause: gap for gap in gaps(case(*arguments, **changes))}


@pytest.mark.parametrize(
    ("cause", "setting"),
    [
        ("recomputation", {"activation_checkpointing": True}),
        ("eager_attention", {"attention": "eager"}),
        ("not_compiled", {"compile": "off"}),
        ("fp32", {"precision": "fp32"}),
        ("offload", {"strategy": "deepspeed", "zero_stage": 3, "offload": "optimizer-cpu"}),
    ],
)
def test_a_stated_setting_is_shown_with_the_share_that_the_model_of_time_gives(cause, setting):
    having = case(**setting)
    gap = {gap.cause: gap for gap in gaps(having)}[cause]
    without = having.setup.changed(**CAUSES[cause]["without"])
    assert gap.is_shown
    assert gap.share == pytest.approx(1 - without.token_s() / having.setup.token_s())
    assert gap.share > 0.02


def test_what_is_stated_otherwise_is_no_possible_cause():
    found = named(3.0)
    assert not {"recomputation", "eager_attention", "not_compiled", "fp32"} & {*found}
    unknown = named(3.0, attention=None, compile=None, precision=None)
    assert {"eager_attention", "not_compiled", "fp32"} <= {*unknown}
    assert not unknown["eager_attention"].is_shown


def test_without_a_slowdown_nothing_is_possible():
    assert [gap for gap in gaps(case(attention=None, compile=None)) if not gap.is_shown] == []


def test_shown_causes_come_first_by_size_and_possible_ones_by_how_well_they_explain():
    found = gaps(case(2.0, Seen(real_tokens=0.5), attention=None, activation_checkpointing=True))
    is_shown = [gap.is_shown for gap in found]
    assert is_shown == sorted(is_shown, reverse=True)
    assert found[0].cause == "padding"
    assert found[0].share == 0.5
    scores = [gap.score for gap in found if not gap.is_shown]
    assert scores == sorted(scores, reverse=True)


def test_a_slow_network_is_the_one_that_explains_the_time():
    slow = case(4.0, gpus=16)
    gap = {gap.cause: gap for gap in gaps(slow)}["network"]
    assert gap.share == pytest.approx(0.75)
    assert next(one for one in gaps(slow) if not one.is_shown) == gap
    known = {gap.cause: gap for gap in gaps(case(1.0, gpus=16, link="ib:10"))}["network"]
    assert known.is_shown
    assert "10 Gbit/s" in known.words


def test_gpus_without_nvlink_show_their_communication():
    found = named(gpu="RTX 4090", model="llama-3.2-1b")
    assert found["pcie"].is_shown
    assert found["pcie"].share > 0.1
    assert "pcie" not in named(1.0)
    assert not named(2.0)["pcie"].is_shown
    assert "pcie" not in named(2.0, link="nvlink")


def test_sharding_that_the_model_does_not_need():
    found = named(model="llama-3.2-1b", strategy="deepspeed", zero_stage=3, micro_batch_size=1)
    assert found["sharding"].is_shown
    assert "ZeRO 3" in found["sharding"].words
    assert found["host"].is_shown
    assert "hooks of ZeRO 3" in found["host"].words
    assert "sharding" not in named(model="llama-3.1-70b", gpus=64, micro_batch_size=1)


def test_a_small_micro_batch_costs_what_a_larger_one_saves():
    small = case(seq_len=256, micro_batch_size=1)
    gap = {gap.cause: gap for gap in gaps(small)}["small_batch"]
    larger = small.setup.changed(micro_batch_size=4)
    assert gap.share == pytest.approx(1 - larger.token_s() / small.setup.token_s())


@pytest.mark.parametrize(
    ("cause", "seen", "share"),
    [
        ("padding", {"real_tokens": 0.34}, 0.66),
        ("loader", {"gpu_util_pct": 60.0}, 0.4),
        ("loader", {"gpu_util_pct": 60.0, "cpu_bound": 0.1}, 0.3),
        ("host", {"cpu_bound": 0.5}, 0.5),
        ("memory", {"alloc_retries": 3}, None),
        ("straggler", {"step_skew": 0.25}, 0.2),
        ("recompilation", {"recompilations": 2}, None),
    ],
)
def test_signs_of_a_run_are_shown(cause, seen, share):
    gap = named(1.0, Seen(**seen))[cause]
    assert gap.is_shown
    assert gap.share == (None if share is None else pytest.approx(share))


@pytest.mark.parametrize(
    "seen",
    [
        {"real_tokens": 1.0},
        {"gpu_util_pct": 99.0},
        {"cpu_bound": 0.01},
        {"alloc_retries": 0},
        {"masked": False},
    ],
)
def test_signs_that_nothing_is_lost_exclude_a_cause(seen):
    excluded = {
        "real_tokens": "padding",
        "gpu_util_pct": "loader",
        "cpu_bound": "host",
        "alloc_retries": "memory",
        "masked": "mask",
    }
    (name,) = seen
    assert excluded[name] not in named(2.0, Seen(**seen), attention=None)


def test_fine_tuning_may_be_padded_and_counted_without_its_padding():
    tuned = named(2.0, weights="pretrained")
    plain = named(2.0)
    assert "real_tokens" in tuned
    assert "real_tokens" not in plain
    assert tuned["padding"].score > plain["padding"].score


def test_bf16_is_emulated_where_a_gpu_has_none():
    assert named(gpu="V100")["emulated"].is_shown
    assert "emulated" not in named(gpu="V100", precision="fp16")
    assert "emulated" not in named(gpu="A100")


def test_signs_are_shown_however_slow_a_step_is_and_small_costs_of_settings_are_not():
    slow = named(10.0, Seen(real_tokens=0.9))
    assert slow["padding"].share == pytest.approx(0.1)
    assert "communication" in named()
    assert "communication" not in slow


def test_a_mask_costs_attention_of_the_whole_square():
    seen = case(1.0, Seen(masked=True), seq_len=8192, micro_batch_size=1, compile="off")
    gap = {gap.cause: gap for gap in gaps(seen)}["mask"]
    on = seen.setup
    assert gap.share == pytest.approx(on.token_s(masked=True) / on.token_s() - 1)


def test_a_throttled_gpu_is_known_by_its_clock():
    assert named(1.0, Seen(sm_clock_mhz=700))["throttling"].is_shown
    assert "throttling" not in named(2.0, Seen(sm_clock_mhz=1700))


def test_every_cause_has_its_words():
    for name, about in CAUSES.items():
        assert about["weight"] > 0
        if name != "peak":
            assert about["shown"] or about["possible"], name
    for name in SWITCHES:
        assert CAUSES[name]["without"].keys() <= CAUSES[name]["with"].keys()
