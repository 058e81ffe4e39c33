"""What the page receives to decide with; its numbers are held by tests of the page against Python's own tables."""

from dsnb.render import decision_data
from tests.analysis.test_words import runs


def test_of_many_pairs_those_of_one_change_are_sent(monkeypatch):
    monkeypatch.setattr(decision_data, "MAX_PAIRS", 4)
    monkeypatch.setattr(decision_data, "CHOSEN_PAIRS", 4)
    names = ["0bf16", "1bf16", "3bf16", "3fp16"]
    table = runs(16, repeats=4, zero_stage=[0, 1, 2, 3], precision=["bf16"])
    table["experiment"] = [name for name in names for _ in range(4)]
    table["zero_stage"] = table["experiment"].str[0].astype(int)
    table["precision"] = table["experiment"].str[1:]
    axes = ["zero_stage", "precision"]
    pairs = decision_data.tasks_payload(table, [0] * 16, names, ["tokens_per_s"], axes)["tasks"][0]["pairs"]
    own = [names[number] for number in pairs["settings"]]
    sent_pairs = {(own[a], own[b]) for a, b in zip(pairs["first"], pairs["second"], strict=True)}
    assert {("0bf16", "1bf16"), ("0bf16", "3bf16"), ("1bf16", "3bf16"), ("3bf16", "3fp16")} == sent_pairs
