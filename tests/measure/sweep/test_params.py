"""Params files: the grid, the order of its runs, everything that can be wrong with one, and models that are files."""

import json

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.cli.plan import plan_lines
from dsnb.measure.launcher import folder
from dsnb.measure.sweep import job
from dsnb.measure.sweep.params import load_sweep, order_of_repeat
from dsnb.measure.sweep.run import is_finished, with_inputs
from dsnb.results.runs.load import load_runs
from tests.settings.records.test_result import make

SMALL = "name: t\norder: listed\ndefaults: {model: gpt2-tiny, precision: fp32}\n"


@pytest.fixture
def params(tmp_path):
    def write(text):
        path = tmp_path / "t.yaml"
        path.write_text(text)
        return path

    return write


def names(sweep):
    return [run.name for run in sweep.runs]


def error(path, **options):
    with pytest.raises(SettingsError) as caught:
        load_sweep(path, **options)
    return str(caught.value).replace(str(path), "F")


def test_grid_exclude_include_and_repeats(params, tmp_path):
    text = """
grid: {zero_stage: [0, 1], seq_len: [64, 128]}
exclude: [{zero_stage: 1, seq_len: 128}]
include: [{zero_stage: 3, grad_accum: 4}]
repeats: 2
"""
    sweep = load_sweep(params(SMALL + text), output=tmp_path / "out")
    once = [
        f"zs{name}"
        for name in ("0_fp32_gpus1_bs8_sl64", "0_fp32_gpus1_bs8_sl128", "1_fp32_gpus1_bs8_sl64")
    ]
    assert names(sweep) == [*once, "zs3_fp32_gpus1_bs8_sl128_ga4"] * 2
    assert sweep.runs[4].paths.dir == tmp_path / "out" / once[0] / "run2"


def test_overrides_reach_every_entry_and_make_equal_ones_one(params):
    path = params(SMALL + "include:\n  - {gpus: [8, 64]}\n  - {gpus: 512, grad_accum: 4}\n")
    twice = ["zs0_fp32_gpus2_bs8_sl128", "zs0_fp32_gpus2_bs8_sl128_ga4"]
    assert names(load_sweep(path, overrides={"gpus": 2})) == twice
    both = load_sweep(path, overrides={"gpus": [1, 2], "grad_accum": 2})
    assert names(both) == ["zs0_fp32_gpus1_bs8_sl128_ga2", "zs0_fp32_gpus2_bs8_sl128_ga2"]


@pytest.mark.parametrize(
    ("overrides", "stages", "experiments"),
    [
        ({"zero_stage": 1}, {1}, 1),
        ({"zero_stage": [1, 2]}, {1, 2}, 2),
        ({"seed": 5}, {0, 3}, 2),
        ({"seed": [5, 6]}, {0, 3}, 4),
    ],
)
def test_an_override_replaces_an_axis_or_adds_one(params, overrides, stages, experiments):
    path = params(SMALL + "grid: {zero_stage: [0, 3]}\nrepeats: 2\n")
    sweep = load_sweep(path, overrides)
    assert {run.experiment.zero_stage for run in sweep.runs} == stages
    assert len(sweep.runs) == 2 * experiments  # each twice
    assert len({run.name for run in sweep.runs}) == experiments


def test_what_only_leaves_out_is_not_judged(params):
    path = params(SMALL + "grid: {pipeline_parallel: [1, 2, 4, 8]}\n")
    refused = "gpus is 2: it must be a multiple of tensor_parallel x pipeline_parallel (1 x 4)"
    assert refused in error(path, overrides={"gpus": 2})
    assert names(load_sweep(path, overrides={"gpus": 2}, only="*_pp2")) == [
        "zs0_fp32_gpus2_bs8_sl128_pp2"
    ]
    assert refused in error(path, overrides={"gpus": 2}, only="*_pp[24]")
    assert "gpus is 'two': give a whole number" in error(
        path, overrides={"gpus": "two"}, only="*_pp2"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SMALL + "grid: {zero_stage: [0]}\nexclude: [{zero_stage: 0}]",
         "params file 'F': no run is left; exclude less, or give the grid values"),
        (SMALL + "hang_limit_s: 5\nodrer: listed",
         "params file 'F': 'hang_limit_s' is a setting of runs: put settings below 'defaults:', or below 'grid:' with "
         "a list of values\n"
         "params file 'F': unknown setting 'odrer': did you mean 'order'?"),
        (SMALL + "grid: [1]", "params file 'F': grid is [1]: give settings as 'name: value'"),
        (SMALL + "name: u", "params file 'F': duplicate key 'name': remove one"),
        ("name: ../x", "params file 'F': name is '../x': use letters, digits, '.', '_' and '-' only"),
        ("name: &a x\ndefaults: {model: *a}",
         "params file 'F': aliases (*name) are not allowed in a params file: write the value out"),
        ("name: [", "params file 'F': line 1: this is not valid YAML (expected the node content, "
         "but found '<stream end>')"),
        (SMALL + "grid: {seed: [0, 1], steps: [" + "1," * 10_000 + "]}",
         "grid: 20,000 runs: at most 10,000 are allowed; split the sweep"),
        (SMALL + "grid: {zero_stage: [0, 4], seq_len: [1]}",
         "seq_len is 1: it must be at least 2\nzero_stage is 4: allowed are 0, 1, 2 or 3"),
        (SMALL + "exclude: [{}]",
         "exclude has an empty entry, which would exclude every run: name settings or remove it"),
        (SMALL + "grid: {steps: [10, 20]}",
         "two experiments are named 'zs0_fp32_gpus1_bs8_sl128': they differ only in steps; "
         "put each into its own sweep"),
    ],
)  # fmt: skip
def test_bad_files(params, text, message):
    assert error(params(text)) == message


def test_a_python_tag_is_refused_and_not_run(params, tmp_path):
    witness = tmp_path / "ran"
    message = error(params(f"name: !!python/object/apply:os.system ['touch {witness}']"))
    assert "tags such as !!python/... are not allowed, write plain values" in message
    assert "\n" not in message
    assert not witness.exists()


def test_no_match_and_no_file(params, tmp_path):
    path = params(SMALL)
    assert (
        error(path, only="zs9*")
        == "no experiment's name matches 'zs9*': there are zs0_fp32_gpus1_bs8_sl128"
    )
    missing = tmp_path / "no.yaml"
    assert (
        error(missing)
        == "params file 'F' cannot be read: No such file or directory; check the path"
    )


NAMES = [f"zs{number}" for number in range(12)]


def test_each_repeat_has_all_experiments_in_an_order_of_its_own():
    orders = [order_of_repeat(NAMES, repeat, seed) for seed in (0, 1) for repeat in (1, 2)]
    assert all(sorted(one) == sorted(NAMES) for one in orders)
    assert len(set(map(tuple, [*orders, NAMES]))) == 5
    assert order_of_repeat(NAMES[::-1], 1, 0) == orders[0]
    assert order_of_repeat(NAMES, 1, None) == NAMES
    whole = order_of_repeat(NAMES, 3, 5)  # other experiments do not change it
    assert order_of_repeat(NAMES[2:7], 3, 5) == [name for name in whole if name in NAMES[2:7]]


@pytest.fixture
def grid(params):
    axes = "grid: {precision: [fp32, bf16], seq_len: [16, 32, 48, 64]}"
    return params(f"name: s\ndefaults: {{model: gpt2-tiny, device: cpu}}\n{axes}\nrepeats: 2\n")


def test_a_sweep_is_planned_in_random_order_unless_it_is_told_otherwise(grid, tmp_path):
    runs = load_sweep(grid, output=tmp_path / "out").runs
    assert [run.repeat for run in runs] == [1] * 8 + [2] * 8
    assert [run.place for run in runs] == list(range(1, 17))
    listed = load_sweep(grid, {"order": "listed"}).runs
    assert [run.name for run in listed[:8]] == [run.name for run in listed[8:]]
    assert [run.name for run in listed[:2]] == [
        f"zs0_fp32_gpus1_bs8_sl{length}" for length in (16, 32)
    ]
    assert {run.order_seed for run in listed} == {None}
    more = load_sweep(grid, {"repeats": 3}, output=tmp_path / "out").runs
    assert more[:16] == runs


def test_the_place_of_a_run_is_in_its_record_and_a_column(grid, tmp_path):
    first, second = load_sweep(grid, {"order_seed": 7}, output=tmp_path / "out").runs[:2]
    for run in (first, second):
        job.begin(run)
        begun = run.paths.experiment.read_text()
        assert job.load_run(run.paths).experiment == run.experiment
        folder.prepare(run.paths, run.experiment)  # as the launch does
        assert run.paths.experiment.read_text() == begun
        folder.prepare(run.paths, run.experiment)  # a second launch of an unfinished run
        assert run.paths.experiment.read_text() != begun  # it has another run_id
    assert json_files.read_json(second.paths.experiment)["order_place"] == 2
    table = load_runs(tmp_path / "out").set_index("order_place")
    assert list(table["experiment"][[1, 2]]) == [first.name, second.name]
    assert set(table["order_seed"]) == {7}


SHAPE = {"vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
SHAPE |= {"intermediate_size": 64, "max_position_embeddings": 64}
LLAMA = {"model_type": "llama", **SHAPE}
OF_FILES = """
name: files
order: listed
defaults: {precision: fp32, device: cpu, micro_batch_size: 1, seq_len: 16, warmup_steps: 1, steps: 2}
grid: {model: [models/llama.json, models/qwen/config.json, other/llama.json]}
repeats: 2
"""
NAME = "zs0_fp32_gpus1_bs1_sl16"
FILES = [f"models-llama_{NAME}", f"qwen_{NAME}", f"other-llama_{NAME}"]


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A sweep of three configurations, whose first repeats are finished."""
    for name in ("models/llama.json", "models/qwen/config.json", "other/llama.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(json.dumps(LLAMA))
    (tmp_path / "files.yaml").write_text(OF_FILES)
    monkeypatch.chdir(tmp_path)
    sweep = with_inputs(load_sweep("files.yaml", output=tmp_path / "out"))
    for run in sweep.runs[:3]:
        job.begin(run)
        make(run)
    return sweep


def test_models_of_one_file_name_stay_apart_and_a_sweep_does_not_go_on_with_an_edited_one(
    made, tmp_path
):
    assert [run.name for run in made.runs] == FILES * 2
    recorded = [json_files.read_json(run.paths.experiment)["model_name"] for run in made.runs[:3]]
    assert recorded == ["models-llama", "qwen", "other-llama"]
    name = "models/qwen/config.json"
    (tmp_path / name).write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    with pytest.raises(
        SettingsError, match=f"^{name} has changed since .*: restore it, or choose another --output"
    ):
        [
            is_finished(run)
            for run in with_inputs(load_sweep("files.yaml", output=tmp_path / "out")).runs
        ]
    before = sorted(tmp_path.glob("out/*/run*"))
    with pytest.raises(SettingsError, match=f"^{name} has changed since the sweep began"):
        [job.begin(run) for run in made.runs[3:]]
    assert (
        len(sorted(tmp_path.glob("out/*/run*"))) <= len(before) + 1
    )  # nothing was begun with the edited file


def test_a_dry_run_does_not_call_such_runs_finished(made, tmp_path):
    def states():
        found = list(plan_lines(load_sweep("files.yaml", output=tmp_path / "out")))
        ends = "  finished", "  finished with other settings or files"
        return [sum(line.endswith(end) for line in found) for end in ends]

    assert states() == [3, 0]
    (tmp_path / "models/llama.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 2}))
    assert states() == [2, 1]
    json_files.write_json(
        made.runs[0].paths.result, {"status": "failed", "cause": "bad configuration"}
    )
    now = with_inputs(load_sweep("files.yaml", output=tmp_path / "out")).runs[0]
    assert not is_finished(now, retry=True)  # with the corrected file
    with pytest.raises(SettingsError, match="has changed"):
        is_finished(now)


def test_names_that_no_file_system_takes_are_refused_before_anything_starts(tmp_path):
    path = tmp_path / "long.yaml"
    keys = {
        f"zero_optimization.a_key_with_a_long_name_{number}": "some value" for number in range(8)
    }  # 24 + 8 x 36 bytes
    path.write_text(
        json.dumps(
            {"name": "long", "defaults": {"device": "cpu", "zero_stage": 1, "deepspeed": keys}}
        )
    )
    with pytest.raises(
        SettingsError,
        match=r"experiment name 'zs1_.*\.\.\.' has 312 bytes: file systems allow 255; ",
    ):
        load_sweep(path)
    few = {"defaults": {"device": "cpu", "deepspeed": {}}}
    path.write_text(json.dumps({"name": "long", **few}))
    with pytest.raises(
        SettingsError, match=r"folder name 'x{40}\.\.\.' has 256 bytes: .* allow 255; shorten it"
    ):
        load_sweep(path, output=tmp_path / ("x" * 256))
    assert load_sweep(path, output=tmp_path / ("x" * 255)).runs
