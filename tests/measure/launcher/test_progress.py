"""What a run shows before its first step: its phase, from the files in its folder, and for how long."""

import contextlib
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from dsnb.base.files import json_files
from dsnb.base.system import waiting
from dsnb.measure.launcher import progress
from dsnb.settings.records.paths import RunPaths
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("settings", "phases"),
    [
        ({"compile": "default"}, ["starting", "building the model", "compiling, first step"]),
        ({"hostfile": "slurm"}, ["starting", "importing, building the model", "first step"]),
    ],
)
def test_the_phase_follows_from_the_files(small, tmp_path, settings, phases):
    run = RunPaths(tmp_path)
    state = progress.RunState(small(**settings), run)
    for path, phase in zip((None, run.console, run.steps), phases, strict=True):
        if path:
            path.touch()
        assert str(state) == f"{phase}: 0 s"


@pytest.fixture
def shown(monkeypatch):
    """Make this process look like a notebook's kernel; give what its output held, None where it was cleared."""
    texts = []

    def display(content, display_id=True):
        texts.append(getattr(content, "data", repr(content)))
        return SimpleNamespace(update=display)

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr("IPython.display.clear_output", lambda wait: texts.append(None))
    monkeypatch.setattr(waiting, "in_notebook", lambda: True)
    return texts


@pytest.mark.parametrize("error", [KeyboardInterrupt, None])
def test_a_run_that_is_cut_short_leaves_its_last_state_and_one_that_ends_nothing(
    small, tmp_path, shown, error
):
    experiment, run = small(steps=8, warmup_steps=2), RunPaths(tmp_path)
    with progress.Progress(experiment, run, enabled=False) as bar:
        bar.refresh(at_once=True)
    assert shown == []
    with (
        contextlib.suppress(KeyboardInterrupt),
        progress.Progress(experiment, run, enabled=True) as bar,
    ):
        json_files.append_line(
            run.steps, {"step": 4, "loss": 2.5, "step_time_s": 6.4, "tokens": 64}
        )
        bar.state.read()
        bar.refresh(at_once=True)
        assert bar._repr_html_().startswith('<progress value="4" max="10" ')
        if error:
            raise error
    assert (
        shown[0] == f"{experiment.name}: 0 of 10 steps, importing torch, DeepSpeed and transformers"
    )
    state = f"{experiment.name}: 4 of 10 steps, loss 2.500, 10 tokens/s, 00:38 left"
    assert shown[-1] == (state if error else None)


def test_a_notebook_shows_how_many_parts_are_done_until_all_are(shown):
    parts = [Future(), Future()]
    parts[0].set_result(None)

    def end_when_shown():
        wait_until(lambda: len(shown) > 2, "it is shown again")
        parts[1].set_result(None)

    with ThreadPoolExecutor() as pool:
        pool.submit(end_when_shown)
        waiting.until_done(parts, "tracing gpt2")
    assert "tracing gpt2: 1 of 2, 0 s" in shown[1]
    assert shown[-1] == ""
