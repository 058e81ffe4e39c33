"""Sequence lengths are compared as work: equal settings, each length with the shortest; none is recommended."""

import pandas as pd
import pytest

from dsnb.cli import printing
from dsnb.results.answers.lengths import compare_lengths, sentences
from dsnb.results.runs.number_text import MINUS
from dsnb.show.render import answer


def runs(rates, **settings):
    """Give a run for each rate in tokens/s by sequence length, as in the tutorial's sweep on a CPU."""
    return pd.DataFrame(
        {
            "sweep": "my_sweep", "experiment": f"zs0_sl{length}", "repeat": repeat, "status": "ok",
            "model": "gpt2-tiny", "data": "stdlib", "strategy": "deepspeed", "zero_stage": 0, "precision": "fp32",
            "micro_batch_size": 4, "seq_len": length, "gpus": 1, "device": "cpu",
            "tokens_per_s": rate, "tokens_per_s_per_gpu": rate,
            **settings,
        }
        for length, of_length in rates.items()
        for repeat, rate in enumerate(of_length, 1)
    )  # fmt: skip


TUTORIAL = {
    64: [1000.0, 1001.0, 999.0, 1000.0],
    128: [900.0, 901.0, 899.0, 900.0],
    256: [1000.0, 1001.0, 999.0, 1000.0],
}


def test_the_tutorials_question_has_an_answer():
    table = compare_lengths(runs(TUTORIAL))
    assert table["seq_len"].tolist() == [64, 128, 256]
    assert table["median"].tolist() == [1000.0, 900.0, 1000.0]
    assert table["runs"].tolist() == [4, 4, 4]
    assert table["change_pct"].tolist()[1:] == [
        pytest.approx(-10, abs=0.001),
        pytest.approx(0, abs=0.001),
    ]
    assert pd.isna(table["verdict"][0])
    assert table["verdict"].tolist()[1:] == ["likely", "no larger difference"]
    (sentence,) = sentences(runs(TUTORIAL))
    start = "gpt2-tiny, ZeRO 0, fp32, micro-batch 4, on 1 CPU rank: sequence 64, 1,000 tokens/s; sequence 128, 900 "
    assert sentence.startswith(f"{start}tokens/s (likely: {MINUS}10.0 % (")


def test_only_equal_settings_are_compared():
    other = runs({256: [500.0]}, micro_batch_size=8, experiment="other")
    assert compare_lengths(pd.concat([runs({64: [1000.0]}), other], ignore_index=True)).empty
    assert compare_lengths(runs({64: [1000.0]})).empty
    failed = runs({64: [1000.0], 128: [900.0]}).assign(status=["ok", "oom"])
    assert compare_lengths(failed).empty
    assert compare_lengths(failed.head(0)).empty


def test_single_runs_have_a_change_and_no_verdict():
    table = compare_lengths(runs({128: [900.0], 64: [1000.0]}))
    assert table["words"][1] == f"too few runs: {MINUS}10.0 % (1 and 1 runs; 4 of each are needed)"


def test_the_report_and_the_summary_state_it_as_a_comparison_of_work(capsys):
    shown = str(answer.answer(runs(TUTORIAL)))
    assert "<h3>What longer sequences cost</h3><p>A comparison of work, not of settings: " in shown
    assert "sequence 256, 1,000 tokens/s (no difference larger than " in shown
    printing.print_summary(runs(TUTORIAL), printing.Format.table)
    assert (
        "What longer sequences cost. A comparison of work, not of settings: "
        in capsys.readouterr().out
    )
    assert "What longer" not in str(answer.answer(runs({64: [1000.0]})))
