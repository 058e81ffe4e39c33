"""The published rows as data: schema, sources, models, and which of them dsnb has seen."""

import json
import math
import re

import jsonschema
import pytest

from benchmarks.outside import fitting, marks, rows
from benchmarks.outside.rows import PROGRAMS
from benchmarks.planners import registry
from dsnb.prediction import gpus

CARD = (rows.HERE / "README.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def published():
    return json.loads(rows.ROWS.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def schema():
    return json.loads((rows.HERE / "schema.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def known():
    return rows.read()


def test_rows_follow_the_schema(published, schema):
    jsonschema.validate(published, schema)
    for wrong in ({"tps": 0}, {"gpus": 0}, {"link": "string"}, {"colour": "red"}, {"mem": "40 GB"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate([{**published[0], **wrong}], schema)


def test_identifiers_are_unique_and_those_of_the_source(published):
    identifiers = [row["id"] for row in published]
    assert len(set(identifiers)) == len(identifiers)
    sources = json.loads((rows.HERE / "sources.json").read_text(encoding="utf-8"))
    assert sum(source["rows"] for source in sources) == len(published)
    for source in sources:
        own = [row for row in published if row["source"] == source["source"]]
        assert len(own) == source["rows"]
        assert all(row["id"].startswith(f"{source['ids']}-") for row in own)
        assert source["url"].startswith("https://")
        project = source["source"].split()[0]
        assert project in source["url"]
        assert "licence" in source
    assert {row["source"] for row in published} == {source["source"] for source in sources}


def test_models_and_gpus_of_rows_are_known(published):
    for row in published:
        config = json.loads((rows.HERE / row["cfg"]).read_text(encoding="utf-8"))
        assert config["model_type"]
        assert gpus.find(row["gpu"]).half_tflops > 0
        assert bool(row["memkind"]) == (row["mem"] is not None or row["oom"])


def test_the_card_says_what_the_rows_are(published, schema):
    timed = [row for row in published if row["tps"]]
    peaks = [row for row in published if row["mem"]]
    text = " ".join(CARD.split())
    assert f"{len(published)} measurements" in text
    assert f"{len(timed)} with a speed, {len(peaks)} with a peak of memory, one that ran" in text
    assert sum(row["oom"] for row in published) == 1
    a100 = sum(row["gpu"].startswith("A100") for row in timed)
    assert f"{a100} of the {len(timed)} speeds are of A100" in text
    named = set(re.findall(r"`(\w+)`", CARD.partition("## Fields")[2].partition("##")[0]))
    assert set(schema["items"]["properties"]) <= named


def test_marks_of_rows_are_those_of_the_rules(published, known):
    for row, read in zip(published, known, strict=True):
        assert row["dsnb_fitted"] == marks.marks(read), row["id"]


def test_rows_that_a_command_fits_are_marked(published, known):
    """Each row that `--fit` and the ranges of a card use, found the plain way."""
    for row, read in zip(published, known, strict=True):
        constants = row["dsnb_fitted"]["speed"]
        is_fitted = bool(row["tps"]) and not read.offloads
        is_a100 = row["gpu"].startswith("A100")
        assert (marks.GAINS in constants) == (is_fitted and is_a100)
        is_triton = row["gpu"] == "H100" and row["source"].startswith("mosaicml/llm-foundry")
        assert (marks.TRITON in constants) == is_triton
        if row["tps"] is None:
            assert constants == []
    cards = [program["source"] for program in PROGRAMS["programs"] if "rates" in program]
    marked = {row["source"] for row in published if marks.CARD in row["dsnb_fitted"]["speed"]}
    assert [card for card in cards for source in marked if source.startswith(card)] == cards


def test_a_row_is_predicted_without_its_source(known):
    """Twice the measured speeds of one source leave its own predictions, and change those of another one."""
    names = fitting.CHIPS[0]
    fms = [row for row in known if row.source.startswith("pytorch/torchtitan docs")]
    others = [row for row in fitting.fittable(known, names) if row not in fms][::4]
    some = [*fms, *others]
    doubled = []
    for row in some:
        speed = row.published["tps"] * (2 if row in fms else 1)
        doubled.append(rows.replace(row, published={**row.published, "tps": speed}))
    before = marks.left_out(some)
    after = marks.left_out(doubled)
    for place in range(len(fms)):
        assert after[place] == pytest.approx(before[place], rel=1e-6)
    changed = [after[place] / before[place] for place in before if place >= len(fms)]
    assert max(abs(ratio - 1) for ratio in changed) > 1e-4


def test_committed_speeds_without_the_source_are_predicted_again(known):
    committed = registry.predictions("dsnb-left-out")["tokens_per_s"]
    found = marks.left_out(known)
    for place, row in enumerate(known):
        if place in found:
            assert committed[place] == pytest.approx(found[place], rel=0.01), row.published["id"]
        else:
            assert math.isnan(committed[place])
    left = [row for place, row in enumerate(known) if row.published["tps"] and place not in found]
    assert left
    assert all(marks.is_chosen(row) for row in left)
