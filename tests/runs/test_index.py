"""The index of a sweep: a first load takes its runs from there, and from nowhere else once anything changed."""

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
import warnings

import pandas as pd
import pyarrow as pa
import pytest

import dsnb
from dsnb import errors
from dsnb.files import records
from dsnb.run_folder.paths import RunPaths, SweepPaths
from dsnb.runs import cache, index, load, run_folders
from tests.support import foreign_logs, made_up


@pytest.fixture(autouse=True)
def _without_cache(monkeypatch):
    monkeypatch.setenv("DSNB_CACHE", "off")


@pytest.fixture
def sweep(tmp_path):
    folder = tmp_path / "outputs" / "sweep"
    made_up.write_folders(made_up.runs(12, precision=["bf16"]), folder, steps=3)
    load.write_index(folder)
    assert SweepPaths(folder).index.is_file()
    return folder


@pytest.fixture
def read_in_full(monkeypatch):
    """Collect the run folders that were really read."""
    seen, columns = [], run_folders.read_columns
    monkeypatch.setattr(run_folders, "read_columns", lambda some, *rest: seen.extend(some) or columns(some, *rest))
    return seen


def directly(folder):
    """Load as if there were no index."""
    files = [*folder.rglob(index.NAME)]
    away = [file.rename(file.with_suffix(".away")) for file in files]
    try:
        return dsnb.load_runs(folder)
    finally:
        for file, other in zip(files, away, strict=True):
            other.rename(file)


def test_a_first_load_takes_the_index(sweep, read_in_full):
    loaded = dsnb.load_runs(sweep)
    assert read_in_full == []
    pd.testing.assert_frame_equal(loaded, directly(sweep))
    assert len(read_in_full) == len(loaded) == 12


@pytest.mark.parametrize("how", [["cp", "-a"], ["rsync", "-a"]], ids=lambda how: how[0])
@pytest.mark.process
def test_it_goes_with_the_folder(sweep, read_in_full, tmp_path, how):
    if not shutil.which(how[0]):
        pytest.skip(f"{how[0]} is not here")
    (tmp_path / "elsewhere").mkdir()
    subprocess.run([*how, f"{sweep}", tmp_path / "elsewhere"], check=True)
    shutil.move(tmp_path / "elsewhere" / "sweep", tmp_path / "elsewhere" / "renamed")
    loaded = dsnb.load_runs(tmp_path / "elsewhere" / "renamed")
    assert read_in_full == []
    assert set(loaded["sweep"]) == {"renamed"}
    assert all(path.startswith(str(tmp_path / "elsewhere" / "renamed" / "")) for path in loaded["run_dir"])
    pd.testing.assert_frame_equal(loaded, directly(tmp_path / "elsewhere" / "renamed"))


def test_a_folder_of_several_sweeps(sweep, read_in_full):
    """Two indexed ones, one without an index, one run alone, and logs beside and inside of them."""
    made_up.write_folders(made_up.runs(6, seed=1), sweep.parent / "another", steps=3)
    foreign_logs.write_all(sweep.parent / "another" / "zz_logs")
    (sweep.parent / "another" / "beside.log").write_text(foreign_logs.megatron())
    load.write_index(sweep.parent / "another")
    made_up.write_folders(made_up.runs(3, seed=2), sweep.parent / "plain", steps=3)
    (sweep / "extra.log").write_text(foreign_logs.chat())
    read_in_full.clear()
    loaded = dsnb.load_runs(sweep.parent)
    assert len(read_in_full) == 3
    expected = directly(sweep.parent)
    assert len(expected) == 12 + 6 + 3 + 2 + 7
    pd.testing.assert_frame_equal(loaded, expected)


def add_a_run(sweep):
    run = next(sweep.glob("*/run1"))
    shutil.copytree(run, run.with_name("run77"))


def remove_a_run(sweep):
    shutil.rmtree(next(sweep.glob("*/run2")))


def replace_a_run(sweep):
    one, other = [*sweep.glob("*/run1")][:2]
    shutil.rmtree(one)
    subprocess.run(["cp", "-a", other, one], check=True)


def exchange_two_runs(sweep):
    one, other = [*sweep.glob("*/run1")][:2]
    one.rename(one.with_name("x"))
    other.rename(one)
    one.with_name("x").rename(other)


def edit_a_result(sweep):
    result = next(sweep.rglob("result.json"))
    result.write_text(result.read_text().replace('"ok"', '"no"').replace('"status": "no"', '"status": "oo"'))


def edit_settings_in_place(sweep):
    path = next(sweep.rglob("experiment.json"))
    with open(path, "r+") as file:
        text = file.read()
        file.seek(0)
        file.write(text.replace('"zero_stage": ', '"zero_stage":9'))


def remove_settings(sweep):
    next(sweep.rglob("experiment.json")).unlink()


def remove_a_result(sweep):
    next(sweep.rglob("result.json")).unlink()


def add_an_environment(sweep):
    records.write_json(RunPaths(next(sweep.glob("*/run1"))).nodes, {"nodes": []})


def add_an_experiment(sweep):
    made_up.write_folders(made_up.runs(1, seed=9).assign(experiment="new"), sweep, steps=3)


def rename_an_experiment(sweep):
    first = next(sweep.glob("*/run1")).parent
    first.rename(first.with_name("renamed"))


def add_a_log_inside(sweep):
    (next(sweep.glob("*/run1")).parent / "console.log").write_text(foreign_logs.chat())


def make_it_a_bandwidth_test(sweep):
    RunPaths(next(sweep.glob("*/run1"))).bandwidth_plan.write_text("{}")


CHANGES = [
    add_a_run, remove_a_run, replace_a_run, exchange_two_runs, edit_a_result, edit_settings_in_place, remove_settings,
    remove_a_result, add_an_environment, add_an_experiment, rename_an_experiment, add_a_log_inside,
    make_it_a_bandwidth_test,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.process
def test_what_changed_is_seen(sweep, read_in_full, change):
    dsnb.load_runs(sweep)
    assert not read_in_full
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        change(sweep)
        loaded = dsnb.load_runs(sweep)
        assert read_in_full
        pd.testing.assert_frame_equal(loaded, directly(sweep))


def test_a_run_that_ends_after_the_index_is_seen_by_the_cache_too(sweep, monkeypatch, tmp_path):
    run = RunPaths(next(sweep.glob("*/run1")))
    text = run.result.read_text()
    run.result.unlink()
    load.write_index(sweep)
    monkeypatch.setenv("DSNB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "SLOW_S", 0.0)
    monkeypatch.setattr(cache, "SETTLED_S", -60.0)
    assert (dsnb.load_runs(sweep)["status"] == "interrupted").sum() == 1
    assert [*(tmp_path / "cache").iterdir()]
    run.result.write_text(text)
    assert (dsnb.load_runs(sweep)["status"] == "interrupted").sum() == 0


def test_written_by_other_code_it_is_not_taken(sweep, read_in_full, monkeypatch):
    monkeypatch.setattr(index, "_code", lambda: b"later")
    assert len(dsnb.load_runs(sweep)) == len(read_in_full) == 12


def test_a_run_that_cannot_be_read_is_told_at_every_load(sweep):
    """An index would keep it quiet."""
    SweepPaths(sweep).index.unlink()
    next(sweep.rglob("environment.json")).write_text("{")
    load.write_index(sweep)
    assert not SweepPaths(sweep).index.exists()
    with pytest.warns(errors.DsnbWarning, match="cannot be read as JSON"):
        dsnb.load_runs(sweep)


@pytest.mark.parametrize("kind", ["empty", "garbage", "cut", "flipped", "folder", "fifo", "dangling"])
def test_damage_is_no_trouble(sweep, read_in_full, kind):
    file = SweepPaths(sweep).index
    raw = file.read_bytes()
    file.unlink()
    if kind in {"folder", "fifo", "dangling"}:
        {"folder": file.mkdir, "fifo": lambda: os.mkfifo(file), "dangling": lambda: file.symlink_to("nothing")}[kind]()
    else:
        flipped = bytearray(raw)
        flipped[len(raw) // 2] ^= 1
        file.write_bytes({"empty": b"", "garbage": b"x" * 500, "cut": raw[:-9], "flipped": bytes(flipped)}[kind])
    assert len(dsnb.load_runs(sweep)) == len(read_in_full) == 12


def forge(sweep, change_about=lambda about: about, change_content=lambda content: content):
    """Write an index with a right digest over something else."""
    source = pa.BufferReader(SweepPaths(sweep).index.read_bytes()[32:])
    about, content = pa.ipc.open_stream(source).read_all(), pa.ipc.open_stream(source).read_all()
    sink = pa.BufferOutputStream()
    changed = pa.Table.from_pandas(change_about(about.to_pandas()), preserve_index=False)
    for part in (changed.replace_schema_metadata(about.schema.metadata), change_content(content)):
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
    payload = sink.getvalue().to_pybytes()
    SweepPaths(sweep).index.write_bytes(hashlib.sha256(payload).digest() + payload)


@pytest.mark.parametrize("path", ["../outside/run1", "/etc", "a//b", "./a", "a/..", "a/", "", "a\0b", "linked/run1"])
def test_it_cannot_point_outside(sweep, read_in_full, path):
    outside = sweep.parent / "outside" / "run1"
    shutil.copytree(next(sweep.glob("*/run1")), outside)
    (sweep / "linked").symlink_to(outside.parent)
    about = os.stat(outside)

    def change(rows):
        rows.loc[rows.index[rows["role"] == index.RUN][0], ["path", "mtime_ns"]] = path, about.st_mtime_ns
        return rows

    forge(sweep, change)
    loaded = dsnb.load_runs(sweep)
    assert len(read_in_full) == len(loaded) == 12
    assert not any("linked" in path or not path.startswith(f"{sweep}/") for path in loaded["run_dir"])


def test_nothing_in_it_is_unpickled(sweep, tmp_path):
    """As pyarrow's own extension types were, before it was found dangerous."""

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    about = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Trap())}

    def change(content):
        field = pa.field(content.column_names[0], pa.string(), metadata=about)
        return content.set_column(0, field, pa.array(["ok"] * len(content)))

    forge(sweep, change_content=change)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert len(dsnb.load_runs(sweep)) == 12
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.drop_columns(["status"]),
        lambda content: content.slice(1),
        lambda content: content.append_column("more", pa.nulls(len(content))),
        lambda content: content.set_column(0, content.column_names[0], pa.array([{"a": 1}] * len(content))),
        lambda content: content.set_column(0, content.column_names[0], pa.array([[1]] * len(content))),
    ],
)  # fmt: skip
def test_other_tables_are_refused(sweep, read_in_full, change):
    forge(sweep, change_content=change)
    assert len(dsnb.load_runs(sweep)) == len(read_in_full) == 12


@pytest.mark.draws
def test_random_damage_under_a_right_digest(sweep):
    """Whatever pyarrow makes of it: no exception, no crash."""
    raw = SweepPaths(sweep).index.read_bytes()[32:]
    for place in range(0, len(raw), max(1, len(raw) // 30)):
        payload = bytearray(raw)
        payload[place] ^= 0xFF
        SweepPaths(sweep).index.write_bytes(hashlib.sha256(payload).digest() + payload)
        assert len(dsnb.load_runs(sweep)) == 12


def test_without_pyarrow_there_is_none(sweep, read_in_full, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert index.read(str(sweep), [path.name for path in sweep.iterdir() if path.is_dir()]) is None
    SweepPaths(sweep).index.unlink()
    index.write(sweep, pd.DataFrame(), pd.DataFrame(columns=index.COLUMNS))
    assert not SweepPaths(sweep).index.exists()


def test_a_sweep_leaves_one(swept, read_in_full):
    assert SweepPaths(swept).index.is_file()
    assert SweepPaths(swept).index.stat().st_mode & 0o777 == 0o644
    loaded = dsnb.load_runs(swept)
    assert read_in_full == []
    assert len(loaded)


def test_runs_from_before_a_setting_have_what_it_was_then(sweep):
    """Their gradients were accumulated in bf16; no record says so."""
    for path in sweep.rglob("experiment.json"):
        record = records.read_json(path)
        del record["grad_accum_dtype"]
        path.write_text(records.line(record))
    runs = dsnb.load_runs(sweep)
    older = (runs["precision"] == "bf16") & (runs["grad_accum"] > 1)
    assert older.any()
    assert list(runs["grad_accum_dtype"]) == ["bf16" if one else "auto" for one in older]


def test_keys_of_deepspeeds_configuration_stay_columns(tmp_path):
    """They are columns of their runs only: the explorer's filters come from them."""
    folder = tmp_path / "sweep"
    made_up.write_folders(made_up.runs(4), folder, steps=3)
    key = {"zero_optimization.round_robin_gradients": True}
    for setting in sorted(folder.rglob("experiment.json"))[:2]:
        setting.write_text(records.line({**records.read_json(setting), "deepspeed": key}))
    load.write_index(folder)
    loaded = dsnb.load_runs(folder)
    assert sorted(loaded["deepspeed.zero_optimization.round_robin_gradients"].notna()) == [False, False, True, True]
    pd.testing.assert_frame_equal(loaded, directly(folder))
