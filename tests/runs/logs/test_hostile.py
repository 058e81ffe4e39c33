"""Logs that nobody wrote: generated ones, readers that fail, encodings; the fast way through a log against a naive one."""
# ruff: noqa: E501  (programs print lines as long as they like)

import os
import random
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.errors import DsnbWarning, LogError
from dsnb.runs import load as runs_module
from dsnb.runs.logs import console, find, lines, rows, step_csv, trainer_state
from dsnb.runs.logs.logged_run import FIELDS, LoggedRun
from tests.support import foreign_logs as logs

NEEDLES = sorted({*(needle for needle, _ in console.READERS), *console.BEGINNINGS})
COMMANDS = [
    "+ python foo.py --bar\n", "+ srun a.py\n", "cmd = \n", ":main] cmd = x.py --\n", "cmd =  --\n", " --", "'--", "'--\n",
    " -- \n", "+ x.py\n", "+ torchrun x.py '' \"\" --a '' --b\n", "+ deepspeed x.py $@ \"$@\" --zero_stage\n",
    "+ accelerate launch x.py \\\n", "    --seq_length 12 \\\n", "  --bf16'\n", "++ CMD='  x.py --fp16  '\n", "+ '", "+ x.py '--a\n",
    "+ export 'CMD= x.py --lr 1e-4 '\n", "+ bash -c 'x.py --lr'\\''s'\n", "x.py --model_name_or_path /\n",
    "x.py --model_name_or_path '\0'\n", f"x.py --model_name_or_path {'a' * 5000}\n", "['x.py', '--', '--lr', '']\n",
    "with command: ['-u', '--local_rank=0'\n", "[2024-07-08 05:14:51,770] [INFO] [runner.py:568:main] cmd = .py --\n",
]  # fmt: skip
PIECES = [
    "0", "-1", "1e400", "nan", "NaN", "inf", "1,024", "1,02", "9" * 30, "1.", ".5", "1e", "True", "None", "''", '"', "'", "[",
    "]", "{", "}", "(", ")", ":", " : ", ": ", "=", " = ", "|", " | ", "/", "%|", "\t", " ", "  ", ", ", "\r", "\n", "\r\n",
    "\x1b[32m", "\x1b[0m", "\x1b", "\0", "\ufffd", "\N{ARABIC-INDIC DIGIT FIVE}", "\u2028", "node1: ", "[2024-07-08 05:17:02,000] ",
    "n2: [2024-07-08 05:17:03,000] ", "n2: iteration  3/ 5 | lm loss: 2.0 | ", "iteration  1/ 9 | elapsed time per iteration (ms): 2.0 | ",
    "global batch size: 8 |", "number of skipped iterations: 1 |", "pipe_parallel_size ..... 0\n", "RANK=1 STAGE=3 LAYERS=1\n",
    "ProcessCoord(pipe=3, data=0): 0}\n", "ProcessCoord(x=1, pipe=2, data=1, model=0)", "MPU PP: [0, 1]", "MPU DP: [", "'stages': 0",
    "device='cpu'", "stage=9", "x" * 3000, " " * 3000, "RunningAvgSamplesPerSec=1.5, MemAllocated=2.0GB", "global_step=3, ",
    "(max allocated: 1.0", "iterations) memory (MB) | max allocated: 5.0 |", "'stage': 3", "Epoch: 0, Step: 1, Rank: 0, loss = 2.0\n",
]  # fmt: skip


WHOLE = [logs.chat(), logs.megatron(), logs.trainer(), logs.traced_trainer(), logs.zero_megatron(1, pipeline=4)]


def generated(chance):
    """Put needles between random text, numbers, commands, binary noise and parts of real formats; sometimes cut it."""
    parts = []
    for _ in range(chance.randrange(1, 25)):
        kind = chance.random()
        if kind < 0.45:
            parts.append(chance.choice(NEEDLES))
        elif kind < 0.8:
            parts.append(chance.choice(PIECES) if chance.random() > 0.01 else chance.choice([*WHOLE, "x" * 70_000]))
        elif kind < 0.93:
            parts.append(chance.choice(COMMANDS))
        else:
            parts.append(chance.randbytes(chance.randrange(30)).decode("latin-1"))
        parts.append(chance.choice(["", "", " ", "\n"]))
    raw = (
        "".join(parts).lstrip("\0").encode(chance.choice(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"]), "replace")
    )
    return raw[: chance.randrange(len(raw) + 1)] if chance.random() < 0.2 else raw


def naive(path):
    """Read a log line by line, asking every reader: what the fast way must come to."""
    hosts, runs, is_inside_a_long_one = set(), [LoggedRun()], False
    with console_text(path) as file:
        while piece := file.readline(lines.LONGEST_LINE):
            if not is_inside_a_long_one:
                line = lines._bare(piece, hosts)
                if len(runs) < console.MAX_RUNS and console._begins_new_run(runs[-1], line):
                    runs.append(LoggedRun())
                for again in (False, True):
                    if again and runs[-1].steps.restarted:
                        runs.append(console._restarted(runs[-1]))
                    elif again:
                        continue
                    for needle, reader in console.READERS:
                        if needle in line:
                            reader(runs[-1], line)
            is_inside_a_long_one = not piece.endswith("\n")
    return [console._with_final_program(run) for run in runs if not run.is_empty]


def console_text(path):
    raw = path.read_bytes()
    name = next(
        (name for mark, name in ((b"\xef\xbb\xbf", "utf-8-sig"), (b"\xff\xfe", "utf-16")) if raw[:3].startswith(mark)),
        "utf-8",
    )
    return open(path, encoding=name, errors="replace")


def told(runs):
    """Give all that a reader found out, to compare."""
    return [
        (run.program, run.settings, run.figures, run.provenance, run.environment, run.slots, run.shape, run.notes,
         run.failure, run.ended, run.configured, [[*map(repr, run.steps.column(name))] for name in FIELDS])
        for run in runs
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.draws
def test_generated_logs(tmp_path, monkeypatch, seed):
    """No exception at all, not even a contained one, and the same as the naive way, however small the blocks are."""
    chance = random.Random(seed)
    path = tmp_path / "a.log"
    read = 0
    for number in range(300):
        path.write_bytes(generated(chance))
        monkeypatch.setattr(lines, "BLOCK_BYTES", chance.choice([100, 1000, 10_000, 2**20]))
        monkeypatch.setattr(lines, "WORTH_BYTES", chance.choice([0, 0, 2**20]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs = console.read(path)
        assert told(runs) == told(naive(path)), (seed, number)
        for run in runs:
            rows.row(run, path, {})
            rows.steps(run)
            read += 1
        if number % 10 == 0:
            refusals = []
            try:
                find.read(path, find.reader(path))
            except LogError as error:
                refusals.append(str(error))
            assert not any("reader failed" in refusal for refusal in refusals)
    assert read > 50


@pytest.mark.parametrize("without", [False, True])
def test_all_samples_read_the_fast_way_and_the_naive_way(tmp_path, monkeypatch, without):
    """Without pyarrow, too: every line is looked at then."""
    if without:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    samples = [
        logs.chat(),
        logs.with_hosts(logs.chat()),
        logs.chat(final=False) * 3,
        logs.megatron() * 2,
        logs.trainer(),
    ]
    samples += [
        logs.megatron(new=False),
        logs.traced_trainer(),
        logs.zero_megatron(3),
        logs.zero_megatron(1, 16, old=False),
    ]
    path = tmp_path / "a.log"
    for sample in samples:
        for text in (
            sample,
            sample.replace("\n", "\r\n"),
            sample.replace("\n", "\r"),
            f"\x1b[32m{sample}".replace("[INFO]", "[\x1b[0mINFO]"),
        ):
            path.write_text(text, newline="")
            monkeypatch.setattr(lines, "BLOCK_BYTES", 5000)
            monkeypatch.setattr(lines, "WORTH_BYTES", 0)
            assert told(console.read(path)) == told(naive(path)) != []


def folder_of_two(tmp_path, text, name="bad.log"):
    (tmp_path / "bystander.log").write_text(logs.trainer())
    (tmp_path / name).write_text(text)
    return tmp_path / name


def boom(*_):
    raise RuntimeError("boom\nand more")


@pytest.mark.parametrize("place", range(len(console.READERS)), ids=lambda place: console.READERS[place][0])
def test_a_reader_that_fails_costs_its_line_only(tmp_path, monkeypatch, place):
    needle, _ = console.READERS[place]
    text = logs.chat().replace("\n", f"\nthe first line of {needle}\n", 2)
    number = next(number for number, line in enumerate(text.splitlines(), 1) if needle in line)
    path = folder_of_two(tmp_path, text)
    monkeypatch.setattr(
        console, "READERS", [pair if at != place else (needle, boom) for at, pair in enumerate(console.READERS)]
    )
    with pytest.warns(DsnbWarning) as told_of:
        runs = dsnb.load_runs(path.parent).set_index("experiment")
    messages = [
        str(warning.message) for warning in told_of if f"{path}, line {number} is left out" in str(warning.message)
    ]
    assert len(messages) == 1
    assert "(RuntimeError: boom and more)" in messages[0]
    assert set(runs.index) == {"bystander", "bad"}
    assert f"line {number} could not be read" in runs.loc["bad", "note"]
    assert "\n" not in messages[0]


def test_a_line_that_fails_is_counted_by_line_feeds(tmp_path, monkeypatch):
    """As editors and `sed -n` count, whatever the progress bars do, and in UTF-16 as well."""
    text = " 10%|# | 1/10 [00:01<00:09, 1.00s/it]\r" * 5 + "\r\nsecond\nSegmentation fault\n" + logs.trainer()
    monkeypatch.setattr(
        console,
        "READERS",
        [(needle, boom if needle == "Segmentation fault" else reader) for needle, reader in console.READERS],
    )
    for encoding in ("utf-8", "utf-16"):
        path = tmp_path / f"{encoding}.log"
        path.write_bytes(text.encode(encoding))
        with pytest.warns(DsnbWarning, match=f"{path}, line 3 is left out"):
            assert dsnb.load_runs(path)["samples_per_s"].tolist() == [32.0]


@pytest.mark.parametrize(
    ("module", "name", "text", "file"),
    [
        (console, "_begins_new_run", logs.CONFIG * 2 + "using world size: 3\n", "bad.log"),
        (trainer_state, "_entry", logs.trainer_state(), "trainer_state.json"),
        (step_csv, "_summarize", logs.step_csv(), "step_log.csv"),
        (rows, "status_and_cause", logs.chat(), "bad.log"),
        (runs_module, "names_from_log", logs.chat(), "bad.log"),
        (find, "encoding", logs.chat(), "bad.log"),
    ],
)  # fmt: skip
def test_what_fails_at_a_whole_log_costs_that_log_only(tmp_path, monkeypatch, module, name, text, file):
    path = folder_of_two(tmp_path, text, file)
    original = getattr(module, name)
    state = {}

    def fails_at_bad(*arguments):
        is_bad = state["path"] == str(path)
        return boom() if is_bad else original(*arguments)

    reader = find.reader

    def remember(log):
        state["path"] = str(log)
        return reader(log)

    monkeypatch.setattr(find, "reader", remember)
    monkeypatch.setattr(module, name, fails_at_bad)
    for load in (dsnb.load_runs, dsnb.load_steps):
        with pytest.warns(DsnbWarning) as told_of:
            loaded = load(tmp_path)
        assert [str(one.message) for one in told_of] == [
            f"left out: {path} cannot be read: dsnb's reader failed (RuntimeError: boom and more); "
            "please report it with the log"
        ]
        assert set(loaded["experiment"]) == {"bystander"}
        with pytest.raises(
            LogError,
            match=r"cannot be read: dsnb's reader failed \(RuntimeError: boom and more\); please report it with the log$",
        ):
            load(path)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_is_no_fault_of_a_log_is_not_contained(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error

    path = folder_of_two(tmp_path, logs.chat())
    monkeypatch.setattr(console, "READERS", [(needle, fail) for needle, _ in console.READERS])
    with pytest.raises(error):
        dsnb.load_runs(path.parent)


def test_a_gpu_log_that_cannot_be_read_costs_its_figures_only(tmp_path, monkeypatch):
    (tmp_path / "step_log.csv").write_text(logs.step_csv())
    (tmp_path / "gpu_log.csv").write_text(logs.GPU_CSV)
    monkeypatch.setattr(step_csv, "_column", boom)
    with pytest.warns(DsnbWarning, match=f"{tmp_path / 'gpu_log.csv'} is left out: it cannot be read"):
        row = dsnb.load_runs(tmp_path / "step_log.csv").iloc[0]
    assert row["step_time_s"] == pytest.approx(0.05, rel=1e-4)
    assert pd.isna(row["gpu_util_pct"])


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "utf-32"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.log", logs.chat()), ("a.log", logs.with_hosts(logs.chat())), ("a.log", logs.megatron()),
        ("trainer_state.json", logs.trainer_state()), ("step_log.csv", logs.step_csv()),
    ],
)  # fmt: skip
def test_encodings(tmp_path, encoding, name, text):
    """What PowerShell's `>` writes is read as if it were UTF-8; line ends are Windows' as well."""
    tables = []
    for codec in ("utf-8", encoding):
        folder = tmp_path / codec / "sweep" / "zs0_fp16_gpus1_bs32_sl128" / "run1"
        folder.mkdir(parents=True)
        (folder / name).write_bytes(text.replace("\n", "\r\n").encode(codec))
        (folder / "gpu_log.csv").write_bytes(logs.GPU_CSV.encode(codec))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tables.append((dsnb.load_runs(folder).drop(columns="run_dir"), dsnb.load_steps(folder)))
    for plain, other in zip(*tables, strict=True):
        assert len(plain) >= 1
        pd.testing.assert_frame_equal(plain, other)


def test_an_encoding_that_cannot_be_told_is_named(tmp_path):
    """Every letter behind three zeros, without a mark."""
    path = folder_of_two(tmp_path, "")
    path.write_bytes(logs.chat().encode("utf-32-be"))
    with pytest.warns(DsnbWarning, match=f"left out: {path} looks like a log in an unsupported encoding"):
        assert set(dsnb.load_runs(tmp_path)["experiment"]) == {"bystander"}
    with pytest.raises(LogError, match="in an unsupported encoding: save it as UTF-8"):
        dsnb.load_runs(path)


def test_a_model_in_a_log_is_not_looked_for_on_this_machine(tmp_path, monkeypatch):
    (tmp_path / "facebook").mkdir()
    (tmp_path / "facebook" / "opt-350m").mkdir()
    (tmp_path / "facebook" / "opt-350m" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.log").write_text(logs.chat().replace("opt-350m", f"opt-350m/{'x' * 300}", 1))
    assert dsnb.load_runs("a.log")["model"].tolist() == ["x" * 80]
    assert os.listdir("facebook") == ["opt-350m"]
