"""SimuMax, from its repository: a simulator of Megatron trainings.

It is asked at commit 4dcaae5 of 2026-05-11 with the system that it ships for A100, eight GPUs of
80 GB with PCIe, 25 GB/s between nodes, and measured efficiencies of products. The rows' A100 have
NVLink; its documentation asks for measurements of one's own machine instead, which nobody has
here. It supports ZeRO 1 and replicas, for models with SwiGLU, and neither LoRA nor pure bf16.
"""

import contextlib
import io
from typing import Any

from benchmarks.planners.question import Answer, Question, RowPlanner
from dsnb.base.system.hardware import GIB

SYSTEMS = {"A100": "a100_pcie"}
"""GPU of a row -> the system of SimuMax."""
MICRO_BATCHES = "micro_batch_num"
GATED = ("llama", "mistral")
"""Types of models whose MLP is gated by SiLU."""


class SimuMax(RowPlanner):
    """SimuMax."""

    name = "simumax"
    title = "SimuMax"
    source = "https://github.com/MooreThreads/SimuMax"
    version = "1.2, commit 4dcaae5"
    claims = "speed and peak of a Megatron training, on a machine that was measured"
    memory_of = "the peak"
    command = (
        "git clone https://github.com/MooreThreads/SimuMax && git -C SimuMax checkout 4dcaae5 && "
        "pip install tabulate graphviz && "
        "PYTHONPATH=SimuMax:. python -m benchmarks.planners predict simumax"
    )

    def answer(self, question: Question) -> Answer:
        """Return speed and memory of one row."""
        refusal = why_not(question)
        if refusal:
            return Answer(why_not=refusal)
        memory, cost = simulated(question)
        memory_gib = memory / GIB
        return Answer(cost, memory_gib=memory_gib, fits=question.fits(memory_gib))


def why_not(question: Question) -> str:
    """Return why SimuMax cannot express a row; empty if it can."""
    if question.is_lora:
        return "it has no LoRA"
    if question.zero_stage > 1:
        return "ZeRO 2 and 3 are not supported yet"
    if question.offloads or question.is_pure_bf16:
        return "it has neither offload nor training in pure bf16"
    if question.gpu_name not in SYSTEMS:
        return f"it ships no system with {question.gpu_name}"
    if question.config["model_type"] not in GATED:
        return f"it has no configuration like {question.config['model_type']}"
    return ""


def simulated(question: Question) -> tuple[float, float]:
    """Return bytes and tokens/s of a GPU."""
    from simumax.core import config, perf_llm  # on PYTHONPATH for this only
    from simumax.utils import get_simu_system_config

    system = get_simu_system_config(SYSTEMS[question.gpu_name])
    simulation = perf_llm.PerfLLM()
    with contextlib.redirect_stdout(io.StringIO()):
        simulation.configure(
            strategy_config=config.StrategyConfig.init_from_dict(strategy(question)),
            model_config=config.ModelConfig.init_from_dict(model(question)),
            system_config=config.SystemConfig.init_from_config_file(system),
        )
        simulation.run_estimate()
        memory = simulation.analysis_mem()
        cost = simulation.analysis_cost()
        peaks = simulation.get_pp_stage_peak_mem(memory.data, "peak_mem", False)
    return float(max(peaks.values())), float(cost.data["throughput_per_accelerator"])


def strategy(question: Question) -> dict[str, Any]:
    """Return the strategy of a row in SimuMax's words."""
    settings = question.settings
    recomputes = bool(settings["activation_checkpointing"])
    found = {
        "seq_len": int(settings["seq_len"]),
        "micro_batch_size": int(settings["micro_batch_size"]),
        MICRO_BATCHES: int(settings["grad_accum"]),
        "dtype": "bf16",
        "world_size": question.gpus,
        "zero_state": question.zero_stage,
        "enable_sequence_parallel": False,
        "enable_recompute": recomputes,
    }
    if recomputes:
        layers = int(question.config["num_hidden_layers"])
        found |= {"recompute_granularity": "full_block", "recompute_layer_num": layers}
    return found


def model(question: Question) -> dict[str, Any]:
    """Return the model of a row in SimuMax's words."""
    config = question.config
    width = int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    return {
        "model_type": "dense",
        "model_name": "model",
        "hidden_size": width,
        "head_num": heads,
        "kv_head_num": int(config.get("num_key_value_heads", heads)),
        "head_size": width // heads,
        "intermediate_size": int(config["intermediate_size"]),
        "layer_num": int(config["num_hidden_layers"]),
        "vocab_size": int(config["vocab_size"]),
        "use_swiglu": True,
    }
