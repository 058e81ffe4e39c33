"""The table of kernels with and without adaptations: all ways of each kind that was measured."""

import json

from benchmarks import family_kernels


def test_each_measured_kind_has_all_ways():
    ways = {}
    for row in family_kernels.known():
        ways.setdefault(row["kind"], []).append(row["way"])
    assert ways
    assert all(names == list(family_kernels.WAYS) for names in ways.values())


def test_models_are_as_wide_as_those_of_a_billion_parameters():
    fields = family_kernels.configuration("qwen3_next", "cuda")
    assert (fields["hidden_size"], fields["num_attention_heads"], fields["head_dim"]) == (
        1024,
        16,
        64,
    )
    assert (fields["num_hidden_layers"], fields["num_experts"], fields["pad_token_id"]) == (2, 4, 0)


def test_a_file_of_results_replaces_the_kinds_in_it(tmp_path, monkeypatch):
    monkeypatch.setattr(family_kernels, "TABLE", tmp_path / "table.csv")
    fast = {"kernel": "cudnn", "attention_kernels_s": 0.001, "loss_kernels_s": None}
    slow = {"kernel": "cudnn, masked", "attention_kernels_s": 0.0025, "loss_kernels_s": 0.002}
    line = {"kind": "llama", **dict.fromkeys(family_kernels.WAYS, fast), "transformers": slow}
    for kinds in (["llama", "gpt2"], ["gpt2"]):
        path = tmp_path / "lines.jsonl"
        path.write_text("".join(json.dumps({**line, "kind": kind}) + "\n" for kind in kinds))
        family_kernels.keep(path)
    assert family_kernels.counts() == {"n": 2, "before": 2, "after": 0}
    first = next(family_kernels.rows())
    assert first == "| `gpt2` | cudnn, masked | 2.50 | 1.00 | - | - | - |"
