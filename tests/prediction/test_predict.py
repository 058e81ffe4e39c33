"""`dsnb.predict` and `dsnb.recommend`, with a made-up trace: columns, errors, choices, refusals."""

import json
import sys
from dataclasses import replace

import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.cli import app
from dsnb.cli.predict import parse_tokens
from dsnb.prediction import accuracy, memory, predict
from dsnb.prediction.shapes import shape
from dsnb.prediction.step_time import StepTime
from tests.prediction.made_up import TRACE, given, runs, trace_nothing

PARTS = [
    "weights_gib",
    "gradients_gib",
    "optimizer_gib",
    "activations_gib",
    "logits_gib",
    "buffers_gib",
]
PARAMS = """
name: asked
question: Which?
defaults: {model: opt-1.3b, precision: bf16, seq_len: 2048, micro_batch_size: 8, gpus: 8}
grid: {zero_stage: [0, 1, 3], compile: [off, default]}
"""


@pytest.fixture(autouse=True)
def _no_torch(monkeypatch):
    trace_nothing(monkeypatch)


def test_a_row_has_every_figure_with_its_error_and_parts_sum_to_the_whole():
    asked = [given(zero_stage=stage, gpus=8, micro_batch_size=8) for stage in range(4)]
    table = dsnb.predict(asked, "H200", tokens=100e9, price=2.5)
    assert list(table["experiment"]) == [one.name_with_model for one in asked]
    assert table[[*PARTS, "workspace_gib"]].sum(axis=1).tolist() == pytest.approx(
        table["peak_allocated_gib"].tolist()
    )
    seconds = table[list(StepTime.__dataclass_fields__)].sum(axis=1)
    assert seconds.tolist() == pytest.approx(table["step_time_s"].tolist())
    assert table["tokens_per_s"].tolist() == pytest.approx(
        (8 * 8 * 2048 / table["step_time_s"]).tolist()
    )
    assert table["days"].tolist() == pytest.approx((100e9 / table["tokens_per_s"] / 86400).tolist())
    assert table["gpu_hours"].tolist() == pytest.approx((table["days"] * 24 * 8).tolist())
    assert table["cost"].tolist() == pytest.approx((table["gpu_hours"] * 2.5).tolist())
    for figure in ("peak_allocated", "tokens_per_s", "step_time"):
        assert (table[f"{figure}_error_pct"] > 0).all()
    flops = 6 * 1e9 + 12 * 24 * 2048 * 2048
    mfu = table["tokens_per_s"] / 8 * flops / 989.4e12
    assert table["mfu"].tolist() == pytest.approx(mfu.tolist(), rel=1e-3)


def test_tokens_are_20_per_parameter_unless_they_are_given():
    table = dsnb.predict([given()], "H200", price=2.5)
    assert list(table["tokens"]) == [20e9]
    assert [parse_tokens(text) for text in ("20B", "1.5t", "300e9")] == [20e9, 1.5e12, 3e11]
    answer = dsnb.recommend([given()], "H200", price=2.5, currency="€")
    assert "; 26 billion tokens: " in answer.sentences[0], (
        "1.3 billion parameters, not those of the made-up trace"
    )
    assert ", €" in answer.sentences[0]


def test_what_does_not_fit_is_said_and_a_limit_counts():
    table = dsnb.predict([given(zero_stage=0), given(zero_stage=0, memory_limit_gib=20)], "H200")
    assert list(table["fits"]) == [True, False]
    assert table["cost"].isna().all()


def test_the_range_of_days_is_that_of_the_rate():
    """Tokens/s that are a fourth too high or too low take 1.25 times as many days, or 1 / 1.25."""
    (row,) = dsnb.predict([given()], "H200", tokens=1e9).to_dict("records")
    factor = 1 + row["tokens_per_s_error_pct"] / 100
    assert row["days_low"] == pytest.approx(row["days"] / factor)
    assert row["days_high"] == pytest.approx(row["days"] * factor)


def test_mfu_counts_what_works_on_a_token_against_the_rate_of_the_precision(monkeypatch):
    """H200: 67 TFLOP/s in fp32, 989 in bf16; 2 FLOPs a weight forward, 2 for inputs, 2 for weights."""

    def flops(trace=TRACE, **settings):
        monkeypatch.setattr(predict, "traces", lambda asked: [trace])
        (row,) = dsnb.predict([given(**settings)], "H200").to_dict("records")
        peak = 67e12 if settings.get("precision") == "fp32" else 989e12
        return row["mfu"] * peak / row["tokens_per_s"]

    attention = 12 * 24 * 2048 * 2048
    assert flops(precision="fp32") == pytest.approx(6e9 + attention)
    assert flops(replace(TRACE, trainable=0)) == pytest.approx(4e9 + attention)
    # In each of two layers 75 of 100 million weights are of experts that a token does not visit.
    narrow = [(1_000_000, 1024, 2)] * 2
    experts = replace(shape("opt-1.3b"), layers=2, experts=100e6, grouped=25e6, attention=narrow)
    monkeypatch.setattr(predict, "shape", lambda _: experts)
    assert flops() == pytest.approx(6 * 0.85e9 + 12 * 2 * 1e6 * 1024)


def test_errors_are_those_of_the_gpu_and_of_what_limits_a_step():
    large = {"zero_stage": 1, "micro_batch_size": 64}
    small = {"model": "gpt2", "seq_len": 128, "micro_batch_size": 1, "zero_stage": 1}
    table = dsnb.predict([given(**large), given(**small)], "H200")
    assert table["limited_by"].tolist() == ["GPU", "CPU"]
    measured_on = [text.partition(", ")[2] for text in table["step_time_error_on"]]
    assert measured_on == [
        "H200: ZeRO 1, limited by the GPU, one GPU",
        "H200: ZeRO 1, limited by the CPU, one GPU",
    ]
    elsewhere = dsnb.predict([given(**large)], "A100")["step_time_error_on"][0]
    assert elsewhere.endswith(" settings of other programs, A100, one node")


def test_adapters_are_usually_trained_on_50_million_tokens():
    assert dsnb.predict([given(lora_rank=8)], "H200")["tokens"].tolist() == [50e6]


def test_room_and_headroom_are_what_the_reserve_leaves(monkeypatch):
    """Of 139.8 GiB the CUDA context has 1.8 here, and half a GiB is workspace."""
    monkeypatch.setattr(memory.MEMORY, "context_gib", 1.8)
    monkeypatch.setattr(memory.MEMORY, "workspace_gib", 0.5)
    (row,) = dsnb.predict([given(zero_stage=0)], "H200").to_dict("records")
    assert row["headroom_gib"] == pytest.approx(138 - row["peak_allocated_gib"])
    assert row["workspace_gib"] == 0.5
    assert row["optimizer_gib"] == pytest.approx(12e9 / 2**30)
    (large,) = dsnb.predict([given(micro_batch_size=4096)], "H200").to_dict("records")
    assert (large["fits"], large["tight"]) == (False, False)


def test_calibrated_predictions_have_the_hosts_launches_errors_and_coverage():
    """Three runs whose launches took three times as long as usual."""
    made = [
        replace(one, launch_ratio=3.0)
        for one in runs({}, {"micro_batch_size": 4}, {"seq_len": 256})
    ]
    usual = predict.on_gpu("H200", "nvlink", probe=False)
    slow = usual.calibrated(made)
    once = usual.calibrated([replace(one, launch_ratio=1.0) for one in made])
    assert slow.constants.host_launch_us == pytest.approx(3 * once.constants.host_launch_us)
    assert slow.errors[accuracy.ALL].settings == 3
    assert slow.covered.ranges["number of tokens in a micro-batch"] == (8 * 256, 8 * 512)


def test_settings_that_the_calibration_has_not_seen_are_named_and_own_runs_tell_their_own_error():
    table = dsnb.predict([given(), given(gpus=512)], "H200", link="ib:400")
    assert table["outside"][0] == ""
    assert "512" in table["outside"][1]
    assert dsnb.predict([given(precision="fp16")], "V100")["outside"][0] == ""
    runs = dsnb.published("h200_memory")
    own = dsnb.predict([given()], "H200", calibrate=runs)
    assert own["step_time_error_on"][0] != table["step_time_error_on"][0]
    with pytest.raises(SettingsError, match="no run to calibrate with"):
        dsnb.predict([given()], calibrate=runs.iloc[:0])


def test_ten_thousand_settings_take_seconds():
    """1.5 to 3 s on one idle core; a busy core takes longer, but makes as many calls: 1,760 a setting."""
    asked = [
        given(zero_stage=stage, gpus=4, micro_batch_size=size)
        for stage in range(4)
        for size in range(1, 26)
    ]
    half, whole = calls_of_predict(asked[:50]), calls_of_predict(asked)
    assert (whole - half) / 50 < 1_800
    assert dsnb.predict([]).empty


def calls_of_predict(asked):
    """Return how many functions are called and left, those of C included, to predict some settings."""
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    dsnb.predict(asked[:1], "H200")  # what is read once is read now
    sys.setprofile(count)
    try:
        dsnb.predict(asked, "H200")
    finally:
        sys.setprofile(None)
    return calls


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return a function that runs a command with params, and returns its exit code, output and errors."""

    def run_(command, *words, params=PARAMS):
        (tmp_path / "asked.yaml").write_text(params)
        monkeypatch.setattr("sys.argv", ["dsnb", command, str(tmp_path / "asked.yaml"), *words])
        monkeypatch.setattr(
            app.signals, "install_handlers", lambda: None
        )  # those of this process stay as they are
        with pytest.raises(SystemExit) as ended:
            app.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run_


def test_the_command_line_prints_the_same(run):
    code, out, _ = run("predict", "--gpu", "H200", "--format", "json")
    rows = json.loads(out)
    assert (code, len(rows)) == (0, 6)
    assert {"experiment", "fits", "peak_allocated_gib", "tokens_per_s", "step_time_s"} < set(
        rows[0]
    )
    assert [row["days"] for row in rows] == sorted(row["days"] for row in rows)
    code, out, _ = run("predict", "--price", "2")
    assert (code, len([line for line in out.splitlines() if "opt-1.3b_zs" in line])) == (0, 6)
    assert "±" in out
    assert out.startswith("H200: 139.8 GiB, ")
    code, out, _ = run(
        "predict", "--gpu", "T4", "--set", "zero_stage=[0, 3]", "--set", "compile=off"
    )
    fits = [" yes " in line for line in out.splitlines() if "opt-1.3b_zs" in line]
    assert fits == [True, False], "what fits comes first, however slow it is"
    code, out, _ = run("recommend", "--objective", "memory")
    title, first, *_ = out.splitlines()
    assert code == 0
    assert title.startswith("opt-1.3b on 8 H200: 26 billion tokens, ")
    assert first.startswith("Train with  ZeRO ")
    code, _, err = run("recommend", "--objective", "fame")
    assert code == 1
    assert err.startswith("error: objective is 'fame'")


def test_fragmentation_is_named_where_the_allocator_is_torchs_default_one(run):
    words = "fragmentation can need more memory than is predicted"
    for command, allocator in (
        (["predict"], "expandable"),
        (["predict"], "default"),
        (["recommend", "--why"], "default"),
    ):
        _, out, _ = run(*command, "--set", f"allocator={allocator}")
        assert (words in " ".join(out.split())) == (allocator == "default")
    _, out, _ = run("recommend", "--set", "allocator=default")
    assert "step * Torch's default allocator can need more memory" in " ".join(out.split())


OFFLOADED = """
name: asked
defaults: {model: opt-1.3b, precision: bf16, seq_len: 2048, zero_stage: 2, offload: optimizer-cpu}
"""


def test_offload_is_told_with_the_host_memory_that_it_needs(run):
    """8 + 4 + 8 GiB pinned, 9.8 of moments, 0.25 for the largest gradient, 1.4 of the process."""
    code, out, _ = run("predict", params=OFFLOADED)
    (row,) = [line for line in out.splitlines() if line.startswith("opt-1.3b_zs2")]
    assert (code, " unknown " in row, " 31.5 ± 1.1 % " in row) == (0, True, True)
    assert (
        "fits is unknown for 1 setting: offload needs up to 31.5 GiB of each host's memory"
        in " ".join(out.split())
    )
    for host, fits in (("34", "yes"), ("32", "no")):
        _, out, _ = run("predict", "--host-memory", host, params=OFFLOADED)
        (row,) = [line for line in out.splitlines() if line.startswith("opt-1.3b_zs2")]
        assert f" {fits} " in row
    _, out, _ = run("recommend", params=OFFLOADED)
    assert "GiB left; 31.5 GiB of host memory\n" in out
    assert "* Whether the host has 31.5 GiB is unknown (--host-memory); no" in " ".join(out.split())
    _, out, _ = run("recommend", "--why", params=OFFLOADED)
    assert "offload needs 31.5 GiB; whether there is as much is unknown" in " ".join(out.split())
    _, out, _ = run("recommend", "--why", "--host-memory", "64", params=OFFLOADED)
    assert "offload needs 31.5 GiB, and a host has 64 GiB." in " ".join(out.split())
    code, _, err = run("recommend", "--host-memory", "32", params=OFFLOADED)
    assert code == 1
    assert "and 31.5 of 32 GiB of host memory" in " ".join(err.split())


def test_the_command_line_answers_for_each_task(run):
    params = PARAMS.replace("grid: {", "grid: {model: [opt-1.3b, opt-350m], ")
    code, out, _ = run("recommend", params=params)
    titles = [line.split(":")[0] for line in out.splitlines() if " a step *" in line]
    assert (code, titles) == (0, ["opt-1.3b on 8 H200", "opt-350m on 8 H200"])
    assert out.endswith("\n* assumed: --gpu, --tokens. Next: --all, --why\n")
    _, out, _ = run("recommend", "--all", params=params)
    *_, first, second = out.split("\n\n")
    assert "opt-350m_" not in first
    assert "opt-1.3b_" not in second
    code, out, err = run("recommend", "--format", "json", params=params)
    tasks = [row["task"] for row in json.loads(out)]
    assert (code, tasks) == (0, ["opt-1.3b, sequence 2048"] * 4 + ["opt-350m, sequence 2048"] * 4)
    assert err.count("Train with ") == 2


PLAIN = "gpus is 8, but strategy is 'plain': it is a single process; use gpus 1, or strategy 'ddp'"


@pytest.mark.parametrize(
    ("added", "words", "left_out"),
    [
        (
            "{strategy: plain, gpus: 1}",
            ("--gpus", "8"),
            [f"left out 1 of 7 settings (names with -v): {PLAIN}"],
        ),
        (
            "{tensor_parallel: 16}",
            ("-v",),
            ["left out 1 of 7 settings: gpus is 8", "  zs0_bf16_gpus8_bs8_sl2048_tp16"],
        ),
        (
            "{matmul: fp8}",
            ("--gpu", "A100"),
            [
                "left out 1 of 7 settings (names with -v): matmul is 'fp8': A100 has no such products"
            ],
        ),
        (
            "{micro_batch_size: auto}",
            (),
            ["left out 1 of 7 settings (names with -v): micro_batch_size is 'auto'"],
        ),
    ],
)
def test_settings_that_are_refused_or_cannot_be_predicted_are_left_out_and_named(
    run, added, words, left_out
):
    for command in ("predict", "recommend"):
        code, out, err = run(command, *words, params=f"{PARAMS}include: [{added}]\n")
        assert code == 0
        assert "plain" not in out
        for line, start in zip(err.splitlines(), left_out, strict=True):
            assert line.startswith(start)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--gpus", "0"), "gpus is 0"),
        (("--tokens", "nan"), "tokens is nan: give a finite number of more than 0"),
        (("--gpu", "GTX 9"), "unknown GPU 'GTX 9'"),
        (("--set", "micro_batch_size=auto"), "micro_batch_size is 'auto': give a whole number"),
    ],
)
def test_what_cannot_be_answered_at_all_is_refused(run, words, problem):
    code, out, err = run("predict", *words, params=PARAMS.replace("[0, 1, 3]", "[0]"))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {problem}")
    assert err.count("\n") == 1
