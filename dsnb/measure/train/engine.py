"""Trainers on DeepSpeed's engines: one for whole models, one for pipelines, with the layers of a pipeline.

Each engine is compared with the settings, because DeepSpeed accepts some settings and silently
ignores them.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import deepspeed
import torch
from deepspeed.module_inject.layers import TensorParallel_Layer
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from deepspeed.utils import set_z3_leaf_modules

from dsnb.measure.train.ask_deepspeed import configured
from dsnb.measure.train.data import data_rank
from dsnb.measure.train.tensor_parallel import split_blocks
from dsnb.measure.train.trainer import Trainer, communication, make_optimizer
from dsnb.models import layout, parts
from dsnb.models.build import DTYPES, build, build_stage
from dsnb.models.compile import begin_graphs, compile_model, compile_options, separate_caches
from dsnb.models.loss import CausalLoss, causal_loss
from dsnb.models.parts import blocks
from dsnb.settings import deepspeed_keys
from dsnb.settings.experiment import Experiment

GATHERING_STREAM = "_DeepSpeedZeRoOffload__allgather_stream"
"""The attribute of ZeRO 3's parameter offload that holds its stream; None on a CPU."""

SECTIONS = {
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.OptimizerStep: "optimizer",
}
"""Instructions of a pipeline schedule -> parts of the step; all others move activations, gradients
or inputs."""


class EngineTrainer(Trainer):
    """Trains with a DeepSpeed engine."""

    engine: Any

    def make_engine(self, model: torch.nn.Module, ds_config: dict[str, Any]) -> None:
        """Build the engine for a model or a pipeline, before its first step."""
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        is_adafactor = self.experiment.optimizer == "adafactor"  # DeepSpeed has none
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=trainable,
            optimizer=make_optimizer(self.experiment, trainable) if is_adafactor else None,
            config=ds_config,
        )
        undo_first_step(self.engine.optimizer)
        self.module = self.engine.module
        self.optimizer = self.engine.optimizer

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the gradient norm of the last step; ZeRO 0 with fp32 weights computes it only for clipping."""
        norm: Any = self.engine.get_global_grad_norm()
        if isinstance(norm, torch.Tensor) and norm.device.type == "cpu":
            return float(norm)  # the meter would wait to copy a tensor to a GPU
        if norm is None or isinstance(norm, torch.Tensor):
            return norm
        return float(norm)

    def describe(self) -> dict[str, Any]:
        """Return the properties of the engine and the attention implementation."""
        return {**describe(self.engine), "attention": self.config._attn_implementation}


class DeepSpeedTrainer(EngineTrainer):
    """Trains with ZeRO, offload and tensor parallelism."""

    def __init__(
        self, experiment: Experiment, ds_config: dict[str, Any], device: torch.device
    ) -> None:
        model = build(experiment, ds_config, device)
        super().__init__(experiment, model)
        with_loss = CausalLoss(model, experiment.loss == "chunked")
        if experiment.tensor_parallel > 1:
            split_blocks(experiment, model, blocks(model), layout.block_arguments(model))
            # Otherwise DeepSpeed would split it again.
            vars(with_loss)["ds_autotp_parsed"] = True
        if experiment.zero_stage == 3 and experiment.gathers_blocks:
            set_z3_leaf_modules(with_loss, [type(blocks(with_loss)[0])])
        # If the engine compiles, its hooks, such as ZeRO 3's that gather weights, are part of the
        # graph.
        whole_graph = experiment.compile != "off" and not experiment.compiles_blocks
        by_engine = whole_graph and (
            experiment.compile == "deepcompile" or experiment.zero_stage == 3
        )
        if not by_engine:
            compile_model(experiment, with_loss)
        self.make_engine(with_loss, ds_config)
        if by_engine:
            separate_caches(experiment.precision)
            self.engine.compile(compile_kwargs=compile_options(experiment))
        check(experiment, self.engine)
        self._updates = 0
        self._scaler = self.engine.torch_autocast_z0_gradscaler
        if self._scaler:
            self.engine.optimizer.register_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        self._updates += 1

    def _skipped_steps(self) -> int:
        """Return the number of skipped steps; DeepSpeed does not count those of torch's own loss scaler."""
        if self._scaler:
            return int(self.engine.global_steps - self._updates)
        return int(self.engine.skipped_steps)

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step."""
        skipped_before = self._skipped_steps()
        total = torch.zeros((), device=self.engine.device)
        begin_graphs(self.experiment)
        order_gathers(self.engine)
        for ids in micro_batches:
            with self.section("forward"):
                loss = self.engine(ids)
            with self.section("backward"), without_reduction(self.experiment, self.engine):
                scale_loss(self.engine, loss)
                self.engine.backward(loss)
            with self.section("optimizer"):
                self.engine.step()
            total += loss.detach()
        return total / len(micro_batches), self._skipped_steps() > skipped_before


class PipelineTrainer(EngineTrainer):
    """Trains pipeline stages, with data-parallel and tensor-parallel ranks inside each."""

    def __init__(
        self, experiment: Experiment, ds_config: dict[str, Any], device: torch.device
    ) -> None:
        topology = PipeModelDataParallelTopology(
            num_pp=experiment.pipeline_parallel,
            num_dp=experiment.data_parallel,
            num_mp=experiment.tensor_parallel,
        )
        model, path = build_stage(
            experiment, topology.get_coord(deepspeed.comm.get_rank()).pipe, device
        )
        super().__init__(experiment, model)
        pipeline = PipelineModule(
            _layers(model, path), topology=topology, partition_method="type:Block"
        )
        if experiment.tensor_parallel > 1:
            of_stage = [layer for layer in pipeline.modules() if isinstance(layer, parts.Block)]
            given = [layer.called_with(path.hidden) for layer in of_stage]
            split_blocks(experiment, pipeline, [layer.block for layer in of_stage], given)
        self.make_engine(pipeline, ds_config)
        self.engine.module.loss_fn = self._loss
        self.engine._INSTRUCTION_MAP = {
            command: self._marked(run, SECTIONS.get(command, "communication"))
            for command, run in self.engine._INSTRUCTION_MAP.items()
        }
        check(experiment, self.engine)

    def _loss(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss, shape (), for logits of shape (batch, length, vocabulary)."""
        loss = causal_loss(logits, ids)
        scale_loss(self.engine, loss)
        return loss

    def _marked(self, run: Callable[..., None], name: str) -> Callable[..., None]:
        """Return an instruction of DeepSpeed's schedule that marks its part of the step."""

        def marked(*arguments: Any, **named: Any) -> None:
            with self.section(name):
                run(*arguments, **named)

        return marked

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step; DeepSpeed averages the loss over data-parallel ranks."""
        skipped_before = self.engine.skipped_steps
        loss = self.engine.train_batch(iter([(ids, ids) for ids in micro_batches]))
        return loss, self.engine.skipped_steps > skipped_before


class TiedLayer(TiedLayerSpec):
    """A layer that is already built and shares its `weight` with the other layer of the same key."""

    def __init__(self, key: str, module: torch.nn.Module) -> None:
        super().__init__(key, type(module))
        self.module = module

    def build(self, log: bool = False) -> torch.nn.Module:
        """Return the layer."""
        return self.module


def _layers(model: Any, path: parts.ForwardPath) -> list[Any]:
    """Return the layers of a pipeline: embedding, blocks, layers after the blocks, head."""
    middle = [*map(parts.Block, blocks(model), path.arguments), *path.after]
    embedding = parts.Embedding(model, path)
    head = model.get_output_embeddings()
    if not model.config.tie_word_embeddings:
        return [embedding, *middle, head]
    return [TiedLayer("embeddings", embedding), *middle, TiedLayer("embeddings", head)]


def order_gathers(engine: Any) -> None:
    """Make ZeRO 3 gather weights only after they have been updated.

    DeepSpeed 0.19.8 gathers on a separate stream that waits for nothing. Gathers follow the update
    only because it ends by gathering persistent weights. Without any
    (`stage3_param_persistence_threshold: 0`), losses of compiled OPT-1.3B and GPT-2 XL on two H200
    were off by up to 0.3 % and differed between repeats.
    """
    stream = getattr(getattr(engine.optimizer, "parameter_offload", None), GATHERING_STREAM, None)
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())


def without_reduction(experiment: Experiment, engine: Any) -> AbstractContextManager[Any]:
    """Return a context for the backward pass that skips the reduction of gradients on a single rank at ZeRO 0.

    Otherwise DeepSpeed flattens, reduces and copies back every gradient (GPT-2, 32 x 128, with CUDA
    graphs on one H200: 15.2 ms a step instead of 14.0).
    """
    alone = experiment.gpus == 1 and experiment.zero_stage == 0
    return engine.no_sync() if alone else nullcontext()


@torch.no_grad()
def undo_first_step(optimizer: Any) -> None:
    """Undo the step that DeepSpeed's ZeRO-0 optimizers for fp16 and bf16 take while they are built.

    FP16_Optimizer and FP16_UnfusedOptimizer (DeepSpeed 0.19.8) step once with zero gradients to
    allocate their states. Adam then counts the first real step as its second, with another bias
    correction, so ZeRO 0 and ZeRO 1 diverge after one step; and weight decay has already shrunk the
    master weights. Both are restored.
    """
    if isinstance(optimizer, FP16_Optimizer):
        pairs = list(zip(optimizer.fp32_groups_flat, optimizer.fp16_groups_flat, strict=True))
    elif isinstance(optimizer, FP16_UnfusedOptimizer):
        groups = zip(optimizer.fp32_groups, optimizer.fp16_groups, strict=True)
        pairs = [pair for masters, halves in groups for pair in zip(masters, halves, strict=True)]
    else:
        return
    optimizer.optimizer.state.clear()
    for master, half in pairs:
        master.data.copy_(half.data)


def scale_loss(engine: Any, loss: torch.Tensor) -> None:
    """Scale the loss gradient of one micro-batch if the optimizer unscales it.

    DeepSpeed 0.19.8's `engine.backward` scales the loss only for its ZeRO optimizers, but the
    ZeRO-0 optimizers for fp16 divide by the scale all the same (deepspeedai/DeepSpeed pull request
    8393): gradients come out 65,536 times too small. The hook sets the correct factor, whether or
    not DeepSpeed has applied it.
    """
    if (
        isinstance(engine.optimizer, FP16_Optimizer | FP16_UnfusedOptimizer)
        and engine.fp16_enabled()
    ):
        factor = engine.optimizer.loss_scale / engine.gradient_accumulation_steps()
        loss.register_hook(lambda gradient: torch.full_like(gradient, factor))


def check(experiment: Experiment, engine: Any) -> None:
    """Raise RuntimeError with every difference between an engine and the settings."""
    built = actual(engine, experiment.deepspeed)
    wrong = []
    for name, wanted in expected(experiment).items():
        if wanted != built[name]:
            wrong.append(f"{name} {built[name]} instead of {wanted}")
    if wrong:
        raise RuntimeError(f"DeepSpeed built {', '.join(wrong)}; choose settings that it supports")


def expected(experiment: Experiment) -> dict[str, Any]:
    """Return the properties that an engine must have for these settings."""
    offloaded, _, device = experiment.offload.partition("-")
    numbers = experiment.numbers
    return {
        "ZeRO stage": experiment.zero_stage,
        "accumulation": experiment.grad_accum,
        "micro-batch": experiment.micro_batch_size,
        "data-parallel ranks": experiment.data_parallel,
        "data-parallel place": data_rank(experiment, deepspeed.comm.get_rank()),
        "tensor-parallel ranks": experiment.tensor_parallel,
        "pipeline stages": experiment.pipeline_parallel,
        "weights": _dtype(DTYPES[numbers.trained]),
        "autocast": _dtype(DTYPES[numbers.computed]) if numbers.autocast else None,
        "optimizer offloaded to": device or "none",
        "parameters offloaded to": device if offloaded == "all" else "none",
        "optimizer": {"adafactor": "Adafactor", "muon": "Muon"}.get(experiment.optimizer, "Adam"),
        "compiled": experiment.compile != "off",
        **{deepspeed_keys.PREFIX + path: value for path, value in experiment.deepspeed.items()},
    }


def actual(engine: Any, keys: Iterable[str] = ()) -> dict[str, Any]:
    """Return the properties of an engine, and its values for keys of DeepSpeed's configuration."""
    optimizers = " ".join(_optimizers(engine.optimizer))
    split = next(
        (layer for layer in engine.module.modules() if isinstance(layer, TensorParallel_Layer)),
        None,
    )
    return {
        **{deepspeed_keys.PREFIX + path: configured(engine._config, path) for path in keys},
        "ZeRO stage": engine.zero_optimization_stage(),
        "accumulation": engine.gradient_accumulation_steps(),
        "micro-batch": engine.train_micro_batch_size_per_gpu(),
        "data-parallel ranks": engine.dp_world_size,
        "data-parallel place": deepspeed.comm.get_rank(group=engine.data_parallel_group),
        "tensor-parallel ranks": deepspeed.comm.get_world_size(group=split.mp_group)
        if split is not None
        else 1,
        "pipeline stages": getattr(engine, "num_stages", 1),
        "weights": _dtype(next(p.dtype for p in engine.module.parameters() if p.requires_grad)),
        "autocast": _dtype(engine.torch_autocast_dtype())
        if engine.torch_autocast_enabled()
        else None,
        "optimizer offloaded to": _place(engine.zero_offload_optimizer()),
        "parameters offloaded to": _place(engine.zero_offload_param()),
        "optimizer": next((kind for kind in ("Adafactor", "Muon") if kind in optimizers), "Adam"),
        "compiled": engine.is_compiled or getattr(engine.module, "is_compiled", False),
    }


def describe(engine: Any) -> dict[str, Any]:
    """Return the properties of an engine under the names of `worker.json`."""
    properties = {}
    for name, value in actual(engine).items():
        properties[name.lower().replace(" ", "_").replace("-", "_")] = value
    return {
        **properties,
        "optimizer": " over ".join(_optimizers(engine.optimizer)),
        "parameter_dtype": properties["weights"],
        "communication": communication(),
    }


def _optimizers(optimizer: Any) -> list[str]:
    """Return the class names of an optimizer and of the one that it wraps."""
    inner = getattr(optimizer, "optimizer", None)
    return [type(part).__name__ for part in (optimizer, inner) if part is not None]


def _place(offload: Any) -> str:
    device = getattr(offload, "device", None)
    return str(getattr(device, "value", device) or "none")


def _dtype(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
