"""The file of tuned numbers: complete, the only place of such numbers, and written by the commands that fit them."""

import ast
import datetime
import re

import pytest

from benchmarks import tuning
from dsnb.prediction import tuned
from tests import ROOT

MODULES = sorted((ROOT / "dsnb" / "prediction").rglob("*.py"))
FACTS = {
    "accuracy.MIN_PEAKS", "accuracy.MIN_SETTINGS", "accuracy.MOST_NAMED",
    "brief.LEAST_PCT", "brief.MANY_ASSUMED", "brief.MAX_LINES",
    "calibration.MAX_FITS", "calibration.MIN_CALIBRATED",
    "calibration.STEPS", "claims.MOST_SHARE", "gaps.NETWORKS_GBIT", "gpus.NODE_GPUS",
    "host_memory.PINNED_SHARE", "loop.MOST_TRACED", "predicted.ANY_TOKENS",
    "predicted.MAX_PREDICTED", "predicted.MAX_SETTINGS", "ratio_errors.MIN_PAIRS", "speed_range.STUDENT",
    "accounting.MOST_READINGS", "accounting.PASSES", "accounting.RECOMPUTED", "setup.BILLION", "step_time.HOST_CASTS",
    "verdict.MOST_GAPS", "verdict.MOST_SHOWN",
}  # fmt: skip
"""Numbers that are no result of a measurement or fit: limits of effort and display, and what follows by arithmetic."""
OF_OTHERS = {"advice", "candidates", "recommend", "search", "space", "traces", "variants"}
"""Modules whose numbers are conventions and counts."""


def numbers_of(table):
    return {name: row for name, row in tuned.TUNED[table].items() if isinstance(row, dict)}


def single_tables():
    return [name for name in tuned.TUNED if numbers_of(name) and name not in NESTED]


NESTED = ("reserved", "errors", "covered", "ranges")
LISTS = [tuned.TUNED[name] for name in tuned.TUNED if not numbers_of(name)]
LISTS += [table for name in NESTED for table in tuned.TUNED[name].values()]


def test_every_number_has_a_unit_a_meaning_a_source_and_a_date():
    for name in single_tables():
        table = tuned.TUNED[name]
        for row in numbers_of(name).values():
            assert {"value", "unit", "meaning"} <= row.keys(), (name, row)
            assert row.get("source") or table["source"]
            assert datetime.date.fromisoformat(row.get("date") or table["date"])
    for table in LISTS:
        assert table["source"]
        assert datetime.date.fromisoformat(table["date"])
        columns = table.get("columns")
        assert columns is None or {len(row) for row in tuned.rows(table).values()} == {len(columns)}


def test_every_number_is_used():
    code = "".join(path.read_text() for path in MODULES)
    for table in single_tables():
        for name in numbers_of(table):
            assert re.search(rf"\b{name}\b", code), f"{table}.{name}"


def constants(path):
    """Yield the names of a module's constants that are whole numbers or hold others."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            is_number = isinstance(node.value, ast.Constant | ast.BinOp | ast.UnaryOp)
            types = {
                type(one.value) for one in ast.walk(node.value) if isinstance(one, ast.Constant)
            }
            if float in types or (is_number and int in types):
                yield f"{path.stem}.{ast.unparse(target)}"


def test_no_module_of_predictions_has_a_tuned_number_of_its_own():
    found = {name for path in MODULES if path.stem not in OF_OTHERS for name in constants(path)}
    assert found == FACTS


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Let `benchmarks.tuning` write a copy."""
    copy = tmp_path / "tuned.toml"
    copy.write_text(tuned.FILE.read_text())
    monkeypatch.setattr(tuning, "FILE", copy)
    return copy


def test_what_is_written_is_read_again_and_nothing_else_changes(file):
    before = file.read_text()
    rates = {"DDP": [1, 2.0, 3.0], "all": [4, 5.0, 6.0]}
    tuning.write_rows("errors.peaks", rates)
    tuning.write_values("constants", {"overlap": 0.5})
    tuning.write_setting("constants", "settings", 300)
    found = tuned.tomllib.loads(file.read_text())
    assert tuned.rows(found["errors"]["peaks"]) == rates
    assert found["constants"]["overlap"]["value"] == 0.5
    assert found["constants"]["settings"] == 300
    today = datetime.date.today().isoformat()
    assert (found["errors"]["peaks"]["date"], found["constants"]["date"]) == (today, today)
    found["errors"]["peaks"] = tuned.TUNED["errors"]["peaks"]
    found["constants"] = tuned.TUNED["constants"]
    assert found == tuned.TUNED
    assert [line for line in before.splitlines() if line.startswith("#")] == [
        line for line in file.read_text().splitlines() if line.startswith("#")
    ]


def test_the_same_numbers_again_change_no_line(file):
    before = file.read_text()
    for name, table in tuned.TUNED["errors"].items():
        assert tuning.write_rows(f"errors.{name}", tuned.rows(table)) == 0
    for name, table in tuned.TUNED["covered"].items():
        assert tuning.write_rows(f"covered.{name}", tuned.rows(table)) == 0
    values = {name: row["value"] for name, row in numbers_of("constants").items()}
    assert tuning.write_values("constants", values) == 0
    assert file.read_text() == before
