"""What a form comes to: a row for each setting, why some are refused, predicted figures, and the params file."""

import itertools
import random

import pytest

import dsnb
from dsnb.designer import plan as module
from dsnb.designer.plan import plan, predicted, shown
from dsnb.errors import SettingsError
from dsnb.settings.experiment import Experiment
from dsnb.sweep.params import load_sweep
from tests.prediction.made_up import TRACE

SHARED = {"model": "gpt2-tiny", "device": "cpu", "gpus": 1, "precision": "fp32", "warmup_steps": 5, "steps": 20}
GRID = {"zero_stage": [0, 1], "strategy": ["deepspeed", "ddp"]}
REASON = (
    "zero_stage is 1, but strategy is 'ddp': DDP shards nothing; leave zero_stage at 0, or use strategy 'deepspeed'"
)
AXES = {
    "zero_stage": [0, 1, 2, 3],
    "offload": ["none", "optimizer-cpu", "all-cpu"],
    "strategy": ["deepspeed", "ddp", "fsdp", "plain"],
    "precision": ["fp32", "fp16", "bf16"],
    "overlap_comm": ["auto", "on", "off"],
    "micro_batch_size": [1, "auto", 8],
    "activation_checkpointing": [False, True],
    "gradient_clipping": [0.0, 1e-06, 1.0],
    "tensor_parallel": [1, 2],
    "lora_rank": [0, 8],
    "deepspeed.zero_optimization.reduce_scatter": [True, False],
}
QUESTIONS = ["", "off", "- [a: b] # c", "wie groß? 漢字", "2024-01-01"]


def content(grid=GRID, repeats=2, question="Why?", **shared):
    defaults = {**SHARED, **shared}
    return {"name": "x", "question": question, "defaults": defaults, "grid": grid, "repeats": repeats}


@pytest.fixture
def planned(tmp_path):
    """Give a function that plans in a folder of the test."""
    return lambda **given: plan(content(**given), tmp_path / "x.yaml", tmp_path / "out")


@pytest.fixture
def traced(monkeypatch):
    monkeypatch.setattr("dsnb.prediction.predict.traces", lambda experiments: [TRACE] * len(experiments))


def test_runs_are_counted_and_refused_settings_left_out(planned):
    made = planned()
    assert list(made.table["refused"]) == ["", "", "", REASON]
    names = [f"{way}_fp32_gpus1_bs8_sl128" for way in ("ddp", "zs0", "zs1")]
    assert sorted(run.name for run in made.sweep.runs) == sorted(names * 2)
    assert "exclude:\n- zero_stage: 1\n  strategy: ddp\n" in made.text
    text = shown(made, made.table)
    assert "6 runs: 3 experiments x 2<" in text
    assert f"refused: {REASON}" in text


@pytest.mark.parametrize("seed", range(2))
def test_what_is_written_reads_back_to_the_same_experiments(seed, tmp_path):
    draw = random.Random(seed)
    axes = {name: draw.sample(AXES[name], draw.randint(2, min(3, len(AXES[name])))) for name in draw.sample([*AXES], 3)}
    asked = content(axes, draw.randint(1, 3), draw.choice(QUESTIONS))
    wanted = []
    for values in itertools.product(*axes.values()):
        try:
            wanted.append(Experiment(**{**SHARED, **dict(zip(axes, values, strict=True))}))
        except SettingsError:
            continue
    asked["defaults"] = {name: value for name, value in SHARED.items() if name not in axes}
    path = tmp_path / "x.yaml"
    made = plan(asked, path, tmp_path / "out")
    if not wanted:
        assert made.problems == ["every setting is refused: change one"]
        return
    path.write_text(made.text)
    sweep = load_sweep(path, output=tmp_path / "out")
    assert (sweep, sweep.question) == (made.sweep, asked["question"])
    assert sorted(run.experiment.model_dump_json() for run in sweep.runs) == sorted(
        each.model_dump_json() for each in wanted * asked["repeats"]
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"grid": {}, "zero_stage": 1, "strategy": "ddp"}, "every setting is refused: change one"),
        ({"grid": {"seed": list(range(6000))}}, "grid: 12,000 runs: at most 10,000 are allowed; split the sweep"),
        ({"grid": {"steps": [5, 6]}},
         "two experiments are named 'zs0_fp32_gpus1_bs8_sl128': they differ only in steps; put each into its "
         "own sweep"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_a_sentence(planned, given, problem):
    made = planned(**given)
    assert (made.problems, made.sweep) == ([problem], None)
    assert "<li>" in shown(made, made.table)


def test_figures_are_those_of_predict_with_their_errors(planned, traced):
    made = planned(model="opt-350m", gpus=1, seq_len=2048, price_per_gpu_hour=2.0)
    table = predicted(made, "H200", "nvlink", 1e9)
    wanted = dsnb.predict([*made.experiments.values()], "H200", tokens=1e9, price=2.0)
    for column in ("fits", "peak_allocated_gib", "tokens_per_s", "days", "cost"):
        assert list(table[column][:3]) == list(wanted[column])
    assert table.iloc[3].isna()[["fits", "tokens_per_s", "cost"]].all()
    text = shown(made, table)
    row = wanted.iloc[0]
    assert f"{row['peak_allocated_gib']:,.1f} ± {row['peak_allocated_error_pct']:.1f} %" in text
    assert f"{row['tokens_per_s']:,.0f} ± {row['tokens_per_s_error_pct']:.1f} %" in text
    assert "<th>cost</th>" in text
    assert predicted(made, "T4", "nvlink", 1e9)["fits"].eq(False)[:3].all()


def test_what_cannot_be_predicted_stands_beside_what_can(planned, traced, monkeypatch):
    made = planned(grid={"model": ["opt-350m", "someone/a-model"]}, gpus=1)
    table = predicted(made, "H200", "nvlink", 1e9)
    assert list(table["fits"].isna()) == [False, True]
    assert table["note"][1].startswith("model is 'someone/a-model': a prediction needs")
    assert "at least" in shown(made, table)

    def fails(*_, **__):
        raise OSError("no such model")

    monkeypatch.setattr(module, "predict", fails)
    assert predicted(made, "H200", "nvlink", 1e9)["note"][0] == "nothing is predicted: no such model"


def test_whatever_is_typed_is_escaped(planned):
    made = planned(grid={"model": ["<script>alert(1)</script>", "gpt2"]})
    assert "<script>" not in shown(made, made.table)
    assert "&lt;script&gt;" in shown(made, made.table)
