"""`micro_batch_size: auto`: the search, and what it does with probes that were made before."""

from dsnb import records
from dsnb.launcher import fit
from dsnb.launcher.folder import prepare
from dsnb.launcher.outcome import Result
from dsnb.paths import RunPaths


def once_that(**verdicts):
    """Give a launch that ends at once, `failed` where `verdicts` say nothing else of a size, as in `bs4="oom"`."""

    def once(experiment, run, asked):
        prepare(run, experiment, asked)
        size = experiment.micro_batch_size
        result = Result(verdicts.get(f"bs{size}", "failed"), None, {}, {}, {}, run.dir)
        result.write()
        return result

    return once


def test_the_largest_that_fits():
    for answer in (0, 1, 2, 3, 7, 8, 100):
        assert fit.largest(lambda size, answer=answer: size <= answer) == answer
    assert fit.largest(lambda _: True, most=100) == 100


def test_a_probe_that_failed_is_made_again_when_the_run_is(small, tmp_path):
    run = RunPaths(tmp_path / "auto" / "run1")
    experiment = small(micro_batch_size="auto", memory_limit_gib=1)
    first = fit.launch(experiment, run, once_that(bs1="ok", bs2="timeout"))
    assert (first.status, first.cause) == ("failed", "the probe of micro_batch_size 2 is timeout: None")
    run.result.unlink()
    again = fit.launch(experiment, run, once_that(bs1="ok", bs2="ok", bs4="oom", bs3="oom"))
    assert again.status == "ok"
    record = records.read_json(run.experiment)
    assert (record["micro_batch_size"], record["asked"]) == (2, {"micro_batch_size": "auto"})


def test_a_run_that_does_not_fit_takes_its_probes_place(small, tmp_path):
    run = RunPaths(tmp_path / "auto" / "run1")
    experiment = small(micro_batch_size="auto", memory_limit_gib=1, steps=7)
    ends = once_that(bs1="ok", bs2="ok", bs3="oom", bs4="oom")

    def once(settings, folder, asked):
        whole = folder.dir == run.dir and settings.micro_batch_size == 2
        return (once_that(bs2="oom") if whole else ends)(settings, folder, asked)

    assert fit.launch(experiment, run, once).status == "ok"
    assert records.read_json(run.experiment)["micro_batch_size"] == 1
    aside = RunPaths(fit.probe_dir(run, 2))
    assert records.read_json(aside.result)["status"] == "oom"
    assert records.read_json(aside.experiment)["steps"] == 7
