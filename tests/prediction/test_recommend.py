"""Recommendations with a made-up trace: what is predicted, measured runs in its place, how sure it is, refusals."""

import html
import re
from types import SimpleNamespace

import pandas as pd
import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.prediction import ratio_errors, recommend, target
from dsnb.prediction.ratio_errors import RatioError
from dsnb.prediction.recommend import Scope, forecast, measured_plans
from dsnb.prediction.shapes import shape
from dsnb.prediction.target import Budget, Target
from dsnb.settings.checks import unsupported
from tests.prediction.made_up import given, trace_nothing

SETTINGS = {
    "model": "opt-1.3b",
    "precision": "bf16",
    "seq_len": 2048,
    "micro_batch_size": 8,
    "gpus": 8,
}
STAGES = {**SETTINGS, "zero_stage": [0, 1, 3]}
NAMES = [f"opt-1.3b_zs{stage}_bf16_gpus8_bs8_sl2048" for stage in (0, 1, 3)]


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def test_the_best_that_fits_is_recommended_with_its_alternatives():
    asked = [
        given(zero_stage=stage, gpus=8, compile=mode)
        for stage in range(4)
        for mode in ("off", "default")
    ]
    found = dsnb.recommend(asked, "H200", objective="tokens_per_s")
    everything = dsnb.predict(asked, "H200", tokens=26e9)
    best = found.table.iloc[0]
    assert best["tokens_per_s"] == everything["tokens_per_s"].max()
    assert found.table.columns.tolist() == [
        "experiment",
        "worse_pct",
        "basis",
        *everything.columns[1:],
    ]
    assert len(found.table) == 4
    assert found.table["worse_pct"].tolist() == sorted(found.table["worse_pct"])
    assert found.sentences[0].startswith(
        "Train with ZeRO 1, bf16, compiled, micro-batch 8 (predicted) on 8 H200, "
    )
    assert f" on 8 H200, {best['tokens_per_s']:,.0f} tokens/s (" in found.sentences[0]
    assert f"; GPU memory {best['peak_allocated_gib']:.3g} of 138 GiB ± " in found.sentences[0]
    assert f", {best['headroom_gib']:.3g} GiB left." in found.sentences[0]
    least = dsnb.recommend(asked, "H200", objective="memory").table
    assert least["peak_allocated_gib"].iloc[0] == everything["peak_allocated_gib"].min()
    cheapest = dsnb.recommend(asked, "H200", objective="cost", price=2.0).table
    assert cheapest["cost"].iloc[0] == everything["gpu_hours"].min() * 2.0


def test_an_answer_has_ten_lines_and_a_card_of_the_same_cells():
    found = dsnb.recommend("opt-1.3b", "H200", gpus=8)
    shown = found.text().splitlines()
    assert len(shown) == 9, "and the options that go on"
    assert max(map(len, shown)) <= 100
    assert not [name for name in found.table["experiment"] if name in found.text()]
    card, _, reasons = found._repr_html_().partition("<details>")
    cells = html.unescape(re.sub(r"<[^>]+>", " ", card)).split()
    assert cells == str(found).split()
    assert cells[: len(found.text().split())] == found.text().split()
    assert all(sentence.html() in reasons for sentence in found.sentences)
    assert found.assumed == ("seq_len", "global_batch", "tokens")


def test_the_doubt_about_a_choice_is_the_error_of_ratios_and_says_of_which(monkeypatch):
    """Of two settings that the GPU limits, whose ratios are known within 7 %."""
    by_gpu = ratio_errors.BY_CPU[0]
    known = {by_gpu: RatioError(118, 7.0, 50.0), ratio_errors.ALL: RatioError(5, 90.0, 99.0)}
    monkeypatch.setattr(ratio_errors, "DEFAULT_RATIOS", known)

    def second(*sizes, stages=(0,), objective="tokens_per_s"):
        stages_and_sizes = [
            {"micro_batch_size": size, "zero_stage": stage} for size in sizes for stage in stages
        ]
        asked = [given(**one, gpus=8) for one in stages_and_sizes]
        said = dsnb.recommend(asked, "H200", objective=objective).sentences
        return next(sentence for sentence in said if sentence.startswith("Runner-up: "))

    error = "7.0 %, the mean error of predicted ratios of two settings that are both limited by the GPU (118 pairs)"
    first, other = (given(micro_batch_size=size, gpus=8).name_with_model for size in (9, 8))
    assert second(8, 9).startswith(f"Runner-up: {other} (predicted), ")
    assert second(8, 9).endswith(f" % longer, within {error}: run {first} and {other} to decide.")
    assert second(8, 32).endswith(f" % longer, more than {error}.")
    assert " % more memory, more than the error of " in second(8, stages=(0, 3), objective="memory")


def test_a_task_of_which_nothing_fits_is_refused_and_the_others_are_answered():
    large = [given(gpus=8, zero_stage=3, micro_batch_size=size) for size in (2048, 4096)]
    several = [*large, given(gpus=8, model="opt-125m")]
    without, fitting = recommend.recommend(Scope(several), Target("H200"), Budget())
    assert (without.task, fitting.task) == ("opt-1.3b, sequence 2048", "opt-125m, sequence 2048")
    assert without.table.empty
    (said,) = without.sentences
    assert said.startswith(f"No setting fits: the smallest, {large[0].name_with_model}, needs ")
    assert said.endswith(" GiB. dsnb recommend opt-1.3b compares all settings for it.")
    assert fitting.table["experiment"][0] == "opt-125m_zs0_bf16_gpus8_bs8_sl2048"
    tasks = r"opt-1.3b, sequence 2048; opt-125m, sequence 2048"
    with pytest.raises(SettingsError, match=rf"^recommend is for one task, .* 2 \({tasks}\)"):
        dsnb.recommend(several, "H200")


def measured(rate, stage=3, status="ok", gpu_name="NVIDIA H200", peak=30.0):
    figures = {
        "tokens_per_s": rate,
        "peak_allocated_gib": peak,
        "status": status,
        "gpu_name": gpu_name,
    }
    return {**SETTINGS, "zero_stage": stage, "grad_accum_dtype": "auto", **figures}


def of_runs(*runs, settings=STAGES, tokens=8e9 * 86.4, currency="€"):
    """Give the forecast of one task: its table by experiment, and its sentences as one text."""
    table = pd.DataFrame(runs) if runs else None
    ((made,), _) = forecast(settings, "H200", table, tokens=tokens, price=2.0, currency=currency)
    return made.table.set_index("experiment"), "\n".join(made.sentences)


def test_a_measured_setting_replaces_its_prediction():
    """1 million tokens/s: 691.2 billion tokens take 8 days, 1,536 GPU-hours, 3,072 in money."""
    runs = [
        measured(0.9e6, peak=29.0),
        measured(1.1e6, peak=31.0),
        measured(9e9, gpu_name="NVIDIA A100"),
    ]
    rows, said = of_runs(*runs)
    row = rows.loc[NAMES[2]]
    assert (row["basis"], row["fits"], row["tokens_per_s"], row["peak_allocated_gib"]) == (
        "measured",
        True,
        1e6,
        30.0,
    )
    assert (row["days"], row["gpu_hours"], row["cost"]) == pytest.approx((8, 1536, 3072))
    assert row[["tokens_per_s_error_pct", "peak_allocated_error_pct"]].isna().all()
    assert set(rows["basis"][NAMES[:2]]) == {"predicted"}
    best = (
        "Train with ZeRO 3, bf16, micro-batch 8 (measured) on 8 H200, "
        "1,000,000 tokens/s; 691.2 billion tokens: 8 days"
    )
    assert best in said
    assert (
        "1,536 GPU-hours, €3,072 at €2.00 a GPU-hour; GPU memory 30 of 138 GiB, 108 GiB left.\n"
        in said
    )
    published = pd.DataFrame([measured(1e6)]).assign(source="published: elsewhere")
    ((made,), _) = forecast(STAGES, "H200", published)
    assert "(1 published, 2 predicted)" in made.sentences[0]


def test_runs_on_the_same_gpu_calibrate_the_other_settings():
    """Three settings, each half as fast as predicted, and a fourth that was not measured."""
    sizes = (2, 4, 8)
    asked = [given(**{**SETTINGS, "micro_batch_size": size}) for size in sizes]
    rates = dsnb.predict(asked, "H200")["tokens_per_s"] / 2
    runs = [
        {**measured(rate, 0), "micro_batch_size": size}
        for size, rate in zip(sizes, rates, strict=True)
    ]
    other = {**SETTINGS, "micro_batch_size": 16}
    (few, nothing), (enough, notes) = (
        forecast(other, "H200", pd.DataFrame(rows)) for rows in (runs[:2], runs)
    )
    assert enough[0].table["tokens_per_s"][0] < 0.7 * few[0].table["tokens_per_s"][0]
    assert nothing == []
    assert notes == ["Predicted speeds follow from 3 measured settings on H200."]


def test_a_run_out_of_memory_beats_the_prediction_that_it_fits():
    out = measured(None, stage=0, status="oom", peak=None)
    rows, said = of_runs(out, measured(None, stage=1, status="failed"))
    last = rows.iloc[-1]
    assert (last.name, last["basis"], last["fits"]) == (NAMES[0], "measured", False)
    assert set(rows["basis"][:-1]) == {"predicted"}
    assert said.startswith("2 of 3 settings fit on H200, which has 140 GiB (2 predicted).\n")
    assert NAMES[0] not in said
    alone = of_runs(out, settings={**SETTINGS, "zero_stage": 0})[1]
    assert "those that were predicted to fit ran out of memory" in alone


def test_what_does_not_fit_and_what_is_refused_is_said():
    ((made, *_), notes) = forecast(
        {**STAGES, "strategy": ["deepspeed", "ddp"], "micro_batch_size": [1, 32]}, "A10"
    )
    assert "of 8 settings fit on A10, which has 22 GiB" in made.sentences[0]
    assert notes[0].startswith(
        "Refused and left out: zero_stage is 1, but strategy is 'ddp': DDP shards nothing"
    )
    ((nothing,), _) = forecast({**SETTINGS, "zero_stage": 0}, "T4")
    assert nothing.sentences[1].startswith(
        "No setting fits: the smallest, opt-1.3b_zs0_bf16_gpus8_bs8_sl2048, needs "
    )
    for wrong, message in (("strategy", "it is a single process"), ("gpus", "gpus is 'plain'")):
        with pytest.raises(SettingsError, match=message):
            forecast({**SETTINGS, wrong: "plain"}, "H200")


def test_how_sure_it_is_depends_on_what_was_measured():
    best = of_runs()[0].iloc[0]
    rate, stage = best["tokens_per_s"], int(best.name.split("_zs")[1][0])
    others = [other for other in (0, 1, 3) if other != stage]
    close = of_runs(measured(0.97 * rate, others[0]))[1]
    assert (
        f"3.1 % longer, within the error of {best['tokens_per_s_error_pct']:.1f} %: run {best.name} to dec"
        in close
    )
    both = of_runs(measured(2 * rate, others[0]), measured(1.9 * rate, others[1]))[1]
    assert "5.3 % longer; both were measured, and 20_compare shows" in both
    assert "100.0 % longer, more than the error of" in of_runs(measured(2 * rate, others[0]))[1]
    ((unseen,), _) = forecast({**STAGES, "gpus": 512}, "H200", link="ib:400")
    assert unseen.sentences[-2].startswith("Less certain than usual: ")


def test_more_than_a_year_is_said_with_the_gpus_that_a_month_needs():
    """8 GPUs at 1 million tokens/s: 8.64e13 tokens take 1,000 days, 192,000 GPU-hours; 30 days need 266.7 GPUs."""
    said = of_runs(
        measured(1e6), settings={**SETTINGS, "zero_stage": 3}, tokens=8.64e13, currency="$"
    )[1]
    assert (
        "That is more than 365 days. 30 days would need 267 GPUs if each sustained 125,000 tokens/s"
        in said
    )
    assert (
        "At that rate, the training takes 192,000 GPU-hours, $384,000 at $2.00 a GPU-hour." in said
    )
    assert "365" not in of_runs(measured(1e6))[1]


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("opt-13", {}, "model is 'opt-13': did you mean 'opt-13b'"),
        ("opt-13b", {"gpu": "X99"}, "unknown GPU 'X99': `dsnb recommend --list`"),
        ("opt-13b", {"gpus": 0}, "gpus is 0: give a whole number of at least 1"),
        ("opt-13b", {"gpus": 16}, "gpus is 16, on 2 nodes: say how these are connected"),
        (
            "opt-13b",
            {"gpus": 6, "global_batch": 100},
            "100: .*among 6 GPUs; give a multiple of 6, such as 102$",
        ),
        (
            "opt-13b",
            {"seq_len": 4096},
            "^seq_len is 4096: opt-13b has 2048 positions; use at most 2048$",
        ),
        ("opt-13b", {"tokens": 0}, "tokens is 0: give a finite number of more than 0"),
        ("opt-13b", {"objective": "cost", "price": 0}, "price is missing or 0"),
        ("opt-13b", {"settings": {"strategy": "ddp", "zero_stage": 2}}, "DDP shards nothing"),
        (
            "opt-13b",
            {"settings": {"device": "cpu"}},
            "speeds are predicted for GPUs: leave it out, or give measure",
        ),
        (
            "opt-13b",
            {"global_batch": 7, "least_gpus": True, "gpus": 7},
            "shares 7 sequences a step and fits",
        ),
        ("opt-13b", {"settings": {"steeps": 1}}, "unknown setting 'steeps': did you mean 'steps'"),
        ([], {}, "there is no setting to choose from"),
        (
            [given()],
            {"gpu": "T4"},
            r"opt-1.3b, .*: no setting fits: the smallest, \S+, needs .* of 12\.\d GiB",
        ),
        (
            [given()],
            {"settings": {"zero_stage": 2}},
            "settings is {'zero_stage': 2}: it applies to models and files",
        ),
        (
            "nowhere.yaml",
            {"seq_len": 8},
            "seq_len is 8: it applies to models; a params file has its own settings",
        ),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_in_one_sentence(target, options, words):
    with pytest.raises(SettingsError, match=words):
        dsnb.recommend(target, **options)


def test_what_was_not_said_is_assumed_and_said(monkeypatch):
    monkeypatch.setattr(target.hardware, "gpus", lambda: ())
    found = dsnb.recommend("facebook/opt-1.3b")
    assert found.sentences[-1] == (
        "Assumed: H200, as no GPU was given; 8 GPUs, one node; sequences of 2048 tokens; 512 sequences a step "
        "(1 million tokens), as usual for 1.3 billion parameters (Brown et al. 2020, table 2.1); 26 billion tokens, 20 "
        "per parameter."
    )
    assert {one.global_batch_size for one in found.experiments} == {512}


@pytest.mark.parametrize(
    "adapted", [{"lora_rank": 16}, {"weights": "pretrained"}, {"lora_rank": [8, 16]}]
)
def test_fine_tuning_assumes_small_steps_and_few_tokens(adapted, monkeypatch):
    monkeypatch.setattr(target.hardware, "gpus", lambda: ())
    found = dsnb.recommend("opt-13b", "H100", gpus=8, settings=adapted)
    assert "; 50 million tokens: " in found.sentences[0]
    assert found.sentences[-1] == (
        "Assumed: sequences of 2048 tokens; 64 sequences a step (130,000 tokens), as usual with LoRA or pretrained "
        "weights; 50 million tokens, as usual with LoRA or pretrained weights."
    )
    assert {one.global_batch_size for one in found.experiments} == {64}
    assert set(found.table["tokens"]) == {50e6}
    assert set(dsnb.predict(list(found.experiments), "H100")["tokens"]) == {50e6}
    given_tokens = dsnb.recommend(
        "opt-13b", "H100", gpus=8, global_batch=128, tokens=1e9, settings=adapted
    )
    assert set(given_tokens.table["tokens"]) == {1e9}
    assert {one.global_batch_size for one in given_tokens.experiments} == {128}


def test_a_forecast_and_a_measured_plan_assume_what_is_usual_for_the_task():
    lora = {**SETTINGS, "lora_rank": 8}
    (adapted,), _ = forecast(lora, "H200")
    (row,) = adapted.table.to_dict("records")
    assert row["days"] * 86400 * row["tokens_per_s"] == pytest.approx(50e6)
    assert (
        adapted.sentences[-1]
        == "Assumed: 50 million tokens, as usual with LoRA or pretrained weights."
    )
    (whole,), _ = forecast(SETTINGS, "H200")
    (row,) = whole.table.to_dict("records")
    assert row["days"] * 86400 * row["tokens_per_s"] == pytest.approx(26e9)
    run = {
        **measured(50e6 / 3600),
        "lora_rank": 8,
        "sweep": "s",
        "experiment": "e",
        "parameters": 1.3e9,
    }
    runs = pd.DataFrame([run])
    (plan,) = measured_plans(runs, None)
    assert "50 million tokens: 1 hour, 8 GPU-hours" in plan.sentences[0]
    assert (
        plan.sentences[-1]
        == "Assumed: 50 million tokens, as usual with LoRA or pretrained weights."
    )
    assert not any(
        sentence.startswith("Assumed") for sentence in measured_plans(runs, 1e9)[0].sentences
    )


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("llama-2-7b", {"gpus": 16}, "gpus is 16, on 2 nodes: say how these are connected, such as ib:400"),
        ("llama-2-7b", {"gpus": 8, "settings": {"nodes": 2}}, "gpus is 8, on 2 nodes: say how these are connected"),
        (
            "mixtral-8x7b", {"gpus": 8, "settings": {"tensor_parallel": 2}},
            "tensor_parallel is 2: mixtral-8x7b has 8 experts, whose weights AutoTP does not split; set it to 1",
        ),
        ("llama-2-7b", {"settings": {"precision": "int8"}}, "precision is 'int8': allowed are"),
        ([given(model="llama-2-7b"), given(model="llama-2-13b", gpus=16)], None, "gpus is 16, on 2 nodes"),
    ],
)  # fmt: skip
def test_what_is_known_without_the_model_is_refused_before_it_is_counted(
    target, options, words, monkeypatch
):
    monkeypatch.setattr(
        "dsnb.prediction.traces.counts", lambda model: pytest.fail("a model was counted")
    )
    shape.cache_clear()
    with pytest.raises(SettingsError, match=words):
        dsnb.predict(target, "H200") if options is None else dsnb.recommend(
            target, "H200", **options
        )


def test_nodes_of_a_prediction_need_no_hostfile():
    asked = given(gpus=16, nodes=4, zero_stage=3)
    (row,) = dsnb.predict([asked], "H200", link="ib:400").to_dict("records")
    assert row["experiment"].endswith("_nodes4")
    with pytest.raises(
        SettingsError, match="nodes is 4, but gpus is 2: each node needs a rank; use at most 2"
    ):
        given(gpus=2, nodes=4)
    assert "nodes is 4, but there is no hostfile: name the hosts in 'hostfile'" in unsupported(
        asked
    )


def test_a_model_is_answered_with_its_limit_its_alternatives_and_what_is_out_of_reach():
    found = dsnb.recommend("opt-1.3b", "A10", gpus=8, tokens=1e10)
    said = "\n".join(found.sentences)
    assert re.search(r"\nA step takes [\d.]+ s: \d+ % [a-z ]+(, \d+ % [a-zA-Z ]+)+\.\n", said)
    assert len(re.findall(r"\nAlternative: .+: (?:[\d.]+ % longer|equal), [\d.]+ GiB\.", said)) in {
        2,
        3,
    }
    assert re.search(r"\nOut of reach: DDP needs at least \d+ of 20 GiB", said)
    assert re.search(
        r"\nThe smallest power of two of GPUs that fits without offload is [24]\.", said
    )
    parts = re.search(r"A step takes .*", said)[0]
    assert sum(map(int, re.findall(r"(\d+) %", parts))) == pytest.approx(100, abs=3)


def test_the_smallest_number_of_gpus_can_be_taken():
    found = dsnb.recommend("opt-1.3b", "A10", least_gpus=True, tokens=1e10)
    least = found.experiments[0].gpus
    assert (
        f"The smallest power of two of GPUs that fits without offload is {least}."
        in found.sentences
    )
    assert least in {1, 2, 4}
    several = dsnb.recommend("bloom-176b", "H100", least_gpus=True)
    assert several.experiments[0].gpus > 8
    assert "ib:400 between nodes, as no link was given; " in several.sentences[-1]


def test_where_only_offload_fits_it_is_recommended(monkeypatch):
    monkeypatch.setattr(target.hardware, "memory_gib", lambda: 64.0)
    monkeypatch.setattr(target.hardware, "gpus", lambda: (SimpleNamespace(name="Tesla T4"),))
    found = dsnb.recommend("opt-1.3b", "T4", gpus=1, tokens=1e10)
    assert found.experiments[0].offload != "none"
    assert found.experiments[0].precision == "fp16", "a T4 has no bf16"
    need = r"Host memory: offload needs (31|3\d\.\d) GiB, and a host has 64 GiB\."
    assert re.search(need, "\n".join(found.sentences)), "1.32e9 parameters of 24 bytes or more"
    unknown = dsnb.recommend(
        "opt-1.3b", "H200", gpus=1, tokens=1e10, settings={"memory_limit_gib": 14}
    )
    assert "GiB; whether there is as much is unknown" in "\n".join(unknown.sentences)
    monkeypatch.setattr(target.hardware, "memory_gib", lambda: 14.0)
    too_small = dsnb.recommend("opt-1.3b", "T4", gpus=1, tokens=1e10)
    assert too_small.table.empty
    assert re.search(
        r"^No setting fits, .* and (2|3)\d[\d.]* of 14 GiB of host memory\.", too_small.sentences[0]
    )
    nothing = dsnb.recommend(
        "opt-1.3b", "T4", gpus=1, tokens=1e10, settings={"memory_limit_gib": 0.1}
    )
    assert nothing.table.empty
    assert nothing.sentences[0].startswith(
        "No setting fits, offloaded or not: the smallest, opt-1.3b_"
    )


def test_a_params_file_is_what_to_choose_from(tmp_path):
    file = tmp_path / "some.yaml"
    file.write_text(
        "name: some\ndefaults: {model: opt-1.3b, seq_len: 2048}\ngrid: {zero_stage: [1, 2], gpus: [auto]}\n"
    )
    found = dsnb.recommend(file, "H200", gpus=4, settings={"micro_batch_size": [2, 4]})
    assert {one.gpus for one in found.experiments} == {4}
    assert {(one.zero_stage, one.micro_batch_size) for one in found.experiments} == {
        (1, 2),
        (1, 4),
        (2, 2),
        (2, 4),
    }
