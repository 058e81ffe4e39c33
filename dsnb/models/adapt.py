"""`dsnb.adapt`: what dsnb's own loop does to a model, for a model that somebody else's loop trains.

dsnb's loop trains whole sequences of one length; a user's batches may be padded or packed. So each
change is made in a way that is right for those as well (`dsnb.models.adapted`), and compared with
transformers' own computation on a small model of the same kind before it is made
(`dsnb.models.proof_of_adapted`).
"""

import os
import types
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from dsnb.base.files import json_files
from dsnb.models import adapted, attention, proof_of_adapted
from dsnb.models.adapted import TrainingPass
from dsnb.models.build import OTHER_DROPS, check_padded, checkpoint_activations, set_dropout
from dsnb.models.compile import compile_options
from dsnb.models.loss import chunkable, differentiate
from dsnb.models.parts import blocks, language_model
from dsnb.settings.experiment import DECLARED, Experiment
from dsnb.settings.given import experiment_of
from dsnb.settings.training import CHUNK_TOKENS, CUDA_GRAPHS

FUSED = ("eager", "sdpa")
"""Names of attention that dsnb's replaces; a model with another one, such as FlashAttention, keeps it."""
UNEQUAL = "a small model of the same kind had another loss or gradient than transformers' own"
Compiler = Callable[..., Any]
Step = Callable[["Change"], str]


@dataclass
class Adaptation:
    """What `dsnb.adapt` did to a model: setting -> sentence; printed, it is a table."""

    applied: dict[str, str] = field(default_factory=dict)
    """What was changed."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What the settings ask for and was not changed, with the reason."""
    proof: str = ""
    """How the changes were compared with transformers' computation."""

    def __str__(self) -> str:
        rows = [*self.applied.items()]
        for name, reason in self.left_out.items():
            rows.append((name, f"left out: {reason}"))
        rows.append(("proof", self.proof))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {sentence}" for name, sentence in rows)


@dataclass
class Change:
    """A model that is being changed, and what for."""

    model: Any
    """The causal language model of transformers, without peft's wrapper."""
    experiment: Experiment
    training: TrainingPass
    compiler: Compiler
    """`torch.compile`, or what stands for it."""


def adapt(model: Any, settings: Experiment | Mapping[str, Any] | str | Path) -> Any:
    """Let a model of transformers train as fast in any loop as it does in dsnb's.

    The model is changed in place: causal attention without a mask wherever a batch has no padding
    that matters, compilation, a loss in chunks, a padded vocabulary, every k-th block recomputed,
    dropout, and on a GPU torch's allocator. Its weights keep their names and shapes, and
    evaluation, generation and saving work as before. In training, a batch with labels gives an
    output with the `loss` alone, without logits.

    Parameters
    ----------
    model
        A causal language model of transformers, or peft's wrapper of one, before it is given to
        a Trainer, an engine or DDP.
    settings
        An `Experiment`, a mapping of settings, the path of a params file with one of them, or a
        run folder. Settings that are not the model's, such as `zero_stage` and
        `micro_batch_size`, only decide how it is compiled. Dropout changes only if it is stated.

    Returns
    -------
    The model. Its attribute `dsnb_applied` says what was changed, what was left out and why; a
    warning names each change that was left out.

    Raises
    ------
    SettingsError
        If settings are unknown, invalid or contradictory.
    TypeError
        If it is no such model, or is wrapped or adapted already.

    Examples
    --------
    >>> from transformers import AutoConfig, AutoModelForCausalLM
    >>> sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    >>> config = AutoConfig.for_model("llama", **sizes, num_attention_heads=4, vocab_size=250)
    >>> model = AutoModelForCausalLM.from_config(config)
    >>> model = dsnb.adapt(model, {"loss": "chunked"})
    >>> print(model.dsnb_applied)
    attention  causal, without a mask where padding has no effect (before: sdpa)
    loss       logits of 2,048 tokens at a time
    proof      attention, loss: loss and gradients equal transformers' own on a small model ...
    """
    inner = checked(model)
    experiment = experiment_of(settings)
    proved = proof_of_adapted.compare(inner, experiment, change)
    unequal = dict.fromkeys(proved.unequal, UNEQUAL)
    done = change(inner, experiment, torch.compile, skipped=unequal, on_machine=True)
    done.left_out = {**unequal, **done.left_out, **beyond(model, experiment)}
    done.proof = proved.sentence
    for name, reason in done.left_out.items():
        json_files.warn(f"dsnb.adapt left out {name}: {reason}")
    model.dsnb_applied = done
    return model


def checked(model: Any) -> Any:
    """Return the causal language model inside of a model; raise TypeError if there is none to adapt."""
    inner = language_model(model)
    kind = type(model).__name__
    if hasattr(inner, "_orig_mod") or hasattr(inner, "module"):
        raise TypeError(
            f"model is a {kind}: call dsnb.adapt before the model is compiled or wrapped"
        )
    if not isinstance(inner, PreTrainedModel) or inner.get_output_embeddings() is None:
        raise TypeError(
            f"model is a {kind}: dsnb.adapt takes a causal language model of transformers"
        )
    if hasattr(inner, "dsnb_training"):
        raise TypeError("model is adapted already: call dsnb.adapt once")
    is_more = getattr(inner.config, "is_encoder_decoder", False)
    if is_more or not hasattr(inner.config, "num_hidden_layers"):
        raise TypeError(
            f"model is a {kind}, which is more than a causal language model: dsnb.adapt takes models such as "
            "those of AutoModelForCausalLM"
        )
    return inner


def change(
    model: Any,
    experiment: Experiment,
    compiler: Compiler,
    skipped: Collection[str] = (),
    on_machine: bool = False,
) -> Adaptation:
    """Change a model as the settings say, without those that are skipped."""
    training = TrainingPass(adapted.unbound(model))
    made = Change(model, experiment, training, compiler)
    done = Adaptation()
    steps = {**OF_MODEL, **OF_MACHINE} if on_machine else OF_MODEL
    for name, step in steps.items():
        if name in skipped:
            continue
        try:
            sentence = step(made)
        except ValueError as error:
            done.left_out[name] = str(error)
            continue
        if sentence:
            done.applied[name] = sentence
    adapted.install(model, training)
    return done


def _attend(made: Change) -> str:
    """Let attention be causal without a mask, and leave masks out that change nothing."""
    config = made.model.config
    before = str(config._attn_implementation)
    made.training.reads_masks = True
    if before not in FUSED:
        return f"{before}, as the model has it; masks without an effect are left out"
    wanted = "eager"
    if made.experiment.attention != "eager" and made.model._supports_sdpa:
        wanted = attention.fastest(config, type(made.model))
    if wanted == "eager" and made.experiment.attention != "eager":
        return f"{before}, as the model has it; masks without an effect are left out"
    if wanted == "sdpa" and before == "eager":
        raise ValueError(
            "load the model with attn_implementation='sdpa', which it cannot change later"
        )
    for module in made.model.modules():
        if isinstance(module, PreTrainedModel):
            module.config._attn_implementation = wanted
    if wanted == attention.CAUSAL:
        return f"causal, without a mask where padding has no effect (before: {before})"
    return f"{wanted} (before: {before})"


def dropouts(config: Any) -> dict[str, float]:
    """Return the dropout probabilities of a configuration."""
    found = {}
    for name, value in config.to_dict().items():
        if _is_dropout(name, value):
            found[name] = float(value)
    return found


def _is_dropout(name: str, value: Any) -> bool:
    if "drop" not in name or any(other in name for other in OTHER_DROPS):
        return False
    return isinstance(value, int | float) and not isinstance(value, bool)


def _drop(made: Change) -> str:
    """Set every dropout of the model, except for those of adapters, if the settings state it."""
    config = made.model.config
    own = max(dropouts(config).values(), default=0.0)
    wanted = made.experiment.dropout
    if "dropout" not in made.experiment.model_fields_set:
        if own:
            raise ValueError(
                f"the model's own {own:g} is kept, with which it trains slower than dsnb's runs; state dropout: 0 to "
                "train as they do"
            )
        return ""
    if own == wanted:
        return ""
    set_dropout(config, wanted)
    for name, module in made.model.named_modules():
        if "lora_" in name:
            continue
        if isinstance(module, nn.Dropout):
            module.p = wanted
        for key, value in list(vars(module).items()):
            if _is_dropout(key, value):
                setattr(module, key, wanted)
    return f"{wanted:g} (before: {own:g})"


def _recompute(made: Change) -> str:
    """Recompute every k-th block, once: a Trainer's own argument changes nothing more."""
    experiment = made.experiment
    if not experiment.activation_checkpointing:
        return ""
    checkpoint_activations(experiment, made.model)
    if not experiment.checkpoint_offload:
        made.model.disable_input_require_grads()  # only reentrant checkpoints need it

    def enable(self: Any, *_: Any, **__: Any) -> None:
        """Leave the recomputed blocks as they are."""

    for name in ("gradient_checkpointing_enable", "activation_checkpointing_enable"):
        if hasattr(made.model, name):
            setattr(made.model, name, types.MethodType(enable, made.model))
    what = DECLARED["checkpoint_every"].describe(experiment.checkpoint_every)
    part = DECLARED["checkpoint_ops"].describe_unusual(experiment.checkpoint_ops)
    where = DECLARED["checkpoint_offload"].describe_unusual(experiment.checkpoint_offload)
    words = ", ".join(filter(None, [what, part, where]))
    return f"{words}; the Trainer's gradient_checkpointing changes nothing more"


def _pad(made: Change) -> str:
    """Pad the vocabulary while the loss is computed: the weights that are saved stay as they are."""
    multiple = made.experiment.pad_vocab
    if not multiple:
        return ""
    head = made.model.get_output_embeddings()
    if head.out_features % multiple == 0:
        return ""
    check_padded(made.model, multiple)
    made.training.head = adapted.padded_logits(multiple)
    made.training.loss = adapted.loss_of_all_columns(made.model.loss_function)
    columns = head.out_features + -head.out_features % multiple
    return f"{columns:,} logits in training; weights keep {head.out_features:,} rows"


def _chunk(made: Change) -> str:
    """Compute the loss a chunk of tokens at a time."""
    if made.experiment.loss == "whole":
        return ""
    if getattr(made.model.config, "output_router_logits", False):
        raise ValueError("the model adds its router's loss itself, to that of whole logits")
    made.training.chunks = chunkable(made.model)
    made.training.compute = adapted.last_hidden
    return f"logits of {CHUNK_TOKENS:,} tokens at a time"


def _compile(made: Change) -> str:
    """Compile blocks, or the whole pass with its loss."""
    experiment = made.experiment
    if experiment.compile == "off":
        return ""
    is_zero3 = experiment.parallel_strategy.is_deepspeed and experiment.zero_stage == 3
    if experiment.compile == "deepcompile" or (is_zero3 and not experiment.compiles_blocks):
        raise ValueError("DeepSpeed's engine compiles here: call its method compile()")
    without_reordered_loops()
    made.training.is_compiled = True
    if experiment.compiles_blocks:
        _compile_blocks(made)
        return "each block, the output layer and the loss"
    training = made.training
    options = compile_options(experiment)
    training.compute = made.compiler(training.compute, **options)
    if training.chunks is not None:
        training.differentiate = made.compiler(differentiate)
    training.graphs_own_gradients = (
        experiment.compile in CUDA_GRAPHS and experiment.device == "cuda"
    )
    mode = f", mode {experiment.compile}" if options else ""
    return f"the model and its loss as a whole{mode}"


def _compile_blocks(made: Change) -> None:
    training = made.training
    for block in blocks(made.model):
        adapted.replace_in_training(block, made.compiler(adapted.unbound(block)))
    if training.chunks is not None:
        training.differentiate = made.compiler(differentiate)
        return
    head = training.head or adapted.unbound(made.model.get_output_embeddings())
    training.head = made.compiler(head)
    training.loss = made.compiler(training.loss or made.model.loss_function)


def without_reordered_loops() -> None:
    """Keep kernels apart that would be fused by reordering loops: on GPUs they race (torch 2.11)."""
    if "TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION" not in os.environ:
        torch._inductor.config.loop_ordering_after_fusion = False


def _gather(made: Change) -> str:
    """Let ZeRO 3 gather whole blocks."""
    experiment = made.experiment
    is_zero3 = experiment.parallel_strategy.is_deepspeed and experiment.zero_stage == 3
    if not is_zero3 or not experiment.gathers_blocks:
        return ""
    from deepspeed.utils import set_z3_leaf_modules  # only these runs need it

    set_z3_leaf_modules(made.model, [type(blocks(made.model)[0])])
    return "ZeRO 3 gathers whole blocks"


def _allocate(made: Change) -> str:
    """Let torch reserve GPU memory in segments that grow, unless the user has configured it."""
    if made.experiment.allocator != "expandable" or not torch.cuda.is_available():
        return ""
    if any(name.startswith("PYTORCH") and name.endswith("ALLOC_CONF") for name in os.environ):
        return ""
    chosen = "expandable_segments:True"
    try:
        torch._C._accelerator_setAllocatorSettings(chosen)
    except (AttributeError, RuntimeError) as error:
        raise ValueError(f"set PYTORCH_ALLOC_CONF={chosen} before the script starts") from error
    return "expandable segments from now on"


def beyond(model: Any, experiment: Experiment) -> dict[str, str]:
    """Return the settings of a model that change what is trained, which its owner has to do."""
    left = {}
    if experiment.lora_rank and not hasattr(model, "peft_config"):
        left["lora_rank"] = (
            "all weights are trained; wrap the model with peft.get_peft_model to have adapters"
        )
    if experiment.frozen_weights == "nf4" and not getattr(model, "is_quantized", False):
        left["frozen_weights"] = (
            "load the model with a quantization_config to have weights of 4 bits"
        )
    if experiment.matmul == "fp8":
        left["matmul"] = (
            "convert the model with torchao's convert_to_float8_training to have products in fp8"
        )
    return left


OF_MODEL: dict[str, Step] = {
    "attention": _attend,
    "activation_checkpointing": _recompute,
    "pad_vocab": _pad,
    "loss": _chunk,
    "compile": _compile,
}
"""Setting -> what makes the change that it asks for, in this order."""
OF_MACHINE: dict[str, Step] = {
    "dropout": _drop,
    "leaf_modules": _gather,
    "allocator": _allocate,
}
"""Changes that do not change what a small model computes."""
