"""Logs that are damaged, in other encodings, or that a reader fails at."""

import math
import random
import re
import warnings

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import DsnbWarning, LogError
from dsnb.results.logs import console, logged_run
from tests.support import foreign_logs as logs
from tests.support.difficult_logs import LOGS

SAMPLES = {
    "starts.log": f"Setting OMP_NUM_THREADS environment variable\n{logs.CONFIG}Killing subprocess 1\n{logs.chat()}",
    "megatron.log": logs.megatron(),
    "old_megatron.log": logs.megatron(new=False),
    "trainer.log": logs.trainer(quoted=True),
    "step_log.csv": logs.step_csv(steps=25, epochs=1),
    "trainer_state.json": logs.trainer_state(),
    **{
        f"{name}.log": LOGS[name]
        for name in (
            "rlhf_step3",
            "megatron_swiglu",
            "neox",
            "swift_console",
            "nanotron",
            "nemo",
            "torchtitan_settings",
            "veomni",
            "veomni_bars",
            "torchrun_killed",
        )
    },
    "swift.jsonl": LOGS["swift_json"],
    "factory.jsonl": LOGS["factory_json"],
    "all_results.json": '{"train_loss": 2.0, "train_runtime": 9.5, "train_steps_per_second": 2.0}',
    "breakdown.log": "[Rank 0] time (ms) | fwd: 90.0 | bwd: 20.0 | bwd_inner: 15.0 | step: 9.0\n"
    * 9,
    "table.csv": "gpus,seq_len,tokens_per_s,note\n" + "8,2048,41000,a\n8,4096,45000,b\n" * 4,
}
MUTATIONS_EACH = 30


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """Cut, shuffle, double and flip, one or several times."""
    for _ in range(chance.choice([1, 1, 2, 4])):
        lines = raw.splitlines(keepends=True)
        start, end = sorted(chance.randrange(len(raw) + 1) for _ in range(2))
        flipped = bytearray(raw)
        for place in chance.choices(range(len(raw)), k=20) if raw else []:
            flipped[place] = chance.randrange(256)
        raw = chance.choice(
            [
                raw[:end],
                raw[:end] + chance.randbytes(chance.randrange(40)) + raw[start:],
                bytes(flipped),
                b"".join(chance.sample(lines, len(lines))),
                b"".join(line for line in lines for _ in range(chance.choice([0, 1, 1, 1, 3]))),
            ]
        )
    return raw


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.draws
def test_damaged_logs(tmp_path, name):
    """They are refused or not recognised, or their figures are finite; only a loss may be negative."""
    chance, path, read = random.Random(name), tmp_path / name, 0
    for _ in range(MUTATIONS_EACH):
        path.write_bytes(mutated(SAMPLES[name].encode(), chance))
        try:
            runs = console.read(path)
        except LogError:
            continue
        for run in runs:
            row = logged_run.row(run, path, {})
            read += 1
            for figure in run.provenance:
                value = row[figure]
                assert isinstance(value, str | bool) or abs(value) < math.inf, (figure, value)
                assert isinstance(value, str) or value >= 0 or figure.startswith("loss"), (
                    figure,
                    value,
                )
            assert (logged_run.steps(run)["step_time_s"].dropna() > 0).all()
    assert read > MUTATIONS_EACH / 10


def test_a_reader_that_fails_names_the_log(tmp_path, monkeypatch):
    """Other logs of the folder are read."""

    def boom(*_):
        raise RuntimeError("boom\nand more")

    (tmp_path / "bystander.log").write_text(logs.trainer())
    path = tmp_path / "bad.log"
    path.write_text("Segmentation fault\n" + logs.chat())
    monkeypatch.setattr(console, "READERS", (("Segmentation fault", boom), *console.READERS))
    what = f"{path} cannot be read: RuntimeError: boom and more"
    with pytest.raises(LogError, match=re.escape(what)):
        dsnb.load_runs(path)
    for load in (dsnb.load_runs, dsnb.load_steps):
        with pytest.warns(DsnbWarning, match=re.escape(f"left out: {what}")):
            assert set(load(tmp_path)["experiment"]) == {"bystander"}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.log", logs.chat()),
        ("trainer_state.json", logs.trainer_state()),
        ("step_log.csv", logs.step_csv()),
    ],
)
def test_encodings(tmp_path, encoding, name, text):
    """What PowerShell's `>` writes is read as if it were UTF-8; line ends are Windows' as well."""
    folder = tmp_path / "sweep" / "zs0_fp16_gpus1_bs32_sl128" / "run1"
    folder.mkdir(parents=True)
    runs, steps = [], []
    for codec in ("utf-8", encoding):
        (folder / name).write_bytes(text.replace("\n", "\r\n").encode(codec))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            runs.append(dsnb.load_runs(folder))
            steps.append(dsnb.load_steps(folder))
    assert len(runs[0]) == 1
    pd.testing.assert_frame_equal(*runs)
    pd.testing.assert_frame_equal(*steps)
