"""Former names of settings, read everywhere and never written; digests of the files that a run reads."""

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import yaml

import dsnb
from dsnb import Experiment
from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.cli.sweep import parse_overrides
from dsnb.measure.sweep import job
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import is_finished
from dsnb.settings import inputs
from dsnb.settings.experiment import CURRENT_NAMES
from dsnb.settings.records import record_schema
from dsnb.settings.records.paths import SweepPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from tests import ROOT

OLD_LAYOUT = ROOT / "tests" / "data" / "old_layout"
NAME = "zs0_fp32_gpus1_bs2_sl16"


@pytest.fixture
def old_run(tmp_path):
    """Return the paths of a run folder of the old layout."""
    shutil.copytree(OLD_LAYOUT, tmp_path / "old")
    return SweepPaths(tmp_path / "old").run(NAME, 1)


def test_an_experiment_and_a_notebook_take_the_former_name():
    assert set(CURRENT_NAMES.values()) <= set(Experiment.model_fields)
    assert CURRENT_NAMES.keys().isdisjoint(Experiment(hang_limit_s=5.0).model_dump())
    assert Experiment(hang_limit_s=5.0).step_timeout_s == 5.0
    both = {"step_timeout_s": 6.0, "hang_limit_s": 5.0}
    for names in (both, dict(reversed(both.items()))):
        assert Experiment(**names).step_timeout_s == 6.0
    with pytest.raises(SettingsError, match=r"^step_timeout_s is 0: it must be more than 0\.0$"):
        Experiment(hang_limit_s=0)
    injected = {"hang_limit_s": 5.0, "step_timeout_s": Experiment().step_timeout_s, "run_dir": ""}
    assert Experiment.from_namespace(injected).step_timeout_s == 5.0
    with pytest.raises(SettingsError, match="launcher is no longer a setting"):
        Experiment.from_namespace({"launcher": "deepspeed"})


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("defaults: {step_timeout_s: 7}\ninclude: [{hang_limit_s: 5}]", [], [5.0]),
        ("grid: {hang_limit_s: [5, 6]}\nexclude: [{hang_limit_s: 5}]", [], [6.0]),
        ("defaults: {step_timeout_s: 7}", ["hang_limit_s=5"], [5.0]),
        ("defaults: {hang_limit_s: 7}", ["step_timeout_s=5"], [5.0]),
    ],
)
def test_a_params_file_and_set_take_either_name(tmp_path, text, overrides, expected):
    (tmp_path / "t.yaml").write_text(f"name: t\n{text}\n")
    sweep = load_sweep(tmp_path / "t.yaml", parse_overrides(overrides))
    assert [run.experiment.step_timeout_s for run in sweep.runs] == expected
    assert "hang_limit_s" not in yaml.safe_dump(sweep.params)


def test_a_removed_field_of_a_params_file_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "t.yaml").write_text("name: t\nskip_oom: true\n")
    with pytest.raises(SettingsError, match="skip_oom is no longer a setting: `dsnb predict`"):
        load_sweep(tmp_path / "t.yaml")


def test_an_old_run_folder_loads_and_is_finished_for_a_sweep_of_the_same_settings(old_run):
    folder = old_run.dir.parents[1]
    assert Experiment.read(old_run.experiment).step_timeout_s == 120.0
    (row,) = dsnb.load_runs(folder).to_dict("records")
    assert (row["experiment"], row["status"], row["model"], row["seq_len"]) == (
        NAME,
        "ok",
        "gpt2-tiny",
        16,
    )
    recorded = json_files.read_json(old_run.result)["summary"]
    assert (row["launcher"], row["tokens_per_s"]) == ("fork", recorded["tokens_per_s"])
    assert (
        row["step_time_mean_s"]
        == Result.of(RunRecord(old_run)).summary["step_time_mean_s"]
        == recorded["step_time_s"]
    )
    assert dsnb.load_steps(folder)["loss"].tolist()[-1] == 6.359505653381348
    (run,) = load_sweep(folder / "params.yaml", output=folder).runs
    assert run.experiment.step_timeout_s == 120.0
    assert job.changed_settings(run, RunRecord(run.paths)) == ""
    assert is_finished(run)


def test_a_run_on_a_gpu_that_was_made_before_the_allocator_could_be_chosen(old_run):
    """It had torch's default one, under the name that is now that of the other, and stays finished."""
    folder = old_run.dir.parents[1]
    assert dsnb.load_runs(folder)["allocator"].isna().all()  # on a CPU
    record = {**json.loads(old_run.experiment.read_text()), "device": "cuda"}
    old_run.experiment.write_text(json.dumps(record))
    assert dsnb.load_runs(folder)[["experiment", "allocator"]].values.tolist() == [
        [NAME, "default"]
    ]
    (run,) = load_sweep(folder / "params.yaml", output=folder).runs
    for allocator in ("expandable", "default"):
        asked = run.experiment.model_copy(update={"device": "cuda", "allocator": allocator})
        assert job.changed_settings(replace(run, experiment=asked), RunRecord(run.paths)) == ""
    assert asked.name == f"{NAME}_alloc-default"
    old_run.experiment.write_text(json.dumps({**record, "allocator": "expandable"}))
    assert (
        job.changed_settings(replace(run, experiment=asked), RunRecord(run.paths))
        == "allocator was 'expandable' and is 'default'"
    )


def test_a_run_whose_micro_batch_was_searched_still_loads(old_run):
    record = {**json_files.read_json(old_run.experiment), "name": "zs0_fp32_gpus1_bsauto_sl16"}
    for size, expected in ((2, 2.0), ("auto", None)):  # found, and not found
        asked = {"micro_batch_size": "auto"}
        json_files.write_json(
            old_run.experiment, {**record, "micro_batch_size": size, "asked": asked}
        )
        (row,) = dsnb.load_runs(old_run.dir.parents[1]).to_dict("records")
        assert (row["experiment"], row["status"]) == (NAME, "ok")
        assert row["micro_batch_size"] == pytest.approx(expected or float("nan"), nan_ok=True)
        assert record_schema.cleaned("experiment.json", record)[1] is None
    _, problem = record_schema.cleaned("experiment.json", {"hang_limit_s": "soon"})
    assert problem == "experiment.json: step_timeout_s is 'soon': give a number"


def test_every_file_of_a_folder_that_is_read_has_a_digest(tmp_path):
    def digests(**settings):
        return inputs.digests(Experiment.recorded(settings))

    for name in (
        "config.json",
        "tokenizer.json",
        "merges.txt",
        "model.safetensors",
        "pytorch_model.bin",
        "a.md",
    ):
        (tmp_path / name).write_text(json.dumps({"name": name, "model_type": "llama"}))
    (tmp_path / "data.txt").write_text("some text\n")
    by_name = digests(model=f"{tmp_path}/", tokenizer=str(tmp_path), data=f"{tmp_path}/data.txt")
    assert sorted(by_name) == [
        f"{tmp_path}/{name}" for name in ("config.json", "data.txt", "merges.txt", "tokenizer.json")
    ]
    assert by_name[f"{tmp_path}/data.txt"] == hashlib.sha256(b"some text\n").hexdigest()[:32]
    assert digests(model="gpt2-tiny") == {}  # presets and synthetic tokens read no file
    assert (
        digests(model="gpt2-tiny", data=f"{tmp_path}/gone.txt") == {}
    )  # the launch says that it is missing
    trained = digests(model=f"{tmp_path}/config.json", weights="pretrained")
    assert sorted(trained) == [f"{tmp_path}/config.json", f"{tmp_path}/model.safetensors"]


def test_a_large_file_is_sampled_from_its_first_to_its_last_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_WHOLE_BYTES", 100)
    monkeypatch.setattr(inputs, "SAMPLES", 4)
    monkeypatch.setattr(inputs, "SAMPLE_BYTES", 10)
    path, content = tmp_path / "weights", bytearray(range(200))
    path.write_bytes(content)
    whole = inputs.digest(path)
    assert whole.startswith("sampled-")
    for place, differs in (
        (0, True),
        (65, True),
        (199, True),
        (30, False),
    ):  # samples begin at 0, 63, 126 and 190
        path.write_bytes(bytes(content[:place]) + b"x" + bytes(content[place + 1 :]))
        assert (inputs.digest(path) != whole) is differs, place
    path.write_bytes(bytes(content) + b"x")
    assert inputs.digest(path) != whole


def test_which_files_have_changed():
    before = {"a": "1", "b": "2", "removed": "3"}
    assert inputs.changed(before, {"a": "1", "b": "3", "added": "4"}) == ["added", "b", "removed"]
    assert inputs.changed(None, {"a": "1"}) == inputs.changed(before, {}) == []
