"""llm-analysis 0.2.2, from PyPI: latency and memory by formulas.

Settings are those that its README gives. FLOPS efficiency is 0.5, which it names for large
trainings ("literature reports up to 0.5"); it was chosen before anything was scored. A model is
described as its own conversion from transformers does: layers, heads, width, vocabulary and key
and value heads, with an MLP of four times the width. Pure bf16 has two moments of 2 bytes and no
master weights, which it takes as 2 bytes of masters and 2 of other states. It has no LoRA, no
offload, no recomputation of single layers, and its data sheets lack some GPUs.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.planners.question import Answer, Question, RowPlanner
from dsnb.base.system.hardware import GIB

EFFICIENCY = 0.5
GPUS = {"A100": "a100-sxm-80gb", "A100-40GB": "a100-sxm-40gb", "H100": "h100-sxm-80gb"}
"""GPU of a row -> the data sheet of llm-analysis; A10 has no row of full training."""
PURE_BF16 = {"master_weights_dtype_bytes": 2, "other_op_bytes": 2}
LAYERS = ("num_hidden_layers", "n_layer")
HEADS = ("num_attention_heads", "n_head")
WIDTH = ("hidden_size", "n_embd")
POSITIONS = ("max_position_embeddings", "n_positions")
MEMORY = "(weight+op_state+grad+act)_memory_per_gpu"
LATENCY = "latency_per_micro_batch"
TOO_LARGE = "must be <= max_batch_size_per_gpu"
"""What it says of a micro-batch that does not fit, instead of any figure."""


class LlmAnalysis(RowPlanner):
    """llm-analysis."""

    name = "llm-analysis"
    title = "llm-analysis"
    source = "https://github.com/cli99/llm-analysis"
    version = "0.2.2"
    claims = "a lower bound of memory, and speed at 50 % of the peak without communication"
    memory_of = "a lower bound of the peak"
    command = (
        "pip install --no-deps llm-analysis==0.2.2 'fire<0.6' termcolor && "
        "python -m benchmarks.planners predict llm-analysis"
    )

    def answer(self, question: Question) -> Answer:
        """Return speed and memory of one row."""
        refusal = why_not(question)
        if refusal:
            return Answer(why_not=refusal)
        try:
            summary = analysed(question)
        except AssertionError as error:
            if TOO_LARGE not in str(error):
                raise
            return Answer(fits=False)
        memory_gib = float(summary[MEMORY]) / GIB
        return Answer(
            tokens_per_s=question.tokens_per_micro_batch / float(summary[LATENCY]),
            memory_gib=memory_gib,
            fits=question.fits(memory_gib),
        )


def why_not(question: Question) -> str:
    """Return why llm-analysis cannot express a row; empty if it can."""
    if question.is_lora:
        return "fine-tuning with adapters is in its future support"
    if question.offloads:
        return "offload is on its list of things to do"
    if question.gpu_name not in GPUS:
        return f"it has no data sheet of {question.gpu_name}"
    settings = question.settings
    if settings["activation_checkpointing"] and settings["checkpoint_every"] > 1:
        return "it recomputes all layers or none"
    return ""


def analysed(question: Question) -> dict[str, Any]:
    """Return the summary of llm-analysis for a row."""
    from llm_analysis import analysis, config  # installed for this only

    settings = question.settings
    bytes_of_states: dict[str, int] = {}
    if question.is_pure_bf16:
        bytes_of_states = PURE_BF16
    recomputation = analysis.ActivationRecomputation.NONE
    if settings["activation_checkpointing"]:
        recomputation = analysis.ActivationRecomputation.FULL
    llm = analysis.LLMAnalysis(
        described(question.config, config.ModelConfig),
        config.get_gpu_config_by_name(GPUS[question.gpu_name]),
        config.get_dtype_config_by_name("w16a16e16"),
        config.ParallelismConfig(dp_size=question.gpus),
        flops_efficiency=EFFICIENCY,
    )
    return dict(
        llm.training(
            batch_size_per_gpu=int(settings["micro_batch_size"]),
            gradient_accumulation_steps=int(settings["grad_accum"]),
            seq_len=int(settings["seq_len"]),
            activation_recomputation=recomputation,
            ds_zero=analysis.DSZeRO(question.zero_stage),
            **bytes_of_states,
        )
    )


def described(config: dict[str, Any], model_config: Any) -> Any:
    """Return a model as llm-analysis describes it."""
    return model_config(
        name="model",
        num_layers=first(config, LAYERS),
        n_head=first(config, HEADS),
        hidden_dim=first(config, WIDTH),
        vocab_size=int(config["vocab_size"]),
        max_seq_len=first(config, POSITIONS),
        num_key_value_heads=config.get("num_key_value_heads"),
        model_type=str(config["model_type"]),
    )


def first(config: dict[str, Any], names: Sequence[str]) -> int:
    """Return the field of a configuration that has one of some names."""
    for name in names:
        if name in config:
            return int(config[name])
    raise ValueError(f"the configuration has none of {', '.join(names)}")
