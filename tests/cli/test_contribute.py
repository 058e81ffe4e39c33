"""`dsnb contribute`: it shows every column before it writes, and prints the link that opens an issue."""

import csv
import io
from urllib.parse import unquote

import pandas as pd
import pytest

from dsnb.cli.contribute import values_text
from dsnb.results.contribution import link, package
from tests.cli.test_app import dsnb
from tests.support import contributed as made

ASKED = ("--contributor", "octocat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("outputs"))


@pytest.fixture(autouse=True)
def own_salt(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def test_without_a_folder_it_shows_every_column_and_writes_nothing(monkeypatch, folder, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = dsnb(monkeypatch, "contribute", folder, *ASKED)
    assert (code, err) == (0, "")
    assert [path.name for path in tmp_path.iterdir()] == ["config"]  # the salt
    head, *lines = out.splitlines()
    columns = package.of_folder(folder, "octocat").table().columns
    assert head == f"Would leave this machine: 8 rows of {len(columns)} columns, 7 hosts"
    assert [line.split()[0] for line in lines[: len(columns)]] == list(columns)
    shown = [line.split(maxsplit=1) for line in lines]
    assert ["model", "gpt2-xl, gpt2"] in shown
    assert ["licence", "CC-BY-4.0"] in shown
    (staying,) = [line for line in lines if line.startswith("Stays here: ")]
    assert "run_dir, variable CUDA_HOME, " in staying
    leaving = out.replace(staying, "")
    assert not [secret for secret in made.SECRETS if secret in leaving]
    assert lines[-1].startswith("Nothing is written yet.")


def test_with_a_folder_it_writes_three_files_and_prints_the_link(monkeypatch, folder, tmp_path):
    target = tmp_path / "new"
    url = "https://example.org/someone/dsnb"
    words = (folder, *ASKED, "--output", target, "--project", url)
    code, out, _ = dsnb(monkeypatch, "contribute", *words)
    assert code == 0
    assert {path.name for path in target.iterdir()} == {"manifest.json", "rows.csv", "rows.parquet"}
    opened = out.splitlines()[-1]
    assert opened.startswith(f"{url}/issues/new?")
    assert "Contributed rows: 8 runs of 2 settings on NVIDIA H200" in unquote(opened)
    rows = list(csv.DictReader(io.StringIO((target / "rows.csv").read_text())))
    speeds = [row["tokens_per_s"] for row in made.published() if row["status"] == "ok"]
    assert sorted(float(row["tokens_per_s"]) for row in rows if row["tokens_per_s"]) == sorted(
        speeds
    )
    code, _, err = dsnb(monkeypatch, "contribute", *words)
    assert (code, err) == (1, f"error: {target} exists: name a folder that does not\n")


def test_without_a_known_repository_it_says_what_to_give(monkeypatch, folder, tmp_path):
    monkeypatch.setattr(link, "repository", lambda: None)
    words = (folder, *ASKED, "--output", tmp_path / "new")
    _, out, _ = dsnb(monkeypatch, "contribute", *words)
    words = "This version names no repository: --project URL prints the link that opens an issue."
    assert out.splitlines()[-1] == words


def test_the_repository_is_that_of_the_package(monkeypatch):
    class About:
        def get_all(self, name):
            assert name == "Project-URL"
            return [
                "Documentation, https://example.org/docs",
                "Repository, https://example.org/a/b",
            ]

    monkeypatch.setattr(link.metadata, "metadata", lambda _: About())
    assert link.repository() == "https://example.org/a/b"


def test_refusals_are_one_line_each_and_come_before_the_work(monkeypatch, tmp_path):
    changes = {"environment": lambda record: record.update(git_commit="0-dirty", host="h")}
    folder = made.write(tmp_path / "outputs", changes, made.published()[:2])
    words = (folder, *ASKED, "--output", tmp_path / "new")
    code, out, err = dsnb(monkeypatch, "contribute", *words)
    assert (code, out) == (1, "")
    assert [line.partition(":")[0] for line in err.splitlines()] == ["error", "error"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outputs"]
    code, _, err = dsnb(monkeypatch, "contribute", *words, "--link", "string")
    assert err.startswith("error: link is 'string': use nvlink, pcie, ")


def test_values_of_a_column_are_all_there_or_a_range():
    assert values_text(pd.Series(["b", "a", "b", None])) == "b, a (missing in 1)"
    assert values_text(pd.Series([2.0, 1.5, 2.0])) == "1.5, 2"
    assert values_text(pd.Series(range(7))) == "0 to 6 (7 different numbers)"
    assert values_text(pd.Series(range(6))) == "0, 1, 2, 3, 4, 5"
