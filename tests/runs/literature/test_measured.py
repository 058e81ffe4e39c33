"""Runs measured with dsnb as published tables: as they were loaded, with their steps."""

import numpy as np
import pandas as pd
import pytest

import dsnb
from benchmarks import dataset
from dsnb.explorer import single_runs
from dsnb.explorer.data import read
from dsnb.run_folder.columns import KEYS, RUN_COLUMNS
from dsnb.runs.literature import measured
from tests.support import made_up


@pytest.fixture(scope="module")
def runs():
    return dsnb.published("h200")


def test_every_run_tells_where_and_with_what_it_was_measured(runs):
    assert list(runs.columns)[: len(RUN_COLUMNS)] == RUN_COLUMNS
    assert all(name.startswith("deepspeed.") for name in runs.columns[len(RUN_COLUMNS) :])
    for name in ("git_commit", "host", "gpu_name", "driver", "torch", "deepspeed", "transformers", "date_utc"):
        assert runs[name].notna().all(), name
    assert set(runs["status"]) <= {"ok", "oom"}
    assert not runs.duplicated(KEYS).any()


def test_rates_agree_with_step_times_and_steps(runs):
    done = runs[runs["status"] == "ok"]
    tokens = done["global_batch_size"] * done["seq_len"]
    assert (done["tokens_per_s"] * done["step_time_s"] / tokens).to_numpy() == pytest.approx(1, rel=1e-4)
    steps = measured.steps("published: h200")
    timed = steps[steps["phase"] == "timed"].groupby(KEYS)["step_time_s"].agg(["mean", "size"])
    beside = done.set_index(KEYS)[["step_time_s", "timed_steps"]].join(timed)
    assert beside["mean"].to_numpy() == pytest.approx(beside["step_time_s"].to_numpy(), rel=1e-3)
    assert (beside["size"] == beside["timed_steps"]).all()


def test_losses_of_repeats_are_the_same(runs):
    """The same seed, data and code: what differs between repeats is the time, and how bf16 rounds in another order."""
    done = runs[runs["status"] == "ok"]
    first, second = (done[done["repeat"] == number].set_index(KEYS[:2])["loss_first"] for number in (1, 2))
    both = pd.concat([first, second], axis=1, join="inner").to_numpy()
    assert len(both) > 20
    assert both[:, 0] == pytest.approx(both[:, 1], rel=5e-3)


def test_a_published_run_opens_with_its_steps(runs):
    data = read(runs)
    position = int(np.flatnonzero(data.runs["status"] == "ok")[0])
    row = data.runs.iloc[position]
    shown = single_runs.load(data, position)
    assert len(shown["step"]) == row["warmup_steps"] + row["timed_steps"]
    assert shown["warm_steps"] == row["warmup_steps"]


@pytest.mark.parametrize("name", measured.OLDER)
def test_runs_of_older_code_say_so(name):
    notes = dsnb.published(name)["note"]
    assert notes.str.startswith(measured.OLDER_CODE).all()
    assert notes.str.contains("digits as the sweep printed them").sum() == (4 if name == "h200_memory" else 0)


def test_tables_without_steps_have_none():
    for source in ("published: h200_memory", "published: ../secret", "dsnb", "nan"):
        assert measured.steps(source).empty


def test_runs_that_are_added_again_are_further_repeats(tmp_path, monkeypatch):
    finished_sweep = tmp_path / "swept"
    made_up.write_folders(made_up.runs(12), finished_sweep, steps=20)
    monkeypatch.setattr("dsnb.run_folder.paths.literature", lambda name: tmp_path / f"{name}.csv")
    monkeypatch.setattr(measured, "_steps", measured._steps.__wrapped__)
    given, own = dsnb.load_runs(finished_sweep), dsnb.load_steps(finished_sweep)
    given = given[given["status"].isin(["ok", "oom"])]
    assert 0 < len(given) < 12  # a run that failed for another reason tells nothing of the GPU
    assert (
        dataset.add("h200-a", finished_sweep) == dataset.add("h200-b", finished_sweep, "beside another") == len(given)
    )
    table = measured.table("h200")
    assert len(table) == 2 * len(given)
    assert not table.duplicated(KEYS).any()
    assert list(table["host"]) == ["h200-a"] * len(given) + ["h200-b"] * len(given)
    assert table["note"].astype(str).str.endswith("beside another").sum() == len(given)
    assert table["tokens_per_s"].to_numpy() == pytest.approx(np.tile(given["tokens_per_s"], 2), rel=1e-5)
    steps = measured.steps("published: h200")
    assert len(steps) == 2 * len(own)
    assert set(steps.groupby(KEYS).size()) == set(own.groupby(KEYS).size())
