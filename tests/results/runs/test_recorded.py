"""Runs of users' scripts beside dsnb's own: what is not known is missing, and programs are not pooled."""

import json
import shutil
import warnings

import pandas as pd
import pytest

from dsnb.base.errors import SettingsError
from dsnb.measure.launcher import folder
from dsnb.results.answers.decide import Question, of_runs
from dsnb.results.runs import labels
from dsnb.results.runs.load import load_runs, load_steps
from dsnb.results.runs.table import as_runs
from dsnb.results.statistics.comparisons import compare, differences
from dsnb.results.statistics.flags import flags
from dsnb.results.statistics.summary import summarize
from dsnb.results.statistics.tasks import tasks
from dsnb.settings.experiment import DEFAULTS, Experiment
from dsnb.settings.records.columns import SETTINGS
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.explorer import data, payload, state
from tests.support.recorded import ONE_RANK, QUICKSTART, SEEN, TRAINER, TWO_RANKS, record

PLAIN = "plain_bf16_gpus1_bs8_sl128_stdlib"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """dsnb's quickstart beside recorded runs, some of which say little."""
    root = tmp_path_factory.mktemp("outputs")
    shutil.copytree(QUICKSTART, root / "quickstart")
    own = root / "own"
    record(ONE_RANK, own / "plain/run1")
    record(ONE_RANK, own / "plain/run2", program="transformers Trainer 5.24.0")
    record(TWO_RANKS, own / "mine/run1", attention="flash_attention_2", optimizer="adamw_8bit")
    record(TWO_RANKS, own / "mine/run2", strategy="DataParallel", zero_stage=None)
    record(ONE_RANK, own / "mine/run3", program="own")
    record(ONE_RANK, own / "bare/run1", seen=(), attention=None)
    record(ONE_RANK, root / "quickstart" / PLAIN / "run9")
    return root


@pytest.fixture(scope="module")
def runs(mixed):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return load_runs(mixed)


def test_what_was_not_seen_is_missing_instead_of_a_default(runs):
    trained = runs[runs["experiment"] == "plain"].iloc[0]
    unseen = [name for name in SETTINGS if name not in {*SEEN, "attention", "data"}]
    assert trained[unseen].isna().all()
    assert labels.text(trained["zero_stage"]) == "-"  # a plain loop has no stage of ZeRO
    assert (trained["strategy"], trained["seq_len"], trained["attention"]) == ("plain", 128, "sdpa")
    bare = runs[runs["experiment"] == "bare"].iloc[0]
    assert bare[SETTINGS].isna().all()
    assert bare["status"] == "ok"


def test_programs_are_named_and_runs_without_one_are_dsnbs(runs):
    assert runs["program"].value_counts().to_dict() == {
        "dsnb": 20,
        TRAINER: 5,
        "transformers Trainer 5.24.0": 1,
        "own": 1,
    }
    assert (runs["source"] == runs["program"]).all()


def test_values_that_dsnb_does_not_have_are_loaded_and_labelled(runs):
    words = [labels.setting(run) for run in runs.to_dict("records")]
    assert "ZeRO 1, bf16, adamw_8bit, flash_attention_2 attention, micro-batch 8" in words
    assert "DataParallel, bf16, sdpa attention, micro-batch 8" in words


def test_tasks_of_programs_are_apart_and_versions_are_not(runs):
    found = {task.title: len(task.runs) for task in tasks(runs)}
    assert found == {
        "gpt2-tiny, sequence 128, stdlib text, all weights": 20,
        "gpt2-tiny, sequence 128, all weights, transformers Trainer": 5,
        "gpt2-tiny, sequence 128, all weights, own": 1,
        "transformers Trainer, an unknown number of GPUs": 1,
    }
    alone = runs[runs["program"] == TRAINER]
    assert "Trainer" not in tasks(alone)[0].title


def test_ratios_to_the_plain_loop_are_within_one_program(runs):
    of_plain = runs.set_index("program")["of_plain"]
    assert of_plain["own"] == 1
    faster = runs.assign(tokens_per_s=runs["tokens_per_s"].mask(runs["program"] == "own", 1e9))
    again = as_runs(faster).set_index("program")["of_plain"]
    pd.testing.assert_series_equal(again, of_plain)


def test_a_decision_is_about_one_program(runs):
    for task in tasks(runs):
        loops = {text.rpartition(" 5")[0] or text for text in task.runs["program"]}
        assert len(loops) == 1
        made = of_runs(task.runs, Question(tokens=1e9))
        assert {*made.table["source"]} <= {*task.runs["program"]}


def test_settings_of_programs_are_not_compared(runs):
    loops = dict(zip(runs["experiment"], runs["program"], strict=True)) | {"plain": TRAINER}
    table = differences(runs.assign(sweep="")).reset_index()
    assert {*table["base"].map(loops)} == {"dsnb", TRAINER}
    assert (table["experiment"].map(loops) == table["base"].map(loops)).all()
    alike = runs[runs["experiment"] == PLAIN]
    both = compare(alike, alike.assign(program="own"))
    assert sorted(both["only_in"]) == ["after", "before"]


def test_a_setting_of_two_programs_varies(runs):
    pooled = runs[runs["experiment"] == "plain"].assign(program=["dsnb", "own"])
    assert summarize(pooled)["varies"].tolist() == ["program"]


def test_recorded_runs_in_one_folder_are_told_apart_without_warnings(runs, mixed):
    own = runs[runs["program"] != "dsnb"]
    names = own.set_index("run_dir")["experiment"]
    named = {str(folder).removeprefix(f"{mixed}/"): name for folder, name in names.items()}
    assert named["own/plain/run1"] == named["own/plain/run2"] == "plain"
    assert named["own/mine/run1"].endswith(
        "zs1_bf16_gpus2_bs8_sl128_flash_attention_2_adamw_8bit_transformers-Trainer"
    )
    assert named["own/mine/run2"].endswith(
        "DataParallel_bf16_gpus2_bs8_sl128_sdpa_transformers-Trainer"
    )
    assert named[f"quickstart/{PLAIN}/run9"] == f"{PLAIN}_transformers-Trainer"


def test_a_run_that_failed_before_its_settings_were_seen_is_a_repeat(tmp_path):
    record(ONE_RANK, tmp_path / "a/run1")
    record(ONE_RANK, tmp_path / "a/run2", seq_len=None, precision=None)
    runs = load_runs(tmp_path)
    assert runs["experiment"].tolist() == ["a", "a"]
    assert runs["seq_len"].isna().tolist() == [False, True]


def test_steps_have_the_unknown_settings_of_their_runs(mixed):
    steps = load_steps(mixed / "own", settings=True)
    bare = steps[steps["experiment"] == "bare"]
    assert len(bare)
    assert bare[["strategy", "seq_len", "loss_setting", "parallelism"]].isna().all(axis=None)


def test_padded_batches_contradict_no_record_and_sequences_are_counted(tmp_path):
    run = record(ONE_RANK, tmp_path / "a/run1", seq_len=512)
    row = load_runs(tmp_path).iloc[0]
    assert RunRecord(run).unfinished() is None
    assert row["status"] == "ok"
    assert row["samples_per_s"] == pytest.approx(8 / row["step_time_mean_s"])


def test_a_script_recorded_until_its_end_is_finished(tmp_path):
    run = RunRecord(record(ONE_RANK, tmp_path / "a/run1", steps=None))
    assert run.has_all_steps
    assert run.is_finished()


def test_a_script_that_was_cut_off_has_no_sweep_to_start(tmp_path):
    record(ONE_RANK, tmp_path / "a/run1").result.unlink()
    row = load_runs(tmp_path).iloc[0]
    assert row["status"] == "interrupted"
    assert row["cause"] == "it was cut off before its end; run the script again"


def test_recorded_runs_are_not_replaced(tmp_path):
    run = record(ONE_RANK, tmp_path / "a/run1")
    run.result.unlink()
    message = f"run_dir is {str(run.dir)!r}: it holds a recorded run of {TRAINER!r}; choose another folder"
    with pytest.raises(SettingsError) as error:
        folder.prepare(run, Experiment(device="cpu"))
    assert str(error.value) == message
    assert run.steps.exists()


def test_names_have_no_part_for_what_is_unknown():
    assert Experiment.recorded({"program": "own"}).name == "unknown"
    known = {"program": "own", "model": "gpt2", "strategy": "deepspeed", "gpus": 2}
    known |= {"activation_checkpointing": True, "optimizer": "PagedAdamW (8 bit)"}
    assert Experiment.recorded(known).name_with_model == "gpt2_deepspeed_gpus2_ac_PagedAdamW-8-bit"


def test_null_is_unknown_in_dsnbs_records_too():
    assert Experiment.recorded({"seq_len": None}).seq_len is None
    assert Experiment.recorded({}).seq_len == DEFAULTS["seq_len"]
    with pytest.raises(SettingsError, match=r"^seq_len is unknown$"):
        _ = Experiment.recorded({"seq_len": None}).tokens_per_step


def test_losses_of_unknown_data_are_not_compared(tmp_path):
    known = {"seed": 42, "dropout": 0.0}
    for number, text in enumerate([None, None, "own", "own"], start=1):
        run = record(ONE_RANK, tmp_path / f"{text}/run{number}", data=text, **known)
        result = json.loads(run.result.read_text())
        result["summary"]["loss_first"] = number
        run.result.write_text(json.dumps(result))
    runs = load_runs(tmp_path)
    other = runs[runs["data"] == "own"].assign(experiment="other", loss_first=9.0)
    words = flags(pd.concat([runs, other], ignore_index=True))["words"]
    has_data = pd.concat([runs, other])["data"].notna().to_numpy()
    assert words[has_data].str.contains("first loss").all()
    assert not words[~has_data].str.contains("loss").any()
    from_dsnb = flags(pd.concat([runs, other.assign(program="dsnb")], ignore_index=True))["words"]
    assert not from_dsnb.str.contains("first loss").any()


def test_the_explorer_shows_tasks_of_programs(runs):
    shown = data.prepared(runs)
    page = payload.payload(shown, state.default(shown), None)
    assert len(page["tasks"]) == 4
    assert {axis["name"] for axis in page["axes"]} >= {"source", "attention", "optimizer"}


def test_tables_of_earlier_versions_have_a_program_by_their_source():
    sources = [
        "dsnb",
        "transformers Trainer log",
        "step CSV",
        "published: h200",
        "published: lambda_1cc_opt",
    ]
    table = as_runs(pd.DataFrame({"source": [*sources, None]}))
    assert table["program"].tolist()[:-1] == [
        "dsnb",
        "transformers Trainer",
        "step CSV",
        "dsnb",
        "DeepSpeed-Chat",
    ]
    assert pd.isna(table["program"].iloc[-1])
