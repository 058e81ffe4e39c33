"""`dsnb.recommend`, with a made-up trace: the choice for each task, how sure it is, refusals."""

import math

import pytest

import dsnb
from dsnb.analysis import ratio_errors
from dsnb.analysis.ratio_errors import RatioError
from dsnb.errors import SettingsError
from dsnb.prediction import predict
from dsnb.prediction.traces import Trace
from tests.prediction.made_up import RECORD


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    monkeypatch.setattr(predict, "traces", lambda asked: [Trace.of(RECORD, int(one.micro_batch_size)) for one in asked])


def given(**settings):
    return dsnb.Experiment(**{"model": "opt-1.3b", "precision": "bf16", "seq_len": 2048, "device": "cuda", **settings})


def test_the_best_that_fits_is_recommended_with_its_alternatives():
    asked = [given(zero_stage=stage, gpus=8, compile=mode) for stage in range(4) for mode in ("off", "default")]
    (found,) = dsnb.recommend(asked, "H200", objective="tokens_per_s")
    everything = dsnb.predict(asked, "H200")
    assert found.table["tokens_per_s"].iloc[0] == everything["tokens_per_s"].max()
    assert len(found.table) == 4
    assert found.table["worse_pct"].tolist() == sorted(found.table["worse_pct"])
    assert found.sentences[0].startswith(f"Train with {found.table['experiment'][0]}: ")
    least = dsnb.recommend(asked, "H200", objective="memory")[0].table
    assert least["peak_allocated_gib"].iloc[0] == everything["peak_allocated_gib"].min()
    cheapest = dsnb.recommend(asked, "H200", objective="cost", price=2.0)[0].table
    assert cheapest["cost"].iloc[0] == everything["gpu_hours"].min() * 2.0


def test_each_task_has_an_answer_of_its_own():
    """The small model is faster than the large one, and LoRA than training everything: that is no recommendation."""
    asked = [given(gpus=8, zero_stage=stage) for stage in (0, 1, 2)]
    asked += [given(gpus=8, model="opt-125m", zero_stage=stage) for stage in (0, 1)]
    asked += [given(gpus=8, lora_rank=8), given(gpus=8, seq_len=1024)]
    found = dsnb.recommend(asked, "H200")
    assert [one.task for one in found] == [
        "opt-1.3b, sequence 2048",
        "opt-125m, sequence 2048",
        "opt-1.3b, sequence 2048, LoRA adapters",
        "opt-1.3b, sequence 1024",
    ]
    assert [len(one.table) for one in found] == [3, 2, 1, 1]
    names = [one.name_with_model for one in asked]
    assert set(found[1].table["experiment"]) == set(names[3:5])
    assert found[2].table["experiment"].tolist() == [names[5]]
    assert all(one.sentences[0].startswith(f"Train with {one.table['experiment'][0]}: ") for one in found)


def test_the_doubt_about_a_choice_is_the_error_of_ratios_and_says_of_which(monkeypatch):
    """Of two micro-batches, whose ratios are known within 7 %, and of two strategies, of which nothing is known."""
    batches = ratio_errors.ONE_PART.format("batch sizes")
    known = {batches: RatioError(118, 7.0, 50.0), ratio_errors.ALL: RatioError(5, 90.0, 99.0)}
    monkeypatch.setattr(ratio_errors, "DEFAULT_RATIOS", known)

    def second(*sizes, **settings):
        asked = [given(micro_batch_size=size, gpus=8, **settings) for size in sizes]
        return dsnb.recommend(asked, "H200", objective="tokens_per_s")[0].sentences[1]

    error = "7.0 %, the mean error of predicted ratios of two settings that differ only in batch sizes (118 pairs)"
    first, other = (given(micro_batch_size=size, gpus=8).name_with_model for size in (9, 8))
    assert second(8, 9).endswith(f" % worse, within {error}: run {first} and {other} to decide.")
    assert second(8, 32).endswith(f" % worse, more than {error}.")
    asked = [given(gpus=8), given(gpus=8, zero_stage=1)]
    sentence = dsnb.recommend(asked, "H200", objective="tokens_per_s")[0].sentences[1]
    assert "within 90.0 %, the mean error of predicted ratios of two settings of one task (5 pairs): run" in sentence


def test_more_than_a_year_is_said_with_the_gpus_that_a_month_needs():
    (found,) = dsnb.recommend([given(gpus=8)], "H200", tokens=1e15)
    best = found.table.iloc[0]
    assert best["days"] > 365
    needed = math.ceil(best["gpu_hours"] / 24 / 30)
    said = f"That is more than 365 days: 30 days would need {needed:,} GPUs, if each sustained its speed."
    assert found.sentences[1] == said
    (short,) = dsnb.recommend([given(gpus=8)], "H200", tokens=1e9)
    assert not [one for one in short.sentences if "365" in one]


def test_a_task_of_which_nothing_fits_says_what_would_and_the_others_are_answered():
    large = [given(gpus=8, zero_stage=3, micro_batch_size=size) for size in (2048, 4096)]
    without, fitting = dsnb.recommend([*large, given(gpus=8, model="opt-125m")], "H200")
    assert (without.task, fitting.task) == ("opt-1.3b, sequence 2048", "opt-125m, sequence 2048")
    assert without.table.empty
    first, second = without.sentences
    assert first.startswith(f"No setting fits: the smallest, {large[0].name_with_model}, needs ")
    assert second.startswith("Predicted to fit, the smallest change first: ")
    assert fitting.sentences[0].startswith("Train with opt-125m_zs0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "fame"}, "objective is 'fame': use one of days, tokens_per_s, memory, cost"),
        ({"objective": "cost"}, "price is missing"),
        (
            {"gpu": "T4"},
            r"opt-1.3b, sequence 2048: no setting fits: the smallest, opt-1.3b_zs0\S+, needs \d+\.\d of 12\.\d GiB",
        ),
    ],
)
def test_recommendations_are_refused_in_one_sentence(options, words):
    with pytest.raises(SettingsError, match=words):
        dsnb.recommend([given(zero_stage=0)], **options)
