"""What `dsnb contribute` packs: rows with the figures of the runs, refusals with a reason, and no private name."""

import hashlib
import json
import os
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest

from dsnb.base.errors import SettingsError
from dsnb.results.contribution import hosts, link, package, rows
from dsnb.settings.records import contributed
from tests.support import contributed as made

URL = "https://example.org/someone/dsnb"


@pytest.fixture(autouse=True)
def own_salt(tmp_path, monkeypatch):
    """Keep the salt of these tests out of the user's configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made.write(tmp_path_factory.mktemp("outputs"))


@pytest.fixture
def found(folder):
    return package.of_folder(folder, "octocat")


def test_rows_have_the_figures_of_the_runs(found):
    measured = {row["tokens_per_s"]: row for row in made.published() if row["status"] == "ok"}
    ok = [row for row in found.rows if row["status"] == "ok"]
    assert len(measured) == len(ok) == 7
    for row in ok:
        source = measured[row["tokens_per_s"]]
        for name in ("step_time_mean_s", "peak_allocated_gib", "mfu", "timed_s", "git_commit"):
            assert row[name] == source[name], name
    assert sorted(row["repeat"] for row in ok) == [1, 2, 3, 4, 5, 6, 7]
    (shortage,) = [row for row in found.rows if row["status"] == "oom"]
    assert (shortage["tokens_per_s"], shortage["oom_phase"]) == (None, "loss")
    assert {row["single"] for row in found.rows} == {False}
    assert {row["variables"] for row in found.rows} == {"NCCL_NVLS_ENABLE=0 OMP_NUM_THREADS=4"}
    assert {len(row["date_utc"]) for row in found.rows} == {len("2026-11-24")}


def test_the_manifest_describes_the_file(found, tmp_path):
    found.write(tmp_path / "new")
    raw = (tmp_path / "new" / package.ROWS).read_bytes()
    manifest = json.loads((tmp_path / "new" / package.MANIFEST).read_text())
    assert manifest["sha256"] == hashlib.sha256(raw).hexdigest()
    assert manifest["bytes"] == len(raw)
    assert (manifest["runs"], manifest["settings"], manifest["single"]) == (8, 2, 0)
    assert manifest["hosts"] == len({row["host"] for row in made.published()}) == 7
    assert (manifest["licence"], manifest["contributor"]) == ("CC-BY-4.0", "octocat")
    assert pq.read_table(BytesIO(raw)).to_pylist() == found.rows
    assert pq.read_schema(BytesIO(raw)).metadata is None
    assert pq.read_schema(BytesIO(raw)).names == list(contributed.COLUMNS)


def content(path: Path) -> str:
    """Return all files of a folder as text."""
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return "\n".join(f"{file}\n{file.read_text(errors='replace')}" for file in files)


def test_no_host_user_or_path_is_in_what_leaves(folder, found, tmp_path):
    """The same search finds every name in the records, so it would find one that had left."""
    found.write(tmp_path / "new")
    files = [tmp_path / "new" / name for name in (package.ROWS, package.MANIFEST)]
    raw = [file.read_bytes() for file in files]
    unpacked = pq.read_table(files[0]).to_pandas().to_csv()
    about = str(pq.read_metadata(files[0])) + str(pq.read_schema(files[0]))
    opened = unquote(link.issue(URL, found.manifest, found.rows))
    leaving = [unpacked, about, opened, files[1].read_text()]
    before = content(folder)
    for secret in (*made.SECRETS, os.uname().nodename, str(Path.home()), "console.log"):
        assert secret in before or secret in {os.uname().nodename, str(Path.home())}
        assert not [text for text in leaving if secret in text], secret
        assert not [bytes_ for bytes_ in raw if secret.encode() in bytes_], secret
    assert "/" not in unpacked.replace("N/A", "")


def test_columns_that_are_not_listed_stay(found):
    staying = {"sweep", "experiment", "cause", "source", "nvme_path", "inputs", "note", "run_dir"}
    assert staying < {*found.staying}
    assert {f"variable {name}" for name in made.PRIVATE_VARIABLES} < {*found.staying}
    assert not staying & {*contributed.COLUMNS}


def changed(name, **values):
    """Return a change of a record's fields; None removes one."""

    def change(record):
        inside = record["summary"] if name == "summary" else record
        inside.update(values)

    return {"result" if name == "summary" else name: change}


def test_hosts_are_hashed_with_a_salt_of_the_contributor(found, folder, tmp_path, monkeypatch):
    again = package.of_folder(folder, "octocat")
    assert again.parquet == found.parquet
    file = hosts.salt_file()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text() not in str(found.rows)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "other"))
    others = package.of_folder(folder, "octocat")
    assert not {row["host"] for row in others.rows} & {row["host"] for row in found.rows}
    assert hosts.hashed("a", b"1") == hosts.hashed("a", b"1") != hosts.hashed("b", b"1")
    file = hosts.salt_file()
    file.write_text("short")
    with pytest.raises(SettingsError) as caught:
        hosts.salt()
    words = "is no salt of 32 bytes: remove it, and the next call makes another one"
    assert str(caught.value) == f"{file} {words}"


ONE, SEVEN = made.REPEATED, [row for row in made.published() if row["status"] == "ok"]
FIRST = f"{ONE}, run {min(row['repeat'] for row in SEVEN):.0f}"
FOUR = SEVEN[:4]
BROKEN = {
    "changed files": (
        FOUR,
        changed("environment", git_commit="3cda7ec6d6ef-dirty"),
        "git_commit is '3cda7ec6d6ef-dirty': only a released version or a clean commit is collected; "
        "commit your changes or undo them, and run the setting again",
    ),
    "a version under development": (
        FOUR,
        changed("environment", git_commit=None, dsnb="0.3.0.dev1"),
        "dsnb is '0.3.0.dev1': only a released version or a clean commit is collected; install a "
        "release, and run the setting again",
    ),
    "no version": (
        FOUR,
        changed("environment", dsnb=None),
        "dsnb is unknown: only runs that dsnb made or recorded are collected; measure with dsnb",
    ),
    "few runs": (
        FOUR[:2],
        {},
        "2 ok runs with 20.2 timed seconds: a setting needs 4 runs and 10 s; repeat it, or mark "
        "such settings with --single",
    ),
    "little time": (
        FOUR,
        changed("result", phases_s={"timed": 1.5, "wall": 9.0}),
        "4 ok runs with 6.0 timed seconds: a setting needs 4 runs and 10 s; repeat it, or mark "
        "such settings with --single",
    ),
    "another process": (
        FOUR,
        changed(
            "summary",
            note="3.1 GiB of a GPU were in use before the run began: another process may have "
            "slowed it down",
        ),
        "it was disturbed (another process on the GPU: 3.1 GiB of a GPU were in use before the run "
        "began: another process may have slowed it down): only undisturbed runs are collected; run "
        "the setting again on an idle machine",
    ),
    "compilation in timed steps": (
        FOUR,
        changed("summary", recompilations=2),
        "it was disturbed (recompiled: 2 graphs compiled during the timed steps): only undisturbed "
        "runs are collected; run the setting again on an idle machine",
    ),
    "more than the GPU can do": (
        FOUR,
        changed("summary", mfu=1.204),
        "mfu is 120.4 %: a GPU cannot reach 100 % of its data sheet; check the clock and the GPU's "
        "name, and run the setting again",
    ),
    "more memory than the GPU has": (
        FOUR,
        changed("summary", peak_reserved_gib=151.0),
        "peak_reserved_gib is 151.0 GiB: NVIDIA H200 has 139.8 GiB; check the GPU's name, and run the "
        "setting again",
    ),
    "an unknown GPU": (
        FOUR,
        changed("environment", gpus=[{"name": "NVIDIA Z9000", "memory_gib": 140.4}]),
        "gpu_name is 'NVIDIA Z9000': only GPUs with a data sheet in dsnb are collected "
        "(`dsnb recommend --list`); propose its line of gpus.csv first",
    ),
    "a CPU": (
        FOUR,
        changed("experiment", device="cpu"),
        "device is 'cpu': only runs on GPUs are collected; run the setting on a GPU",
    ),
    "a model in a folder": (
        FOUR,
        changed("experiment", model=f"{made.HOME}/diary"),
        "model is '/home/jdoe4711/diary': rows are compared with predictions, so only models that "
        "`dsnb recommend --list` prints are collected; measure one of these",
    ),
    "a text of one's own": (
        FOUR,
        changed("experiment", data=f"{made.HOME}/diary.txt"),
        "data is '/home/jdoe4711/diary.txt': only synthetic and stdlib leave the machine, because "
        "another text is a path; use synthetic",
    ),
    "a key without a column": (
        FOUR,
        changed("experiment", deepspeed={"zero_optimization.sub_group_size": 1000}),
        "deepspeed.zero_optimization.sub_group_size is 1000: only settings with a column of their own "
        "leave the machine; run the setting without this key",
    ),
    "a path in a text": (
        FOUR,
        changed("environment", cpu=f"{made.HOME}/cpu"),
        "cpu is '/home/jdoe4711/cpu': a text of this column has to match "
        "[A-Za-z0-9][\\w .,()@+-]{0,79}, so that no name of a user or path is in it; correct it in the "
        "record",
    ),
    "a host's name in a text": (
        FOUR,
        changed("environment", cpu="Xeon of node17", host="node17"),
        "cpu is 'Xeon of node17': 'node17' is the name of a host or a user; correct it in the record",
    ),
    "several nodes": (
        FOUR,
        changed("experiment", nodes=2),
        "nodes is 2: the network between them decides the speed; state it with --link, such as --link "
        "ib:400",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused_with_a_reason(case, tmp_path):
    some, changes, sentence = BROKEN[case]
    folder = made.write(tmp_path / "outputs", changes, some)
    with pytest.raises(SettingsError) as caught:
        package.of_folder(folder, "octocat")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{ONE}")
    assert problem.endswith(f": {sentence}")
    assert not hosts.salt_file().exists()


def test_edited_figures_are_refused(tmp_path):
    change = changed("summary", tokens_per_s=2 * SEVEN[0]["tokens_per_s"])
    folder = made.write(tmp_path / "outputs", change, SEVEN[:1])
    with pytest.raises(SettingsError) as caught:
        package.of_folder(folder, "octocat")
    first, second = caught.value.problems
    assert first.startswith(f"{FIRST}: status is interrupted: tokens_per_s in result.json is 9.8")
    assert first.endswith("; start the sweep again, or remove its folder")
    assert second == f"{folder} has no run that is ok or oom: run its settings again"


def test_all_reasons_are_given_at_once_and_name_their_runs(tmp_path):
    changes = {
        **changed("environment", git_commit="0-dirty"),
        **changed("summary", mfu=2.0, recompilations=1),
    }
    folder = made.write(tmp_path / "outputs", changes, FOUR[:3])
    with pytest.raises(SettingsError) as caught:
        package.of_folder(folder, "no name")
    name, commit, mfu, disturbed, few = caught.value.problems
    words = "give the name of an account, up to 39 letters, digits and hyphens"
    assert name == f"contributor is 'no name': {words}"
    for problem in (commit, mfu, disturbed):
        assert problem.count(f"{ONE}, run ") == 3
    assert "; ".join(f"{ONE}, run {row['repeat']:.0f}" for row in FOUR[:3]) in commit
    assert few.startswith(f"{ONE}: 3 ok runs")
    assert list(tmp_path.iterdir()) == [folder]


def test_few_runs_are_accepted_if_they_are_marked(tmp_path):
    folder = made.write(tmp_path / "outputs", rows=SEVEN[:2])
    found = package.of_folder(folder, "octocat", is_single=True)
    assert [row["single"] for row in found.rows] == [True, True]
    assert found.manifest["single"] == 1


def test_other_runs_are_left_out_and_counted(tmp_path):
    failed = {**SEVEN[0], "experiment": "other", "status": "failed", "cause": "rank 1 fell over"}
    found = package.of_folder(made.write(tmp_path / "outputs", rows=[*FOUR, failed]), "octocat")
    assert found.left_out == {"failed": 1}
    assert len(found.rows) == 4


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(SettingsError, match=r"contains no runs: none of 0 files"):
        package.of_folder(tmp_path, "octocat")


def test_a_recorded_training_keeps_its_program(tmp_path):
    program = "transformers Trainer 5.23.0"
    change = changed(
        "experiment", program=program, data=None, tokenizer=None, gradient_clipping=None
    )
    found = package.of_folder(made.write(tmp_path / "outputs", change, FOUR), "octocat")
    assert {row["program"] for row in found.rows} == {program}
    assert {row["gradient_clipping"] for row in found.rows} == {None}  # unknown, not a default


def test_logs_are_refused_whatever_they_say(tmp_path):
    folder = made.write(tmp_path / "outputs", rows=FOUR)
    log = folder / "training.csv"
    log.write_text(
        "model,program,dsnb,git_commit,tokens_per_s,gpus\ngpt2,dsnb,0.2.0,abcdef0,1000,1\n"
    )
    with pytest.raises(SettingsError) as caught:
        package.of_folder(folder, "octocat")
    words = "is a log of dsnb: only run folders of dsnb are collected; record the training"
    assert str(caught.value) == f"{log} {words} (`dsnb.record`), or remove the log"


def test_repeats_of_two_sweeps_are_numbered_together(tmp_path):
    made.write(tmp_path / "outputs" / "a", rows=FOUR[:2])
    made.write(tmp_path / "outputs" / "b", rows=FOUR[2:])
    found = package.of_folder(tmp_path / "outputs", "octocat")
    assert sorted(row["repeat"] for row in found.rows) == [1, 2, 3, 4]
    assert {row["single"] for row in found.rows} == {False}


def test_the_link_has_the_manifest_and_is_bounded(found):
    opened = link.issue(URL, found.manifest, found.rows)
    assert opened.startswith(f"{URL}/issues/new?labels=contributed-rows&title=")
    assert f"sha256: {found.manifest['sha256']}" in unquote(opened)
    assert f"- 7 x dsnb gpt2_{ONE} NVIDIA H200 nvlink" in unquote(opened)
    assert not set(opened.removeprefix(f"{URL}/issues/new?")) & set(" \n\"'<>#/:")
    many = [{**found.rows[0], "micro_batch_size": size} for size in range(1, 400)]
    opened = link.issue(URL, found.manifest, many)
    assert link.MAX_LENGTH - 200 < len(opened) <= link.MAX_LENGTH
    assert unquote(opened).splitlines()[-1].startswith("- and ")


@pytest.mark.parametrize("url", ["http://example.org/a", "example.org/a", "https://", f"{URL}?a=b"])
def test_addresses_of_projects(url):
    with pytest.raises(SettingsError) as caught:
        link.checked(url)
    words = "give the address of a repository, such as https://github.com/OWNER/NAME"
    assert str(caught.value) == f"project is {url!r}: {words}"
    assert link.checked(f"{URL}/") == URL


def test_variables_leave_by_name_and_by_value():
    text = "CUDA_HOME=/x NCCL_ALGO=Ring 'PYTORCH_ALLOC_CONF=expandable_segments:True' NCCL_PROTO=/tmp/x"
    leaving, staying = rows.split_variables(text)
    assert leaving == ["NCCL_ALGO=Ring", "PYTORCH_ALLOC_CONF=expandable_segments:True"]
    assert staying == ["CUDA_HOME", "NCCL_PROTO"]
    assert rows.split_variables(None) == ([], [])
