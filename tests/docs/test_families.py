"""The table of tested kinds of models: a row for each, of all strategies, and what its words mean."""

import pytest

from benchmarks import families


def test_every_kind_is_measured_with_every_strategy():
    table = families.known()
    assert [row["kind"] for row in table] == list(families.KINDS)
    assert list(table[0])[4:] == list(families.STRATEGIES)
    assert not any(row[name] == "" for row in table for name in families.STRATEGIES)


@pytest.mark.parametrize(
    ("difference", "word"),
    [("0.0", "yes"), ("2e-05", "yes"), ("0.0123", "1.23% off"), ("ValueError: no", "fails"), ("", "-")],
)  # fmt: skip
def test_a_difference_is_a_word(difference, word):
    assert families._word(difference) == word


def test_kinds_are_counted(monkeypatch):
    same = dict.fromkeys(families.STRATEGIES, "0.0")
    rows = [
        {"attention": "causal_sdpa (flash)", "loss": "chunked", **same},
        {"attention": "eager (math)", "loss": "loss is 'chunked': no", **same, "FSDP": "0.1"},
    ]
    monkeypatch.setattr(families, "known", lambda: rows)
    assert families.counts() == {"n": 2, "trained": 1, "fused": 1, "chunked": 1}
