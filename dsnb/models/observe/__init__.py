"""What a model does in a forward and a backward pass, observed on tensors without memory.

=============  ========================================================================================
module         question
=============  ========================================================================================
`flops`        the FLOPs of one token and the parameters that work on it
`work`         products, kernels, and bytes moved by one token in one block, eager and compiled
`memory`       peak bytes of one micro-batch, forward to backward, whatever its size
=============  ========================================================================================

`forward` follows a forward pass on the meta device and works for every model; `fake` builds models
of fake tensors that compute as on a GPU; `saved` asks the partitioner of torch's compiler. All
three import torch, this module does not. `python -m dsnb.models.observe` answers questions in a
separate process.
"""

TRACED = (
    "model", "weights", "strategy", "precision", "mixed_precision", "seq_len", "compile",
    "compile_unit", "activation_checkpointing", "checkpoint_every", "checkpoint_ops",
    "checkpoint_offload", "attention", "dropout", "loss", "lora_rank", "lora_targets", "pad_vocab",
    "tensor_parallel",
)  # fmt: skip
"""Settings on which a pass depends: none of the engine's, and the micro-batch only through the chunks of the loss."""
