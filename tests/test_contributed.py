"""Contributed rows: the tree is valid, broken ones are found, and each setting is compared with its prediction."""

import json
import math
import re
import shutil
import statistics
import subprocess
import sys

import jsonschema
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dsnb
from benchmarks import prediction_errors
from benchmarks.contributed import __main__ as command
from benchmarks.contributed import card, errors, fits, tree
from dsnb.results.contribution import package
from dsnb.results.contribution import rows as contributed_rows
from dsnb.settings.records import contributed
from dsnb.settings.records.columns import RUNS
from tests import ROOT
from tests.support import contributed as made

NAME = "octocat-h200"


def test_the_tree_is_valid_and_its_card_counts_it():
    assert tree.tree_problems() == []
    text = (tree.HERE / tree.CARD).read_text()
    rows = tree.load()
    assert card.updated(text, rows) == text
    fields = card.front_matter(text)
    assert fields["license"] == package.LICENCE.lower()
    assert fields["size_categories"] == [card.size(len(rows))]
    (files,) = [config["data_files"] for config in fields["configs"]]
    assert {path.name for path in tree.HERE.glob(files)} <= {package.ROWS}


def test_the_schema_is_that_of_the_columns():
    schema = json.loads((tree.HERE / tree.SCHEMA).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == contributed.schema()
    assert list(schema["properties"]) == contributed_rows.SCHEMA.names
    own = {"link", "single"}
    assert {*schema["properties"]} - own <= {*RUNS}
    described = schema["properties"]["tokens_per_s"]["description"]
    assert described == RUNS["tokens_per_s"].meaning
    assert all(described["description"] for described in schema["properties"].values())


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return a tree with a contribution of seven runs and a shortage of memory, and its rows."""
    place = tmp_path_factory.mktemp("packed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        found = package.of_folder(made.write(place / "outputs"), "octocat")
    root = place / "tree"
    found.write(root / NAME)
    (root / NAME / package.READABLE).unlink()
    for name in (tree.SCHEMA, tree.CHANGES):
        shutil.copy(tree.HERE / name, root / name)
    with (root / tree.CHANGES).open("a") as file:
        file.write(f"* 2026-11-29: `{NAME}`, seven runs.\n")
    return root, found


@pytest.fixture
def root(packed, tmp_path):
    """Return a copy of the tree, to be broken."""
    return shutil.copytree(packed[0], tmp_path / "tree")


def test_rows_are_valid_and_come_back_as_runs(packed):
    root, found = packed
    assert tree.tree_problems(root) == []
    table = tree.load(root)
    schema = contributed.schema()
    for row in found.rows:
        jsonschema.validate(row, schema, jsonschema.Draft202012Validator)
    ok = table[table["status"] == "ok"]
    speeds = [row["tokens_per_s"] for row in made.published() if row["status"] == "ok"]
    assert sorted(ok["tokens_per_s"]) == sorted(speeds)
    assert set(ok["experiment"]) == {f"gpt2_{made.REPEATED}"}
    assert set(table["source"]) == {f"contributed: {NAME}"}
    assert set(table["parallelism"]) == {"ZeRO 0", "ZeRO 1"}
    assert dsnb.summarize(table)["n"].tolist() == [0, 7]


def repack(root, change):
    """Change the rows of the contribution and pack them again, with a manifest that fits."""
    folder = root / NAME
    some = tree.read(folder)
    change(some)
    raw = contributed_rows.parquet(some)
    (folder / package.ROWS).write_bytes(raw)
    manifest = package.manifest(some, raw, "octocat")
    (folder / package.MANIFEST).write_text(json.dumps(manifest))


def setting_all(**values):
    def change(some):
        for row in some:
            if row["status"] == "ok":
                row.update(values)

    return change


BATCH = 32 * 1024
FORGED = {
    "rows without a run": (lambda some: some.clear(), "it has no rows: remove it"),
    "a host's name": (setting_all(host="login7"), "host is 'login7': a text of this column has to"),
    "a path": (setting_all(cpu="/home/jdoe"), "cpu is '/home/jdoe': a text of this column has to"),
    "a line break": (
        setting_all(oom_phase="loss\n"),
        "oom_phase is 'loss\\n': a text of this column",
    ),
    "a private model": (setting_all(model="me/mine"), "model is 'me/mine': rows are compared"),
    "changed files": (setting_all(git_commit="abc"), "git_commit is 'abc': a text of this column"),
    "no host": (setting_all(host=None), "host is unknown: a contributed row needs it"),
    "another status": (setting_all(status="nan"), "status is 'nan': a text of this column has to"),
    "too fast": (
        setting_all(mfu=1.5),
        "mfu is 150.0 %: a GPU cannot reach 100 % of its data sheet",
    ),
    "tokens": (
        setting_all(tokens_per_s=1e6, step_time_mean_s=0.066),
        f"tokens_per_s x step_time_mean_s is 66,000 tokens: a batch of this setting has {BATCH:,}; run",
    ),
    "memory": (
        setting_all(peak_allocated_gib=500.0),
        "peak_allocated_gib is 500.0 GiB: NVIDIA H200",
    ),
    "a GPU": (setting_all(gpu_name="Z9000"), "gpu_name is 'Z9000': only GPUs with a data sheet"),
    "compiled": (
        setting_all(recompilations=3.0),
        "it was disturbed (recompiled: 3 graphs compiled",
    ),
    "a mark": (
        setting_all(single=True),
        "single is True: it follows from the runs; pack them again",
    ),
    "a choice": (
        setting_all(precision="int4"),
        "precision is 'int4': allowed are auto, fp32, tf32",
    ),
    "a negative": (setting_all(micro_batch_size=-1), "micro_batch_size is -1: give a whole number"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_rows_are_found(case, root):
    change, words = FORGED[case]
    repack(root, change)
    found = tree.problems(root / NAME)
    assert found
    assert all(problem.startswith(f"{NAME}: ") for problem in found)
    assert [problem for problem in found if words in problem]


def test_forged_files_are_found(root):
    folder = root / NAME
    (folder / "more.txt").write_text("")
    words = (
        "it holds manifest.json, more.txt, rows.parquet: keep manifest.json and rows.parquet only"
    )
    assert tree.problems(folder) == [f"{NAME}: {words}"]
    (folder / "more.txt").unlink()
    manifest = json.loads((folder / package.MANIFEST).read_text())
    changed = {**manifest, "sha256": "0", "runs": 9, "licence": "MIT", "more": 1}
    (folder / package.MANIFEST).write_text(json.dumps(changed))
    assert tree.problems(folder) == [
        f"{NAME}: manifest.json: licence is 'MIT': it should be 'CC-BY-4.0'",
        f"{NAME}: manifest.json: sha256 is '0': it should be {manifest['sha256']!r}",
        f"{NAME}: manifest.json: runs is 9: it should be 8",
        f"{NAME}: manifest.json: more is 1: it should be None",
    ]
    (folder / package.MANIFEST).write_text("[]")
    assert tree.problems(folder) == [f"{NAME}: manifest.json holds no object: pack the rows again"]
    (folder / package.ROWS).write_bytes(b"PAR1")
    assert "is no Parquet file that can be read" in tree.problems(folder)[0]
    (folder / package.ROWS).unlink()
    (folder / package.ROWS).symlink_to("/etc/passwd")
    assert "keep manifest.json and rows.parquet only" in tree.problems(folder)[0]


def test_other_columns_and_sizes_are_refused_before_they_are_read(root, monkeypatch):
    folder = root / NAME
    table = pq.read_table(folder / package.ROWS)
    pq.write_table(table.append_column("user", pa.array(["jdoe"] * 8)), folder / package.ROWS)
    words = "rows.parquet differs from schema.json in user: pack it again with this version of dsnb"
    assert tree.problems(folder) == [f"{NAME}: {words}"]
    monkeypatch.setattr(tree, "MAX_ROWS", 7)
    assert "has 8 rows of" in tree.problems(folder)[0]
    monkeypatch.setattr(tree, "MAX_BYTES", 100)
    assert tree.problems(folder) == [f"{NAME}: it has more than 100 bytes"]


def test_a_run_is_there_once_and_each_folder_in_the_changelog(root):
    shutil.copytree(root / NAME, root / "again")
    found = tree.tree_problems(root)
    assert len([problem for problem in found if "has the figures of another row" in problem]) == 7
    assert "CHANGELOG.md does not name `again`: add a line about it" in found
    (root / tree.SCHEMA).write_text("{}")
    (root / tree.CHANGES).write_text("")
    found = tree.tree_problems(root)
    assert f"schema.json is not that of the columns: {tree.WRITE}" in found
    digest = tree.schema_digest()
    assert f"CHANGELOG.md does not name the schema {digest}: {tree.WRITE}" in found
    (root / NAME).rename(root / "Not a name")
    assert "the folder's name has other characters" in " ".join(tree.tree_problems(root))


def predicting(monkeypatch, tokens_per_s, peak_gib):
    """Predict the same figures of every setting; return the list of what is asked."""
    asked = []

    def predict(experiments, gpu, *, link, probe):
        asked.append((experiments[0].name_with_model, gpu, link, probe))
        figures = {"tokens_per_s": tokens_per_s, "peak_allocated_gib": peak_gib}
        figures |= {"tokens_per_s_low": tokens_per_s / 3, "tokens_per_s_high": 2 * tokens_per_s}
        return pd.DataFrame([figures])

    monkeypatch.setattr(dsnb, "predict", predict)
    return asked


def test_the_command_prints_each_setting_and_the_errors(packed, monkeypatch):
    predicting(monkeypatch, 1_000_000.0, 20.0)
    head, setting, times, peaks, fitted = command.lines(packed[0])
    assert head == "8 rows of 1 contribution"
    speeds = [row["tokens_per_s"] for row in made.published() if row["status"] == "ok"]
    median = statistics.median(speeds)
    assert setting == (
        f"{NAME}: gpt2_{made.REPEATED} on NVIDIA H200, n = 7: {median:,.0f} tokens/s, predicted "
        f"1,000,000 ({1e8 / median - 100:+.1f} %, within the range); 18.1 GiB, predicted 20.0 (+10.3 %)"
    )
    off = 1e8 / median - 100
    assert times == f"step times: {off:.1f} % off on average, {off:.1f} % at worst, 1 setting"
    assert peaks == "peak memory: 10.3 % off on average"
    assert fitted == "GPUs with 2 hosts or more, for fits: NVIDIA H200"
    predicting(monkeypatch, 100_000.0, 20.0)
    assert "outside the range" in command.lines(packed[0])[1]


def test_errors_by_hand(packed, monkeypatch):
    """Twice the median speed is a step of half the time, which is 100 % off as a factor."""
    rows = tree.load(packed[0])
    median = rows["tokens_per_s"].median()
    peak_gib = rows[rows["status"] == "ok"]["peak_allocated_gib"].median()
    asked = predicting(monkeypatch, 2 * median, 1.1 * peak_gib)
    (line,) = errors.compared(rows)
    assert asked == [(f"gpt2_{made.REPEATED}", "NVIDIA H200", "nvlink", False)]
    assert (line.contribution, line.runs, line.in_range) == (NAME, 7, True)
    assert (line.speed_error_pct, line.memory_error_pct) == pytest.approx((100, 10))
    of_speed = errors.speed_error([line])
    assert (of_speed.mean_pct, of_speed.bias_pct) == (100, -50)
    assert errors.memory_error_pct([line]) == pytest.approx(10)
    assert errors.speed_error([]) is None
    assert math.isnan(errors.memory_error_pct([]))


def test_a_setting_that_cannot_be_predicted_says_why(packed):
    rows = tree.load(packed[0]).assign(link="string")
    (line,) = errors.compared(rows)
    assert line.problem.startswith("link is 'string': use nvlink")
    assert math.isnan(line.speed_error_pct)


@pytest.mark.process
def test_a_contribution_is_predicted_as_any_other_setting(packed):
    """The rows are those of the data set, so their prediction has the error that it has there."""
    (line,) = errors.compared(tree.load(packed[0]))
    source = [row for row in made.published() if row["status"] == "ok"]
    runs = prediction_errors.median_runs(pd.DataFrame(source))
    (error_pct,) = prediction_errors.errors_of(runs)
    step_s = runs[0].step_time_s
    predicted = BATCH / (step_s * (1 + error_pct / 100))
    assert line.predicted_tokens_per_s == pytest.approx(predicted, rel=1e-3)
    assert line.problem == ""
    assert abs(line.memory_error_pct) < 10


ROW = {"status": "ok", "single": False, "gpu_name": "NVIDIA H100 80GB HBM3", "host": "a"}


@pytest.mark.parametrize(
    ("changes", "used"),
    [
        ([{}, {}], []),
        ([{}, {"host": "b"}], [0, 1]),
        ([{}, {"host": "b", "gpu_name": "H100"}], [0, 1]),
        ([{}, {"host": "b", "gpu_name": "NVIDIA H200"}], []),
        ([{}, {"host": "b", "single": True}], []),
        ([{}, {"host": "b", "status": "oom"}], []),
        ([{}, {"host": "b"}, {"gpu_name": "NVIDIA H200", "host": "c"}], [0, 1]),
        ([{}, {"host": "b"}, {"single": True}], [0, 1]),
    ],
)
def test_fits_use_rows_from_two_hosts_on(changes, used):
    rows = pd.DataFrame([{**ROW, **change} for change in changes])
    assert fits.for_fits(rows).index.tolist() == used
    assert fits.for_fits(rows, "H100").index.tolist() == used
    assert fits.for_fits(rows, "A100").empty


def test_the_fit_on_h200_takes_contributed_rows_of_two_hosts(packed, monkeypatch):
    own = len(prediction_errors.h200_runs(with_held_out=False))
    rows = tree.load(packed[0])
    monkeypatch.setattr(tree, "load", lambda: rows)
    assert rows["host"].nunique() > 1
    assert len(prediction_errors.fitted_runs()) == own + 1
    monkeypatch.setattr(tree, "load", lambda: rows.assign(host="host-000000000000"))
    assert len(prediction_errors.fitted_runs()) == own


def test_sizes_and_counts_of_the_card(packed):
    assert card.size(0) == card.size(999) == "n<1K"
    assert card.size(1000) == "1K<n<10K"
    rows = tree.load(packed[0])
    sentence = "8 rows of 1 contribution, measured on 7 hosts with NVIDIA H200."
    assert card.counts(rows) == sentence
    text = (tree.HERE / tree.CARD).read_text()
    assert sentence in card.updated(text, rows)
    assert card.updated(card.updated(text, rows), tree.load()) == text
    many = pd.concat([rows] * 200)
    assert card.front_matter(card.updated(text, many))["size_categories"] == ["1K<n<10K"]


@pytest.mark.process
def test_the_command_validates_the_tree():
    words = [sys.executable, "-m", "benchmarks.contributed"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=True)
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(r"\d+ rows? of \d+ contributions?", first)
    assert last.startswith("GPUs with 2 hosts or more, for fits: ")
