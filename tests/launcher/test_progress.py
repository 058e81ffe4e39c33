"""What a run shows before its first step: its phase, from the files in its folder, and for how long."""

import pytest

from dsnb.launcher import progress
from dsnb.run_folder.paths import RunPaths


@pytest.mark.parametrize(
    ("settings", "phases"),
    [
        ({}, ["starting", "building the model", "first step"]),
        ({"compile": "default"}, ["starting", "building the model", "compiling, first step"]),
        ({"launcher": "deepspeed"}, ["starting", "importing, building the model", "first step"]),
    ],
)
def test_the_phase_follows_from_the_files(small, tmp_path, settings, phases):
    run, found = RunPaths(tmp_path), []
    for path in (None, run.console, run.steps):
        if path:
            path.touch()
        found.append(progress.phase(small(**settings), run))
    assert found == phases


def test_seconds_count_from_the_begin_of_each_phase():
    clock = iter([10.0, 10.0, 14.4, 20.0, 20.0, 21.0]).__next__
    timer = progress.PhaseTimer(clock)
    assert [timer.text(name) for name in ("a", "a", "b", "b")] == ["a: 0 s", "a: 4 s", "b: 0 s", "b: 1 s"]


class Shown:
    """An output of a notebook: what it holds after each change."""

    def __init__(self, first):
        self.texts = [repr(first)]

    def update(self, content):
        self.texts.append(repr(content))


@pytest.fixture
def output(monkeypatch):
    """Make this process look like a notebook's kernel; give its outputs, and None for each time they were cleared."""
    outputs = []

    def display(content, display_id):
        assert display_id is True
        outputs.append(Shown(content))
        return outputs[-1]

    monkeypatch.setattr("IPython.display.display", display)
    monkeypatch.setattr("IPython.display.clear_output", lambda wait: outputs.append(None))
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    return outputs


def advance(bar, steps):
    bar.n = steps
    bar.set_postfix_str("loss 2.500, 10 tokens/s", refresh=False)
    bar.refresh()


def cut_short(experiment, error):
    with progress.progress_bar(experiment, enabled=True) as bar:
        advance(bar, 4)
        assert bar._repr_html_().startswith('<progress value="4" max="10" ')
        raise error


@pytest.mark.parametrize(("error", "how"), [(KeyboardInterrupt, "interrupted"), (ValueError, "failed")])
def test_a_run_that_is_cut_short_leaves_its_last_state(small, output, error, how):
    experiment = small(steps=8, warmup_steps=2)
    with pytest.raises(error):
        cut_short(experiment, error)
    (shown,) = output
    begin = f"{experiment.name}: "
    state = f"{begin}4 of 10 steps, loss 2.500, 10 tokens/s"
    assert shown.texts == [f"{begin}0 of 10 steps", state, f"{state}, {how}"]


def test_a_run_that_ends_leaves_no_bar(small, output):
    with progress.progress_bar(small(), enabled=True) as bar:
        advance(bar, 1)
    assert output[1:] == [None]
    with progress.progress_bar(small(), enabled=False) as bar:
        assert bar.disable
    assert len(output) == 2


def test_this_process_is_no_notebook():
    assert not progress._in_notebook()
