"""The explorer without a browser: what may be chosen, what it selects, and what a page would be given."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.results.statistics.flags import flags, load_samples
from dsnb.settings.records.paths import RunPaths
from dsnb.show.explorer import data, payload, single_runs, state
from tests.support import made_up


@pytest.fixture(scope="module")
def runs():
    return made_up.runs(300)


@pytest.fixture
def explorer(runs):
    return dsnb.explore(runs)


def test_controls_are_made_from_the_data(runs):
    shown = data.prepared(runs)
    assert list(shown.values) == [
        "parallelism", "precision", "grad_accum", "activation_checkpointing", "gpus", "micro_batch_size", "status",
    ]  # fmt: skip
    assert shown.values["precision"] == ["fp32", "fp16", "bf16"]
    assert shown.values["activation_checkpointing"] == [False, True]
    assert shown.values["parallelism"] == [f"ZeRO {stage}" for stage in range(4)]
    assert list(state.options(shown)["x"][:2]) == ["peak_allocated_gib", "device_memory_gib"]
    assert state.options(shown)["y"][0] == "tokens_per_s_per_gpu"
    assert "days" in state.options(shown)["y"]
    shown = data.prepared(runs.assign(device="cpu"))
    given = payload.payload(shown, state.default(shown), None)
    titles = [one["title"] for one in (*given["axes"], *given["figures"])]
    assert {"ranks", "tokens/s/rank"} < set(titles)
    assert not any("GPU" in title for title in titles)


def test_a_filter_selects_what_a_plain_comparison_does(runs, explorer):
    explorer.set(parallelism="ZeRO 3", precision=["bf16", "fp16"], activation_checkpointing=True)
    plain = runs[
        (runs["zero_stage"] == 3) & (runs["precision"] != "fp32") & runs["activation_checkpointing"]
    ]
    assert len(plain) > 5
    pd.testing.assert_frame_equal(explorer.selection[plain.columns], plain)
    assert explorer.state["parallelism"] == ["ZeRO 3"]
    former = dsnb.explore(runs).set(
        strategy="ZeRO 3", precision=["bf16", "fp16"], activation_checkpointing=True
    )
    assert former.set(x="strategy").state["x"] == "parallelism"  # its name in earlier versions
    assert former.state["parallelism"] == ["ZeRO 3"]
    explorer.set(parallelism="all", precision=None, activation_checkpointing=[])
    assert len(explorer.selection) == 300


def test_a_brush_selects_between_its_edges_and_never_what_was_not_measured(runs, explorer):
    memory, rate = runs["peak_allocated_gib"], runs["tokens_per_s_per_gpu"]
    explorer.set(brush={"x": [20, 5], "y": [0, 1e9]})
    assert set(explorer.selection.index) == set(runs[memory.between(5, 20) & rate.notna()].index)
    explorer.set(brush={"x": [-1e9, 1e9], "y": [-1e9, 1e9]})
    assert set(explorer.selection["status"]) == {"ok"}
    explorer.set(x="parallelism", brush={"x": [0.5, 2.2], "y": [0, 1e9]})
    assert set(explorer.selection["zero_stage"]) == {1, 2}
    explorer.set(x="power_w")
    assert explorer.state["brush"] is None


def test_a_brush_includes_its_edges(runs, explorer):
    memory = runs["peak_allocated_gib"][runs["tokens_per_s_per_gpu"].notna()].sort_values()
    low, high = memory.iloc[[10, 20]]
    explorer.set(brush={"x": [low, high], "y": [0, 1e9]})
    assert sorted(explorer.selection["peak_allocated_gib"]) == list(memory.iloc[10:21])


def test_days_are_those_of_the_tokens_entered_or_usual_for_the_runs_task():
    """20 tokens a parameter of OPT-1.3B are 26 billion to two digits; of an unknown model, 100 billion."""
    day_s = 24 * 3600
    runs = made_up.runs(4, repeats=1, gpus=[1]).assign(
        status="ok",
        model=["opt-1.3b", "opt-1.3b", "unheard of", "unheard of"],
        tokens_per_s=[1000.0, 2000.0, 1000.0, 2000.0],
    )
    explorer = dsnb.explore(runs)
    usual = state.values(explorer.data, explorer.state, "days")
    assert usual == pytest.approx([26e6 / day_s, 13e6 / day_s, 100e6 / day_s, 50e6 / day_s])
    explorer.set(train_tokens=1000.0 * day_s)
    assert state.values(explorer.data, explorer.state, "days").tolist() == [1, 0.5, 1, 0.5]


def test_settings_of_how_gpus_share_the_training_select_their_runs(runs):
    runs = runs.assign(strategy="deepspeed")
    explorer = dsnb.explore(runs)
    assert set(explorer.set(zero_stage=3).selection["zero_stage"]) == {3}
    assert explorer.state["parallelism"] == ["ZeRO 3"]
    assert set(explorer.set(zero_stage=[0, 2]).selection["zero_stage"]) == {0, 2}
    assert len(explorer.set(zero_stage="all").selection) == 300
    assert explorer.state["parallelism"] == []
    ddp = (runs["zero_stage"] == 0) & (runs["gpus"] > 1)
    explorer = dsnb.explore(runs.assign(strategy=np.where(ddp, "ddp", "deepspeed")))
    explorer.set(strategy="deepspeed", zero_stage=[0, 3])
    assert explorer.state["parallelism"] == ["ZeRO 0", "ZeRO 3"]
    assert set(explorer.set(strategy="ddp").selection["parallelism"]) == {"DDP"}
    for wrong, message in {
        "zero_stag": "unknown control 'zero_stag': did you mean 'zero_stage'?",
        "model": "model belongs to a task: set task to one of gpt2, sequence 512",
    }.items():
        with pytest.raises(SettingsError, match=message):
            explorer.set(**{wrong: 3})
    with pytest.raises(SettingsError, match="zero_stage 7 does not occur in these runs: choose"):
        explorer.set(zero_stage=7)
    with pytest.raises(SettingsError, match="no run has these values of strategy, zero_stage"):
        explorer.set(strategy="ddp", zero_stage=3)
    with pytest.raises(SettingsError, match=r"precision bf61 .* did you mean 'bf16'\?"):
        explorer.set(precision="bf61")


REFUSED = [
    ({"objective": "speed"}, "objective is 'speed': choose one of time, gpu_hours, cost, memory"),
    ({"currency": 3}, "currency 3 is not a sign of up to 8 characters: set it to such as '$'"),
    ({"gpus": 7}, "gpus 7 does not occur in these runs: choose from 1, 2, 4, 8, or 'all'"),
    (
        {"activation_checkpointing": 1},
        "checkpointing 1 does not occur in these runs: choose from false, true",
    ),
    (
        {"y": "speed"},
        "y 'speed' is not available in these runs: choose from tokens_per_s_per_gpu, ",
    ),
    ({"train_tokens": -1}, "tokens is -1: give a finite number of more than 0"),
    (
        {"brush": {"x": [1]}},
        "is not a region: set it to {'x': [low, high], 'y': [low, high]}, or to None",
    ),
    (
        {"run": 300},
        "run 300 is not the position of a run of this table: set it to 0 or more and less",
    ),
]


@pytest.mark.parametrize(("controls", "message"), REFUSED)
def test_wrong_controls_are_refused_in_one_sentence_and_nothing_is_set(explorer, controls, message):
    before = explorer.state
    with pytest.raises(SettingsError) as error:
        explorer.set(precision="bf16", **controls)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert explorer.state == before


def test_values_may_come_from_numpy_and_pandas(explorer):
    explorer.set(
        gpus=np.array([1, 4]),
        run=np.int64(2),
        train_tokens=np.float64(5e9),
        sort=("mfu", "ascending"),
    )
    assert [explorer.state[name] for name in ("gpus", "run", "sort")] == [
        [1, 4],
        2,
        ["mfu", "ascending"],
    ]
    explorer.set(gpus=pd.Series([2]))
    assert json.loads(json.dumps(explorer.state)) == explorer.state
    with pytest.raises(SettingsError, match="is not available in these runs"):
        explorer.set(y=np.array(["mfu", "power_w"]))


ODD = {
    "one index twice": lambda runs: pd.concat([runs, runs]),
    "no status": lambda runs: runs.assign(status=np.nan),
    "values of all kinds": lambda runs: runs.assign(zero_stage=[0, "x", None, 1.5, True] * 4),
    "very large": lambda runs: runs.assign(tokens_per_s=1e300, step_time_mean_s=1e-300),
    "words for figures": lambda runs: runs.assign(tokens_per_s="fast"),
    "experiments unknown": lambda runs: runs.assign(experiment=np.nan),
    "nullable columns": lambda runs: runs.convert_dtypes().assign(
        status=runs["status"].where(runs["repeat"] > 1)
    ),
    "numbers for names": lambda runs: runs.assign(experiment=range(20), sweep=["a", "b"] * 10),
    "half a character": lambda runs: runs.assign(
        status="failed", cause=pd.Series("\ud800", runs.index, dtype=object)
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_odd_tables_are_explored(kind):
    table = ODD[kind](made_up.runs(20))
    explorer = dsnb.explore(table)
    assert len(explorer.selection) == len(table)
    figures = explorer.data.figures
    if "step_time_mean_s" in figures:
        explorer.set(y="step_time_s", brush={"x": [0, 1e308], "y": [0, 1e308]})
        assert len(explorer.selection) == len(
            figures[["step_time_mean_s", explorer.state["x"]]].dropna()
        )
    assert "dsnb-explorer" in explorer._fragment(Path("/"))


def test_a_table_that_is_none_is_refused_and_an_empty_folder_is_explored(tmp_path):
    with pytest.raises(
        SettingsError,
        match="needs the table that load_runs returns; it has no column repeat, status",
    ):
        dsnb.explore(pd.DataFrame({"experiment": ["a"]}))
    explorer = dsnb.explore(dsnb.load_runs(tmp_path))
    assert (explorer.state["y"], explorer.live.payload["runs"]) == (None, 0)


def test_true_is_not_one_and_missing_is_a_value_of_its_own():
    values, codes = data.coded(
        "x", pd.Series([True, 1, 2.0, None, float("nan"), "1", np.int64(1)], dtype=object)
    )
    assert [type(value) for value in values] == [int, bool, int, str, type(None)]
    assert codes[1] == codes[6] != codes[0]
    assert codes[3] == codes[4]
    assert data.coded("x", pd.Series([2**60, 2**60 + 1]))[0] == [
        str(2**60),
        str(2**60 + 1),
    ]  # beyond JavaScript


def test_no_path_of_the_machine_is_in_a_page(tmp_path):
    made_up.write_folders(made_up.runs(6), tmp_path / "made_up")
    explorer = dsnb.explore(dsnb.load_runs(tmp_path), home=tmp_path / "made_up")
    text = explorer.save(tmp_path / "made_up" / "page.html").read_text()
    assert str(tmp_path) not in text
    assert explorer._fragment(tmp_path).count('"available":[1,1,1,1,1,1]') == 1


def test_a_watched_sweep_brings_its_runs_and_keeps_what_was_chosen(tmp_path):
    table = made_up.runs(24, precision=["bf16", "fp16"], zero_stage=[2, 3]).assign(status="ok")
    first, late = table[table["repeat"] < 3], table[table["repeat"] == 3]
    made_up.write_folders(first.dropna(subset="tokens_per_s"), tmp_path / "made_up")
    explorer = dsnb.explore(tmp_path, watch=True)
    live, count = explorer.live, len(explorer.data.runs)
    explorer.set(parallelism=["ZeRO 3"], precision="bf16", y="power_w", x="device_memory_gib")
    explorer.set(brush={"x": [0, 90], "y": [0, 1e3]}, run=count - 1, pins=[count - 1])
    opened = explorer.data.runs.iloc[count - 1][["experiment", "repeat"]].tolist()
    chosen = explorer.state
    assert not explorer.watch.look()
    made_up.write_folders(late.dropna(subset="tokens_per_s"), tmp_path / "made_up")
    assert explorer.watch.look()
    assert len(explorer.data.runs) > count
    assert explorer.state == {
        **chosen,
        "run": explorer.state["run"],
        "pins": [explorer.state["run"]],
    }
    assert (
        explorer.data.runs.iloc[explorer.state["run"]][["experiment", "repeat"]].tolist() == opened
    )
    assert explorer.live is live
    assert live.payload["runs"] == len(explorer.data.runs)
    live.state = {**live.state, "precision": ["fp32"]}  # as the page does
    assert explorer.state["precision"] == ["fp32"]
    explorer.watch.stop()
    assert not explorer.watch.look()
    with pytest.raises(SettingsError, match="can watch a folder of runs, not a table"):
        dsnb.explore(table, watch=True)


def test_a_run_that_is_opened_brings_its_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(single_runs, "MAX_NUMBERS", single_runs.COLUMNS * single_runs.MIN_POINTS)
    made_up.write_folders(made_up.runs(3), tmp_path / "made_up")
    explorer = dsnb.explore(dsnb.load_runs(tmp_path))
    assert list(explorer.live.payload["series"]) == [0]
    explorer.set(run=0)
    assert explorer.live.series == {}
    explorer.set(run=1)
    assert explorer.live.series["1"]["step"][0] == 1


def test_a_task_with_several_numbers_of_gpus_asks_for_the_fewest_gpu_hours_until_told_otherwise():
    runs = pd.concat([dsnb.published("lambda_1cc_opt"), dsnb.published("h200_gpt2_zero_precision")])
    scaling, single = "opt-350m, sequence 512", "gpt2, sequence 128, stdlib text"
    explorer = dsnb.explore(runs).set(task=scaling)
    assert explorer.state["objective"] == "gpu_hours"
    assert explorer.set(task=single).state["objective"] == "time"
    assert explorer.set(task=scaling).state["objective"] == "gpu_hours"
    explorer.set(objective="time", task=single)
    assert (
        explorer.set(task=scaling).state["objective"] == "gpu_hours"
    )  # the usual one of the other task
    explorer.set(objective="cost")
    assert explorer.set(task=single).state["objective"] == "cost"
    ranks = made_up.runs(6, gpus=[1, 2]).assign(device="cpu", gpu_name=None)
    assert dsnb.explore(ranks).state["objective"] == "time"


def test_another_task_starts_with_all_of_its_runs():
    explorer = dsnb.explore(dsnb.published("lambda_1cc_opt")).set(gpus=512, objective="cost", run=8)
    assert explorer.state["task"] == "opt-13b, sequence 512, LoRA adapters"
    assert len(explorer.selection) == 1
    explorer.set(task="opt-350m, sequence 512")
    assert set(explorer.selection["model"]) == {"opt-350m"}
    assert (len(explorer.selection), explorer.state["run"], explorer.state["objective"]) == (
        8,
        None,
        "cost",
    )
    assert not {"model", "seq_len", "data", "steps", "warmup_steps", "seed"} & set(explorer.state)
    assert (explorer.state["x"], explorer.state["along"]) == (
        "gpus",
        "gpus",
    )  # memory is not published
    assert "nodes" not in explorer.data.axes  # they follow from the GPUs
    explorer.set(task="all", gpus=[8, 16])
    assert explorer.selection.equals(explorer.data.runs[explorer.data.runs["gpus"].isin([8, 16])])


def test_a_task_is_chosen_by_model_the_largest_first():
    """The default is the largest model with half as many measured settings as any; few settings are no choice."""
    numbers = {"toy": 9, "gpt2": 8, "opt-1.3b": 4, "bloom-7b1": 3, "opt-66b": 1}
    models = [model for model, count in numbers.items() for _ in range(count)]
    models = ["bloom-7b1"] * 2 + models + ["gpt2"] * 2
    table = made_up.runs(29, repeats=1, model=["gpt2"], gpus=[1]).assign(model=models, status="ok")
    table["parameters"] = [8e9] * 2 + [None] * 27  # with adapters
    table = table.assign(
        seq_len=[128] * 2 + [512] * 25 + [128] * 2, experiment=[f"e{place}" for place in range(29)]
    )
    table.loc[table["model"] == "toy", "device"] = "cpu"
    shown = data.prepared(table)
    sequences = {entry["model"]: [label for _, label in entry["tasks"]] for entry in shown.menu}
    assert sequences == {
        "bloom-7b1": ["sequence 512", "sequence 128"],
        "opt-1.3b": ["sequence 512"],
        "gpt2": ["sequence 512", "sequence 128"],
        "toy": ["sequence 512"],
        "opt-66b (one setting)": ["sequence 512 (one setting)"],
    }
    few = ["bloom-7b1", "opt-1.3b", "opt-66b (one setting)"]
    assert list(sequences) == ["gpt2", "toy", *few]
    assert state.default(shown)["task"] == "gpt2, sequence 512"
    assert list(shown.tasks)[1] == "toy, sequence 512"  # on a CPU, but with enough settings
    assert list(shown.tasks)[-1] == "opt-66b, sequence 512"


def test_runs_are_marked_as_the_flags_say(tmp_path):
    table = made_up.runs(9, gpus=[1]).query("repeat == 1 or experiment.str.contains('ga1')")
    made_up.write_folders(table.assign(recompilations=[2] + [0] * (len(table) - 1)), tmp_path / "s")
    runs = dsnb.load_runs(tmp_path / "s")
    unusual, alone = single_runs.unusual(data.prepared(runs), range(len(runs)))
    flagged = flags(runs, dsnb.load_steps(tmp_path / "s"), load_samples(runs))
    assert unusual == {place: words for place, words in enumerate(flagged["words"]) if words}
    assert any("2 graphs compiled" in words for words in unusual.values())
    single = (runs["status"] == "ok") & ~runs["experiment"].duplicated(keep=False)
    assert single.any()
    assert sorted(alone) == list(np.flatnonzero(single))
    assert all(
        words.endswith("(standard deviation within the run, not between runs)")
        for words in alone.values()
    )


def test_series_are_thinned_where_there_are_many_runs(tmp_path):
    made_up.write_folders(made_up.runs(30), tmp_path / "made_up", steps=500)
    shown = data.prepared(dsnb.load_runs(tmp_path))
    series = {position: one for position, one in single_runs.load_all(shown).items() if one}
    assert len(series) > 20
    sizes = {len(one["step"]) for one in series.values()}
    assert max(sizes) <= single_runs.MAX_NUMBERS / single_runs.COLUMNS / 30
    assert all(one["step"][-1] == 500 for one in series.values())
    whole = single_runs.load(shown, next(iter(series)), points=500)
    assert whole["step"] == list(range(1, 501))


def test_neighbours_differ_in_one_setting():
    """The one with the most is the baseline."""
    same = {
        "status": "ok",
        "zero_stage": 0,
        "model": "gpt2",
        "grad_accum": 1,
        "activation_checkpointing": False,
    }
    table = made_up.runs(4, gpus=[1], repeats=1).assign(experiment=list("abcd"), **same)
    table = table.assign(precision=["fp32", "bf16", "fp16", "bf16"], micro_batch_size=[8, 8, 8, 16])
    assert data.prepared(table).neighbours == {"a": 2, "b": 3, "c": 2, "d": 1}
    assert data.prepared(table.assign(status=["ok", "ok", "oom", "ok"])).neighbours == {
        "a": 1,
        "b": 2,
        "d": 1,
    }


def of_page(table):
    shown = data.prepared(table)
    return payload.payload(shown, state.default(shown), None)


def test_only_ok_runs_have_figures_and_only_others_causes():
    table = made_up.runs(3, gpus=[1]).assign(
        status=["ok", "ok", "failed"], tokens_per_s=[1.0, np.inf, 3.0], cause=["warned", None, "fell over"]
    )  # fmt: skip
    rates = data.prepared(table).figures["tokens_per_s"]
    assert rates.iloc[0] == 1.0
    assert rates.isna().tolist() == [False, True, True]
    assert of_page(table)["causes"] == {2: "fell over"}


def test_integers_that_json_cannot_keep_are_texts():
    assert [data.plain(value) for value in (2**53, 2**53 + 1, np.int64(7), 1.0, 0.5, True, None)] == [
        2**53, "9007199254740993", 7, 1, 0.5, True, None,
    ]  # fmt: skip


def test_a_failed_run_needed_what_it_had_and_what_it_requested():
    table = made_up.runs(4, gpus=[1], repeats=1).assign(
        status=["ok", "oom", "oom", "failed"], oom_allocated_gib=[70.0, 78.5, 79.0, None],
        oom_requested_gib=[5.0, 4.25, None, None], gpu_memory_gib=[80.0, 80.0, 80.0, 40.0],
    )  # fmt: skip
    memory = of_page(table)["memory"]
    assert memory["needed_gib"] == {1: 82.75, 2: 79.0}
    assert memory["capacity_gib"] == [80, 80, 80, 40]
    assert of_page(table.assign(gpu_memory_gib=80.0))["memory"]["capacity_gib"] == 80


def test_remarks_have_advice_for_runs_of_dsnb_alone():
    table = made_up.runs(2, gpus=[1], repeats=1, model=["gpt2"]).assign(
        status="oom", device="cuda", oom_phase="forward", source=["dsnb", "a log"], note=["odd", None]
    )  # fmt: skip
    remarks = single_runs.remarks(data.prepared(table), {0: "slow"})
    own = {run: [remarks["texts"][place] for place in places] for run, places in remarks["runs"].items()}  # fmt: skip
    assert "Note: odd." in own[0]
    assert "Look at this run: slow. It counts in every figure." in own[0]
    assert any(text.startswith("To change: ") for text in own[0])
    assert not any(text.startswith("To change: ") for text in own.get(1, []))


def test_the_series_of_a_run_ends_its_warm_up_and_averages_its_gpus(tmp_path):
    """Two GPUs of 100 and 300 W, one of them sampled once too often; 3 of 10 steps are warm-up."""
    table = made_up.runs(1, gpus=[2]).assign(status="ok", step_time_mean_s=2.0)
    made_up.write_folders(table, tmp_path / "s")
    (folder,) = tmp_path.glob("s/*/run1")
    run = RunPaths(folder)
    figures = {"peak_allocated_gib": 1.0, "device_memory_gib": 2.0, "power_w": 0.0}
    steps = [made_up.step(number, 2.0, figures, 8, warmup=3) for number in range(1, 11)]
    run.steps.write_text("".join(map(json_files.line, steps)))
    samples = [
        {**made_up.sample(0, figures), "t_s": at + gpu / 100, "gpu": gpu, "power_w": power}
        for at in (0.0, 1.0, 2.0)
        for gpu, power in enumerate((100.0, 300.0))
    ]
    samples.insert(4, {**samples[2], "t_s": 1.3})
    run.gpu.write_text("".join(map(json_files.line, samples)))
    series = single_runs.load(data.prepared(dsnb.load_runs(tmp_path)), 0, points=3)
    assert series["step"] == [2, 6, 10]
    assert (series["every"], series["warm_s"], series["gpus"]) == (4, 6, 2)  # 3 steps of 2 s
    assert series["power_w"] == [200, 200, 200]


def test_the_first_repeats_are_the_ones_whose_steps_a_page_has(tmp_path, monkeypatch):
    monkeypatch.setattr(
        single_runs, "MAX_NUMBERS", 2 * single_runs.COLUMNS * single_runs.MIN_POINTS
    )
    made_up.write_folders(made_up.runs(6, gpus=[1], micro_batch_size=[2]), tmp_path / "made_up")
    shown = data.prepared(dsnb.load_runs(tmp_path))
    assert [shown.runs["repeat"].iloc[at] for at in single_runs.load_all(shown)] == [1, 1]


def test_a_picture_cites_every_gpu_and_version():
    table = made_up.runs(3).assign(gpu_name=["H200", "H100", None], torch="2.8.0", cuda=[None] * 3)
    assert payload.citation(data.prepared(table)) == "H100, H200; torch 2.8.0"


def test_short_names_are_unique_and_marks_have_shapes():
    same = {"grad_accum": [1], "activation_checkpointing": [False], "gpus": [1], "zero_stage": [0]}
    table = made_up.runs(3, repeats=1, precision=["bf16"], micro_batch_size=[2, 8, 32], **same)
    table = table.assign(status="ok")
    table = table.sort_values("micro_batch_size", ignore_index=True).assign(experiment=list("abc"))
    given = of_page(table)
    assert given["experiments"]["short"] == ["micro-batch 2", "micro-batch 8", "micro-batch 32"]
    (axis,) = [one for one in given["axes"] if one["name"] == "micro_batch_size"]
    assert axis["shapes"] == ["circle", "square", "triangle-up"]
    twice = pd.concat([table, table.head(1).assign(experiment="d")], ignore_index=True)
    short = of_page(twice)["experiments"]["short"]
    assert short == [None, "micro-batch 8", "micro-batch 32", None]
    tasks = of_page(table)["tasks"]
    assert tasks[0]["shared"] == "All settings of this task: ZeRO 0, bf16, 1 GPU."


def test_settings_of_several_sweeps_are_told_apart_by_what_differs_then_by_their_sweeps():
    same = {"grad_accum": [1], "activation_checkpointing": [False], "gpus": [1], "zero_stage": [0]}
    one = made_up.runs(1, repeats=1, precision=["bf16"], micro_batch_size=[8], **same)
    table = pd.concat([one] * 4, ignore_index=True).assign(
        status="ok",
        experiment=list("abcd"),
        sweep=["h200_fp8", "mine", "mine", "mine"],
        micro_batch_size=[8, 8, 8, 16],
        learning_rate=[1e-4, 1e-4, 3e-4, 1e-4],
    )
    given = of_page(table)
    assert given["experiments"]["short"] == [
        "micro-batch 8, learning rate 0.0001 (products in fp8)",
        "micro-batch 8, learning rate 0.0001 (mine)",
        "micro-batch 8, learning rate 0.0003",
        "micro-batch 16",
    ]
    assert given["sources"] == []


def test_published_data_have_title_author_date_and_link():
    (source,) = of_page(dsnb.published("lambda_1cc_opt"))["sources"]
    assert source["title"] == "Fine-tuning OPT on 1-Click Clusters of H100"
    assert source["about"] == ", published by Lambda, 2024-07"
    assert source["link"].startswith("https://github.com/LambdaLabsML/")
    own = dsnb.published("h100").head(3).assign(date_utc=["2026-11-25T10:00:00"] * 3)
    (source,) = of_page(own)["sources"]
    assert (source["about"], source["link"]) == (", measured with dsnb, 2026-11-25", "")


def test_an_unstable_setting_is_the_last_baseline():
    table = made_up.runs(9, gpus=[1], precision=["bf16"]).assign(status="ok", tokens_per_s=100.0)
    first = table["experiment"].iloc[0]
    table.loc[0, "tokens_per_s"] = 1000.0
    experiments = of_page(table)["experiments"]
    assert experiments["names"][experiments["bases"][-1]] == first


def test_a_region_is_ordered_and_cleared_by_another_axis(explorer):
    explorer.set(brush={"x": [90, 0], "y": [5, 1]})
    assert explorer.state["brush"] == {"x": [0, 90], "y": [1, 5]}
    assert explorer.set(precision="bf16").state["brush"] is not None
    assert explorer.set(x="power_w").state["brush"] is None


def test_pins_are_two_at_most_and_exist(runs, explorer):
    name = runs["experiment"][0]
    assert explorer.set(pins=[name, 4]).state["pins"] == [name, 4]
    for wrong in ([0, 1, 2], ["no such experiment"], [300], [-1]):
        with pytest.raises(SettingsError, match="is not a list of up to 2 names of experiments"):
            explorer.set(pins=wrong)
    assert explorer.state["pins"] == [name, 4]


def test_a_shown_run_stays_the_same_run_and_a_changed_status_is_shown(tmp_path):
    table = made_up.runs(6, gpus=[1], zero_stage=[1, 3]).assign(status="ok", cause=None)
    table = table.dropna(subset="tokens_per_s").reset_index(drop=True)
    explorer = dsnb.explore(table).set(run=2, pins=[2, 0], x="power_w")
    explorer.set(brush={"x": [0, 900], "y": [0, 1e9]})
    explorer.live.series = {"2": {"step": [1]}}
    explorer.show(table[::-1].reset_index(drop=True))
    last = len(table) - 1
    assert (explorer.state["run"], explorer.state["pins"]) == (last - 2, [last - 2, last])
    assert explorer.state["brush"] == {"x": [0, 900], "y": [0, 1e9]}
    assert "2" not in explorer.live.series  # another run now
    made_up.write_folders(table, tmp_path / "s")
    watching = dsnb.explore(tmp_path, watch=True)
    assert not watching.watch.look()
    result = next(tmp_path.glob("s/*/run1/result.json"))
    result.write_text(json_files.line({"status": "failed", "cause": "x", "summary": {}}))
    assert watching.watch.look()
    assert set(watching.data.runs["status"]) == {"ok", "failed"}


def test_a_saved_page_answers_what_the_controls_ask(tmp_path):
    explorer = dsnb.explore(dsnb.published("lambda_1cc_opt")).set(task="opt-350m, sequence 512")
    explorer.set(objective="cost", currency="€", prices={"": 3.5}, train_tokens=1e9)
    text = explorer.save(tmp_path / "page.html").read_text()
    assert "1 billion tokens" in text
    assert "at €3.50 a GPU-hour" in text
