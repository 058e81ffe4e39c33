"""Runs that should compute the same, and do not, are found by their losses."""

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.analysis.flags import Flag, flags, loss_gaps_pct, median_of_others, repeat_gaps_pct
from dsnb.runs.literature import tables

SETTING = {
    "sweep": "s", "repeat": 1, "status": "ok", "model": "gpt2", "seq_len": 128, "data": "synthetic", "seed": 0,
    "global_batch_size": 32, "dropout": 0.0, "optimizer": "adamw", "learning_rate": 1e-4, "warmup_steps": 10,
    "steps": 40,
}  # fmt: skip


def table(*runs):
    return pd.DataFrame([{**SETTING, "experiment": f"e{number}", **run} for number, run in enumerate(runs)])


def losses(first, last=7.0, **more):
    return {"loss_first": first, "loss_last": last, **more}


@pytest.mark.parametrize("count", [3, 4, 20])
def test_the_median_of_the_others_is_that_without_each(count):
    values = np.random.default_rng(count).integers(0, 5, count).astype(float)  # with ties
    others = [sorted(np.delete(values, place)) for place in range(count)]
    middles = [(own[(count - 2) // 2], own[(count - 1) // 2]) for own in others]
    wanted = [min(two, key=lambda one: abs(one - value)) for two, value in zip(middles, values, strict=True)]
    assert list(abs(median_of_others(values) - values)) == list(abs(np.array(wanted) - values))


def test_gaps_by_hand_and_in_words():
    runs = table(losses(10.0, 5.0), losses(10.0001, 5.1), losses(11.0, 6.0))
    found = loss_gaps_pct(runs)
    assert list(found["first_loss_gap_pct"]) == pytest.approx([-0.001, 0.001, 100 * (11 / 10.0001 - 1)], rel=1e-3)
    nearer = [100 * (5 / 5.1 - 1), 100 * (5.1 / 5 - 1), 100 * (6 / 5.1 - 1)]
    assert list(found["last_loss_gap_pct"]) == pytest.approx(nearer)
    assert list(flags(table(losses(10.0), losses(10.0001), losses(10.02), losses(10.0, 7.5)))["words"]) == [
        "",
        "",
        "first loss +0.2 % from that of settings that compute the same",
        "last loss +7.1 % from that of settings that train alike",
    ]


def test_what_starts_elsewhere_is_not_compared():
    for other in (
        {"model": "opt-350m"}, {"seq_len": 256}, {"global_batch_size": 64}, {"seed": 1}, {"seed": None},
        {"dropout": 0.1}, {"tokenizer": "bytes"}, {"weights": "pretrained"}, {"lora_rank": 8},
    ):  # fmt: skip
        assert loss_gaps_pct(table(losses(10.0), losses(11.0, **other))).isna().all(axis=None), other


def test_repeats_train_alike_or_are_flagged():
    """A range by hand; a single run, another seed's and a later step's have none."""
    runs = table(
        losses(9, experiment="a"), losses(9, experiment="a", repeat=2), losses(9), losses(9, experiment="a", repeat=3)
    )
    late = [9.0] * 20
    by_run = [[*late, 8.0], [9, 9.009, *late[2:], 9.0], [9.0], [9, 8.991, *late[2:], 9.0]]
    keys = runs[["sweep", "experiment", "repeat"]].to_dict("records")
    rows = [
        {**key, "step": number, "phase": "warmup", "t_s": 1.0, "step_time_s": 1.0, "loss": loss}
        for key, own in zip(keys, by_run, strict=True)
        for number, loss in enumerate(own, 1)
    ]
    steps, gap = pd.DataFrame(rows), 100 * (9.009 / 8.991 - 1)
    assert list(repeat_gaps_pct(runs, steps)) == pytest.approx([gap, gap, np.nan, gap], nan_ok=True)
    words = "losses of the setting's runs differ by up to 0.20 % in the first steps, with the same seed"
    assert list(flags(runs, steps)["words"]) == [words, words, "", words]
    for own, own_steps in (
        (runs.assign(seed=None), steps), (runs.assign(dropout=0.1), steps), (runs, None),
        (runs, steps.assign(loss=np.nan)),
    ):  # fmt: skip
        assert repeat_gaps_pct(own, own_steps).isna().all()


def test_runs_on_h200_that_compute_something_else():
    """Found on 2026-11-23 and 2026-11-25 (docs/LOG.md): of three causes, and nothing else among 653 runs."""
    runs = dsnb.published("h200")
    found = flags(runs, tables.steps("published: h200"))
    flagged = runs[[Flag.LOSS in own for own in found["flags"]]]
    names = flagged["experiment"]
    raced = names.str.match("gpt2-xl_plain_bf16_gpus1_bs2_sl1024")  # its compiled runs, and the eager ones beside them
    unlike = names == "zs3_bf16_gpus1_bs32_sl128_compile"  # where kernels raced, and the three runs beside it
    begun = flagged["model"] == "bloom-7b1"  # in two formats
    diverged = flagged["sweep"] == "h200_allocator"  # repeats of GPT-2 Medium and BLOOM-1B7, by rounding alone
    assert (raced | unlike | begun | diverged).all()
    assert (raced.sum(), unlike.sum(), begun.sum(), diverged.sum()) == (4, 4, 8, 21)
