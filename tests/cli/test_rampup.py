"""`dsnb rampup`: what it prints of a schedule."""

import json

from tests import ROOT
from tests.cli.test_odd_words import dsnb

PUBLISHED = ("rampup", 32, 128, "--gpus-per-node", 4, "--micro-batch-size", 4, "--replica-gpus", 2)


def test_the_table_leaves_out_what_is_not_known(monkeypatch):
    code, out, err = dsnb(monkeypatch, *PUBLISHED)
    assert (code, err) == (0, "")
    head, *rows = [line.split() for line in out.splitlines()]
    assert head == ["nodes", "gpus", "global_batch_size", "micro_batch_size", "grad_accum", "data_parallel"]
    assert rows == [["16", "64", str(batch), str(size), "1", "32"] for batch, size in ((32, 1), (64, 2), (128, 4))]


def test_json_has_every_field(monkeypatch):
    _, out, _ = dsnb(monkeypatch, *PUBLISHED, "--ramp-samples", 2_000_000, "--seq-len", 2048, "--format", "json")
    first = json.loads(out)[0]
    assert (first["nodes"], first["until_samples"], first["until_tokens"]) == (16, 1_000_000, 2_048_000_000)
    assert first["efficiency"] is None


def test_measured_runs_in_place_of_limits(monkeypatch):
    """The example has micro-batch 8 only."""
    folder = ROOT / "outputs" / "examples" / "quickstart"
    code, out, _ = dsnb(monkeypatch, "rampup", 16, 64, "--gpus-per-node", 2, "--max-nodes", 2, "--runs", folder)
    assert code == 0
    rows = [line.split() for line in out.splitlines()[1:]]
    assert rows == [
        ["1", "2", "16", "8", "1", "2", "100.0%"],
        ["2", "4", "32", "8", "1", "4", "100.0%"],
        ["2", "4", "64", "8", "2", "4", "100.0%"],
    ]
