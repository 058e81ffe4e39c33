"""Formulas, with numbers that can be done in the head; presets against transformers' own modules."""

import json
from types import SimpleNamespace

import pytest

from dsnb.base.formulas import metrics, model_shapes
from dsnb.base.formulas.model_shapes import PRESETS
from dsnb.base.system import hardware


def test_rates_flops_and_mfu():
    assert metrics.tokens_per_s(100, [1.0, 3.0]) == 50.0  # the mean of the rates would be 66.7
    assert metrics.tokens_per_s(100, []) is None
    work = {"parameters": 1000, "layers": 2, "hidden": 10, "seq_len": 5}
    assert metrics.model_flops_per_token(**work) == 6 * 1000 + 12 * 2 * 10 * 5
    assert (
        metrics.model_flops_per_token(**work, trained=30) == 4 * 1000 + 2 * 30 + 12 * 2 * 10 * 5
    )  # LoRA
    assert metrics.tflops(2e9, 500.0) == 1.0
    assert metrics.tflops(2e9, None) is None
    assert metrics.mfu(100.0, 400.0) == 0.25
    assert metrics.mfu(100.0, None) is None


def test_days_hours_and_costs_of_a_training():
    day = 24 * 3600
    assert metrics.days(1000 * day, 500.0) == 2.0  # 1,000 tokens for each second of a day, at 500/s
    assert metrics.gpu_hours(3600 * 1000, 500.0, gpus=4) == 2 * 4
    assert metrics.run_gpu_hours(1800.0, gpus=4) == 2.0
    assert metrics.cost(8.0, 2.5) == 20.0
    assert metrics.cost(8.0, None) is None
    assert metrics.tokens_per_joule(600.0, 300.0) == 2.0
    assert metrics.samples_per_s(1024.0, 512) == 2.0
    assert metrics.days(1000.0, 0.0) is None


def test_efficiency_is_throughput_per_gpu_over_that_of_the_base():
    assert metrics.speed_up(300.0, 100.0) == 3.0
    assert metrics.scaling_efficiency(300.0, 4, 100.0, 1) == 0.75
    assert metrics.scaling_efficiency(300.0, 4, 100.0, 2) == 1.5  # 75 per GPU, 50 at the base
    assert metrics.scaling_efficiency(300.0, 4, 0.0, 1) is None


def test_only_blocks_are_recomputed():
    work = {"layers": 4, "hidden": 10, "seq_len": 5}
    forward = 2 * 600 + 4 * 4 * 10 * 5
    assert [metrics.recomputed_flops_per_token(600, every=every, **work) for every in (0, 1, 2, 3)] == [
        0, forward, forward / 2, forward / 2,
    ]  # fmt: skip


@pytest.mark.docs
def test_recomputed_flops_are_those_that_torch_counts():
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    shape, ids = PRESETS["gpt2-tiny"], torch.zeros(1, 64, dtype=torch.int64)
    config = AutoConfig.for_model(**shape.config(), use_cache=False)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").train()

    def counted():
        with FlopCounterMode(display=False) as counter:
            model(input_ids=ids, labels=ids).loss.backward()
        return counter.get_total_flops() / ids.numel()

    once = counted()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    blocks = shape.layers, shape.hidden, 64
    again = metrics.recomputed_flops_per_token(shape.block_parameters, *blocks, every=1)
    assert counted() - once == pytest.approx(
        again, rel=0.01
    )  # biases and norms are in the formula, not in the count
    used = (
        shape.parameters - shape.positions * shape.hidden
    )  # positions are looked up, not multiplied
    assert once == pytest.approx(metrics.model_flops_per_token(used, *blocks), rel=0.01)


def test_a_window_limits_the_keys_of_a_query():
    work = {"layers": 2, "width": 10, "seq_len": 8}
    for window, keys in ((None, 8), (100, 8), (8, 8), (2, 2)):
        assert metrics.attention_flops_per_token(**work, window=window) == 12 * 2 * 10 * keys
    assert metrics.masked_flops_per_token(**work) == 12 * 2 * 10 * 8 / 2
    # 2 of 8 keys are counted for 8 queries: 16 pairs, less half of the 4 of the first two queries.
    assert metrics.masked_flops_per_token(**work, window=2) == 12 * 2 * 10 * 2 * (2 / 16)


def test_peaks_by_name():
    peaks = {
        ("NVIDIA H200", "bf16"): 989,
        ("NVIDIA H100 NVL", "bf16"): 835,
        ("NVIDIA A100-SXM4-80GB", "tf32"): 156,
        ("Tesla V100-SXM2-32GB", "bf16"): None,
        (None, "bf16"): None,
    }
    assert {asked: hardware.peak_tflops(*asked) for asked in peaks} == peaks


def test_visible_gpus_follow_cudas_rule():
    found = [
        hardware.InstalledGpu(index, "X", f"GPU-{letter}", 1.0, (9, 0))
        for index, letter in enumerate("abc")
    ]
    chosen = {None: [0, 1, 2], "2,0": [2, 0], "GPU-b": [1], "1,7,0": [1], "": [], "-1": []}
    assert {
        asked: [gpu.index for gpu in hardware._visible(found, asked)] for asked in chosen
    } == chosen


MIG = tuple(
    hardware.InstalledGpu(1, "X MIG 1g", f"MIG-{letter}", 0.1, (9, 0)) for letter in ("d0", "d1")
)
DIVIDED = [
    hardware.InstalledGpu(0, "X", "GPU-a", 1.0, (9, 0)),
    hardware.InstalledGpu(1, "X", "GPU-b", 1.0, (9, 0), MIG),
    hardware.InstalledGpu(2, "X", "GPU-c", 1.0, (9, 0), ()),
]
"""A whole GPU, one with two slices, and one that is to be divided and has no slice."""


@pytest.mark.parametrize(
    ("choice", "seen"),
    [
        ("MIG-d1", ["MIG-d1"]),
        ("MIG-d0,MIG-d1", ["MIG-d0"]),  # CUDA uses a single slice
        ("1", ["MIG-d0"]),
        ("0", ["0"]),
        ("2", []),
        ("MIG-x", []),
        (None, ["MIG-d0"]),
    ],
)
def test_a_mig_slice_is_a_gpu(choice, seen):
    assert [gpu.visible_as for gpu in hardware._visible(DIVIDED, choice)] == seen


class DividedNvml:
    """NVML of a machine with one GPU of two slices, one of them free."""

    NVMLError, NVML_DEVICE_MIG_ENABLE = RuntimeError, 1
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: "card")
    nvmlDeviceGetCudaComputeCapability = staticmethod(lambda handle: (9, 0))
    nvmlDeviceGetMigMode = staticmethod(lambda handle: (1, 1))
    nvmlDeviceGetMaxMigDeviceCount = staticmethod(lambda handle: 2)
    nvmlDeviceGetName = staticmethod(
        lambda device: f"NVIDIA H100 80GB HBM3{' MIG 1g.10gb' if device == 'slice' else ''}"
    )
    nvmlDeviceGetHandleByIndex = staticmethod(lambda index: "card")
    nvmlDeviceGetUUID = staticmethod(lambda device: "MIG-1" if device == "slice" else "GPU-1")
    nvmlDeviceGetMemoryInfo = staticmethod(
        lambda device: SimpleNamespace(total=2**30 * (10 if device == "slice" else 80))
    )

    @staticmethod
    def nvmlDeviceGetMigDeviceHandleByIndex(handle, place):
        if place:
            raise RuntimeError("not found")
        return "slice"


def test_slices_are_found_by_nvml():
    card = hardware._installed(DividedNvml, 0)
    (part,) = card.slices
    assert (card.uuid, card.memory_gib, card.visible_as) == ("GPU-1", 80.0, "0")
    assert (part.name, part.memory_gib, part.visible_as) == (
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        10.0,
        "MIG-1",
    )
    assert hardware._visible([card], "MIG-1") == [part]


COUNTED = {
    "llama-2-7b": 6738415616, "llama-3.2-1b": 1235814400, "llama-3.1-8b": 8030261248, "llama-3.1-70b": 70553706496,
    "mistral-7b": 7248023552, "mixtral-8x7b": 46702792704, "qwen2.5-0.5b": 494032768, "qwen2.5-7b": 7615616512,
    "qwen2.5-72b": 72706203648, "qwen3-0.6b": 596049920, "qwen3-30b-a3b": 30532122624, "gemma-2b": 2506172416,
    "gemma-2-2b": 2614341888, "gemma-3-1b": 999885952, "phi-2": 2779683840, "phi-3-mini": 3821079552,
    "phi-4": 14659507200, "pythia-410m": 405334016, "pythia-12b": 11846072320, "falcon-7b": 6921720704,
}  # fmt: skip
"""Parameters that the hub states of the weights."""
OTHERS = [name for name, shape in model_shapes.PRESETS.items() if not shape.has_formula]


@pytest.mark.parametrize(
    "name", ["gpt2", "gpt-1.3b", "gpt2-tiny", "opt-125m", "opt-350m", "bloom-560m", *OTHERS]
)
def test_parameter_counts_are_transformers_own(name):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**model_shapes.PRESETS[name].config())
        )
    shape = model_shapes.PRESETS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == shape.parameters
    assert shape.parameters == COUNTED.get(name, shape.parameters)
    if not shape.has_formula:
        blocks = next(one for one in model.modules() if isinstance(one, torch.nn.ModuleList))
        of_blocks = sum(parameter.numel() for parameter in blocks.parameters())
        assert of_blocks <= shape.block_parameters < of_blocks + 4 * shape.hidden + shape.vocab


def test_sizes_are_what_the_names_say():
    """In millions of parameters, for each family's largest models too."""
    said = {
        "gpt2-xl": 1558,
        "opt-6.7b": 6658,
        "opt-175b": 174604,
        "bloom-7b1": 7069,
        "bloom-176b": 176247,
    }
    assert {name: round(model_shapes.PRESETS[name].parameters / 1e6) for name in said} == said


def test_local_configurations(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_positions": 64}))
    assert model_shapes.facts(str(tmp_path)) == {"family": "gpt2", "positions": 64}
    (tmp_path / "config.json").write_text("[1]")
    assert model_shapes.facts(str(tmp_path)) == {}


def test_a_name_does_not_depend_on_what_files_there_are(tmp_path, monkeypatch):
    named = {
        "m/llama.json": "llama",
        "m/llama/config.json": "llama",
        "m/llama-3.1/": "llama-3.1",
        "a/b c": "b-c",
    }
    assert {model: model_shapes.slug(model) for model in named} == named
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m/llama").mkdir(parents=True)
    (tmp_path / "m/llama/config.json").write_text("{}")
    assert {model: model_shapes.slug(model) for model in named} == named


def test_equal_names_are_extended_to_the_left_until_they_differ():
    models = [
        "a/llama.json",
        "b/llama.json",
        "gpt2",
        "openai/gpt2",
        "x/a/config.json",
        "y/a/config.json",
        "opt-125m",
    ]
    names = ["a-llama", "b-llama", "gpt2", "openai-gpt2", "x-a", "y-a", "opt-125m"]
    assert model_shapes.slugs(models) == dict(zip(models, names, strict=True))
    assert model_shapes.slugs(["c.json", "./c.json"]) == {
        "c.json": "c",
        "./c.json": "c",
    }  # one file
    assert model_shapes.slugs(["a-b.json", "a/b.json", "x/b.json"])["a/b.json"] == "a-b"


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/../b", "x'; rm -rf /", "/", "..", "ü/ü"])
def test_no_name_leads_out_of_its_folder(name):
    slug = model_shapes.slug(name)
    assert slug
    assert "/" not in slug
    assert slug.strip(".") == slug
    assert not model_shapes.is_hub_id(name)
