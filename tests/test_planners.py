"""The benchmark of planners: scores by hand, one row of each planner by hand, and the committed predictions."""

import json
import math
import subprocess
import sys

import pandas as pd
import pytest

from benchmarks.planners import models, question, registry, report, scoring, simumax
from benchmarks.planners.models import ModelSize
from benchmarks.planners.question import Answer, Question
from dsnb.base.system.hardware import GIB
from tests import ROOT

PUBLISHED = [
    {"id": "a-001", "source": "a", "group": "g", "tps": 100.0, "mem": 10.0, "oom": False},
    {"id": "a-002", "source": "a", "group": "g", "tps": 200.0, "mem": 20.0, "oom": False},
    {"id": "a-003", "source": "a", "group": "g", "tps": 400.0, "mem": None, "oom": False},
    {"id": "b-001", "source": "b", "group": "", "tps": None, "mem": None, "oom": True},
    {"id": "b-002", "source": "b", "group": "", "tps": None, "mem": 30.0, "oom": False},
]
ANSWERS = {
    "row": ["a-001", "a-002", "a-003", "b-001", "b-002"],
    "tokens_per_s": [200.0, 100.0, 400.0, math.nan, math.nan],
    "low": [90.0, 80.0, math.nan, math.nan, math.nan],
    "high": [210.0, 120.0, math.nan, math.nan, math.nan],
    "memory_gib": [20.0, 10.0, 5.0, 90.0, math.nan],
    "fits": [True, False, True, False, None],
}


def made_up(**changes):
    return scoring.table(PUBLISHED, pd.DataFrame({**ANSWERS, **changes}))


def test_errors_are_factors():
    """Twice, half and exactly the measured speed: the median is 100 % off, and there is no bias."""
    score = scoring.score(made_up())
    assert (score.rows, score.answered) == (5, 4)
    assert score.speed == pytest.approx((3, 3, 100, 0))
    assert score.memory == pytest.approx((3, 2, 100, 0))
    twice = scoring.score(made_up(tokens_per_s=[200.0, 400.0, 400.0, math.nan, math.nan]))
    assert twice.speed == pytest.approx((3, 3, 100, 100 * (4 ** (1 / 3) - 1)))


def test_rows_on_which_a_planner_is_closer():
    """Twice the measured figure is as far off as half of it, and closer than a third of it."""
    measured = pd.Series([10.0, 10.0, 10.0, math.nan])
    predicted = pd.Series([20.0, 20.0, math.nan, 1.0])
    assert scoring.closer(predicted, pd.Series([5.0, 10 / 3, 1.0, 9.0]), measured) == 1


def test_order_of_settings():
    """Measured 1, 2, 3 and predicted 2, 1, 3: Spearman's correlation is 1/2, and two of three pairs are in order."""
    ranking = scoring.score(made_up()).ranking
    assert (ranking.sources, ranking.pairs) == (1, 3)
    assert ranking.correlation == pytest.approx(0.5)
    assert ranking.ordered == pytest.approx(2 / 3)
    same = scoring.score(made_up(tokens_per_s=[7.0, 7.0, 7.0, math.nan, math.nan])).ranking
    assert same.sources == 0  # the same for all: no order
    assert math.isnan(same.correlation)
    assert same.ordered == 0.5
    two = scoring.score(made_up(tokens_per_s=[1.0, math.nan, 2.0, math.nan, math.nan])).ranking
    assert (two.sources, two.pairs, two.ordered) == (0, 1, 1)


def test_speeds_that_were_measured_alike_are_no_pair():
    close = [{**row} for row in PUBLISHED]
    close[1]["tps"] = 101.0
    table = scoring.table(close, pd.DataFrame(ANSWERS))
    assert scoring.score(table).ranking.pairs == 2


def test_shortages_and_ranges():
    score = scoring.score(made_up())
    assert score.shortages == (1, 1, 3, 1)
    assert score.coverage == (2, 50)
    silent = scoring.score(made_up(fits=[None] * 5, low=[math.nan] * 5))
    assert silent.shortages is None
    assert silent.coverage is None


def test_figures_that_are_not_given_have_no_score():
    nothing = {name: [math.nan] * 5 for name in ("tokens_per_s", "low", "high", "memory_gib")}
    score = scoring.score(made_up(**nothing, fits=[None] * 5))
    assert score == (5, 0, None, None, None, None, None)


def test_answers_to_other_rows_are_refused():
    with pytest.raises(ValueError, match="5 answers are not those of the 4 rows"):
        scoring.table(PUBLISHED[:4], pd.DataFrame(ANSWERS))


def test_tables_say_what_is_not_given(tmp_path):
    questions = [Question(row) for row in PUBLISHED]
    answers = [Answer(200.0), Answer(100.0), Answer(400.0), *[Answer(why_not="no")] * 2]
    registry.write(questions, answers, tmp_path / "6nd.csv")
    seen = [Answer(100.0, 90.0, 110.0), Answer(100.0, 90.0, 110.0), *[Answer(why_not="no")] * 3]
    registry.write(questions, seen, tmp_path / "dsnb-left-out.csv")
    lines = report.lines(questions, tmp_path)
    assert (
        "| 6ND at 40 % MFU | 3 of 3 | 100.0 % | +0.0 % | 41.4 % | 0 of 2 | 0.50 (1) | 67 % of 3 "
        "| states none |"
    ) in lines
    assert "| 6ND at 40 % MFU |  | none |  |  |  |  |  |  |" in lines
    assert (
        "| dsnb, without the row's source | 2 of 3 | 41.4 % | -29.3 % |  |  |  | 50 % of 1 "
        "| 50 % of 2 |"
    ) in lines
    assert f"\naccelerate has no predictions in {tmp_path}" in lines


def test_predictions_are_read_as_they_were_written(tmp_path):
    questions = [Question({"id": "x-001"}), Question({"id": "x-002"})]
    answers = [Answer(1.5, 1.0, 2.0, 3.0, False), Answer(why_not="it knows no LoRA")]
    registry.write(questions, answers, tmp_path / "x.csv")
    table = registry.read(tmp_path / "x.csv")
    assert table["fits"].tolist()[0] is False
    assert pd.isna(table["fits"].tolist()[1])
    assert table["tokens_per_s"].tolist()[0] == 1.5
    assert pd.isna(table["memory_gib"].tolist()[1])
    with pytest.raises(ValueError, match="known are dsnb-left-out, dsnb"):
        registry.find("y")


def asked(cfg, gpu="A100", gpus=1, note="", nodes=1, **settings):
    """Return the question of a made-up row."""
    return Question(
        {
            "id": "made-up-001",
            "source": "made/up",
            "cfg": f"models/{cfg}.json",
            "gpu": gpu,
            "gpus": gpus,
            "nodes": nodes,
            "note": note,
            "settings": {"micro_batch_size": 1, "seq_len": 2048, **settings},
        }
    )


def answer(name, asked_for):
    (given,) = registry.find(name).answers([asked_for])
    return given


def test_6nd_by_hand():
    """TinyLlama has 1,100,048,384 parameters and an A100 312 TFLOP/s: 0.4 x 312e12 / (6 x 1.1e9)."""
    given = answer("6nd", asked("tinyllama", strategy="fsdp", gpus=8))
    assert given.tokens_per_s == pytest.approx(0.4 * 312e12 / (6 * 1_100_048_384))
    assert given.memory_gib is None
    assert "LoRA" in answer("6nd", asked("tinyllama", lora_rank=8)).why_not


def test_llama_factory_by_hand():
    listed = answer("llama-factory", asked("llama2-13b", lora_rank=8, strategy="plain"))
    assert listed.memory_gib == pytest.approx(32e9 / GIB)  # 13.0 billion are near 14
    formula = answer("llama-factory", asked("tinyllama", lora_rank=8, strategy="plain"))
    assert formula.memory_gib == pytest.approx(2 * 1_100_048_384 / GIB)
    full = answer("llama-factory", asked("llama2-7b", strategy="plain"))
    assert full.memory_gib == pytest.approx(120e9 / GIB)
    assert full.fits is False  # of 80 GB
    pure = asked("llama2-7b", strategy="plain", note="pure bf16")
    assert answer("llama-factory", pure).memory_gib == pytest.approx(60e9 / GIB)
    assert "sharding" in answer("llama-factory", asked("llama2-7b", gpus=2)).why_not


def test_deepspeed_states_by_hand():
    """Llama 7B on 8 GPUs: 2 + 18/8 bytes of each parameter at stage 2; its largest layer has 32,000 x 4,096."""
    parameters, largest = 6_738_415_616, 32_000 * 4096
    second = answer("deepspeed", asked("llama-7b", gpus=8, zero_stage=2))
    assert second.memory_gib == pytest.approx(4.25 * parameters / GIB)
    third = answer("deepspeed", asked("llama-7b", gpus=8, zero_stage=3))
    assert third.memory_gib == pytest.approx((4 * largest + 2.25 * parameters) / GIB)
    nodes = answer("deepspeed", asked("llama-7b", gpus=16, nodes=2, zero_stage=3))
    assert nodes.memory_gib == pytest.approx((4 * largest + 1.125 * parameters) / GIB)
    offloaded = asked("llama-7b", gpus=8, zero_stage=3, offload="all-cpu")
    assert answer("deepspeed", offloaded).memory_gib == pytest.approx(4 * largest / GIB)
    for other in ({"zero_stage": 1}, {"strategy": "fsdp"}, {"zero_stage": 3, "lora_rank": 8}):
        assert answer("deepspeed", asked("llama-7b", gpus=8, **other)).why_not


def test_accelerate_by_hand():
    """TinyLlama without its output layer, 8 bytes a parameter: two moments in fp32 are the largest part."""
    given = answer("accelerate", asked("tinyllama", strategy="plain"))
    assert given.memory_gib == pytest.approx(8 * (1_100_048_384 - 32_000 * 2048) / GIB)
    assert given.fits is True
    assert "sharding" in answer("accelerate", asked("tinyllama", gpus=8, zero_stage=2)).why_not


def test_llm_analysis_by_hand():
    """MPT-1b, 24 layers of 2,048: its FLOPs by the formula of its paper, at half of the peak, with recomputation."""
    (row,) = [one for one in question.read() if one.row == "llm-foundry-030"]
    assert (row.model_name, row.gpu_name, row.gpus) == ("MPT-1b", "H100", 8)
    width, layers, vocab = 2048, 24, 50368
    tokens = row.tokens_per_micro_batch
    length = row.settings["seq_len"]
    forward = 24 * tokens * layers * width**2
    forward *= 1 + length / (6 * width) + vocab / (12 * layers * width)
    passes = 4 if row.settings["activation_checkpointing"] else 3
    table = registry.predictions("llm-analysis").set_index("row")
    by_hand = tokens * 0.5 * 989e12 / (passes * forward)
    assert table.loc[row.row, "tokens_per_s"] == pytest.approx(by_hand, rel=0.01)
    assert "adapters" in answer("llm-analysis", asked("tinyllama", lora_rank=8)).why_not


def test_simumax_is_asked_in_its_words():
    row = next(one for one in question.read() if one.row == "internevo-002")
    assert simumax.strategy(row) == {
        "seq_len": 2048,
        "micro_batch_size": 8,
        "micro_batch_num": 1,
        "dtype": "bf16",
        "world_size": 8,
        "zero_state": 1,
        "enable_sequence_parallel": False,
        "enable_recompute": True,
        "recompute_granularity": "full_block",
        "recompute_layer_num": 32,
    }
    model = simumax.model(row)
    assert (model["hidden_size"], model["head_num"], model["head_size"]) == (4096, 32, 128)
    refusals = {
        "LoRA": asked("llama-7b", zero_stage=1, lora_rank=8),
        "not supported yet": asked("llama-7b", gpus=8, strategy="fsdp"),
        "offload": asked("llama-7b", zero_stage=1, offload="optimizer-cpu"),
        "no system": asked("llama-7b", gpu="H100", zero_stage=1),
        "no configuration": asked("nanogpt-124m", zero_stage=1),
    }
    for words, refused in refusals.items():
        assert words in answer("simumax", refused).why_not


def test_committed_speeds_of_dsnb_are_those_of_the_table_of_rows():
    table = registry.predictions("dsnb").set_index("row")["tokens_per_s"]
    timed = [row.row for row in question.read() if row.published["tps"]]
    other = pd.read_csv(report.PREDICTED)["predicted"]
    assert table[timed].tolist() == pytest.approx(other.tolist(), rel=0.01)


def test_models_are_counted_once():
    """GPT-2 of two layers: the output layer is the embedding, which counts once."""
    tiny = {"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2}
    counted = models.count({**tiny, "vocab_size": 100, "n_positions": 16})
    blocks = 2 * (12 * 8 * 8 + 13 * 8)
    parameters = blocks + (100 + 16) * 8 + 2 * 8
    assert counted == ModelSize(parameters, parameters, 100 * 8)
    with pytest.raises(ValueError, match="model 'none' is not in"):
        models.size("none")


def test_committed_predictions_of_light_planners_are_made_again():
    questions = question.read()
    for name in ("6nd", "llama-factory", "deepspeed", "accelerate"):
        committed = registry.predictions(name)
        for place in range(0, len(questions), 7):
            given = answer(name, questions[place])
            line = committed.iloc[place]
            assert line["row"] == questions[place].row
            for figure in ("tokens_per_s", "memory_gib"):
                value = getattr(given, figure)
                if value is None:
                    assert pd.isna(line[figure])
                else:
                    assert line[figure] == pytest.approx(value, rel=1e-4)
            assert given.why_not == ("" if pd.isna(line["why_not"]) else line["why_not"])


def test_every_planner_answers_every_row_or_says_why_not():
    known = report.tables(question.read())
    assert list(known) == list(registry.PLANNERS)
    for name in known:
        table = registry.predictions(name)
        silent = table[["tokens_per_s", "memory_gib", "fits"]].isna().all(axis=1)
        assert table["why_not"].notna().tolist() == silent.tolist()


def test_rows_without_an_identifier_get_one(tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([{"cfg": "models/tinyllama.json"}]))
    (only,) = question.read(file)
    assert only.row == "row-001"
    assert only.config["model_type"] == "llama"


@pytest.mark.process
def test_the_command_refuses_unknown_planners_and_missing_predictions(tmp_path):
    def called(*arguments):
        command = [sys.executable, "-m", "benchmarks.planners", *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    unknown = called("predict", "oracle")
    assert unknown.returncode == 1
    assert unknown.stderr.strip().startswith("planner 'oracle' is unknown: known are dsnb-left-out")
    empty = called("--folder", str(tmp_path))
    assert f"6nd has no predictions in {tmp_path}" in empty.stdout
