"""Which peak and FLOPs an MFU is of, worked out by hand from data sheets."""

import pytest

from dsnb.prediction.check import accounting, setup
from dsnb.prediction.check.claims import Claim
from dsnb.prediction.check.verdict import check


def training(gpu="H100", gpus=8, **settings):
    stated = {"model": "llama-2-7b", "gpus": gpus, "seq_len": 4096, **settings}
    return setup.of_claim(Claim(stated, gpu, tokens_per_s=1.0))


@pytest.mark.parametrize(
    ("times", "gpu", "words"),
    [
        (2.0, "H100", "the peak with sparsity"),
        (312 / 989, "H100", "the peak of A100, 312 TFLOP/s"),
        (989 / 312, "A100", "the peak of H100, 989 TFLOP/s"),
        (494 / 989, "H100", "the peak of H100 in TF32, 494 TFLOP/s"),
        (3 / 4, "H100", "recomputed work (hardware FLOPs)"),
        (1 / 8, "H100", "all 8 GPUs by the peak of one"),
        (8.0, "H100", "one GPU by the peak of all 8"),
        (2.6, "H100", "do not agree"),
    ],
)
def test_an_mfu_beside_a_rate_tells_what_it_divides(times, gpu, words):
    on = training(gpu)
    true_mfu = 0.4
    gap = accounting.of_mfu(on, true_mfu / times, true_mfu)
    assert words in gap.words
    assert "40.0 %" in gap.words
    assert gap.is_shown


def test_an_mfu_that_agrees_with_the_rate_says_nothing():
    on = training()
    assert accounting.of_mfu(on, 0.40, 0.42) is None


def test_parameters_of_one_shard():
    """7B on 8 GPUs: 6 N is an eighth, but the attention that is counted is the whole."""
    on = training("A100")
    weights = 6 * 6_738_415_616
    attention = 12 * 32 * 4096 * 4096
    assert on.flops_per_token == pytest.approx(weights + attention)
    true_mfu = 0.556
    stated = true_mfu * (weights / 8 + attention) / (weights + attention)
    assert "one shard" in accounting.of_mfu(on, stated, true_mfu).words


def test_a_rate_of_one_gpu_and_one_of_all():
    on = training()
    low, high = 60_000.0, 80_000.0
    assert accounting.of_rate(on, 9_000.0, (low, high)).cause == "per_gpu"
    assert accounting.of_rate(on, 560_000.0, (low, high)).cause == "all_gpus"
    assert accounting.of_rate(on, 70_000.0, (low, high)) is None
    assert accounting.of_rate(on, 30_000.0, (low, high)) is None
    assert accounting.of_rate(training(gpus=1), 1.0, (low, high)) is None


def test_an_mfu_above_every_run_divides_by_another_gpu():
    stated = {"model": "gpt2", "gpus": 1, "seq_len": 1024, "compile": "default"}
    verdict = check(Claim(stated, "H100", mfu=1.04))
    assert verdict.kind == "fast"
    assert "the peak of A100" in verdict.gaps[0].words
    assert "it is 32.8 %" in verdict.gaps[0].words  # 104 % x 312 / 989


def test_a_low_mfu_may_be_that_of_a_smaller_model():
    verdict = check(Claim({"model": "llama-2-7b", "gpus": 8, "seq_len": 2048}, "H100", mfu=0.1353))
    assert verdict.kind == "slow"
    assert "smaller_model" in verdict.causes
    fast = check(Claim({"model": "llama-2-7b", "gpus": 8}, "H100", tokens_per_s=1.5e6))
    assert fast.kind == "fast"
    assert {"all_gpus", "smaller_model"} & {*fast.causes}
