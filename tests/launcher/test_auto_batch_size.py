"""The largest micro-batch that fits: the search, and the runs that it leaves."""

import subprocess

import pytest

from dsnb.files import records
from dsnb.launcher import auto_batch_size
from dsnb.launcher.folder import write_experiment
from dsnb.launcher.run import launch
from dsnb.prediction import fit
from dsnb.run_folder.paths import RunPaths
from dsnb.run_folder.result import Result
from dsnb.runs.load import load_runs
from dsnb.sweep.run import run_sweep
from tests.support import whole
from tests.support.small_sweep import command, light_server

AUTO = {"micro_batch_size": "auto", "memory_limit_gib": 1.0}


def tried(largest, guess=0, most=2**16):
    """Return the numbers that a search for the largest one tries."""
    asked = []
    found = auto_batch_size.largest_that_fits(lambda number: asked.append(number) or number <= largest, most, guess)
    assert found == min(largest, most)
    assert len(asked) == len(set(asked))
    return asked


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7, 8, 9, 60, 1000, 2**16])
def test_the_largest_number_is_found_with_and_without_a_guess(largest):
    assert len(tried(largest)) <= 2 * (largest.bit_length() + 1)
    for off in (-500, -7, 31, 2**16):
        assert len(tried(largest, max(0, largest + off))) <= 3 * 16


def test_a_good_guess_costs_little():
    assert tried(60, 60) == [60, 61]
    assert tried(60, 59) == [59, 60, 61]
    assert tried(60, 64) == [64, 63, 62, 60, 61]


class Machine:
    """Runs that fit up to a micro-batch, and whole runs up to another one; each leaves its records."""

    def __init__(self, probes=6, whole=6, odd=None):
        self.probes, self.whole, self.odd, self.made = probes, whole, odd, []

    def once(self, experiment, run, asked):
        self.made.append((experiment.micro_batch_size, experiment.steps))
        run.dir.mkdir(parents=True, exist_ok=True)
        found = experiment.model_copy(update={"device": "cpu"})  # as the hosts of a hostfile say
        write_experiment(run, found, asked)
        records.write_json(run.worker, {})
        whole.leave(run, experiment.steps)
        fits = experiment.micro_batch_size <= (self.whole if experiment is not asked else self.probes)
        status = self.odd if experiment.micro_batch_size == 4 and self.odd else "ok" if fits else "oom"
        if status == "interrupted":
            raise KeyboardInterrupt
        result = Result(status, None if status == "ok" else "why", {}, {}, {}, run.dir)
        result.write()
        return result


@pytest.mark.process
@pytest.mark.parametrize(
    ("machine", "guess", "made", "outcome"),
    [
        ({}, 0, [(1, 2), (2, 2), (4, 2), (8, 2), (6, 2), (7, 2), (6, 50)], ("ok", None)),  # neighbours are tried
        ({}, 7, [(7, 2), (6, 2), (6, 50)], ("ok", None)),  # from the prediction
        # memory runs out later than in the probe
        ({"whole": 4}, 6, [(6, 2), (7, 2), (6, 50), (5, 50), (4, 50)], ("ok", None)),
        ({"probes": 0}, 0, [(1, 2)], ("oom", "not even micro_batch_size 1 fits")),
        ({"odd": "failed"}, 0, [(1, 2), (2, 2), (4, 2)], ("failed", "the probe of micro_batch_size 4 is failed: why")),
    ],
)
def test_the_run_takes_the_largest_that_fits(tmp_path, small, machine, guess, made, outcome):
    machine, run = Machine(**machine), RunPaths(tmp_path / "exp" / "run1")
    result = auto_batch_size.launch(small(**AUTO, steps=50), run, machine.once, guess)
    assert (result.status, result.cause, result.run_dir, machine.made) == (*outcome, run.dir, made)
    folders = {path.parent.parent.name for path in tmp_path.glob("*/run1/result.json")}
    assert folders == {"exp", *(f"exp_probe-bs{size}" for size, steps in made if steps == 2)}


def test_a_launch_has_the_prediction_of_this_machine(tmp_path, small, monkeypatch):
    monkeypatch.setattr(fit, "largest_predicted", lambda experiment, most: 17)
    monkeypatch.setattr(auto_batch_size, "launch", lambda *given: given[-1])
    assert launch(small(**AUTO), tmp_path / "run1") == 17


@pytest.mark.process
def test_a_repeat_on_hosts_takes_the_probes_that_are_there(tmp_path, small):
    """Their device is known only when they are reached: it stands in the records, not yet in the settings."""
    (tmp_path / "hosts").write_text("n1 slots=2\nn2 slots=2\n")
    settings = {**AUTO, "steps": 50, "device": "auto", "hostfile": str(tmp_path / "hosts")}
    auto_batch_size.launch(small(**settings, include="n1"), RunPaths(tmp_path / "exp" / "run1"), Machine().once)
    machine = Machine()
    auto_batch_size.launch(small(**settings, include="n2"), RunPaths(tmp_path / "exp" / "run2"), machine.once)
    assert machine.made == [(6, 50)]


@pytest.mark.process
def test_an_interrupted_search_goes_on_where_it_was(tmp_path, small):
    run = RunPaths(tmp_path / "exp" / "run1")
    with pytest.raises(KeyboardInterrupt):
        auto_batch_size.launch(small(**AUTO, steps=50), run, Machine(odd="interrupted").once)
    assert records.read_json(run.result)["status"] == "interrupted"
    machine = Machine()
    assert auto_batch_size.launch(small(**AUTO, steps=50), run, machine.once).status == "ok"
    assert machine.made == [(4, 2), (8, 2), (6, 2), (7, 2), (6, 50)]


PARAMS = """
name: fitting
defaults: {model: gpt2-tiny, precision: fp32, device: cpu, seq_len: 32, warmup_steps: 1, steps: 3,
           micro_batch_size: auto, memory_limit_gib: 1}
"""


@pytest.mark.process
def test_a_sweep_finds_it_keeps_the_probes_and_is_finished(tmp_path):
    params, out = tmp_path / "fitting.yaml", tmp_path / "out"
    params.write_text(PARAMS)
    subprocess.run(command(params), env=light_server() | {"DSNB_TEST_FITS": "3"}, check=True, capture_output=True)
    results = {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
    runs = load_runs(out).set_index("experiment")
    name = "zs0_fp32_gpus1_bsauto_sl32_limit1gib"
    assert runs.loc[name, ["micro_batch_size", "status"]].to_list() == [3, "ok"]
    probes = runs.drop(index=name).set_index("micro_batch_size")["status"].to_dict()
    assert (probes[3], probes[4]) == ("ok", "oom")
    run_sweep(params, output=out, progress=False)  # makes nothing again
    assert results == {path: path.stat().st_mtime_ns for path in out.rglob("result.json")}
