"""Kinds of models that train as transformers computes them: `python -m benchmarks.families [KIND ...]`.

Each is a tiny model that transformers builds from its type, trained by two ranks on a CPU: with
every strategy, compiled, its loss in chunks, and fused attention. The losses of five steps of Adam
are compared with those of a plain eager loop over the same sequences, with transformers' eager
attention and whole logits. Graphs are captured and differentiated as ever, but no C++ is generated
for them, except for kinds in `GENERATED`. About 20 s a kind; the results are in `families.csv`, in
which kinds that are named are replaced.
"""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from dsnb.base.files import json_files
from dsnb.measure.launcher.run import launch
from dsnb.settings.experiment import Experiment
from dsnb.settings.records.paths import RunPaths

TABLE = Path(__file__).with_name("families.csv")
WORKER = "benchmarks.families_rank"
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 251, "intermediate_size": 128,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 64,
}  # fmt: skip
"""Of every kind, under the names that most have."""
GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
EXPERTS: dict[str, Any] = {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT: dict[str, Any] = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
}  # fmt: skip
ROUTED: dict[str, Any] = {
    "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, **LATENT,
}  # fmt: skip
LINEAR: dict[str, Any] = {
    "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "apertus": GROUPED,
    "bloom": {},
    "cohere": {**GROUPED, "logit_scale": 0.25},
    "cohere2": {**GROUPED, "logit_scale": 0.25, "head_dim": 16},
    "deepseek_v3": ROUTED,
    "ernie4_5": {**GROUPED, "head_dim": 16},
    "exaone4": GROUPED,
    "falcon": {},
    "gemma": {**GROUPED, "head_dim": 16},
    "gemma2": {**GROUPED, "head_dim": 16},
    "gemma3_text": {**GROUPED, "head_dim": 16},
    "glm": {**GROUPED, "head_dim": 16},
    "glm4": {**GROUPED, "head_dim": 16},
    "gpt2": {},
    "gpt_neox": {},
    "gpt_oss": {**EXPERTS, "head_dim": 16},
    "gptj": {"rotary_dim": 8},
    "granite": {**GROUPED, "logits_scaling": 8.0, "attention_multiplier": 0.25},
    "granitemoe": {**EXPERTS, "logits_scaling": 4.0},
    "helium": {**GROUPED, "head_dim": 16},
    "hunyuan_v1_dense": {**GROUPED, "head_dim": 16},
    "hyperclovax": {**GROUPED, "logits_scaling": 0.5},
    "llama": GROUPED,
    "minicpm3": {"num_key_value_heads": 4, "dim_model_base": 32, **LATENT},
    "mistral": GROUPED,
    "mixtral": EXPERTS,
    "mpt": {},
    "nanochat": GROUPED,
    "nemotron": GROUPED,
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": GROUPED,
    "olmoe": {**GROUPED, "num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64},
    "phi": GROUPED,
    "phi3": GROUPED,
    "qwen2": GROUPED,
    "qwen3": {**GROUPED, "head_dim": 16},
    "qwen3_moe": {**LINEAR, **GROUPED},
    "qwen3_next": {**LINEAR, **GROUPED},
    "seed_oss": {**GROUPED, "head_dim": 16},
    "smollm3": GROUPED,
    "stablelm": GROUPED,
    "starcoder2": GROUPED,
}
"""Types of models in transformers -> fields of a tiny configuration."""
GENERATED = ("qwen3_next",)
"""Kinds whose graphs are wrong as torch's `aot_eager` backend runs them, with strides that a view cannot have."""
SETTINGS: dict[str, Any] = {
    "device": "cpu", "precision": "fp32", "gpus": 2, "micro_batch_size": 2, "seq_len": 24, "loss": "chunked",
    "compile": "default", "learning_rate": 1e-3, "time_limit_s": 3600.0,
}  # fmt: skip
STRATEGIES: dict[str, dict[str, Any]] = {
    "plain": {"strategy": "plain", "gpus": 1},
    "DDP": {"strategy": "ddp"},
    **{f"ZeRO {stage}": {"strategy": "deepspeed", "zero_stage": stage} for stage in range(4)},
    "FSDP": {"strategy": "fsdp"},
}
MAX_DIFFERENCE = 2e-5
"""Relative difference of a loss after updates by Adam, which magnifies the rounding of small gradients."""
HEADER = [
    f"| kind | attention | masks | loss | {' | '.join(STRATEGIES)} |",
    "|---" * (4 + len(STRATEGIES)) + "|",
]


def configuration(kind: str) -> dict[str, Any]:
    """Return the fields of the tiny configuration of a kind."""
    return {"model_type": kind, **SIZES, **KINDS[kind]}


def measured(kind: str, folder: Path) -> dict[str, Any]:
    """Train a kind with all strategies; return its row."""
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(configuration(kind)), encoding="utf-8")
    experiment = Experiment(model=str(path), **SETTINGS)
    run = folder / kind
    result = launch(experiment, run, progress=False, worker=WORKER)
    row = json_files.read_json(RunPaths(run).dir / "family.json")
    return {"kind": kind, **(row or {"failed": result.error or result.status})}


def known() -> list[dict[str, str]]:
    """Return the rows that have been measured."""
    table = pd.read_csv(TABLE, dtype=str, keep_default_na=False)
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def counts() -> dict[str, float]:
    """Return how many kinds there are, how many train with every strategy, and have fused attention or chunks."""
    table = known()
    trained = [row for row in table if all(_word(row[name]) == "yes" for name in STRATEGIES)]
    fused = [row for row in table if row["attention"] and "math" not in row["attention"]]
    chunked = [row for row in table if row["loss"] == "chunked"]
    return {"n": len(table), "trained": len(trained), "fused": len(fused), "chunked": len(chunked)}


def rows() -> Iterator[str]:
    """Yield a row of the table for each kind."""
    for row in known():
        cells = [f"`{row['kind']}`", row["attention"], row["masks"], row["loss"]]
        cells += [_word(row[name]) for name in STRATEGIES]
        yield f"| {' | '.join(cells)} |"


def _word(difference: str) -> str:
    """Return whether a strategy trains a kind as the plain loop does, from the difference of losses or an error."""
    try:
        is_equal = float(difference) <= MAX_DIFFERENCE
    except ValueError:
        return "fails" if difference else "-"
    return "yes" if is_equal else f"{float(difference):.2%} off"


def main(kinds: Iterable[str]) -> None:
    """Measure kinds, all if none is named, and write their rows."""
    chosen = list(kinds) or list(KINDS)
    by_kind: dict[str, Any] = {}
    if TABLE.exists():
        by_kind = {row["kind"]: row for row in known()}
    with tempfile.TemporaryDirectory() as folder:
        for kind in chosen:
            by_kind[kind] = measured(kind, Path(folder))
            print(by_kind[kind], flush=True)
            listed = [by_kind[name] for name in KINDS if name in by_kind]
            pd.DataFrame(listed).to_csv(TABLE, index=False)


if __name__ == "__main__":
    main(sys.argv[1:])
