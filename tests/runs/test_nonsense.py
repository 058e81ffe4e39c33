"""Nonsense in records: rows that say so, one-line errors and warnings, and never a traceback."""

import contextlib
import io
import json
import random
import warnings
from dataclasses import replace

import dsnb
from dsnb.analysis.choices import variants
from dsnb.analysis.summary import timing
from dsnb.cli import printing
from dsnb.errors import DsnbWarning, SettingsError
from dsnb.render import answer, by_task, nodes, tables
from dsnb.run_folder.paths import RunPaths
from dsnb.sweep import job
from dsnb.sweep.params import load_sweep
from dsnb.sweep.run import is_finished
from tests.support import made_up

PARAMS = {
    "name": "t", "question": "Is it?", "defaults": {"model": "gpt2-tiny", "precision": "fp32", "device": "cpu"},
    "grid": {"zero_stage": [0, 1], "seq_len": [32]},
}  # fmt: skip
BANDWIDTH = {"bytes": 8, "count": 2, "dtype": "float32", "ranks": 2, "calls": 20, "time_us": 3.5, "errors": 0}
BANDWIDTH |= {"algbw_gb_per_s": 1.0, "busbw_gb_per_s": 1.0, "status": "ok"}
ODD = [
    '""', '"auto"', '"\\u0000"', '"\\u001b[31mred"', '"\\u202eevil"', '"a\\nb"', '"</script><b>x"', '"=1+1"',
    '"|a|`x`"', '"[x](javascript:1)"', '"../.."', '"\\ud83d"', '"nan"', f'"{"x" * 3000}"', "0", "-1", "3.5", "1e308",
    "1e400", "NaN", "-Infinity", "1" + "0" * 400, str(2**63), "null", "true", "[]", "{}", '["a", {"gpus": 1}]',
    '{"status": [1]}', "[" * 500 + "]" * 500,
]  # fmt: skip
"""Values that nobody should write, as JSON."""


def real(tmp_path):
    """Give the records of a run with all that some runs leave, by file."""
    made_up.write_groups(tmp_path, ["n1"], gpus=1, sizes=(1,))
    (folder,) = (path.parent for path in tmp_path.rglob("experiment.json"))
    found = {path.name: [json.loads(line) for line in path.read_text().splitlines()] for path in folder.iterdir()}
    shortage = {"phase": "forward", "step": 2, "allocated_gib": 3.5, "reserved_gib": 4.0, "requested_gib": 1.25}
    found["experiment.json"][0] |= {"include": "n1", "inputs": {"train.txt": "abc"}, "name": "zs0"}
    found["environment.json"][0]["variables"] = {"NCCL_DEBUG": "INFO"}
    found["result.json"][0] |= {"phases_s": {"timed": 3.5}, "exit_codes": {"0": 0}}
    found["result.json"][0]["summary"] |= {"energy_j": 350.0, "oom_phase": "forward", "oom_step": 2, "note": "slow"}
    return found | {
        "worker.json": [{"parameters": 10, "energy_j": 350.0, "power_source": "energy counter", "update_rms": 1e-3}],
        "profile.json": [{"forward_s": 0.1, "step_s": 0.4, "ended_s": 9.5, "missing": {"trace": "none"}}],
        "failures.jsonl": [{"rank": 0, "status": "oom", "cause": "it fell over", **shortage}],
        "run.ipynb": [{"cells": [], "metadata": {"papermill": {"default_parameters": {}, "duration": 3.5}}}],
    }


def containers(record):
    inside = record.values() if isinstance(record, dict) else record
    return [record, *(found for item in inside if isinstance(item, dict | list) and item for found in containers(item))]


def spelled(draw, record):
    """Spell a record as JSON with one to three values, at any depth, replaced by odd ones; seldom cut off."""
    record = json.loads(json.dumps(record))
    odd = {f"odd {number}": draw.choice(ODD) for number in range(draw.randrange(1, 4))}
    for mark in odd:
        place = draw.choice(containers(record))
        place[draw.choice([*place] if isinstance(place, dict) else range(len(place)))] = mark
    text = draw.choice(ODD) if draw.random() < 0.1 else json.dumps(record)
    for mark, value in odd.items():
        text = text.replace(f'"{mark}"', value)
    return text[: draw.randrange(len(text) + 1)] if draw.random() < 0.03 else text


def write_run(draw, folder, real):
    """Write a run; a few of its records are odd."""
    folder.mkdir(parents=True)
    odd = draw.sample([*real], draw.randrange(3, len(real)))
    for name, lines in real.items():
        texts = [spelled(draw, line) for line in lines[:3]] if name in odd else map(json.dumps, lines)
        (folder / name).write_text("\n".join(texts) + "\n", "utf-8", "surrogatepass")


def show_like_a_report(folder):
    runs = dsnb.load_runs(folder)
    dsnb.load_steps(folder)
    variants(runs)
    shown = [
        tables.heading(folder), by_task.medians(runs), by_task.failures(runs),
        tables.environment(runs), tables.settings(runs), tables.to_html(tables.format_timing(timing(runs))),
        answer.answer(runs),
        *nodes.section(runs), *nodes.bandwidth(folder),
    ]  # fmt: skip
    page = dsnb.explore(runs)._fragment(folder)
    assert "<script" not in "".join(map(str, shown))
    assert page.count("<script") == 1
    json.loads(page.partition('<script type="application/json">')[2].partition("</script>")[0])
    for format_ in printing.Format:
        with contextlib.redirect_stdout(out := io.StringIO()):
            printing.print_summary(runs, format_)
            with contextlib.suppress(SettingsError):
                printing.print_groups(runs, format_)
        assert all(character.isprintable() or character == "\n" for character in out.getvalue())
    return runs


def test_nonsense_in_records_is_rows_errors_and_warnings(tmp_path):
    draw, folder, records = random.Random(5), tmp_path / "out", real(tmp_path / "real")
    (tmp_path / "t.yaml").write_text(json.dumps(PARAMS))
    planned = load_sweep(tmp_path / "t.yaml", output=folder).runs[0]
    paths = [folder / draw.choice(["zs0", "zs1_fp32_gpus1_bs8_sl32", "x"]) / f"run{number}" for number in range(20)]
    for path in paths:
        write_run(draw, path, records)
    for name in ("bandwidth.json", "bandwidth.jsonl", "result.json", "environment.json"):
        (folder / "bandwidth" / "run1").mkdir(parents=True, exist_ok=True)
        (folder / "bandwidth" / "run1" / name).write_text(spelled(draw, BANDWIDTH) + "\n", "utf-8", "surrogatepass")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            run = replace(planned, paths=RunPaths(path))
            for ask in (is_finished, lambda run: job.load_run(run.paths), lambda run: job.read_result(run.paths)):
                with contextlib.suppress(SettingsError):
                    ask(run)
        runs = show_like_a_report(folder)
    assert [one for one in caught if one.category is not DsnbWarning or "\n" in str(one.message)] == []
    assert len(runs) == len(paths)
