"""What the page receives to decide with; its numbers are held by tests of the page against Python's own tables."""

from dsnb.files import plain_yaml
from dsnb.render import decision_data
from dsnb.settings.params_file import combinations, validated
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


def test_what_starts_the_best_setting_again(tmp_path):
    (tmp_path / "deepspeed.json").write_text('{"zero": 1}')
    table = runs(2, zero_stage=[1, 3], precision=["fp16"]).assign(
        strategy="deepspeed", run_dir=[str(tmp_path), None], gpu_memory_gib=[8, None], **{"deepspeed.x.y": [None, 2.0]}
    )
    names = list(table["experiment"])
    table = table.assign(tokens_per_s=[1000.0, 900.0], peak_allocated_gib=[9.0, 8.0])
    task = decision_data.tasks_payload(table, [0] * 2, names, ["tokens_per_s"], ["zero_stage"])["tasks"][0]
    stages = table["zero_stage"].tolist()
    take = task["candidates"]["take"]
    entry = "{{model: gpt2, zero_stage: {}, precision: fp16, seq_len: 512{}}}"
    assert take[0] == {"entry": entry.format(stages[0], ""), "config": '{"zero": 1}'}
    assert take[1] == {"entry": entry.format(stages[1], ", deepspeed: {x.y: 2}")}
    assert (
        combinations(validated({"name": "p", "include": [plain_yaml.parse(take[1]["entry"])]}, "p"))[0]["deepspeed.x.y"]
        == 2
    )
    unknown = decision_data.tasks_payload(table.assign(model=None), [0] * 2, names, [], [])["tasks"][0]
    assert unknown["candidates"]["take"] == {}
