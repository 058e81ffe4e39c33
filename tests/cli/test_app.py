"""The command line: what it prints, and that trouble and odd words are one line and an exit code."""

import contextlib
import io
import json
import os
import shlex
import signal
import sys
import warnings
from pathlib import Path

import pytest

from dsnb.base.errors import SettingsError
from dsnb.cli import app as command_line
from dsnb.cli.doctor import Check
from dsnb.results.logs.console import KINDS
from dsnb.version import __version__
from tests import ROOT
from tests.support import made_up
from tests.support.difficult_logs import LOGS
from tests.support.notebooks import run_cells

EXAMPLE = ROOT / "outputs" / "examples" / "quickstart"
NOT_UTF_8 = os.fsdecode(b"\xff")


def dsnb(monkeypatch, *words):
    """Run a command in this process; give its exit code and what it printed."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how)
        for how in ("strict", "backslashreplace")
    )
    monkeypatch.setattr(sys, "argv", ["dsnb", *map(str, words)])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # those of this process stay as they are
    code = 0
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        try:
            command_line.main()
        except SystemExit as end:
            code = end.code
    said = []
    for stream in (out, err):
        stream.flush()
        said.append(stream.buffer.getvalue().decode())
    assert all(one.isprintable() or one == "\n" for text in said for one in text)
    return code, *said


@pytest.mark.process
def test_doctor_says_what_there_is_what_is_missing_and_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "300")
    code, out, _ = dsnb(monkeypatch, "doctor")
    assert code == 1
    text = " ".join(out.split())
    for words in (
        "ok Python: 3.",
        "torch ",
        "fp32, bf16",
        "ok precision: auto: ",
        "missing C++ compiler: none -> install g++",
    ):
        assert words in text
    monkeypatch.setattr(
        "dsnb.cli.doctor.check_machine",
        lambda: [Check("ok", "a", "[b]\x1b[2J"), Check("note", "c", "d")],
    )
    code, out, _ = dsnb(monkeypatch, "doctor")
    assert (code, out) == (0, "ok       a: [b]?[2J\nnote     c: d\n")


def test_dry_runs_say_who_would_make_what(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\nc slots=2\n")
    few = [
        "sweep",
        "params/quickstart.yaml",
        "--dry-run",
        "-v",
        "--only",
        "zs3_bf16*",
        "--output",
        tmp_path / "out",
    ]
    few += ["--set", "precision=bf16"]
    code, out, err = dsnb(monkeypatch, *few, "--hostfile", tmp_path / "hosts", "--sub-cluster", "2")
    assert (code, err) == (0, "note: sub-clusters of 2: unused hosts: c\n")
    assert "  ranks 2 to 3: ssh " in out
    assert "zero_optimization: {stage: 3}" in out
    assert not (tmp_path / "out").exists()
    slurm = [
        "--slurm",
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--set",
        "gpus=auto",
        "--partition",
        "gpu",
    ]
    code, out, err = dsnb(monkeypatch, *few, *slurm)
    assert (code, err) == (0, "")
    wanted = "  sbatch --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --partition=gpu "
    rows = [row for row in out.splitlines() if row.startswith(wanted)]
    assert [Path(shlex.split(row)[-1].split()[-1]).name for row in rows] == ["run1", "run2"]
    assert out.endswith("2 runs, 2 to run; nothing was started\n")
    (tmp_path / "hosts").write_text("".join(f"n{number} slots=8\n" for number in range(64)))
    words = [
        "--dry-run",
        "-v",
        "--only",
        "opt-350m*gpus512_*",
        "--hostfile",
        tmp_path / "hosts",
        "--set",
        "repeats=1",
    ]
    code, out, _ = dsnb(monkeypatch, "sweep", "params/opt_scaling.yaml", *words)
    lines = [line for line in out.splitlines() if " ssh " in line]
    assert (code, len(lines)) == (0, 64)
    for number, line in enumerate(lines):
        assert line.startswith(f"  ranks {8 * number} to {8 * number + 7}: ssh ")
        assert f" -- n{number} " in line
        assert f" --nnodes 64 --nproc-per-node 8 --node-rank {number} --master-addr n0 " in line


def test_summary_in_every_format_and_of_groups(monkeypatch, tmp_path):
    csv, one, table = (
        dsnb(monkeypatch, "summary", EXAMPLE, *words)[1]
        for words in (("--format", "csv"), ("--format", "json"), ())
    )
    csv = csv.splitlines()
    figures = [f"tokens_per_s_{statistic}" for statistic in ("median", "std", "min", "max", "n")]
    assert csv[0].startswith(
        ",".join(["experiment", "n", "n_failed", *figures, "tokens_per_s_per_gpu_median"])
    )
    row = json.loads(one)[0]
    assert csv[1].startswith(f"{row['experiment']},2,0,")
    assert row["tokens_per_s_median"] > 0
    assert row["mfu_median"] is None
    assert f"{row['tokens_per_s_min']:,.0f} to {row['tokens_per_s_max']:,.0f}" in table
    made_up.write_groups(tmp_path, ["n1", "n2", "n3", "n4"], slow={"n3": 0.3}, gpus=1, sizes=(1, 2))
    code, out, err = dsnb(monkeypatch, "summary", tmp_path, "--groups")
    assert (code, err) == (0, "")
    assert "  n3               70.18           \N{MINUS SIGN}29.8  1 ok" in out
    assert out.endswith("Suspect: n3, \N{MINUS SIGN}29.8 %: slow in 1 of 1 groups.\n")


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        (1, ["sweep", "none.yaml"],
         "params file 'none.yaml' cannot be read: No such file or directory; check the path"),
        (
            1, ["sweep", "params/quickstart.yaml", "--set", "gpus=64", "--set", "device=cpu", "--only", "zs0_*"],
            f"gpus is 64: {4 * len(os.sched_getaffinity(0))} ranks are the most on this CPU (4 per core); use fewer",
        ),
        (1, ["sweep", "params/quickstart.yaml", "--set", "steps"],
         "--set is 'steps': write KEY=VALUE, for example --set seq_len=256"),
        (1, ["sweep", "params/quickstart.yaml", "--partition", "gpu"],
         "--partition is for Slurm: add --slurm, or leave it out"),
        (1, ["summary", "outputs/examples/quickstart", "--groups"],
         "no run used a hostfile, so there are no groups of nodes to compare: choose the folder of a sweep that did"),
        (1, ["summary", "none"],
         "'none' is not a folder or a file: choose a folder of outputs, such as outputs/quickstart, or a log"),
        (1, ["summary", "outputs/examples/quickstart", "--set", "gpu=1"],
         "unknown setting 'gpu': did you mean 'gpus'?"),
        (1, ["import", "none.json"], "'none.json' is missing: name a file or a folder"),
        (1, ["import", "README.md", "--output", "README.md"], "README.md exists: name another file"),
        (2, ["summary", "x", "--format", "xml"], "--format is 'xml': allowed are table, markdown, csv, json"),
        (2, ["predict", "x", "--tokens", "many"], "--tokens is 'many': write a number such as 300e9, 300B or 1.5T"),
        (2, ["sweep", "x", "--repeats", "abc"], "--repeats is no option: write --set repeats=VALUE"),
        (2, ["sweep"], "Missing argument 'PARAMS'."),
    ],
)  # fmt: skip
def test_trouble_is_one_line_and_an_exit_code(code, words, message, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert dsnb(monkeypatch, *words) == (code, "", f"error: {message}\n")


def test_a_configuration_becomes_a_params_file(monkeypatch, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(
        json.dumps(
            {"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}, "steps_per_print": 9}
        )
    )
    code, out, err = dsnb(monkeypatch, "import", path, "--model", "gpt2", "--set", "precision=fp16")
    assert (code, err) == (0, "")
    assert out.startswith(
        "# Imported from ds.json.\n# Left open:\n# * gpus: give the number of GPUs\n"
    )
    assert (
        "defaults:\n  model: gpt2\n  strategy: deepspeed\n  zero_stage: 2\n  precision: fp16\n"
        in out
    )
    params = tmp_path / "params.yaml"
    code, said, err = dsnb(monkeypatch, "import", path, "-o", params)
    assert (code, err) == (0, "")
    lines = said.splitlines()
    assert lines[:2] == [
        "strategy: deepspeed  (from the file)",
        "zero_stage: 2  (from zero_optimization.stage)",
    ]
    assert "left open: bf16.enabled: give precision" in lines
    assert "left out: steps_per_print: its lines read the clock inside the timed steps" in lines
    assert lines[-1] == f"{params}: check it with `dsnb sweep {params} --dry-run`"
    assert "zero_stage: 2" in params.read_text()


def test_summary_with_what_a_log_does_not_say(monkeypatch, tmp_path):
    path = tmp_path / "a.log"
    path.write_text(LOGS["gpus_not_logged"])
    code, out, err = dsnb(monkeypatch, "summary", path, "--set", "gpus=16")
    assert (code, err) == (0, "")
    assert out.startswith("opt-350m, sequence 512 on 16 GPUs: ")
    code, out, err = dsnb(monkeypatch, "summary", path, "--set", "micro_batch_size=8")
    assert (code, out) == (1, "")
    assert f"error: {path} says that micro_batch_size is 4, but 8 is stated" in err


def test_folders_that_hold_no_run_or_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    for name in ("notes.txt", "a/picture.png", "a/b/.hidden"):
        (tmp_path / name).write_text("nothing")
    message = (
        f"note: not read: {tmp_path / 'notes.txt'} is not a log that dsnb can read (see docs/how-to/foreign_logs.md)\n"
        f"error: '{tmp_path}' contains no runs: none of 3 files is a run of dsnb or a log that it can "
        f"read; supported are {KINDS}\n"
    )
    assert dsnb(monkeypatch, "summary", tmp_path) == (1, "", message)
    monkeypatch.chdir(ROOT)
    for target, why in (
        (tmp_path / "notes.txt" / "out", "Not a directory"),
        ("/proc/x", "No such file or directory"),
    ):
        message = f"error: {target} cannot be written: {why}; choose another --output\n"
        assert dsnb(monkeypatch, "sweep", "params/quickstart.yaml", "--output", target) == (
            1,
            "",
            message,
        )


def test_the_version_and_help_that_ends_with_an_example(monkeypatch):
    assert dsnb(monkeypatch, "--version")[:2] == (0, f"dsnb {__version__}\n")
    code, out, _ = dsnb(monkeypatch, "sweep", "--help")
    assert code == 0
    assert out.rstrip().splitlines()[-1].startswith(" Example: dsnb sweep ")


def test_a_run_notebook_takes_settings_that_it_does_not_list_and_names_misspelled_ones():
    with pytest.raises(SettingsError) as caught:
        run_cells("10_run", zero_stgae=2, dropout=7)
    assert caught.value.problems == [
        "unknown setting 'zero_stgae': did you mean 'zero_stage'?",
        "dropout is 7: it must be less than 1.0",
    ]


@pytest.mark.parametrize(
    ("option", "refused"),
    [
        (
            "--set",
            [
                "self=1",
                "1=2",
                "=3",
                "[",
                "steps=2024-99-99",
                "data=\x1b[31m",
                "repeats=x",
                "model=a\nb",
            ],
        ),
        ("--only", ["", "[", "\x1b[31m", NOT_UTF_8]),
        ("--sub-cluster", ["0", "two", "1,1", "2,,4"]),
        ("--hostfile", [NOT_UTF_8, "FOLDER"]),
    ],
)
def test_a_sweep_refuses_odd_words_in_one_sentence(monkeypatch, option, refused):
    for word in refused:
        code, out, err = dsnb(
            monkeypatch, "sweep", "params/quickstart.yaml", "--dry-run", option, word
        )
        assert (code, out) == (1, ""), (word[:80], out, err)
        assert err.startswith("error: "), word[:80]
