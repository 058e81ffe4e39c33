"""The bandwidth test: real ranks, known answers, and that it is no training run anywhere."""

import re
import shutil

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import metrics
from dsnb.measure.launcher import probe as launcher
from dsnb.measure.launcher.probe import SETTINGS, measure_bandwidth
from dsnb.results.runs.load import load_runs, load_steps
from dsnb.results.runs.sweeps import load_bandwidth
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.show.render.nodes import bandwidth as section
from tests.cli.test_app import dsnb
from tests.support.small_sweep import NAMES


def settings(**changes):
    return Experiment(**{**SETTINGS, "device": "cpu", "gpus": 2, "time_limit_s": 240.0, **changes})


@pytest.fixture(scope="module")
def measured(swept, tmp_path_factory):
    """Give a sweep of one run with a test of four ranks in it, and what was read of it before."""
    home = tmp_path_factory.mktemp("bandwidth") / "out"
    shutil.copytree(swept / NAMES[0] / "run1", home / NAMES[0] / "run1")
    before = load_runs(home), load_steps(home)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "WORKER", "tests.workers.fakes")
        patch.setenv("DSNB_TEST_FAKE", "brief")
        result = measure_bandwidth(settings(gpus=4), home)
    return home, result, before


def test_algbw_and_busbw_have_known_answers():
    """The rows are from the public output of all_reduce_perf on 16 H100 of two hosts, in place."""
    assert (metrics.algbw_gb_per_s(8e9, 2.0), metrics.algbw_gb_per_s(8, 0.0)) == (4.0, None)
    rates = [
        metrics.busbw_gb_per_s(algbw, ranks)
        for algbw, ranks in ((4.0, 2), (4.0, 8), (4.0, 1), (None, 8))
    ]
    assert rates == [4.0, 7.0, None, None]
    for message_bytes, time_us, algbw, busbw in [
        (2**20, 207.2, 5.06, 9.49),
        (2**30, 6737.4, 159.37, 298.82),
    ]:
        ours = metrics.algbw_gb_per_s(message_bytes, time_us / 1e6)
        assert ours == pytest.approx(algbw, abs=0.005)
        assert metrics.busbw_gb_per_s(ours, 16) == pytest.approx(busbw, abs=0.005)


def test_every_size_is_measured_and_right(measured):
    home, result, _ = measured
    assert result.status == "ok", result.message()
    assert result.summary == {}
    assert result.run_dir.parent == home / "bandwidth"
    rows = json_files.read_lines(RunPaths(result.run_dir).bandwidth)
    sizes = [2**power for power in range(3, 25)]  # by default to 16 MiB on a CPU
    gathered = [("all-gather", size) for size in sizes[1:]]
    assert [(row["collective"], row["bytes"]) for row in rows] == [
        ("all-reduce", size) for size in sizes
    ] + gathered
    for row in rows:
        assert (row["count"], row["dtype"], row["ranks"], row["errors"]) == (
            row["bytes"] / 4,
            "float32",
            4,
            0,
        )
        assert 1 <= row["calls"] <= 20
        assert row["algbw_gb_per_s"] == pytest.approx(row["bytes"] / row["time_us"] / 1e3)
        sent = 0.75 if row["collective"] == "all-gather" else 1.5
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] * sent)


def test_it_is_no_training_run_and_the_newest_one_is_shown(measured, swept):
    home, result, (runs, steps) = measured
    assert list(section(swept)) == []  # without a test
    assert load_runs(home).equals(runs)
    assert load_steps(home).equals(steps)
    assert load_runs(result.run_dir).empty
    heading, _ = (part._repr_html_() for part in section(home))
    assert "Collectives over 4 ranks (gloo on CPUs)" in heading
    newer = RunPaths(shutil.copytree(result.run_dir, result.run_dir.with_name("run2")))
    lines = [
        {name: row[name] for name in row if name != "collective"}
        for row in json_files.read_lines(newer.bandwidth)
    ]
    json_files.write_lines(newer.bandwidth, lines[:22])  # as an earlier version wrote it
    assert set(load_bandwidth(home)["collective"]) == {"all-reduce"}
    assert set(load_bandwidth(result.run_dir)["collective"]) == {"all-reduce", "all-gather"}


@pytest.mark.process
def test_a_wrong_sum_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "WORKER", "tests.workers.fakes")
    monkeypatch.setenv("DSNB_TEST_FAKE", "wrong_sum")
    result = measure_bandwidth(settings(), tmp_path, most_bytes=256)
    rows = json_files.read_lines(RunPaths(result.run_dir).bandwidth)
    assert [(row["bytes"], row["errors"]) for row in rows] == [
        (8, 0),
        (16, 0),
        (32, 0),
        (64, 2),
    ]  # on both ranks
    assert result.status == "failed"
    assert result.cause.endswith(
        ": ArithmeticError: the all-reduced sum of 64 bytes is wrong in 2 elements"
    )
    assert load_bandwidth(tmp_path).empty


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(
        SettingsError,
        match=r"^gpus is 1: an all-reduce needs at least 2 ranks; set it to 2 or more$",
    ):
        measure_bandwidth(settings(gpus=1), tmp_path)
    with pytest.raises(
        SettingsError, match=r"^most_bytes is 7: choose a number from 8 to 17179869184$"
    ):
        measure_bandwidth(settings(), tmp_path, most_bytes=7)
    assert list(tmp_path.iterdir()) == []


def test_the_command_prints_nccl_tests_columns(measured, monkeypatch):
    monkeypatch.setattr(launcher, "measure_bandwidth", lambda *_, **__: measured[1])
    code, out, err = dsnb(monkeypatch, "bandwidth", "--set", "device=cpu")
    assert code == 0, err
    heads, *rows = (re.split(r"\s{2,}", line.strip()) for line in out.strip().splitlines())
    assert heads == [
        "size (B)", "collective", "count (elements)", "type", "redop", "time (us)", "algbw (GB/s)", "busbw (GB/s)",
        "#wrong",
    ]  # fmt: skip
    assert rows[0][:5] == ["8", "all-reduce", "2", "float", "sum"]
    assert rows[-1][:5] == ["16777216", "all-gather", "4194304", "float", "none"]
