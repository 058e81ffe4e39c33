"""The verdict: normal, slow or fast, what it assumes, and what it says of runs and logs."""

import math

import pandas as pd
import pytest

from benchmarks import check_threads
from dsnb.base.errors import SettingsError
from dsnb.prediction.alike import usual_names
from dsnb.prediction.check import setup
from dsnb.prediction.check.claims import Claim, Seen, share
from dsnb.prediction.check.gaps import CAUSES
from dsnb.prediction.check.logged import claims
from dsnb.prediction.check.verdict import check, total_rate

STATED = {
    "model": "llama-3.1-8b",
    "gpus": 8,
    "strategy": "fsdp",
    "micro_batch_size": 2,
    "seq_len": 4096,
}


def claim(**changes):
    return Claim({**STATED, **changes.pop("stated", {})}, changes.pop("gpu", "H100"), **changes)


def expected():
    return setup.of_claim(claim(tokens_per_s=1.0)).expected()


def test_a_speed_within_the_range_is_normal_and_others_are_slow_or_fast():
    low, high = expected()
    kinds = {}
    for factor in (0.5 * low, 1.01 * low, 0.99 * high, 1.2 * high):
        kinds[factor] = check(claim(tokens_per_s=factor)).kind
    assert [*kinds.values()] == ["slow", "normal", "normal", "fast"]
    assert check(claim(tokens_per_s=0.99 * high)).lines[1].startswith("normal: within ")
    slow = check(claim(tokens_per_s=0.5 * low))
    assert slow.lines[1].startswith(f"slow: {slow.ratio:.2f} of what is expected, ")
    above = check(claim(tokens_per_s=5e6))
    assert above.lines[1].startswith("fast: above what any run reached (MFU 61 %), check the count")


def test_the_answer_has_at_most_ten_lines():
    for thread in check_threads.threads():
        assert len(check_threads.answer(thread)[1]) <= 10


def test_settings_that_are_unknown_are_assumed_and_widen_the_range():
    verdict = check(Claim({"model": "llama-3.1-8b", "gpus": 8}, "H100", tokens_per_s=50_000))
    assumed = verdict.lines[-1]
    assert assumed.startswith("assumed: sequences of 4,096 tokens, bf16, ")
    unknown = setup.of_claim(claim(tokens_per_s=1.0)).expected()
    known = setup.of_claim(
        claim(tokens_per_s=1.0, stated={"compile": "off", "activation_checkpointing": False})
    ).expected()
    assert unknown[0] < known[0] < known[1] < unknown[1]


def test_a_model_that_does_not_fit_is_assumed_to_be_sharded_or_recomputed():
    on = setup.of_claim(Claim({"model": "llama-3.1-70b", "gpus": 64}, "H100", tokens_per_s=1.0))
    assert on.experiment.strategy == "fsdp"
    assert on.fits
    small = setup.of_claim(Claim({"model": "gpt2", "gpus": 8}, "H100", tokens_per_s=1.0))
    assert small.experiment.strategy == "ddp"
    one = setup.of_claim(Claim({"model": "gpt2", "gpus": 1}, "V100", tokens_per_s=1.0))
    assert (one.experiment.strategy, one.experiment.precision) == ("plain", "fp16")


def test_all_figures_of_a_speed_are_one():
    """16 sequences of 4,096 tokens a step; tokens/s of a rate of 8 GPUs."""
    on = setup.of_claim(claim(tokens_per_s=1.0))
    tokens = 8 * 2 * 4096
    rates = [
        claim(tokens_per_s=tokens),
        claim(tokens_per_s=tokens / 8, per_gpu=True),
        claim(samples_per_s=16.0),
        claim(samples_per_s=2.0, per_gpu=True),
        claim(step_s=1.0),
        claim(tflops=tokens / 8 * on.flops_per_token / 1e12),
        claim(mfu=tokens / 8 * on.flops_per_token / 989e12),
    ]
    assert [total_rate(one, on) for one in rates] == pytest.approx([tokens] * 7)


def test_other_programs_settings_are_taken_and_wrong_values_refused():
    given = {
        "attention": "flash_attention_2",
        "compile": True,
        "offload": "cpu",
        "strategy": "ZeRO-3",
    }
    assert usual_names(given) == {
        "attention": "sdpa",
        "compile": "default",
        "offload": "optimizer-cpu",
        "strategy": "deepspeed",
        "zero_stage": 3,
    }
    assert usual_names({"optimizer": "adamw_torch_fused"})["optimizer"] == "adamw"
    assert usual_names({"micro_batch_size": [1, 2]}) == {"micro_batch_size": [1, 2]}
    # dsnb's FSDP does not train in fp16, and falcon-7b has 2,048 positions; others do.
    check(claim(tokens_per_s=1e4, stated={"precision": "fp16"}))
    long = {"model": "falcon-7b", "gpus": 8, "seq_len": 4096, "micro_batch_size": 1}
    check(Claim(long, "H100", step_s=3.0))
    with pytest.raises(SettingsError, match="unknown setting 'micro_batch'"):
        check(claim(tokens_per_s=1e4, stated={"micro_batch": 2}))
    with pytest.raises(SettingsError, match="compile is 'sometimes'"):
        check(claim(tokens_per_s=1e4, stated={"compile": "sometimes"}))


def test_a_model_is_known_by_its_size():
    assert setup.known_model("meta-llama/Llama-3.1-8B") == ("llama-3.1-8b", [])
    assert setup.known_model("Llama-3.1-8B") == ("llama-3.1-8b", [])
    name, assumed = setup.known_model("mpt-7b")
    assert name == "llama-2-7b"
    assert assumed == ["llama-2-7b for mpt-7b, by its size"]
    assert setup.known_model("unknown")[0] == "unknown"


@pytest.mark.parametrize("wrong", [{}, {"tokens_per_s": 0.0}, {"mfu": math.inf}, {"step_s": -1.0}])
def test_a_claim_needs_a_speed(wrong):
    with pytest.raises(SettingsError):
        claim(**wrong)


def test_tokens_of_a_step_or_a_sample_must_be_known():
    stated = {"model": "gpt2", "gpus": 1}
    with pytest.raises(
        SettingsError, match="without seq_len and micro_batch_size: say --set seq_len"
    ):
        check(Claim(stated, "H100", step_s=1.0))
    with pytest.raises(SettingsError, match="without seq_len: say --set seq_len=NUMBER"):
        check(Claim(stated, "H100", samples_per_s=1.0))
    check(Claim({**stated, "seq_len": 1024, "micro_batch_size": 8}, "H100", step_s=1.0))


def test_shares_may_be_per_cent():
    assert [share(value) for value in (0.46, 46, 104, 1.04, None)] == [0.46, 0.46, 1.04, 1.04, None]


def row(**changes):
    return {
        "sweep": "own",
        "experiment": "mine",
        "status": "ok",
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "program": "transformers Trainer 5.23.0",
        **STATED,
        "gpus": 8.0,
        "tokens_per_s": 50_000.0,
        "attention_kernel": "flash, masked",
        "alloc_retries": 2.0,
        "gpu_util_pct": 70.0,
        **changes,
    }


def test_runs_of_a_setting_are_one_claim_with_their_medians_and_signs():
    rates = [49_000.0, 50_000.0, 90_000.0]
    runs = pd.DataFrame([row(tokens_per_s=rate) for rate in rates] + [row(status="oom")])
    (found,) = claims(runs, {}, "", None, Seen(real_tokens=0.8))
    assert found.tokens_per_s == 50_000
    assert found.seen == Seen(real_tokens=0.8, masked=True, gpu_util_pct=70.0, alloc_retries=2.0)
    verdict = check(found)
    assert {"memory", "loader", "padding"} <= {*verdict.causes}
    assert "transformers Trainer 5.23.0" in verdict.lines[0]
    own = pd.DataFrame([row(data="synthetic", attention_kernel=None)])
    assert claims(own, {}, "", None, Seen())[0].seen.real_tokens == 1


def test_what_a_log_does_not_say_is_asked_for():
    runs = pd.DataFrame([row(gpu_name=None)])
    with pytest.raises(SettingsError, match=r"the GPU of these runs is unknown: say --gpu NAME"):
        claims(runs, {}, "", None, Seen())
    with pytest.raises(SettingsError, match="the model of these runs is unknown"):
        claims(pd.DataFrame([row(model=None)]), {}, "", None, Seen())
    (found,) = claims(pd.DataFrame([row(model=None)]), {"model": "gpt2"}, "A100", None, Seen())
    assert check(found).lines[0].startswith("gpt2, 8 GPUs A100, FSDP")
    with pytest.raises(SettingsError, match="no run is ok"):
        claims(pd.DataFrame([row(status="oom")]), {}, "", None, Seen())


def test_values_that_dsnb_does_not_have_are_assumed_to_be_usual_ones():
    (found,) = claims(pd.DataFrame([row(optimizer="lion")]), {}, "", None, Seen())
    assert "adamw for optimizer lion" in check(found).lines[-1]


def test_the_causes_of_public_threads_are_named():
    named = {True: 0, False: 0}
    for thread in check_threads.threads():
        assert {*thread["causes"]} <= {*CAUSES, "normal"}
        causes, _ = check_threads.answer(thread)
        named[thread["kept"]] += bool({*causes} & {*thread["causes"]})
    assert len({thread["url"] for thread in check_threads.threads()}) >= 20
    assert named[False] >= 10
    assert named[True] >= 10
