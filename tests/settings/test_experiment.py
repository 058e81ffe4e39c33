"""Settings: names, defaults, and every wrong one and every wrong pair said in one sentence."""

import json

import pytest

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.system import hardware
from dsnb.measure.launcher.folder import deepspeed_config
from dsnb.settings import checks
from dsnb.settings.experiment import IN_NAMES, PARTS, Experiment
from dsnb.settings.records.paths import RunPaths
from dsnb.settings.tables import SHOWN

V100 = hardware.InstalledGpu(0, "Tesla V100-SXM2-32GB", "GPU-1", 32.0, (7, 0))


def problems(**settings):
    with pytest.raises(SettingsError) as caught:
        Experiment(**settings)
    return caught.value.problems


def test_names_and_derived_numbers(monkeypatch):
    assert (
        Experiment(zero_stage=2, precision="fp16", gpus=8, micro_batch_size=32).name
        == "zs2_fp16_gpus8_bs32_sl128"
    )
    experiment = Experiment(
        model="opt-350m",
        grad_accum=16,
        activation_checkpointing=True,
        attention="eager",
        data="stdlib",
        seed=3,
    )
    assert experiment.name == "zs0_bf16_gpus1_bs8_sl128_ga16_ac_eager_stdlib_seed3"
    assert experiment.name_with_model == "opt-350m_" + experiment.name
    fsdp = {"strategy": "fsdp", "gpus": 2, "grad_accum": 2}
    assert Experiment(**fsdp).name == "fsdp_bf16_gpus2_bs8_sl128_ga2"
    assert (
        Experiment(**fsdp, reduce_gradients="step").name
        == "fsdp_bf16_gpus2_bs8_sl128_ga2_reduce-step"
    )
    experiment = Experiment(
        micro_batch_size=4, grad_accum=3, gpus=2, seq_len=10, learning_rate="1e-4"
    )  # as YAML reads
    assert (experiment.global_batch_size, experiment.tokens_per_step, experiment.learning_rate) == (
        24,
        240,
        1e-4,
    )
    monkeypatch.setattr(hardware, "gpus", lambda: (V100,) * 8)
    assert Experiment(gpus="auto", device="cpu").gpus == min(2, hardware.cores())
    assert (Experiment(gpus="auto").gpus, Experiment().device) == (8, "cuda")


def test_words_are_those_of_settings():
    assert set(SHOWN) <= set(Experiment.model_fields)
    assert set(PARTS) <= set(IN_NAMES)


def test_all_problems_are_reported_at_once():
    assert problems(
        batch_size=1, zero_stgae=1, zero_stage=4, seq_len=4096, precision="int8", model="gpt2"
    ) == [
        "unknown setting 'batch_size': did you mean 'micro_batch_size'?",
        "unknown setting 'zero_stgae': did you mean 'zero_stage'?",
        "zero_stage is 4: allowed are 0, 1, 2 or 3",
        "precision is 'int8': allowed are 'auto', 'fp32', 'tf32', 'fp16' or 'bf16'",
        "seq_len is 4096: gpt2 has 1024 positions; use at most 1024",
    ]
    (message,) = problems(model="gpt2-xxl")
    assert message.startswith(
        "model is 'gpt2-xxl': did you mean 'gpt2-xl'? give a preset such as falcon-7b, "
    )
    assert message.endswith("or a hub id of the form owner/name")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("zero", "zero_stage"),  # zeropp is as similar, but does not continue the word
        ("step", "steps"),  # a letter less, rather than the beginning of step_timeout_s
        ("grad", "grad_accum"),
        ("batch", "micro_batch_size"),
        ("tensor", "tensor_parallel"),
        ("memory", "memory_limit_gib"),
    ],
)
def test_the_beginning_of_a_name_suggests_the_setting_that_continues_it(typed, meant):
    assert problems(**{typed: 3}) == [f"unknown setting {typed!r}: did you mean {meant!r}?"]


def test_a_variable_of_a_notebook_may_be_the_beginning_of_a_setting():
    assert Experiment.from_namespace({"memory": 3, "tensor": 3}) == Experiment()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size is 0: it must be at least 1"),
        (
            {"micro_batch_size": "auto"},
            "micro_batch_size is 'auto': give a whole number; `dsnb recommend` and `dsnb predict` tell what fits",
        ),
        ({"activation_checkpointing": 1}, "activation_checkpointing is 1: give true or false"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast': give a number"),
        ({"dropout": 1.0}, "dropout is 1.0: it must be less than 1.0"),
        ({"time_limit_s": 0}, "time_limit_s is 0: it must be more than 0.0"),
        (
            {"nvme_path": "x" * 10_000},
            "nvme_path is set, but offload is 'none': drop it, or offload to NVMe",
        ),
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
        (
            {"include": "w"},
            "include is 'w', but there is no hostfile: name the hosts in 'hostfile'",
        ),
        ({"ssh_user": "-oProxyCommand=x"}, "ssh_user is '-oProxyCommand=x': write it like 'root'"),
        ({"ssh_user": "root\n"}, "ssh_user is 'root\\n': write it like 'root'"),
        ({"interface": "$(x)"}, "interface is '$(x)': write it like 'ib0'"),
        ({"forward_env": "A=B"}, "forward_env is 'A=B': write it like 'WANDB_MODE,MY_*'"),
    ],
)
def test_one_sentence_for_each_problem(settings, message):
    assert problems(**settings) == [message]


def test_a_notebook_takes_what_a_sweep_recorded_if_it_says_the_same(tmp_path):
    planned = Experiment(model="gpt2-tiny", zero_stage=2, device="cuda")
    json_files.write_json(RunPaths(tmp_path).experiment, planned.model_dump())
    names = {"model": "gpt2-tiny", "zero_stage": 2, "device": "cuda", "data": "synthetic"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "contradictions", None)  # nothing is checked again
        assert Experiment.from_namespace({**names, "run_dir": str(tmp_path)}) == planned
    assert (
        Experiment.from_namespace({**names, "zero_stage": 1, "run_dir": str(tmp_path)}).zero_stage
        == 1
    )
    with pytest.raises(SettingsError, match="zero_stage is 7"):
        Experiment.from_namespace({**names, "zero_stage": 7, "run_dir": str(tmp_path)})


@pytest.mark.parametrize(
    ("gpus", "settings", "messages"),
    [
        (
            (),
            {"precision": "tf32"},
            ["precision is 'tf32': only NVIDIA GPUs have it; use 'fp32' or"],
        ),
        ((), {"precision": "fp32", "gpus": 999}, ["gpus is 999: "]),
        ((), {"precision": "fp16"}, ["precision is 'fp16': this CPU has no fp16 arithmetic; use"]),
        (
            (),
            {"device": "cuda"},
            ["device is 'cuda': this machine has no usable NVIDIA GPU; use 'cpu' or 'auto'"],
        ),
        (
            (V100,),
            {"device": "cuda", "gpus": 2},
            [
                "gpus is 2: this machine has 1; use at most 1, 'auto', or",
                "precision is 'bf16': Tesla V100-SXM2-32GB",
            ],
        ),
    ],
)
def test_what_a_machine_cannot_do(monkeypatch, gpus, settings, messages):
    monkeypatch.setattr(hardware, "gpus", lambda: gpus)
    monkeypatch.setattr(hardware, "cpu_facts", lambda: {"flags": "avx2"})
    refused = checks.unsupported(Experiment(**{"device": "cpu", **settings}))
    assert len(refused) == len(messages)
    assert all(problem.startswith(words) for problem, words in zip(refused, messages, strict=True))


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (
            {"model_type": "bert"},
            "bert is an encoder: its tokens also attend to later ones; set is_decoder to true, or",
        ),
        (
            {"model_type": "xlm"},
            "xlm is an encoder: its tokens also attend to later ones; set causal to true, or",
        ),
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "t5 is an encoder-decoder; give a causal language model, ",
        ),
        (
            [1],
            "its configuration is not a JSON object; give a causal language model, such as GPT-2, Llama or Mixtral",
        ),
        (
            {"hidden_size": 64},
            "its configuration has no model_type; give a causal language model, ",
        ),
        ({"model_type": "bert", "is_decoder": True}, None),
        ({"model_type": "bart", "is_encoder_decoder": False, "is_decoder": True}, None),
        ({"model_type": "xlm", "causal": True}, None),
        ({"model_type": "gpt_neox", "is_decoder": False}, None),
    ],
    ids=str,
)
def test_only_decoders_are_allowed(small, tmp_path, monkeypatch, config, why):
    monkeypatch.chdir(tmp_path)  # a long path would be shortened
    (tmp_path / "m.json").write_text(json.dumps(config))
    if why is None:
        assert small(model="m.json").model == "m.json"
    else:
        assert problems(model="m.json")[0].startswith(f"model is 'm.json': {why}")


GRAPHS = {"compile": "reduce-overhead"}
WHOLE = {"compile": "default", "compile_unit": "model"}
USES = "compile is 'reduce-overhead', which uses CUDA graphs"
TP, PP = {"gpus": 4, "tensor_parallel": 2}, {"gpus": 4, "pipeline_parallel": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"overlap_comm": True},
            "overlap_comm is 'on', but zero_stage is 0: there are no buckets; use zero_stage",
        ),
        (
            {"bucket_elements": 10, "strategy": "ddp", "compile": "default"},
            "bucket_elements is 10: compiled DDP",
        ),
        (
            {"bucket_elements": 10, "strategy": "fsdp"},
            "bucket_elements is 10, but strategy is 'fsdp', which has no",
        ),
        (
            {"reduce_gradients": "step"},
            "reduce_gradients is 'step', but strategy is 'deepspeed', which decides this",
        ),
        (
            {"reduce_gradients": "step", "strategy": "fsdp"},
            "reduce_gradients is 'step', but grad_accum is 1: a step has one micro-batch; drop it, or set grad_accum",
        ),
        (
            {"leaf_modules": "blocks", "zero_stage": 2},
            "leaf_modules is 'blocks', but zero_stage is 2: nothing is",
        ),
        (
            {"zeropp": "gradients", "zero_stage": 3, "device": "cuda"},
            "zeropp is 'gradients', but nodes is 1",
        ),
        (
            {"zeropp": "weights", "zero_stage": 3},
            "zeropp is 'weights', but device is 'cpu': DeepSpeed quantizes on",
        ),
        (
            {"gradient_checks": False, "zero_stage": 1, "gradient_clipping": 1.0},
            "gradient_checks is 'off', but grad",
        ),
        (
            {"gradient_checks": "off", "zero_stage": 1, "grad_accum": 2},
            "gradient_checks is 'off', but ZeRO 1",
        ),
        (
            {"grad_accum_dtype": "fp32", "zero_stage": 0},
            "grad_accum_dtype is 'fp32', but zero_stage is 0",
        ),
        (
            {"grad_accum_dtype": "fp16", "zero_stage": 1},
            "grad_accum_dtype is 'fp16', but precision is 'bf16': use",
        ),
        (
            {"optimizer": "muon"},
            "optimizer is 'muon': it is ZeRO's, which sees whole matrices; use zero_stage 1, 2",
        ),
        (
            {**GRAPHS, "grad_accum": 2},
            f"{USES}, but grad_accum is 2: a graph owns its gradients and overwrites",
        ),
        (
            {**GRAPHS, "zero_stage": 3},
            f"{USES}: ZeRO 3 gathers weights at changing addresses, which a graph",
        ),
        (
            {"compile": "deepcompile", "zero_stage": 2},
            "compile is 'deepcompile': it compiles the communication of",
        ),
        (
            {"loss": "chunked", "pipeline_parallel": 2, "gpus": 2},
            "loss is 'chunked', but pipeline_parallel is set",
        ),
        (
            {**WHOLE, "zero_stage": 3, "loss": "chunked"},
            "loss is 'chunked', but the engine compiles the whole model",
        ),
        (
            {"compile": "off", "compile_unit": "block"},
            "compile_unit is 'block', but compile is 'off': nothing",
        ),
        (
            {**GRAPHS, "compile_unit": "block"},
            "compile_unit is 'block', but compile is 'reduce-overhead': a CUDA",
        ),
        (
            {**WHOLE, "strategy": "fsdp"},
            "compile_unit is 'model', but strategy is 'fsdp': its hooks gather",
        ),
        (
            {"compile": "default", "zero_stage": 3, "leaf_modules": "none"},
            "leaf_modules is 'none', but blocks are",
        ),
        (
            {"strategy": "plain", "gpus": 2},
            "gpus is 2, but strategy is 'plain': it is a single process; use gpus",
        ),
        (
            {**PP, "gradient_clipping": 1.0, "precision": "fp16"},
            "gradient_clipping is set: at ZeRO 0 a pipeline",
        ),
        (
            {**PP, "mixed_precision": "autocast", "precision": "fp16"},
            "mixed_precision is 'autocast': in fp16 only",
        ),
        (
            {**TP, "mixed_precision": "autocast", "precision": "fp16"},
            "mixed_precision is 'autocast': in fp16 at",
        ),
        (
            {**TP, "optimizer": "adafactor"},
            "optimizer is 'adafactor', but tensor_parallel is set: its factors",
        ),
        # Flat pieces: 0.23 off the losses of one process after one step of 1e-2.
        (
            {**PP, "optimizer": "adafactor"},
            "optimizer is 'adafactor', but pipeline_parallel is set: in native bf16",
        ),
        (
            {"pad_vocab": 64, "zero_stage": 3},
            "pad_vocab is 64, but zero_stage is 3: weights are partitioned as built",
        ),
        (
            {"pad_vocab": 64, "loss": "chunked"},
            "pad_vocab is 64, but loss is 'chunked': a chunked loss pads each",
        ),
        (
            {"matmul": "fp8", "precision": "fp16", "model": "opt-tiny"},
            "matmul is 'fp8', but precision is 'fp16': it is",
        ),
        (
            {"matmul": "fp8", "zero_stage": 3, "model": "opt-tiny"},
            "matmul is 'fp8', but zero_stage is 3: it is tested",
        ),
        (
            {"pad_vocab": 64, "optimizer": "adafactor"},
            "pad_vocab is 64, but optimizer is 'adafactor': Adafactor and",
        ),
        (
            {"matmul": "fp8", "model": "opt-tiny", "seq_len": 5},
            "matmul is 'fp8', but a micro-batch has 40 tokens: give",
        ),
        (
            {"matmul": "fp8"},
            "matmul is 'fp8': torchao converts linear layers, and GPT-2's are not of that type",
        ),
        (
            {"matmul": "fp8", "model": "opt-tiny", "lora_rank": 2},
            "matmul is 'fp8', but lora_rank is 2: adapters",
        ),
        (
            {"gradient_compression": "bf16"},
            "gradient_compression is 'bf16', but strategy is 'deepspeed': it is DDP's",
        ),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_reason(settings, message):
    assert problems(**{"device": "cpu", "model": "gpt2-tiny", **settings})[0].startswith(message)


@pytest.mark.parametrize("setting", ["tensor_parallel", "pipeline_parallel"])
def test_families_that_are_not_tested_with_model_parallelism(tmp_path, setting):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    message = (
        f"{setting} is 2: it is tested for gpt2, opt and bloom only, not for llama; set it to 1"
    )
    assert problems(model=str(tmp_path), device="cpu", gpus=4, **{setting: 2}) == [message]


@pytest.mark.parametrize(
    ("settings", "is_fp32"),
    [
        ({"zero_stage": 1}, False),
        ({"zero_stage": 1, "grad_accum": 2}, True),
        ({"zero_stage": 0, "grad_accum": 2}, False),
        ({"zero_stage": 2, "grad_accum": 2, "precision": "fp16"}, False),
        ({"zero_stage": 2, "grad_accum": 2, "mixed_precision": "autocast"}, False),
        ({"zero_stage": 1, "grad_accum": 2, "grad_accum_dtype": "bf16"}, False),
        ({"zero_stage": 1, "grad_accum_dtype": "fp32"}, True),
    ],
    ids=str,
)
def test_several_micro_batches_are_accumulated_in_fp32(settings, is_fp32):
    config = deepspeed_config(Experiment(device="cuda", **settings))
    assert (config.get("data_types") == {"grad_accum_dtype": "fp32"}) is is_fp32


def test_every_axis_reaches_deepspeed(tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=8\nb slots=8\n")
    zero = {"zero_stage": 3, "device": "cuda", "gpus": 16, "nodes": 2, "hostfile": str(hosts)}
    config = deepspeed_config(
        Experiment(**zero, zeropp="all", overlap_comm=False, bucket_elements=7)
    )
    assert config["zero_optimization"] == {
        "stage": 3, "overlap_comm": False, "reduce_bucket_size": 7, "allgather_bucket_size": 7,
        "zero_quantized_weights": True, "zero_quantized_gradients": True, "zero_hpz_partition_size": 8,
    }  # fmt: skip
    config = deepspeed_config(Experiment(zero_stage=2, device="cuda", gradient_checks="off"))
    assert config["zero_optimization"] == {"stage": 2, "compute_grad_norm": False}
    assert config["bf16"] == {"enabled": True, "check_grad_overflow": False}
    config = deepspeed_config(
        Experiment(zero_stage=1, device="cuda", compile="deepcompile", optimizer="muon")
    )
    assert config["compile"] == {"deepcompile": True}
    assert config["optimizer"]["type"] == "Muon"


@pytest.mark.parametrize(
    ("settings", "by_blocks", "gathered_whole"),
    [
        ({"zero_stage": 3}, True, True),
        ({"zero_stage": 3, "compile_unit": "model"}, False, False),
        ({"zero_stage": 3, "compile_unit": "model", "leaf_modules": "blocks"}, False, True),
        ({"zero_stage": 3, "compile": "off"}, False, False),
        ({"strategy": "fsdp"}, True, True),
        ({"zero_stage": 2}, False, False),
        ({"zero_stage": 1, "activation_checkpointing": True}, True, True),
        (
            {"zero_stage": 1, "activation_checkpointing": True, "compile": "reduce-overhead"},
            False,
            False,
        ),
    ],
    ids=str,
)
def test_what_gathers_or_recomputes_blocks_is_compiled_by_blocks(
    settings, by_blocks, gathered_whole
):
    chosen = Experiment(**{"device": "cpu", "compile": "default", **settings})
    assert (chosen.compiles_blocks, chosen.gathers_blocks) == (by_blocks, gathered_whole)
