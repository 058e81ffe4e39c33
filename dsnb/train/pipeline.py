"""A trainer on DeepSpeed's pipeline engine: each stage builds, holds and trains its own blocks of the model."""

from collections.abc import Callable, Sequence
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn

from dsnb.formulas import model_shapes
from dsnb.settings.experiment import Experiment
from dsnb.train import tensor_parallel, verify_engine
from dsnb.train.causal_loss import causal_loss
from dsnb.train.engine import engine_grad_norm, make_engine, scale_loss
from dsnb.train.model import build_part
from dsnb.train.model_parts import blocks, count_parameters
from dsnb.train.stages import Block, Embedding, ForwardTrace, stage_modules, trace_forward
from dsnb.train.trainer import Section, no_section

SECTIONS = {
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.OptimizerStep: "optimizer",
    schedule.SendActivation: "communication",
    schedule.RecvActivation: "communication",
    schedule.SendGrad: "communication",
    schedule.RecvGrad: "communication",
    schedule.ReduceTiedGrads: "communication",
    schedule.ReduceGrads: "communication",
}


class TiedLayer(TiedLayerSpec):
    """A layer that is already built and shares its `weight` with the other layer of the same key."""

    def __init__(self, key: str, module: nn.Module) -> None:
        super().__init__(key, type(module))
        self.module = module

    def build(self, log: bool = False) -> nn.Module:
        """Return the layer."""
        return self.module


class PipelineTrainer:
    """Trains pipeline stages, with data-parallel and tensor-parallel ranks inside each.

    Raises
    ------
    ValueError
        If pipelines are not tested for the model's family, or its blocks cannot be divided evenly.
    RuntimeError
        If DeepSpeed built an engine that differs from the settings.
    """

    def __init__(self, experiment: Experiment, ds_config: dict[str, Any], device: torch.device) -> None:
        self.section: Section = no_section
        topology = PipeModelDataParallelTopology(
            num_pp=experiment.pipeline_parallel, num_dp=experiment.data_parallel, num_mp=experiment.tensor_parallel
        )
        model, path = build_stage(experiment, topology.get_coord(deepspeed.comm.get_rank()).pipe, device)
        self.config = model.config
        self.parameters, self.trainable_parameters, self.block_parameters = count_parameters(model)
        pipeline = PipelineModule(layers(model, path), topology=topology, partition_method="type:Block")
        if experiment.tensor_parallel > 1:
            rules = ds_config["tensor_parallel"]["partition_config"]
            tensor_parallel.split_stage(experiment, pipeline, self.config, rules)
        self.engine = make_engine(experiment, pipeline, ds_config)
        self.module, self.optimizer = self.engine.module, self.engine.optimizer
        self.engine.module.loss_fn = self._loss
        self.engine._INSTRUCTION_MAP = {
            command: self._marked(run, SECTIONS.get(command)) for command, run in self.engine._INSTRUCTION_MAP.items()
        }
        verify_engine.check(experiment, self.engine)

    def _loss(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss, shape (), for logits of shape (batch, length, vocabulary)."""
        loss = causal_loss(logits, ids)
        scale_loss(self.engine, loss)
        return loss

    def _marked(self, run: Callable[..., None], name: str | None) -> Callable[..., None]:
        """Return an instruction of DeepSpeed's schedule that marks its part of the step."""
        if name is None:
            return run

        def marked(*arguments: Any, **named: Any) -> None:
            with self.section(name):
                run(*arguments, **named)

        return marked

    def step(self, micro_batches: Sequence[torch.Tensor]) -> tuple[torch.Tensor, bool]:
        """Train one optimizer step; DeepSpeed averages the loss over data-parallel ranks."""
        skipped_before = self.engine.skipped_steps
        loss = self.engine.train_batch(iter([(ids, ids) for ids in micro_batches]))
        return loss, self.engine.skipped_steps > skipped_before

    def grad_norm(self) -> torch.Tensor | float | None:
        """Return the gradient norm of the last step, if the engine computed it."""
        return engine_grad_norm(self.engine)

    def describe(self) -> dict[str, Any]:
        """Return what the engine is made of."""
        return {**verify_engine.describe(self.engine), "attention": self.config._attn_implementation}


def build_stage(experiment: Experiment, stage: int, device: torch.device) -> tuple[Any, ForwardTrace]:
    """Build a model in which only this stage has weights, and the trace of its forward pass."""
    paths = []

    def part(model: Any) -> list[nn.Module]:
        stages, family, held = experiment.pipeline_parallel, model.config.model_type, len(blocks(model))
        if family not in model_shapes.SPLIT:
            raise ValueError(model_shapes.not_split("pipeline_parallel", stages, family))
        if held % stages:
            raise ValueError(f"pipeline_parallel is {stages}: it must divide the model's {held} layers")
        paths.append(trace_forward(model, int(experiment.micro_batch_size), experiment.seq_len, device))
        return list(stage_modules(model, paths[-1], stage, stages))

    return build_part(experiment, device, part), paths[-1]


def layers(model: Any, path: ForwardTrace) -> list[Any]:
    """Return the layers of a pipeline: embedding, blocks, layers after the blocks, head."""
    middle = [*map(Block, blocks(model), path.arguments), *path.after]
    embedding, head = Embedding(model, path), model.get_output_embeddings()
    if not model.config.tie_word_embeddings:
        return [embedding, *middle, head]
    return [TiedLayer("embeddings", embedding), *middle, TiedLayer("embeddings", head)]
