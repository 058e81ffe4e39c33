"""`accelerate estimate-memory`, by the function of the installed accelerate that the command prints.

The command loads a configuration from the Hub, builds transformers' `AutoModel` without memory,
and prints the largest of weights, gradients, optimizer states and step for Adam at batch size 1
(huggingface.co/docs/accelerate/usage_guides/model_size_estimator). It has no network here, so the
function gets the size of the same model. It says nothing of sharding, LoRA and offload. Of its
number formats, `float16` is meant for training in 16 bit, pure or mixed.
"""

from benchmarks.planners.question import Answer, Question, RowPlanner
from dsnb.base.system.hardware import GIB

FP32_BYTES = 4
FORMAT = "float16"


class AccelerateMemory(RowPlanner):
    """`accelerate estimate-memory`."""

    name = "accelerate"
    title = "`accelerate estimate-memory`"
    source = "https://huggingface.co/docs/accelerate/usage_guides/model_size_estimator"
    version = "1.15.0"
    claims = "largest of weights, gradients and optimizer states; no activations, no output layer"
    memory_of = "largest part of model states"
    command = "python -m benchmarks.planners predict accelerate"

    def answer(self, question: Question) -> Answer:
        """Return the memory of one row."""
        if question.is_lora:
            return Answer(why_not="it estimates training of all parameters")
        if not question.is_replicated or question.offloads:
            return Answer(why_not="it estimates one GPU without sharding or offload")
        from accelerate.commands.estimate import estimate_training_usage  # takes seconds

        size = FP32_BYTES * question.model.without_head
        needs = estimate_training_usage(size, FORMAT)
        memory_gib = max(needs.values()) / GIB
        return Answer(memory_gib=memory_gib, fits=question.fits(memory_gib))
