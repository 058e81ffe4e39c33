"""The lines of a recommendation: none contradicts another, bad news come first, and ten are the most."""

import pytest

from dsnb.prediction import brief, ratio_errors
from dsnb.prediction.explanation import LIMITS, changes
from dsnb.prediction.search import SearchResult
from dsnb.results.answers.lines import height, text
from dsnb.settings.experiment import Experiment
from tests.prediction.made_up import given, searching, trace_nothing

STAGES = [given(zero_stage=stage, gpus=8) for stage in (0, 1, 3)]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def lines(search, result=None, **options):
    result = result or search.best()
    return {one.role: one for one in brief.lines(search, result, **options)}


def alternatives(search):
    found = brief.lines(search, search.best())
    return [one.cells[1:] for one in found if one.role == "alternative"]


def test_a_faster_alternative_within_two_percent_counts_as_equal_and_is_less_simple():
    search = searching(STAGES, [100.0, 101.0, 80.0])
    first, second = alternatives(search)
    assert first[:2] == ("ZeRO 1", "equal")
    assert first[-1] == "less simple"
    assert second[0] == "ZeRO 3"
    assert second[1].startswith("25 ± ")


def test_a_difference_has_the_mean_error_of_predicted_ratios_unless_memory_is_tight():
    asked = STAGES[:2]
    ratios = ratio_errors.errors_for("H200", "nvlink")
    error_pct, _ = ratio_errors.doubt(asked, [False, False], ratios)
    far = searching(asked, [100.0, 40.0])
    tight = searching(asked, [100.0, 80.0], tight=[False, True], peak_reserved_gib=140.0)
    assert alternatives(far)[0][1] == f"150 ± {error_pct:.0f} % longer"
    assert alternatives(tight)[0][1] == "25 % longer"
    assert alternatives(tight)[0][-1] == "torch would reserve 140 GiB"


def test_the_figure_and_its_range_have_one_unit():
    """A billion tokens at 12,000 a second take 23.1 hours, and at 10,000 more than a day."""
    search = searching(STAGES[:1], [12e3], tokens_per_s_low=10e3, tokens_per_s_high=14e3)
    assert lines(search)["time"].cells[1:3] == ("23.1 hours", "19 to 28")


def test_bad_news_come_before_the_setting_in_one_sentence():
    usual = brief.lines(searching(STAGES[:1], [100_000.0]), searching(STAGES[:1], [1e5]).best())
    assert [one.role for one in usual] == ["title", "train", "time", "speed", "memory", "predicted"]
    search = searching(STAGES[:1], [10.0], tight=True, peak_reserved_gib=140.0)
    tight = brief.lines(search, search.best())
    assert [one.role for one in tight[:3]] == ["title", "warned", "train"]
    assert (
        tight[1]
        .cells[0]
        .startswith(
            "This takes over 365 days: 30 days would need 309 GPUs; memory is tight for what torch "
            "reserves, so the speed is not promised"
        )
    )


def test_a_tight_setting_has_bounds_and_what_torch_would_reserve():
    search = searching(STAGES[:1], [100_000.0], tight=True, peak_reserved_gib=140.0)
    found = lines(search)
    assert found["time"].cells == (
        "  time", "at least 2.78 hours", "", "at least 22.2 GPU-hours",
    )  # fmt: skip
    assert found["speed"].cells[1:3] == ("up to 100,000 tokens/s", "")
    assert found["memory"].cells[-1] == "torch would reserve 140 GiB"
    assert "ranges" not in found["predicted"].cells[0]


def test_a_smaller_number_of_gpus_that_has_enough_memory_is_told():
    search = searching(STAGES[:1], [100_000.0])
    words = {
        1: "; 1 GPU has enough memory, too",
        4: "; 4 GPUs have enough memory, too",
        8: "; fewer GPUs have too little memory",
    }
    for least, said in words.items():
        assert lines(search, least_gpus=least)["memory"].cells[-1].endswith(said)
    assert lines(search)["memory"].cells[-1].endswith(" GiB left")


def test_the_last_alternatives_are_left_out_where_more_than_ten_lines_would_be_needed():
    sizes = (1, 2, 4, 8)
    lean = {"offload": "all-cpu", "activation_checkpointing": True, "loss": "chunked"}
    rates = [1e5, 9e4, 8e4, 7e4]
    short = searching([given(zero_stage=3, gpus=8, micro_batch_size=size) for size in sizes], rates)
    asked = [given(zero_stage=3, gpus=8, micro_batch_size=size, **lean) for size in sizes]
    long = searching(asked, rates, tight=True, peak_reserved_gib=140.0)
    assert len(alternatives(short)) == 3
    assert len(alternatives(long)) == 1
    assert [height(brief.lines(search, search.best())) for search in (short, long)] == [9, 10]


def test_names_of_experiments_are_in_no_line():
    fitting = searching(STAGES, [100.0, 90.0, 80.0])
    too_large = searching(STAGES, 100.0, fits=False, peak_allocated_gib=150.0)
    nothing = SearchResult(too_large.table, too_large.table.head(0), [])
    found = [*brief.lines(fitting, fitting.best()), *brief.lines(too_large, nothing)]
    assert not [cell for one in found for cell in one.cells if "_zs" in cell]
    assert found[-1].cells[0].startswith("No setting fits: the smallest, ZeRO ")


PARTS = {part: 0.0 for parts in LIMITS.values() for part in parts}
FIGURES = {
    **PARTS, "matmul_s": 3.0, "host_s": 1.0, "step_time_s": 4.0, "mfu": 0.42, "outside": "",
    "tokens_per_s_low": 8e4, "tokens_per_s_high": 2e5, "tokens_per_s_error_pct": 10.0,
    "peak_allocated_error_pct": 0.6,
}  # fmt: skip
"""A step of four seconds, three of them products."""
CELL = "  speed     100,000 tokens/s  80,000 to 200,000  42 % MFU; 75 % of time is matmuls and attention"


def shown(search, width=100, **options):
    """Return the text of an answer but for its last lines, on the nearest run."""
    whole = text(brief.lines(search, search.best(), **options), width)
    return whole.split("\nPredicted, not run")[0].splitlines()


def test_a_setting_that_fits_is_shown_in_aligned_lines_at_80_and_100_columns():
    """A billion tokens at 100,000 a second are 2.78 hours; ZeRO 3 is a quarter slower."""
    search = searching([STAGES[1], STAGES[2]], [1e5, 8e4], **FIGURES)
    (error,) = {cells[1].split()[2] for cells in alternatives(search)}
    options = {"assumed": ["tokens"], "least_gpus": 2}
    assert shown(search, **options) == [
        "opt-1.3b on 8 H200: 1 billion tokens, 64 sequences of 2,048 a step *",
        "Train with  ZeRO 1, bf16, micro-batch 8",
        "  time      2.8 hours         1 to 4             22.2 GPU-hours",
        CELL,
        "  memory    50 of 138 GiB     ± 0.3              87.6 GiB left; 2 GPUs have enough memory, too",
        f"Or          ZeRO 3  25 ± {error} % longer  50 GiB",
    ]
    assert shown(search, 80, **options) == [
        "opt-1.3b on 8 H200: 1 billion tokens, 64 sequences of 2,048 a step *",
        "Train with  ZeRO 1, bf16, micro-batch 8",
        "  time      2.8 hours         1 to 4             22.2 GPU-hours",
        "  speed     100,000 tokens/s  80,000 to 200,000  42 % MFU; 75 % of time is",
        "                                                 matmuls and attention",
        "  memory    50 of 138 GiB     ± 0.3              87.6 GiB left; 2 GPUs have",
        "                                                 enough memory, too",
        f"Or          ZeRO 3  25 ± {error} % longer  50 GiB",
    ]
    assert shown(search, 140, **options) == shown(search, **options)


def test_a_tie_is_decided_for_the_simpler_setting():
    search = searching(STAGES[:2], [1e5, 1.01e5], **FIGURES)
    assert shown(search)[-1] == "Or          ZeRO 1  equal  50 GiB  less simple"


def test_offload_needs_host_memory_which_comes_first_where_it_is_unknown():
    asked = [given(zero_stage=2, gpus=8, offload="optimizer-cpu")]
    search = searching(asked, [1e5], **FIGURES)
    first, second, *_, memory = shown(search)[1:]
    assert first == "Whether the host has 43 GiB is unknown (--host-memory)."
    assert second == "Train with  ZeRO 2, bf16, optimizer on the CPU, micro-batch 8"
    assert memory.endswith("87.6 GiB left; 43 GiB of host memory")


def test_lora_is_in_the_title_and_recomputation_is_said_once():
    settings = {"lora_rank": 16, "activation_checkpointing": True, "checkpoint_every": 2}
    search = searching([given(strategy="plain", gpus=1, **settings)], [1e5], **FIGURES)
    assert shown(search)[:2] == [
        "opt-1.3b with LoRA on 1 H200: 1 billion tokens, 8 sequences of 2,048 a step",
        "Train with  the plain loop, bf16, LoRA rank 16, one block in two recomputed, micro-batch 8",
    ]


def test_what_does_not_fit_is_the_first_news():
    asked = [given(zero_stage=stage, gpus=8) for stage in (1, 3)]
    sizes = {"peak_allocated_gib": [150.0, 145.5], "headroom_gib": [-12.4, -7.9]}
    search = searching(asked, 100.0, fits=False, **sizes)
    assert shown(search, least_gpus=16, offloaded=True) == [
        "opt-1.3b on 8 H200: 1 billion tokens, 64 sequences of 2,048 a step",
        "No setting fits, offloaded or not: the smallest, ZeRO 3, bf16, micro-batch 8, needs 145.5 of 137.6",
        "GiB.",
        "It fits on 16 such GPUs without offload.",
    ]


def test_measured_figures_have_the_spread_of_their_runs():
    asked = STAGES[:2]
    measured = {"basis": "measured", "spread_pct": [3.0, 6.0]}
    near = searching(asked, [1e5, 9.5e4], **measured)
    far = searching(asked, [1e5, 5e4], **measured)
    assert lines(near)["speed"].cells[1:] == ("100,000 tokens/s", "± 3.0 %", "")
    assert alternatives(near)[0][1:] == ("5 % longer", "50 GiB", "their runs overlap")
    assert alternatives(far)[0][-1] == ""
    assert lines(near)["measured"].cells[0].startswith("Measured, not predicted")


def test_a_difference_without_effect_is_said_in_words():
    best = Experiment(model="gpt2", strategy="fsdp", gpus=8, gathered_weights="micro-batch")
    other = best.model_copy(update={"gathered_weights": "pass"})
    assert changes(best, other) == ["weights gathered for each pass"]
