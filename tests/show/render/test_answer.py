"""The cards of an answer as HTML, the remarks on runs, and what the page receives to decide with."""

import html
import re

import pandas as pd
import pytest

import dsnb
from dsnb.base.files import plain_yaml
from dsnb.results.answers.answer import Answer
from dsnb.results.answers.decide import Question, of_runs
from dsnb.results.runs.table import as_runs
from dsnb.results.statistics.tasks import tasks
from dsnb.settings.params_file import combinations, validated
from dsnb.show.render import answer, decision_data
from tests.results.answers import test_lengths
from tests.results.answers.test_card import TWO, runs


def text(table):
    return str(answer.answer(table))


def test_a_card_has_its_sentences_and_those_of_the_next_setting():
    found = text(runs(2, **TWO).assign(precision=["bf16", "fp32"], tokens_per_s=[1e5, 9e4]))
    assert "<p>2 settings were measured: no advice below 5.</p>" in found
    cells = [re.sub("<[^>]+>", "|", row).strip("|") for row in found.split("<tr>")]
    assert cells[1] == "Best so far||ZeRO 1, bf16, micro-batch 8"
    assert cells[5].startswith("Or||ZeRO 2, fp32||10 % slower||9 GiB||too few runs to be sure")
    assert "<p>Fastest of 2 measured settings. Speed and memory: measured, one run." in found
    assert "There are no runs here yet" in text(runs(3).head(0))


def test_tasks_are_never_compared_and_remarks_are_below_their_own():
    table = runs(4, **TWO, model=["gpt2", "bloom-560m"]).sort_values("model", ignore_index=True)
    failed = table.assign(status=["ok", "ok", "ok", "oom"], tokens_per_s=[1e5, 9e4, 1e5, 9e4])
    cards = text(failed).split('<section class="dsnb-answer">')[1:]
    assert ["Fastest of 2 measured settings" in card for card in cards] == [True, False]
    assert [card.count("<li>") for card in cards] == [1, 1]
    assert "<h3>bloom-560m, sequence 512 on 1 " in cards[0]
    assert "<li>All 2 runs succeeded.</li>" in cards[0]
    assert "<li>1 of 2 runs are not ok: 1 out of memory.</li>" in cards[1]


def test_the_price_of_the_runs_is_taken_and_probes_are_left_out():
    assert "at $4.00 a GPU-hour" in text(runs(1).assign(gpu_hours=0.5, cost=2.0, gpu_name="H200"))
    own = runs(2, **TWO)
    own.loc[0, "experiment"] = f"{own.loc[1, 'experiment']}_probe-bs8"
    assert "1 setting was measured" in text(own)


@pytest.mark.parametrize("hostile", ["</script><b>", "\"'&<b>" + "x" * 10_000])
def test_hostile_text_stays_text(hostile):
    own = runs(2, **TWO).assign(
        model=hostile, gpu_name=hostile, data=hostile, optimizer=[hostile, "x"]
    )
    found = text(own)
    assert "<b>" not in found
    assert "<script" not in found


def test_settings_that_compute_something_else_are_named():
    own = runs(3).assign(
        seed=0, dropout=0.0, global_batch_size=8, loss_last=5.0, loss_first=[10.0, 10.0, 10.2]
    )
    said = " ".join(answer.remarks(own))
    assert (
        "The losses of 1 run of 1 setting differ from those of settings that compute the same"
        in said
    )
    assert f"find the cause before you choose such a setting. {own['experiment'].iloc[2]}." in said
    assert "losses" not in " ".join(answer.remarks(own.assign(loss_first=10.0)))


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({}, True),
        ({"compile": ["off", "default"]}, False),
        ({"gpu_name": None}, False),
        ({"source": "a log"}, False),
    ],
)
def test_settings_that_are_usually_faster_are_named_if_none_was_tried(changed, is_said):
    slow = {
        "precision": "bf16",
        "strategy": "deepspeed",
        "mixed_precision": "native",
        "compile": "off",
    }
    table = runs(2, **TWO).assign(**{**slow, "gpu_name": "H200", "source": "dsnb", **changed})
    assert ("Faster settings were not tried: mixed_precision: autocast" in text(table)) == is_said


def test_of_many_pairs_those_of_one_change_are_sent(monkeypatch):
    monkeypatch.setattr(decision_data, "MAX_PAIRS", 4)
    monkeypatch.setattr(decision_data, "CHOSEN_PAIRS", 4)
    names = ["0bf16", "1bf16", "3bf16", "3fp16"]
    table = runs(16, repeats=4, zero_stage=[0, 1, 2, 3], precision=["bf16"])
    table["experiment"] = [name for name in names for _ in range(4)]
    table["zero_stage"] = table["experiment"].str[0].astype(int)
    table["precision"] = table["experiment"].str[1:]
    axes = ["zero_stage", "precision"]
    pairs = decision_data.tasks_payload(table, [0] * 16, names, ["tokens_per_s"], axes)["tasks"][0][
        "pairs"
    ]
    own = [names[number] for number in pairs["settings"]]
    sent_pairs = {(own[a], own[b]) for a, b in zip(pairs["first"], pairs["second"], strict=True)}
    assert {
        ("0bf16", "1bf16"),
        ("0bf16", "3bf16"),
        ("1bf16", "3bf16"),
        ("3bf16", "3fp16"),
    } == sent_pairs


def test_what_starts_the_best_setting_again(tmp_path):
    (tmp_path / "deepspeed.json").write_text('{"zero": 1}')
    table = runs(2, zero_stage=[1, 3], precision=["fp16"]).assign(
        strategy="deepspeed",
        run_dir=[str(tmp_path), None],
        gpu_memory_gib=[8, None],
        **{"deepspeed.x.y": [None, 2.0]},
    )
    names = list(table["experiment"])
    table = table.assign(tokens_per_s=[1000.0, 900.0], peak_allocated_gib=[9.0, 8.0])
    sent = decision_data.tasks_payload(table, [0] * 2, names, ["tokens_per_s"], ["zero_stage"])
    task = sent["tasks"][0]
    stages = table["zero_stage"].tolist()
    take = task["candidates"]["take"]
    entry = "{{model: gpt2, zero_stage: {}, precision: fp16, seq_len: 512{}}}"
    entries = [
        f"{{{', '.join(sent['texts'][part] for part in each['entry'])}}}" for each in take.values()
    ]
    assert entries == [
        entry.format(stages[0], ""),
        entry.format(stages[1], ", deepspeed: {x.y: 2}"),
    ]
    assert (
        combinations(validated({"name": "p", "include": [plain_yaml.parse(entries[1])]}, "p"))[0][
            "deepspeed.x.y"
        ]
        == 2
    )
    unknown = decision_data.tasks_payload(table.assign(model=None), [0] * 2, names, [], [])[
        "tasks"
    ][0]
    assert unknown["candidates"]["take"] == {}
    unknown = decision_data.tasks_payload(table.assign(precision=None), [0] * 2, names, [], [])
    assumed = "Unknown of these runs, so that the files have dsnb's defaults: precision."
    assert unknown["tasks"][0]["candidates"]["take"][0]["assumed"] == assumed


def test_every_published_answer_has_files_for_other_programs():
    """Of tables that state the setting."""
    for name in ("lambda_1cc_opt", "dist_training_gpt2", "jean_zay_bloom7b"):
        for task in tasks(dsnb.published(name)):
            table = as_runs(task.runs)
            names = list(table["experiment"].unique())
            codes = [0] * (max(table.index) + 1)
            sent = decision_data.tasks_payload(table, codes, names, [], [])["tasks"][0]
            best = of_runs(table, Question()).options.index[0]
            place = sent["candidates"]["experiment"].index(names.index(best))
            assert sent["candidates"]["take"][place]["files"]


def test_unstable_settings_are_named_with_their_slowest_and_fastest_ok_run():
    own = runs(4, repeats=4, zero_stage=[1], precision=["bf16"]).assign(experiment="a")
    rates = [900.0, 100.0, 500.0, 9000.0]
    unsteady = own.assign(tokens_per_s=rates, status=["ok", "ok", "ok", "failed"])
    said = "1 setting is unstable and not ranked: its repeats differ by more than 1.5 times in tokens/s"
    (found,) = answer.unstable_settings(unsteady)
    assert found.startswith(f"{said} (a: 100 to 900). ")
    steady = own.assign(tokens_per_s=[100.0, 101.0, 102.0, 9000.0], status=unsteady["status"])
    assert answer.unstable_settings(steady) == []


def test_what_is_not_shown_is_counted(monkeypatch):
    tasks = [runs(1).assign(model=f"gpt2-{number}") for number in range(8)]
    found = text(pd.concat(tasks, ignore_index=True))
    assert found.count('<section class="dsnb-answer">') == 6
    assert "<li>2 more tasks not shown here; the explorer has all.</li>" in found
    monkeypatch.setattr(answer, "MAX_LENGTHS", 1)
    two = [
        test_lengths.runs(test_lengths.TUTORIAL, micro_batch_size=size, experiment=f"bs{size}")
        for size in (4, 8)
    ]
    found = text(pd.concat(two, ignore_index=True))
    assert "<li>1 more setting not shown here.</li>" in found


def test_runs_and_settings_with_other_losses_are_counted():
    own = runs(7, repeats=1).assign(
        experiment=["a", "b", "c", "d", "e", "f", "f"], repeat=[1, 1, 1, 1, 1, 1, 2], seed=0, dropout=0.0,
        global_batch_size=8, loss_last=5.0, loss_first=[10.0, 10, 10, 10, 10, 10.2, 10.2],
    )  # fmt: skip
    assert "The losses of 2 runs of 1 setting differ from " in " ".join(answer.remarks(own))


def test_each_task_is_asked_for_what_suits_its_own_runs():
    one = runs(2, **TWO)
    several = runs(2, **TWO).assign(model="bloom-560m", gpus=[1, 2], tokens_per_s=[1e5, 1.5e5])
    cards = text(pd.concat([one, several], ignore_index=True)).split("<h3>")[1:]
    found = {card.partition(",")[0]: card for card in cards}
    assert "<p>Fastest of 2 measured settings." in found["gpt2"]
    assert "<p>Fewest GPU-hours of 2 measured settings." in found["bloom-560m"]


def test_a_plan_of_measured_settings_has_no_range_of_days():
    days = {"days": [3.0], "days_low": [2.5], "days_high": [3.5]}
    figures = {"experiment": ["a"], "gpus": [2], **days, "cost": [7.0]}
    measured = str(answer.plan_tables([Answer("t", pd.DataFrame(figures), ())], " €"))
    assert "2.5" not in measured
    assert '<th scope="col">cost (€)</th>' in measured


def test_a_forecast_has_the_digits_that_its_errors_support_and_says_once_what_settings_share():
    predicted = {
        "setting": ["ZeRO 1, bf16, micro-batch 2", "ZeRO 3, bf16, micro-batch 2"], "basis": "predicted", "fits": True,
        "tight": False, "peak_allocated_gib": 67.74, "peak_allocated_error_pct": 0.62, "tokens_per_s": 162_558.0,
        "tokens_per_s_low": 120_000.0, "tokens_per_s_high": 200_000.0, "tokens_per_s_error_pct": 29.0,
        "days": 9.968, "days_low": 8.1, "days_high": 13.5, "gpu_hours": 11_483.0, "cost": None,
    }  # fmt: skip
    shown = str(answer.plan_tables([Answer("t", pd.DataFrame(predicted), ())]))
    assert "<p>All: bf16, micro-batch 2.</p>" in shown
    assert shown.count("bf16") == 1
    titles = re.findall(r"<th [^>]*>(.*?)</th>", shown)
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    first = dict(zip(titles, map(html.unescape, cells), strict=False))
    assert first["setting"] == "ZeRO 1"
    assert first["tokens/s"].startswith("160,000\N{NO-BREAK SPACE}(")
    assert first["GPU-hours"] == "11,000"
    assert "cost" not in first
    empty = pd.DataFrame(predicted).head(0)
    assert str(answer.plan_tables([Answer("t", empty, ())])) == "<h3>t</h3>"
