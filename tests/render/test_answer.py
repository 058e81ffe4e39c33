"""The answer: sentences that are true for one run, one setting, failed runs and published rows."""

import numpy as np
import pandas as pd
import pytest

import dsnb
from dsnb.analysis.decide import Question, rate
from dsnb.analysis.texts import MINUS
from dsnb.render import answer
from tests.support import made_up

ONE_TASK = {"gpus": [1], "micro_batch_size": [8], "grad_accum": [1], "activation_checkpointing": [False]}


def text(runs, **question):
    """Give the answer as plain text."""
    return str(answer.answer(runs, Question(**question) if question else None))


def runs(count, repeats=1, **other):
    """Give ok runs of one task at 1,000 tokens/s a GPU, 10 % less for each setting after the first."""
    table = made_up.runs(count, repeats=repeats, **{**ONE_TASK, **other}).assign(status="ok", cause=None)
    place = table.groupby("experiment", sort=False).ngroup()
    rates = 1000.0 * 0.9**place * (1 + 0.002 * (table["repeat"] - 1)) * table["gpus"]
    return table.assign(tokens_per_s=rates, tokens_per_s_per_gpu=rates / table["gpus"], peak_allocated_gib=8.0 + place)


def test_the_numbers_can_be_done_in_the_head():
    own = runs(1, precision=["bf16"], zero_stage=[1]).assign(gpu_name="H200", power_w=500.0, gpu_memory_gib=140.0)
    found = text(own, tokens=3.6e9, prices={"H200": 2.0}, currency="€")
    # 3.6e9 tokens at 1,000 a second are 3.6e6 s, 1,000 hours
    assert "Train gpt2 with ZeRO 1, bf16, micro-batch 8, on 1 H200." in found
    assert (
        "1,000 tokens/s; 3.6 billion tokens: 41.7 days, 1,000 GPU-hours, 500 kWh, €2,000 at €2.00 a GPU-hour; "
        "GPU memory 8 of 140 GiB." in found
    )


def test_one_run_is_not_the_fastest_of_anything():
    found = text(runs(1))
    assert "No other setting can be compared with it." in found
    assert "Speed and memory: measured, one run." in found
    for words in ("Fastest", "Runner-up", "lightest", "repeat", "noise"):
        assert words not in found


def test_settings_that_ran_once_are_too_few_to_be_sure():
    found = text(runs(2, precision=["bf16"], zero_stage=[1, 2]))
    assert "10 % slower (one run each, too few to be sure: 4 of each are needed), 1 GiB more." in found
    assert "Fastest of 2 measured settings" in found
    mixed = runs(2, precision=["bf16"], zero_stage=[1, 2]).assign(source=["dsnb", "published: elsewhere"])
    assert "Fastest of 2 settings" in text(mixed)


def test_verdicts_say_what_is_certain():
    found = text(runs(8, repeats=4, precision=["bf16"], zero_stage=[1, 2]))
    # logarithms of 1.000 to 1.006 deviate by 0.0026: 0.9 exp(+-2.969 sqrt(2 / 4) 0.0026), 6 degrees of freedom
    assert "10 % slower on average (95 % interval 9.5 to 10.5), 1 GiB more." in found
    found = text(runs(8, repeats=4, precision=["bf16"], zero_stage=[1, 2]), relevance=0.2)
    assert "about the same (10 % slower on average, 95 % interval 9.5 to 10.5), 1 GiB more." in found
    assert "Speed and memory: measured, the median of 4 runs." in found
    equal = runs(8, repeats=4, precision=["bf16"], zero_stage=[1, 2])
    equal["tokens_per_s"] = 1000.0 + equal["repeat"]
    # the same with a deviation of 0.0013
    assert f"about the same (no slower on average, 95 % interval {MINUS}0.3 to 0.3)" in text(equal)
    noisy = equal.assign(tokens_per_s=[1000, 1200, 850, 1100, 900, 1150, 830, 950])
    assert f", which may be chance (95 % interval {MINUS}" in text(noisy)


def test_other_gpus_alone_are_the_same_setting():
    found = text(dsnb.published("lambda_1cc_opt"))
    assert "Train opt-350m with ZeRO 0, fp16, eager attention, micro-batch 24, on 512 H100-SXM-80GB." in found
    assert "50 % slower (one run each, too few to be sure: 4 of each are needed)." in found
    assert "Speed: published, not measured here, one run. Time and costs: extrapolated" in found
    assert "at an assumed $2.50 a GPU-hour" in found
    own = text(dsnb.published("h200_memory"))
    assert " measured settings" in own
    assert "Speed and memory: measured with dsnb, published as h200_memory, one run. Time and costs: extrap" in own
    assert "not measured here" not in own
    cheapest = text(dsnb.published("lambda_1cc_opt"), objective="cost", prices={"": 2.5})
    assert "micro-batch 24, on 1 H100-SXM-80GB." in cheapest
    assert "assumed" not in cheapest


def test_without_enough_gpus_there_is_no_setting():
    jean_zay = dsnb.published("jean_zay_bloom7b").query("seq_len == 1024 and gpus > 8")
    assert "No setting was measured on 4 GPUs or fewer: the smallest ran on 16." in text(jean_zay, gpus=4)


def test_when_all_runs_failed_their_memory_is_known_all_the_same():
    failed = made_up.runs(3).assign(status="oom", oom_allocated_gib=[70.0, 72.5, 79.25], tokens_per_s=np.nan)
    found = text(failed)
    assert "No setting can be recommended: all 3 runs failed." in found
    assert "Memory in use before they ended: 70 to 79.3 GiB." in found
    assert "No setting can be recommended: the run failed." in text(failed.head(1))
    assert "nothing is known" not in found


def test_what_was_not_measured_is_said():
    unknown = runs(3).assign(tokens_per_s=np.nan)
    assert "No setting can be recommended: no run measured speed." in text(unknown)
    assert "No setting can be recommended: the number of GPUs is unknown." in text(runs(3).assign(gpus=np.nan))
    assert "The cheapest setting is unknown: give a price." in text(runs(3), objective="cost")
    without = runs(3).drop(columns=["peak_allocated_gib", "device_memory_gib"])
    assert "The setting with the least memory is unknown" in text(without, objective="memory")
    assert "There are no runs here yet" in text(runs(3).head(0))


def test_a_machine_without_gpus_has_ranks():
    cpu = runs(2, precision=["bf16"], zero_stage=[1], gpus=[1, 2]).assign(device="cpu", gpu_name=None)
    found = text(cpu)
    assert "on 2 CPU ranks." in found
    assert "rank-hours" in found
    assert '<th scope="col">tokens/s</th>' in found
    assert '<th scope="row">ranks: 2 → 1</th>' in found
    assert "GPU" not in found.replace("GPU memory", "")
    assert "$" not in found


def test_settings_that_differ_in_several_things_are_beside_each_other():
    found = text(runs(2, precision=["bf16"], zero_stage=[1, 2]).assign(precision=["bf16", "fp32"]))
    assert '<th scope="row">strategy</th><td>ZeRO' in found
    assert '<th scope="row">precision</th><td>bf16</td><td>fp32</td>' in found


def test_tasks_are_never_compared():
    both = runs(4, precision=["bf16"], zero_stage=[1, 2], model=["gpt2", "bloom-560m"])
    found = text(both.sort_values("model", ignore_index=True))
    assert found.count("Fastest of 2 measured settings") == 2
    assert "bloom-560m, sequence 512" in found


def test_the_price_of_the_runs_is_taken():
    priced = runs(1).assign(gpu_hours=0.5, cost=2.0, gpu_name="H200")
    assert "at $4.00 a GPU-hour" in text(priced)


def test_one_change_costs_what_the_verdicts_say():
    own = pd.concat([runs(8, repeats=4, precision=["bf16"], zero_stage=[1, 2])], ignore_index=True)
    failed = own.tail(1).assign(repeat=9, status="oom", tokens_per_s=np.nan, tokens_per_s_per_gpu=np.nan)
    found = text(pd.concat([own, failed], ignore_index=True))
    assert "(1 of 5 runs not ok)" in found
    assert f"<td>likely: {MINUS}10.0 % (" in found
    assert "1 of 9 runs are not ok: 1 out of memory." in found


def test_the_probes_of_a_micro_batch_are_left_out():
    own = runs(2, precision=["bf16"], zero_stage=[1, 2])
    own.loc[0, "experiment"] = f"{own.loc[1, 'experiment']}_probe-bs8"
    assert "No other setting can be compared with it." in text(own)


@pytest.mark.parametrize("hostile", ["</script><b>", "\"'&<b>", "x" * 10_000])
def test_hostile_text_stays_text(hostile):
    own = runs(2, precision=["bf16"], zero_stage=[1, 2]).assign(
        model=hostile, gpu_name=hostile, data=hostile, optimizer=[hostile, "x"]
    )
    found = text(own)
    assert "<b>" not in found
    assert "<script" not in found


def test_speed_is_per_gpu_but_of_all_ranks_where_they_share_a_cpu():
    on = {"cpu": ["cpu", "cpu"], "gpu": ["cuda", "cuda"], "both": ["cpu", "cuda"], "published": [None, None]}
    rates = {name: rate(pd.DataFrame({"device": devices})) for name, devices in on.items()}
    assert rates == {**dict.fromkeys(on, "tokens_per_s_per_gpu"), "cpu": "tokens_per_s"}
    assert rate(pd.DataFrame({"experiment": ["a"]})) == "tokens_per_s_per_gpu"


def test_a_mean_that_contradicts_the_median_says_so():
    """Four runs: the first setting has the better median, and a slow run that makes its mean the worse one."""
    table = runs(8, repeats=4, precision=["bf16"], zero_stage=[1, 2])
    table["tokens_per_s"] = [1000.0, 1000, 1000, 750, 950, 950, 950, 951]
    # (1000^3 x 750)^(1/4) = 930.6; 950.25 / 930.6 = 1.021
    assert "2.1 % faster on average, though not by the median, which may be chance (95 % interval" in text(table)


def test_unstable_settings_are_counted_and_not_recommended():
    table = runs(6, repeats=2, precision=["bf16"], zero_stage=[1, 2, 3])
    first, second, third = table["experiment"].unique()
    table["tokens_per_s"] = [21097.0, 2296, 9000, 9100, 500, 2000]
    found = text(table)
    assert "All 6 runs succeeded." in found
    assert (
        "2 settings are unstable and not ranked: their repeats differ by more than 1.5 times in tokens/s "
        f"({first}: 2,296 to 21,097; {third}: 500 to 2,000). Measure them again while nothing else uses the machine "
        "(see docs/how-to/noise.md)." in found
    )
    assert "2 settings are not ranked, because their repeats differ by more than 1.5 times." in found
    assert "9,050 tokens/s" in found
    assert "Fastest" not in found  # of one setting
    alone = text(table[table["experiment"] == first])
    said = "No setting can be recommended: 1 setting is not ranked, because its repeats differ by more than 1.5 times."
    assert said in alone
    assert "unstable" not in text(table[table["experiment"] == second])


def test_settings_that_compute_something_else_are_named():
    own = runs(3).assign(seed=0, global_batch_size=8, loss_last=5.0, loss_first=[10.0, 10.0, 10.2])
    name = own["experiment"].iloc[2]
    assert "1 run of 1 setting had other losses than settings that compute the same" in text(own)
    assert f"find out what before you choose such a setting. {name}." in text(own)
    assert "losses" not in text(own.assign(loss_first=10.0))


def slow(**other):
    """Give two settings on 1 and 2 GPUs at 50 and 80 tokens/s: the first has more tokens/s a GPU."""
    own = runs(2, precision=["bf16"], zero_stage=[1, 2]).assign(gpus=[1, 2], gpu_name="H200")
    rates = {"tokens_per_s": [50.0, 80.0], "tokens_per_s_per_gpu": [50.0, 40.0], "experiment": ["one", "two"]}
    return own.assign(**{"zero_stage": 1, "micro_batch_size": 8, **rates, **other})


def test_a_training_of_years_is_no_answer():
    """86.4e9 tokens at 80 tokens/s take 12,500 days; one GPU at 50 needs 480,000 hours: 666.7 GPUs for 30 days."""
    said = text(slow(), tokens=86.4e9, assumed_price=2.5)
    assert "No measured setting trains gpt2 on 86.4 billion tokens within 365 days on 2 H200." in said
    assert "Fastest of 2 measured settings: ZeRO 1, bf16, micro-batch 8, on 2 H200, 80 tokens/s." in said
    assert (
        "30 days would need 667 GPUs if each sustained 50 tokens/s with ZeRO 1, bf16, micro-batch 8, an "
        "extrapolation beyond what was measured. At that rate, the training takes 480,000 GPU-hours, $1,200,000 at an "
        "assumed $2.50 a GPU-hour." in said
    )
    assert "12,500" not in said
    assert "Train gpt2" not in said
    assert "would need" not in text(slow(), tokens=365 * 86400 * 80)


def test_more_gpus_at_hand_than_were_measured_are_said():
    said = text(slow(), tokens=1e6, gpus=64)
    assert (
        "Only 1 and 2 GPUs were measured, fewer than the 64 at hand: this answer is for 2 GPUs. Measure on more "
        "(dsnb sweep PARAMS --set gpus=64) or predict it (dsnb predict PARAMS --gpus 64)." in said
    )
    assert "this answer is for 1 GPU. " in text(slow(), tokens=1e6, gpus=64, objective="gpu_hours")
    assert "Only 1 GPU was measured, fewer than the 8 at hand" in text(slow(status=["ok", "oom"]), tokens=1e6, gpus=8)
    assert "Only 2 GPUs were measured" in text(slow(status=["oom", "ok"]), tokens=1e6, gpus=8)
    cpu = slow(device="cpu", gpu_name=None)
    assert "Only 1 and 2 ranks were measured, fewer than the 8 at hand" in text(cpu, tokens=1e6, gpus=8)
    assert "predict" not in text(cpu, tokens=1e6, gpus=8)
    assert "at hand" not in text(slow(), tokens=1e6, gpus=2)
    assert "at hand" not in text(slow(), tokens=1e6)


def test_settings_that_take_years_are_no_cheap_answer():
    """86.4 million tokens at 1 and 4 tokens/s take 1,000 and 250 days; the first needs the least memory."""
    own = slow(tokens_per_s=[1.0, 4.0], peak_allocated_gib=[8.0, 9.0])
    said = text(own, tokens=86.4e6, objective="memory")
    assert "on 2 H200." in said
    assert "1 setting is left out: it takes more than 365 days." in said
    assert "left out" not in text(own, tokens=86.4e6)


def test_remarks_are_below_the_task_that_they_concern():
    both = pd.concat([runs(2), runs(2).assign(model="bloom-560m", status=["ok", "oom"])], ignore_index=True)
    cards = text(both).split('<section class="dsnb-answer">')[1:]
    assert [card.count("<li>") for card in cards] == [1, 1]
    assert "<li>All 2 runs succeeded.</li>" in cards[0]
    assert "<li>1 of 2 runs are not ok: 1 out of memory.</li>" in cards[1]
