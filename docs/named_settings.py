"""The settings whose figures texts name: each is a query that selects the runs of one setting of a data set."""

USUAL = (
    "micro_batch_size == 8 and seq_len == 1024 and allocator == 'expandable' and compile == 'off'"
)
TWO_GPUS = f"{USUAL} and model == 'opt-1.3b' and gpus == 2 and offload == 'none'"
LARGE = "model == 'opt-6.7b' and lora_rank == 0"
LARGER = "sweep == 'h200_four_gpus' and model == 'opt-2.7b' and compile == 'off'"
SMALL = "model == 'opt-350m' and micro_batch_size == 24 and seq_len == 512"
LOOP = "model == 'gpt2' and seq_len == 128 and strategy == 'plain' and precision == 'bf16' and micro_batch_size == 32"
LONG = "model == 'opt-1.3b' and seq_len == 2048 and precision == 'bf16'"
XL = "model == 'gpt2-xl' and gpus == 2 and micro_batch_size == 24 and compile == 'default'"
KEPT = "`deepspeed.zero_optimization.stage3_max_live_parameters` > 0"
FEW_STAY = "`deepspeed.zero_optimization.stage3_param_persistence_threshold` == 100000"
BLOOM = "model == 'bloom-560m' and seq_len == 1024 and micro_batch_size == 32 and activation_checkpointing"
MEDIUM = "model == 'gpt2-medium' and seq_len == 1024 and micro_batch_size == 8 and compile == 'off'"
GRAPHS = (
    "model == 'gpt2' and seq_len == 1024 and host == 'h200-2026-11-27-ac' and strategy == 'plain'"
)
LLAMA = "sweep == 'h200_fp8' and model == 'llama-3.1-8b'"
LLAMA_1B = "sweep == 'h200_fp8' and data == 'stdlib'"
TODAY = (
    "sweep == 'h200_today' and loss == 'whole' and not activation_checkpointing and lora_rank == 0"
)
QWEN = f"{TODAY} and model == 'qwen3-0.6b'"
LLAMA_TODAY = (
    f"{TODAY} and model == 'llama-3.2-1b' and strategy == 'plain' and micro_batch_size == 8"
)
MIXTRAL = f"{TODAY} and model == 'benchmarks/params/h100/mixtral-8x100m.json' and compile == 'off'"
LORA = "model == 'opt-13b' and gpus == 2 and precision == 'bf16'"
SHORT = "sweep == 'h100_repeats' and model == 'gpt2' and compile == 'off'"
OLMO = "sweep == 'h100_fsdp_olmo2' and micro_batch_size == 2 and grad_accum == 2"
SETTINGS = {
    "large_zero0": f"{LARGE} and zero_stage == 0",
    "large_zero1": f"{LARGE} and zero_stage == 1",
    "zero2": f"{TWO_GPUS} and zero_stage == 2",
    "zero3": f"{TWO_GPUS} and zero_stage == 3",
    "ddp": f"{TWO_GPUS} and strategy == 'ddp'",
    "larger_fsdp": f"{LARGER} and strategy == 'fsdp'",
    "larger_zero1": f"{LARGER} and zero_stage == 1",
    "small_one": f"{SMALL} and zero_stage == 1 and compile == 'off' and gpus == 1",
    "small_two": f"{SMALL} and zero_stage == 1 and compile == 'off' and gpus == 2",
    "small_zero3": f"{SMALL} and zero_stage == 3 and gpus == 2 and compile == 'off'",
    "small_zero3_compiled": f"{SMALL} and zero_stage == 3 and gpus == 2 and compile == 'default'",
    "small_loop": f"{SMALL} and strategy == 'plain' and compile == 'reduce-overhead'",
    "small_ddp": f"{SMALL} and bucket_elements == 100000000",
    "default_allocator": "sweep == 'h200_allocator' and model == 'opt-1.3b' and micro_batch_size == 68 "
    "and allocator == 'default'",
    "expandable": "model == 'opt-1.3b' and micro_batch_size == 68 and allocator == 'expandable'",
    "offload": f"{USUAL} and model == 'opt-1.3b' and offload == 'optimizer-cpu' and gpus == 1",
    "mfu": "model == 'opt-1.3b' and strategy == 'plain' and compile == 'reduce-overhead' and allocator != 'default'",
    "gpt2_eager": f"{LOOP} and compile == 'off'",
    "gpt2_compiled": f"{LOOP} and compile == 'default'",
    "gpt2_graphs": f"{LOOP} and compile == 'reduce-overhead'",
    "bloom_chunked": f"{BLOOM} and loss == 'chunked'",
    "bloom_whole": f"{BLOOM} and loss == 'whole'",
    "medium_chunked": f"{MEDIUM} and loss == 'chunked'",
    "medium_whole": f"{MEDIUM} and loss == 'whole' and pad_vocab != 64",
    "medium_padded": f"{MEDIUM} and pad_vocab == 64",
    "medium_unpadded": f"{MEDIUM} and sweep == 'h200_pad_vocab' and pad_vocab == 0",
    "graphs_padded": f"{GRAPHS} and pad_vocab == 64",
    "graphs_unpadded": f"{GRAPHS} and pad_vocab == 0",
    "opt_loop": f"{LONG} and strategy == 'plain' and compile == 'default' and micro_batch_size == 8",
    "opt_zero1": f"{LONG} and zero_stage == 1 and gpus == 2 and micro_batch_size == 8",
    "opt_zero1_16": f"{LONG} and zero_stage == 1 and micro_batch_size == 16",
    "opt_fsdp": f"{LONG} and strategy == 'fsdp' and gpus == 2",
    "opt_zero3": f"{LONG} and {FEW_STAY} and not ({KEPT})",
    "opt_zero3_kept": f"{LONG} and {FEW_STAY} and {KEPT}",
    "opt_zero3_16": f"{LONG} and zero_stage == 3 and micro_batch_size == 16",
    "xl_fsdp": f"{XL} and strategy == 'fsdp'",
    "xl_zero1": f"{XL} and zero_stage == 1",
    "xl_zero3": f"{XL} and {FEW_STAY} and not ({KEPT})",
    "bloom7b": "sweep == 'h200_headline' and model == 'bloom-7b1'",
    "lora_half": f"{LORA} and checkpoint_every == 2",
    "lora_all": f"{LORA} and checkpoint_every == 1",
    "llama_fp8": f"{LLAMA} and matmul == 'fp8'",
    "llama_bf16": f"{LLAMA} and matmul == 'auto'",
    "llama_1b_fp8": f"{LLAMA_1B} and matmul == 'fp8'",
    "llama_1b_bf16": f"{LLAMA_1B} and matmul == 'auto'",
    "llama_recomputed": "sweep == 'h200_today' and model == 'llama-3.2-1b' and strategy == 'plain' "
    "and compile == 'default' and activation_checkpointing and lora_rank == 0",
    "llama_8b_lora": "sweep == 'h200_today' and model == 'llama-3.1-8b' and strategy == 'plain' "
    "and compile == 'default' and not activation_checkpointing and lora_rank == 16",
    "qwen_eager": f"{QWEN} and strategy == 'plain' and compile == 'off'",
    "qwen_compiled": f"{QWEN} and strategy == 'plain' and compile == 'default'",
    "qwen_zero3": f"{QWEN} and zero_stage == 3 and compile == 'default'",
    "llama_eager": f"{LLAMA_TODAY} and compile == 'off'",
    "llama_compiled": f"{LLAMA_TODAY} and compile == 'default'",
    "mixtral_loop": f"{MIXTRAL} and strategy == 'plain'",
    "mixtral_zero0": f"{MIXTRAL} and strategy == 'deepspeed' and zero_stage == 0",
    "mixtral_zero1": f"{MIXTRAL} and zero_stage == 1",
}
"""One setting each, by a query of `dsnb.published("h200")`."""
H100_SETTINGS = {
    "short_plain": f"{SHORT} and strategy == 'plain'",
    "short_zero0": f"{SHORT} and zero_stage == 0",
    "short_zero1": f"{SHORT} and zero_stage == 1",
    "short_zero3": f"{SHORT} and zero_stage == 3",
    "reduced_often": f"{OLMO} and reduce_gradients == 'micro-batch'",
    "reduced_once": f"{OLMO} and reduce_gradients == 'step'",
    "offload_8b": "sweep == 'h100_offload_four_gpus' and model == 'llama-3.1-8b' and zero_stage == 2",
}
"""The same of `dsnb.published("h100")`."""
