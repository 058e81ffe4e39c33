"""DeepSpeed's estimators of model states, from the installed DeepSpeed.

`estimate_zero2_model_states_mem_needs` and `estimate_zero3_model_states_mem_needs` count weights,
gradients and optimizer states of mixed precision with Adam, by their documentation
(deepspeed.readthedocs.io/en/latest/memory.html); activations and buffers are left to the reader.
They are asked about DeepSpeed's ZeRO 2 and 3 only.
"""

from benchmarks.planners.question import Answer, Question, RowPlanner
from dsnb.base.system.hardware import GIB


class DeepSpeedStates(RowPlanner):
    """The estimators of ZeRO 2 and 3."""

    name = "deepspeed"
    title = "DeepSpeed's estimators"
    source = "https://deepspeed.readthedocs.io/en/latest/memory.html"
    version = "0.19.8"
    claims = "weights, gradients and optimizer states of ZeRO 2 and 3, without activations"
    memory_of = "model states"
    command = "python -m benchmarks.planners predict deepspeed"

    def answer(self, question: Question) -> Answer:
        """Return the memory of one row."""
        if question.settings["strategy"] != "deepspeed" or question.zero_stage < 2:
            return Answer(why_not="there are estimators of DeepSpeed's ZeRO 2 and 3 only")
        if question.is_lora or question.is_pure_bf16:
            return Answer(why_not="the estimators count full training in mixed precision")
        memory_gib = states_gib(question)
        return Answer(memory_gib=memory_gib, fits=question.fits(memory_gib))


def states_gib(question: Question) -> float:
    """Return what the estimator of the stage says of one GPU."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs  # takes seconds
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    hardware = {
        "num_gpus_per_node": question.gpus // question.nodes,
        "num_nodes": question.nodes,
        "cpu_offload": question.offloads,
    }
    size = question.model
    if question.zero_stage == 2:
        _, gpu_bytes = estimate_zero2_model_states_mem_needs(size.parameters, **hardware)
        return float(gpu_bytes) / GIB
    everything = str(question.settings["offload"]).startswith("all")
    _, gpu_bytes, _ = estimate_zero3_model_states_mem_needs(
        size.parameters, size.largest_layer, cpu_offload_params=everything, **hardware
    )
    return float(gpu_bytes) / GIB
