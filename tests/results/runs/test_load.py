"""Folders of many runs, what their sweeps planned, and nonsense in records: never a traceback."""

import contextlib
import io
import json
import random
import re
import warnings
from dataclasses import replace

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import DsnbWarning, SettingsError
from dsnb.base.files import json_files
from dsnb.cli import printing
from dsnb.measure.sweep import job
from dsnb.measure.sweep.params import load_sweep
from dsnb.measure.sweep.run import is_finished
from dsnb.results.statistics.setting_axes import variants
from dsnb.results.statistics.summary import timing
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.records.result import Result
from dsnb.settings.records.run_record import RunRecord
from dsnb.show.render import answer, by_task, nodes, tables
from tests.support import made_up


def test_one_damaged_line_costs_that_line_only(tmp_path):
    """Files are parsed together; none gives its name to another one's lines."""
    made_up.write_folders(made_up.runs(6, gpus=[1], seq_len=[128]), tmp_path, steps=8)
    whole = dsnb.load_steps(tmp_path)
    files = sorted(tmp_path.rglob("steps.jsonl"))
    assert len(whole) == 8 * len(files)
    lines = files[1].read_text().splitlines(keepends=True)
    files[1].write_text("".join([*lines[:3], lines[3][:20] + "\n", *lines[4:7], lines[7][:-5]]))
    with pytest.warns(DsnbWarning, match="2 line"):
        damaged = dsnb.load_steps(tmp_path)
    path = str(files[1].parent.relative_to(tmp_path))
    gone = (whole["experiment"] + "/run" + whole["repeat"].astype(str) == path) & whole[
        "step"
    ].isin([4, 8])
    pd.testing.assert_frame_equal(damaged, whole[~gone].reset_index(drop=True), check_dtype=False)
    files[0].write_text('{"step": 1, "loss": "high"}\n{"step": 2, "loss": 2.5, "new": {"x": 1}}\n')
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # values of other types are missing, without a warning
        assert dsnb.load_steps(files[0].parent)["loss"].isna().tolist() == [True, False]
    files[0].with_name("result.json").unlink()
    assert list(dsnb.load_runs(files[0].parent)["status"]) == ["interrupted"]


def test_what_is_derived_from_a_runs_records_by_hand(tmp_path):
    """Four GPUs, of which two share the layers, for half an hour; the run may use 40 of 140 GiB."""
    made = made_up.runs(1, gpus=[4], micro_batch_size=[8], grad_accum=[2], seq_len=[512])
    figures = {"status": "ok", "tokens_per_s": 1024.0, "tokens_per_s_per_gpu": 256.0}
    made_up.write_folders(made.assign(**figures, power_w=512.0), tmp_path, steps=3)
    (settings,) = tmp_path.rglob("experiment.json")
    own = {"device": "cuda", "tensor_parallel": 2, "memory_limit_gib": 40.0}
    record = json_files.read_json(settings) | own | {"price_per_gpu_hour": 3.0}
    json_files.write_json(settings, record)
    result = settings.with_name("result.json")
    ended = {"status": "failed", "cause": "later", "phases_s": {"wall": 1800.0}}
    json_files.write_json(result, json_files.read_json(result) | ended)
    (row,) = dsnb.load_runs(tmp_path).to_dict("records")
    assert row["data_parallel"] == 2
    assert row["global_batch_size"] == 8 * 2 * 2
    assert row["gpu_memory_gib"] == 40
    assert row["samples_per_s"] == 2
    assert row["tokens_per_joule"] == 0.5
    assert row["gpu_hours"] == 0.5 * 4
    assert row["cost"] == 2 * 3


def test_the_notebooks_seconds_come_from_its_end(tmp_path):
    made_up.write_folders(made_up.runs(1), tmp_path, steps=3)
    (path,) = tmp_path.rglob("run.ipynb")
    cells = [{"metadata": {"papermill": {"duration": 1.0}}, "source": "x" * 40_000}]
    metadata = {"default_parameters": {}, "duration": 12.5, "parameters": {"x" * 30: "y" * 30}}
    path.write_text(json.dumps({"cells": cells, "metadata": {"papermill": metadata}}))
    assert list(dsnb.load_runs(tmp_path)["notebook_s"]) == [12.5]


def test_runs_from_before_a_setting_have_what_it_was_then(tmp_path):
    """Their gradients were accumulated in bf16, which no record mentions."""
    made_up.write_folders(made_up.runs(12, precision=["bf16"]), tmp_path, steps=3)
    for path in tmp_path.rglob("experiment.json"):
        record = json_files.read_json(path)
        del record["grad_accum_dtype"]
        path.write_text(json_files.line(record))
    runs = dsnb.load_runs(tmp_path)
    older = (runs["precision"] == "bf16") & (runs["grad_accum"] > 1)
    assert older.any()
    assert list(runs["grad_accum_dtype"]) == ["bf16" if is_older else "auto" for is_older in older]


def test_fsdp_reduced_gradients_once_a_step_before_that_was_a_setting(tmp_path):
    made_up.write_folders(
        made_up.runs(2, repeats=1).assign(zero_stage=0, grad_accum=[1, 2]), tmp_path
    )
    for path in tmp_path.rglob("experiment.json"):
        path.write_text(json_files.line({**json_files.read_json(path), "strategy": "fsdp"}))
    runs = dsnb.load_runs(tmp_path).set_index("grad_accum")
    assert runs["reduce_gradients"].to_dict() == {1: "micro-batch", 2: "step"}
    for name in ("h100", "h200", "h200_memory"):
        own = dsnb.published(name)
        fsdp = own[
            (own["strategy"] == "fsdp") & own["alloc_retries"].isna()
        ]  # made before either was recorded
        assert set(fsdp["reduce_gradients"][fsdp["grad_accum"] > 1]) == {"step"}
        assert set(own["reduce_gradients"][own["strategy"] != "fsdp"]) == {"micro-batch"}


def test_keys_of_deepspeeds_configuration_are_columns_of_their_runs_only(tmp_path):
    made_up.write_folders(made_up.runs(4), tmp_path, steps=3)
    key = {"zero_optimization.round_robin_gradients": True}
    for setting in sorted(tmp_path.rglob("experiment.json"))[:2]:
        setting.write_text(json_files.line({**json_files.read_json(setting), "deepspeed": key}))
    loaded = dsnb.load_runs(tmp_path)
    assert sorted(loaded["deepspeed.zero_optimization.round_robin_gradients"].notna()) == [
        False,
        False,
        True,
        True,
    ]


def test_what_has_not_ended_is_to_come_first_repeats_first(tmp_path):
    def to_come(content, *ended):
        (tmp_path / "planned.json").write_text(json.dumps(content))
        return str(
            by_task.to_come(
                pd.DataFrame(ended, columns=["experiment", "repeat", "status"]), tmp_path
            )
        )

    text = to_come(
        {"runs": {"a": [1, 2], "b": [1, 2]}},
        ("a", 1, "ok"),
        ("b", 1, "oom"),
        ("a", 2, "interrupted"),
    )
    assert (
        "2 of 4 runs of this sweep are still to come: <code>a</code> run 2; <code>b</code> run 2."
        in text
    )
    codes = [f"<code>{name}</code> run {number}" for number in (1, 2) for name in "ab"]
    assert "; ".join(codes) in to_come({"runs": {"a": [1, 2], "b": [1, 2]}})
    text = to_come({"runs": {"<script>": list(range(1, 9))}})
    assert "<script>" not in text
    assert "run 5; and 3 more" in text
    left = {"b": "needs 149.0 GiB of 140.0", "<b>": "needs <i>", "a": "needs 5", "odd": 3}
    assert to_come({"runs": {"a": [1]}, "left_out": left}, ("a", 1, "ok")) == (
        "<p>Not run, because they are predicted not to fit (2 settings): "
        "<code>b</code> needs 149.0 GiB of 140.0; <code>&lt;b&gt;</code> needs &lt;i&gt;.</p>"
    )
    for content in (
        {},
        {"runs": [1]},
        {"runs": {"a": 1}},
        {"runs": {"a": ["x", True, None, [1]]}},
        {"left_out": [1]},
    ):
        assert to_come(content) == ""


PARAMS = {
    "name": "t", "question": "Is it?", "defaults": {"model": "gpt2-tiny", "precision": "fp32", "device": "cpu"},
    "grid": {"zero_stage": [0, 1], "seq_len": [32]},
}  # fmt: skip
BANDWIDTH = {
    "bytes": 8,
    "count": 2,
    "dtype": "float32",
    "ranks": 2,
    "calls": 20,
    "time_us": 3.5,
    "errors": 0,
}
BANDWIDTH |= {"algbw_gb_per_s": 1.0, "busbw_gb_per_s": 1.0, "status": "ok"}
ODD = [
    '""', '"auto"', '"\\u0000"', '"\\u001b[31mred"', '"\\u202eevil"', '"a\\nb"', '"</script><b>x"', '"=1+1"',
    '"|a|`x`"', '"[x](javascript:1)"', '"../.."', '"\\ud83d"', '"nan"', f'"{"x" * 3000}"', "0", "-1", "3.5", "1e308",
    "1e400", "NaN", "-Infinity", "1" + "0" * 400, str(2**63), "null", "true", "[]", "{}", '["a", {"gpus": 1}]',
    '{"status": [1]}', "[" * 500 + "]" * 500,
]  # fmt: skip
"""Unreasonable values, as JSON."""


def real(tmp_path):
    """Return the records of a run with all that some runs leave, by file."""
    made_up.write_groups(tmp_path, ["n1"], gpus=1, sizes=(1,))
    (folder,) = (path.parent for path in tmp_path.rglob("experiment.json"))
    files = {
        path.name: [json.loads(line) for line in path.read_text().splitlines()]
        for path in folder.iterdir()
    }
    files["result.json"][0] |= {"phases_s": {"timed": 3.5}, "exit_codes": {"0": 0}}
    files["result.json"][0]["summary"] |= {
        "energy_j": 350.0,
        "oom_phase": "forward",
        "oom_step": 2,
        "note": "slow",
    }
    return files | {
        "worker.json": [
            {
                "parameters": 10,
                "energy_j": 350.0,
                "power_source": "energy counter",
                "update_rms": 1e-3,
            }
        ],
        "profile.json": [
            {"forward_s": 0.1, "step_s": 0.4, "ended_s": 9.5, "missing": {"trace": "none"}}
        ],
        "failures.jsonl": [
            {"rank": 0, "status": "oom", "cause": "it fell over", "phase": "forward"}
        ],
        "run.ipynb": [
            {"cells": [], "metadata": {"papermill": {"default_parameters": {}, "duration": 3.5}}}
        ],
    }


def spelled(draw, record):
    """Spell a record as JSON with one to three values, at any depth, replaced by odd ones; seldom cut off."""
    text = draw.choice(ODD) if draw.random() < 0.1 else json.dumps(record)
    for _ in range(draw.randrange(1, 4)):
        if places := [*re.finditer(r'(?<=: )("[^"]*"|[\w.+-]+|\[[^][]*\]|\{[^{}]*\})', text)]:
            start, end = draw.choice(places).span()
            text = text[:start] + draw.choice(ODD) + text[end:]
    return text[: draw.randrange(len(text) + 1)] if draw.random() < 0.03 else text


def write_run(draw, folder, real):
    """Write a run; a few of its records are odd."""
    folder.mkdir(parents=True)
    odd = draw.sample([*real], draw.randrange(3, len(real)))
    for name, lines in real.items():
        texts = (
            [spelled(draw, line) for line in lines[:3]] if name in odd else map(json.dumps, lines)
        )
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
        assert all(character.isprintable() or character == "\n" for character in out.getvalue())
    return runs


def test_nonsense_in_records_is_rows_errors_and_warnings(tmp_path):
    draw, folder, records = random.Random(5), tmp_path / "out", real(tmp_path / "real")
    (tmp_path / "t.yaml").write_text(json.dumps(PARAMS))
    planned = load_sweep(tmp_path / "t.yaml", output=folder).runs[0]
    paths = [
        folder / draw.choice(["zs0", "zs1_fp32_gpus1_bs8_sl32", "x"]) / f"run{number}"
        for number in range(12)
    ]
    for path in paths:
        write_run(draw, path, records)
    for name in ("bandwidth.json", "bandwidth.jsonl", "result.json", "environment.json"):
        (folder / "bandwidth" / "run1").mkdir(parents=True, exist_ok=True)
        (folder / "bandwidth" / "run1" / name).write_text(
            spelled(draw, BANDWIDTH) + "\n", "utf-8", "surrogatepass"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for path in paths:
            run = replace(planned, paths=RunPaths(path))
            for ask in (
                is_finished,
                lambda run: job.load_run(run.paths),
                lambda run: Result.of(RunRecord(run.paths)),
            ):
                with contextlib.suppress(SettingsError):
                    ask(run)
        runs = show_like_a_report(folder)
    assert [
        warning
        for warning in caught
        if warning.category is not DsnbWarning or "\n" in str(warning.message)
    ] == []
    assert len(runs) == len(paths)


def test_steps_with_settings_are_those_of_their_run(tmp_path):
    made_up.write_folders(made_up.runs(4), tmp_path, steps=3)
    runs = dsnb.load_runs(tmp_path).set_index(["experiment", "repeat"])
    steps = dsnb.load_steps(tmp_path, settings=True)
    assert steps.columns.is_unique
    pd.testing.assert_frame_equal(
        steps[dsnb.load_steps(tmp_path).columns], dsnb.load_steps(tmp_path)
    )
    last = steps.drop_duplicates(["experiment", "repeat"]).set_index(["experiment", "repeat"])
    for name in ("parallelism", "zero_stage", "precision", "gpus", "micro_batch_size"):
        assert last[name].to_dict() == runs[name].to_dict()
    assert set(steps["loss_setting"]) == set(runs["loss"])
