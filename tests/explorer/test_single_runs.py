"""What the page says about single runs: their flags, and the spread within a run that has no repeats."""

import numpy as np

from dsnb.analysis.flags import flags, load_samples
from dsnb.explorer import data, single_runs
from dsnb.files import records
from dsnb.run_folder.paths import SweepPaths
from dsnb.runs.load import load_runs, load_steps
from tests.support import made_up


def slow_down(run):
    """Let the last third of a run's steps take three times as long, at half the clock."""
    steps, samples = ([*records.read_lines(path)] for path in (run.steps, run.gpu))
    for step in steps[2 * len(steps) // 3 :]:
        step["step_time_s"] *= 3
    for number, sample in enumerate(samples):
        share = number / len(samples)
        sample |= {"t_s": share * steps[-1]["t_s"], "util_pct": 99, "sm_clock_mhz": 1980 if share < 0.5 else 990}
    run.steps.write_text("".join(map(records.line, steps)))
    run.gpu.write_text("".join(map(records.line, samples)))


def test_runs_are_marked_as_the_flags_say(tmp_path):
    table = made_up.runs(9, gpus=[1]).query("repeat == 1 or experiment.str.contains('ga1')").assign(sm_clock_mhz=1980.0)
    made_up.write_folders(table, tmp_path / "s")
    ok = table[table["status"] == "ok"]
    slow_down(SweepPaths(tmp_path / "s").run(ok["experiment"].iloc[0], ok["repeat"].iloc[0]))
    runs = load_runs(tmp_path / "s")
    unusual, alone = single_runs.unusual(data.read(runs), range(len(runs)))
    own = flags(runs, load_steps(tmp_path / "s"), load_samples(runs))
    assert unusual == {place: words for place, words in enumerate(own["words"]) if words}
    assert any("clock 50.0 % lower" in words and "drifted" in words for words in unusual.values())
    single = (runs["status"] == "ok") & ~runs["experiment"].duplicated(keep=False)
    assert single.any()
    assert sorted(alone) == list(np.flatnonzero(single))
    assert all(words.endswith("(standard deviation within the run, not between runs)") for words in alone.values())


def test_series_are_thinned_where_there_are_many_runs(tmp_path):
    made_up.write_folders(made_up.runs(30), tmp_path / "made_up", steps=500)
    shown = data.read(load_runs(tmp_path))
    series = {position: one for position, one in single_runs.load_all(shown).items() if one}
    assert len(series) > 20
    sizes = {len(one["step"]) for one in series.values()}
    assert max(sizes) <= single_runs.MAX_NUMBERS / single_runs.COLUMNS / 30
    assert all(one["step"][-1] == 500 for one in series.values())
    whole = single_runs.load(shown, next(iter(series)), points=500)
    assert whole["step"] == list(range(1, 501))
