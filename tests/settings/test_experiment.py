"""Settings: names, defaults, and every wrong one said in one sentence."""

import pytest

import dsnb
from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import checks
from dsnb.settings.experiment import Experiment
from dsnb.system import hardware


def problems(**settings):
    with pytest.raises(SettingsError) as caught:
        Experiment(**settings)
    return caught.value.problems


def test_names_are_the_published_ones():
    settings = {"precision": "fp16", "gpus": 1, "micro_batch_size": 32, "seq_len": 128}
    assert Experiment(zero_stage=0, **settings).name == "zs0_fp16_gpus1_bs32_sl128"
    assert Experiment(zero_stage=2, **{**settings, "precision": "bf16", "gpus": 8}).name == "zs2_bf16_gpus8_bs32_sl128"


def test_name_shows_what_differs_from_the_default():
    experiment = Experiment(
        model="opt-350m", grad_accum=16, activation_checkpointing=True, attention="eager", data="stdlib", seed=3
    )
    assert experiment.name == "zs0_bf16_gpus1_bs8_sl128_ga16_ac_eager_stdlib_seed3"
    assert experiment.name_with_model == "opt-350m_" + experiment.name


def test_derived_numbers():
    experiment = Experiment(micro_batch_size=4, grad_accum=3, gpus=2, seq_len=10)
    assert (experiment.global_batch_size, experiment.tokens_per_step) == (24, 240)


def test_auto_is_resolved():
    experiment = Experiment(gpus="auto")
    assert (experiment.device, experiment.gpus) == (
        hardware.default_device(),
        hardware.default_world_size(hardware.default_device()),
    )


def test_all_problems_are_reported_at_once():
    found = problems(zero_stgae=1, zero_stage=4, seq_len=4096, precision="int8", model="gpt2")
    assert found == [
        "unknown setting 'zero_stgae': did you mean 'zero_stage'?",
        "zero_stage is 4: allowed are 0, 1, 2 or 3",
        "precision is 'int8': allowed are 'fp32', 'tf32', 'fp16' or 'bf16'",
        "seq_len is 4096: gpt2 has 1024 positions; use at most 1024",
    ]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size is 0: it must be at least 1"),
        ({"micro_batch_size": "8"}, "micro_batch_size is '8': give a whole number, or 'auto'"),
        ({"micro_batch_size": True}, "micro_batch_size is True: give a whole number, or 'auto'"),
        ({"activation_checkpointing": 1}, "activation_checkpointing is 1: give true or false"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': give a number"),
        ({"dropout": 1.0}, "dropout is 1.0: it must be less than 1.0"),
        ({"time_limit_s": 0}, "time_limit_s is 0: it must be more than 0.0"),
        ({"memory_limit_gib": 1e12}, "memory_limit_gib is 1000000000000.0: it must be less than 1073741824.0"),
        ({"nvme_path": "x" * 10_000}, "nvme_path is set, but offload is 'none': drop it, or offload to NVMe"),
        ({"optimizer": "onebit-adam"}, "optimizer is 'onebit-adam': allowed are 'adamw', 'adafactor' or 'muon'"),
        (
            {"data": "no/such.txt"},
            "data is 'no/such.txt': no such file; give 'synthetic', 'stdlib' or the path of a text file",
        ),
        (
            {"model": "gpt2-tiny", "weights": "pretrained"},
            "weights is 'pretrained': there are no trained weights for gpt2-tiny; use 'random'",
        ),
        (
            {"tokenizer": "openai-community/gpt2"},
            "tokenizer is 'openai-community/gpt2', but synthetic data has no text: "
            "set 'data' to a text file, or drop it",
        ),
    ],
)
def test_one_sentence_for_each_problem(settings, message):
    assert problems(**settings) == [message]


def test_unknown_model_names_the_nearest():
    (message,) = problems(model="gpt2-xxl")
    assert message.startswith("model is 'gpt2-xxl': did you mean 'gpt2-xl'? give a preset (gpt2-tiny, gpt2, ")
    assert message.endswith("or a hub id of the form owner/name")


@pytest.mark.parametrize("value", [16**5000, [16**5000]], ids=["number", "list"])
@pytest.mark.parametrize("setting", ["micro_batch_size", "memory_limit_gib"])
def test_a_number_of_thousands_of_digits_is_refused_in_one_short_sentence(setting, value):
    (message,) = problems(model="gpt2-tiny", device="cpu", **{setting: value})
    assert message.startswith(f"{setting} is ")
    assert len(message) < 200


def test_learning_rate_as_yaml_reads_it():
    assert Experiment(learning_rate="1e-4").learning_rate == 1e-4


@pytest.mark.parametrize(
    ("name", "meant"), [("zero_stgae", "zero_stage"), ("batch_size", "micro_batch_size"), ("stage", "zero_stage")]
)
def test_a_misspelled_notebook_parameter_is_refused(name, meant):
    with pytest.raises(SettingsError, match=f"unknown setting '{name}': did you mean '{meant}'"):
        Experiment.from_namespace({name: 2, "zero_stage": 0, "dsnb": dsnb, "_i1": "x", "exit": "y", "run_dir": ""})


def test_a_notebook_takes_what_a_sweep_recorded_if_it_says_the_same(tmp_path):
    planned = Experiment(model="gpt2-tiny", zero_stage=2, micro_batch_size="auto", device="cuda")
    resolved = {**planned.model_dump(), "micro_batch_size": 24, "asked": {"micro_batch_size": "auto"}}
    records.write_json(RunPaths(tmp_path).experiment, resolved)
    names = {"model": "gpt2-tiny", "zero_stage": 2, "micro_batch_size": "auto", "device": "cuda", "data": "synthetic"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "contradictions", None)  # nothing is checked again
        assert Experiment.from_namespace({**names, "run_dir": str(tmp_path)}) == planned
    assert Experiment.from_namespace({**names, "zero_stage": 1, "run_dir": str(tmp_path)}).zero_stage == 1
    with pytest.raises(SettingsError, match="zero_stage is 7"):
        Experiment.from_namespace({**names, "zero_stage": 7, "run_dir": str(tmp_path)})


def test_a_notebook_setting_of_a_wrong_type_is_refused():
    with pytest.raises(SettingsError) as caught:
        Experiment.from_namespace({"zero_stage": [3], "precision": None})
    assert caught.value.problems == [
        "zero_stage is [3]: allowed are 0, 1, 2 or 3",
        "precision is None: allowed are 'fp32', 'tf32', 'fp16' or 'bf16'",
    ]


def test_auto_ranks_on_a_cpu_are_two_whatever_gpus_there_are(monkeypatch):
    gpu = hardware.InstalledGpu(0, "NVIDIA H200", "GPU-1", 140.0, (9, 0))
    monkeypatch.setattr(hardware, "gpus", lambda: (gpu,) * 8)
    assert Experiment(gpus="auto", device="cpu").gpus == min(2, hardware.cores())
    assert Experiment(gpus="auto").gpus == 8


@pytest.mark.parametrize("settings", [{"precision": "tf32"}, {"gpus": 999}])
def test_what_a_cpu_cannot_do(settings):
    found = checks.unsupported(Experiment(**{"device": "cpu", "precision": "fp32", **settings}).model_dump())
    (name,) = settings
    assert len(found) == 1
    assert found[0].startswith(f"{name} is ")


def test_fp16_on_a_cpu_that_cannot(monkeypatch):
    monkeypatch.setattr(hardware, "cpu_facts", lambda: {"flags": "avx2"})
    assert checks.unsupported(Experiment(device="cpu", precision="fp16").model_dump()) == [
        "precision is 'fp16': this CPU has no fp16 arithmetic; use 'bf16' or 'fp32'"
    ]


def test_more_gpus_than_there_are_and_formats_they_lack(monkeypatch):
    volta = hardware.InstalledGpu(0, "Tesla V100-SXM2-32GB", "GPU-1", 32.0, (7, 0))
    monkeypatch.setattr(hardware, "gpus", lambda: (volta,))
    assert checks.unsupported(Experiment(device="cuda", gpus=2, precision="bf16").model_dump()) == [
        "gpus is 2: this machine has 1; use at most 1, 'auto', or a hostfile",
        "precision is 'bf16': Tesla V100-SXM2-32GB does not support it; use 'fp16' or 'fp32'",
    ]


def test_cuda_without_a_gpu(monkeypatch):
    monkeypatch.setattr(hardware, "gpus", tuple)
    assert checks.unsupported(Experiment(device="cuda").model_dump()) == [
        "device is 'cuda': this machine has no usable NVIDIA GPU; use 'cpu' or 'auto'"
    ]


def test_a_hostfile_from_windows(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfn1 slots=2 # first\r\n\r\nn2 slots = 1\r\n")
    experiment = Experiment(hostfile=str(tmp_path / "hosts"), gpus="auto")
    assert [(host.name, host.devices) for host in experiment.hosts] == [("n1", (0, 1)), ("n2", (0,))]
