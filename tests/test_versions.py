"""The comparison of DeepSpeed's versions, on tables with known answers, and its measurement with a worker by hand."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import versions, versions_measure
from benchmarks.versions_worker import SETTINGS

ARMS = ["0.13.1", "0.16.9", "0.17.6", "0.18.9", "0.19.8", "0.16.9 again"]
DRAWN = ["one-z1", "one-z3", "two-z1", "two-z3"]
ZERO_3 = [name for name in DRAWN if SETTINGS[name].stage == 3]


def rows_of(speeds, setting="one-z3", day="2026-01-01"):
    """Rows of a setting: speeds[arm] has the speed of each round."""
    return pd.DataFrame(
        {"measured": day, "setting": setting, "arm": arm, "round": number, "tokens_per_s": speed}
        for arm, of_arm in speeds.items()
        for number, speed in enumerate(of_arm)
    )


def drawn(generator, changes=None, noise=0.01, rounds=4):
    """Rows of a day: each setting and round has its own speed, each version its change in ZeRO 3."""
    tables = []
    for setting in DRAWN:
        drift = generator.normal(10, 0.1, rounds)
        speeds = {}
        for arm in ARMS:
            change = (changes or {}).get(arm, 0.0) if setting in ZERO_3 else 0.0
            speeds[arm] = np.exp(drift + math.log1p(change) + generator.normal(0, noise, rounds))
        tables.append(rows_of(speeds, setting))
    return pd.concat(tables, ignore_index=True)


def test_two_arms_are_compared_as_by_a_paired_t_test():
    base, other = [100.0, 200.0, 150.0], [103.0, 200.0, 159.0]
    found = versions.compared(rows_of({"0.16.9": base, "0.19.8": other}), "0.16.9").iloc[0]
    differences = np.log(other) - np.log(base)
    middle, error = differences.mean(), differences.std(ddof=1) / math.sqrt(3)
    assert found["change"] == pytest.approx(math.expm1(middle))
    # 4.302653 is the 97.5 % quantile of Student's t with two degrees of freedom.
    assert found["low"] == pytest.approx(math.expm1(middle - 4.302653 * error), rel=1e-4)
    assert found["high"] == pytest.approx(math.expm1(middle + 4.302653 * error), rel=1e-4)
    # With two degrees of freedom P(|T| > t) = 1 - t / sqrt(2 + t^2).
    t = middle / error
    assert found["p"] == pytest.approx(1 - t / math.sqrt(2 + t**2), rel=1e-3)
    assert found["rounds"] == 3


def test_a_drift_of_the_host_is_no_difference_of_versions():
    drift = np.array([100.0, 200.0, 400.0])
    rows = rows_of({"0.16.9": drift, "0.17.6": drift * 0.9, "0.19.8": drift * 1.1})
    rows = rows[~((rows["arm"] == "0.19.8") & (rows["round"] == 0))]
    found = versions.compared(rows, "0.16.9").set_index("arm")
    assert found["change"].to_dict() == pytest.approx({"0.17.6": -0.1, "0.19.8": 0.1})
    assert found["rounds"].to_dict() == {"0.17.6": 3, "0.19.8": 2}


def test_one_round_has_no_interval():
    found = versions.comparisons(rows_of({"0.16.9": [100.0], "0.19.8": [90.0]}), "0.16.9").iloc[0]
    assert found["change"] == pytest.approx(-0.1)
    assert math.isnan(found["low"])
    assert found["verdict"] == "too few rounds"
    assert versions.claim_verdict(found["low"], found["high"], found["rounds"]) == "too few rounds"


def test_holm_multiplies_the_smallest_by_the_number():
    corrected = versions.holm([0.01, 0.04, math.nan, 0.03, 0.005])
    assert corrected == pytest.approx([0.03, 0.06, math.nan, 0.06, 0.02], nan_ok=True)


def test_equal_versions_rarely_differ():
    generator = np.random.default_rng(1)
    days = 10
    alarms = 0
    for _ in range(days):
        found = versions.comparisons(drawn(generator), versions.BASE)
        alarms += bool((found["corrected"] < 0.05).any())
    assert alarms <= 2  # more than 2 of 10 at 5 % have a probability of 1.2 %


def test_a_slower_version_is_found_and_the_claim_confirmed():
    generator = np.random.default_rng(2)
    slow = dict.fromkeys(ARMS[1:], -0.10)
    table = drawn(generator, slow)
    found = versions.comparisons(table, versions.FAST)
    of_base = found[found["arm"] == versions.BASE].set_index("setting")
    says = []
    for name in DRAWN:
        row = of_base.loc[name]
        says.append(versions.claim_verdict(row["low"], row["high"], row["rounds"]))
    expected = ["confirmed" if name in ZERO_3 else "refuted" for name in DRAWN]
    assert says == expected
    assert (of_base.loc[ZERO_3, "verdict"] == "slower").all()
    assert versions.noise_line(table).startswith("0.16.9 against itself: 0 of 4 settings differ")


def test_three_rounds_are_too_few_for_a_verdict():
    table = drawn(np.random.default_rng(3), dict.fromkeys(ARMS[1:], -0.10), noise=0.001, rounds=3)
    found = versions.comparisons(table, versions.FAST)
    assert (found["high"] < 0.03).all()
    assert set(found["verdict"]) == {"too few rounds"}


def test_tables_name_what_did_not_run():
    rows = rows_of({"0.16.9": [100.0, 110.0], "0.19.8": [120.0, 130.0]}, "two-z3-acc8")
    failed = rows_of({"0.17.6": [math.nan]}, "two-z3-acc8")
    header, _, row = versions.speed_lines(pd.concat([rows, failed], ignore_index=True))
    assert header == "| per cent | 0.16.9, tokens/s | n | noise | 0.17.6 | 0.19.8 |"
    assert row.startswith("| ZeRO 3, GPT-2 124M, 4 x 1024, 8 accumulated, 2 GPUs | 105 | 2 | ")
    # Ratios of 1.2 and 130 / 110: the change is the root of their product.
    assert row.endswith("| did not run | +19.1 (+8.1 to +31.2) |")


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Replace the worker by a script of three lines, and install nothing as six versions."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, os, sys\n"
        "print(json.dumps({'deepspeed': os.environ['PYTHONPATH'].split(os.pathsep)[0][-6:]}))\n"
        "sys.stdout.flush()\n"
        "for line in sys.stdin:\n"
        "    setting = json.loads(line)['setting']\n"
        "    folder = os.environ['PYTHONPATH'].split(os.pathsep)[0]\n"
        "    if '0.13.1' in folder and setting['name'] == 'two-z1':\n"
        "        sys.exit(1)\n"
        "    if '0.17.6' in folder and setting['name'] == 'one-z1':\n"
        "        print(json.dumps({'error': 'no such stage'}), flush=True)\n"
        "    else:\n"
        "        row = {'name': setting['name'], 'tokens_per_s': 7.0, 'peak_gib': 1.5, 'before_gib': 0.5}\n"
        "        print(json.dumps({**row, 'losses': [3.0, 2.0]}), flush=True)\n"
    )
    monkeypatch.setattr(versions_measure, "WORKER", script)
    for version in versions_measure.VERSIONS:
        (tmp_path / f"ds-{version}" / "deepspeed").mkdir(parents=True)
    return tmp_path


def test_a_version_that_fails_stops_no_other(worker, monkeypatch):
    out = worker / "out"
    arguments = [str(out), "--folders", f"{worker}/ds-{{}}", "--logs", str(worker / "logs")]
    arguments += ["--rounds", "1", "--versions", "0.13.1", "0.16.9", "0.17.6"]
    monkeypatch.setattr("sys.argv", ["versions_measure", *arguments])
    versions_measure.main()
    table = versions.read_results([out], "2026-01-01")
    failed = table[table["error"].notna()]
    assert set(zip(failed["arm"], failed["setting"], strict=True)) == {
        ("0.13.1", "two-z1"),
        ("0.17.6", "one-z1"),
    }
    timed = table[table["tokens_per_s"] == 7].groupby("arm")["setting"].nunique()
    assert timed.to_dict() == {"0.13.1": 11, "0.16.9": 12, "0.16.9 again": 12, "0.17.6": 11}
    assert table["peak_gib"].max() == 1.0  # 1.5 less what was there before
    assert table["warm_loss"].max() == 2.0


def test_missing_versions_are_refused_before_the_work():
    with pytest.raises(SystemExit, match=r"no DeepSpeed in nowhere-0\.13\.1"):
        versions_measure.arms_of(["0.13.1"], "nowhere-{}")


def test_each_version_is_first_equally_often():
    firsts = [versions_measure.order(range(6), turn)[0] for turn in range(12)]
    assert [firsts.count(arm) for arm in range(6)] == [2] * 6


def test_rounds_needed_are_those_of_the_interval():
    # 2 x (1.96 x 0.1 / 0.05)^2 = 30.7 for a known noise; the unknown one adds a round or two.
    assert versions.rounds_needed(0.10, 0.05, arms=4) in (31, 32, 33)
    assert versions.rounds_needed(0.001, 0.05, arms=4) == 2
