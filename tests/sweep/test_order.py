"""The order of runs: random within each repeat, the same again for the same seed, and recorded."""

import pytest
import yaml

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.launcher import folder
from dsnb.runs.load import load_runs
from dsnb.sweep import job
from dsnb.sweep.params import load_sweep, order_of_repeat

NAMES = [f"zs{number}" for number in range(12)]


def test_each_repeat_has_all_experiments_in_an_order_of_its_own():
    orders = [order_of_repeat(NAMES, repeat, seed) for seed in (0, 1) for repeat in (1, 2)]
    assert all(sorted(one) == sorted(NAMES) for one in orders)
    assert len(set(map(tuple, [*orders, NAMES]))) == 5
    assert order_of_repeat(NAMES[::-1], 1, 0) == orders[0]
    assert order_of_repeat(NAMES, 1, None) == NAMES


def test_other_experiments_do_not_change_the_order():
    whole = order_of_repeat(NAMES, 3, 5)
    assert order_of_repeat(NAMES[2:7], 3, 5) == [name for name in whole if name in NAMES[2:7]]


@pytest.fixture
def params(tmp_path):
    file = tmp_path / "p.yaml"
    grid = {"seq_len": [16, 32, 48, 64], "precision": ["fp32", "bf16"]}
    defaults = {"model": "gpt2-tiny", "device": "cpu"}
    file.write_text(yaml.safe_dump({"name": "s", "defaults": defaults, "grid": grid, "repeats": 2}))
    return file


def test_a_sweep_is_planned_in_random_order_unless_it_is_told_otherwise(params, tmp_path):
    runs = load_sweep(params, output=tmp_path / "out").runs
    assert [run.repeat for run in runs] == [1] * 8 + [2] * 8
    assert [run.place for run in runs] == list(range(1, 17))
    listed = load_sweep(params, {"order": "listed"}).runs
    assert [run.name for run in listed[:8]] == [run.name for run in listed[8:]]
    assert [run.name for run in listed[:2]] == [f"zs0_fp32_gpus1_bs8_sl{length}" for length in (16, 32)]
    assert {run.order_seed for run in listed} == {None}
    more = load_sweep(params, {"repeats": 3}, output=tmp_path / "out").runs
    assert more[:16] == runs
    assert [run.name for run in load_sweep(params, {"order_seed": 1}).runs] != [run.name for run in runs]
    with pytest.raises(SettingsError, match="order_seed"):
        load_sweep(params, {"order_seed": -1})


def test_the_place_of_a_run_is_in_its_record_and_a_column(params, tmp_path):
    first, second = load_sweep(params, {"order_seed": 7}, output=tmp_path / "out").runs[:2]
    for run in (first, second):
        job.initialize(run)
        job.initialize(job.load_run(run.paths))  # as a Slurm job does
        folder.write_experiment(run.paths, run.experiment)  # as the launch does
    assert records.read_json(second.paths.experiment)["order_place"] == 2
    table = load_runs(tmp_path / "out").set_index("order_place")
    assert list(table["experiment"][[1, 2]]) == [first.name, second.name]
    assert set(table["order_seed"]) == {7}
    for run in (first, second):  # as of before orders were recorded
        kept = records.read_json(run.paths.experiment)
        records.write_json(run.paths.experiment, {k: v for k, v in kept.items() if not k.startswith("order_")})
    assert load_runs(tmp_path / "out")["order_place"].isna().all()
