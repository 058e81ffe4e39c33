"""The training of a claim, completed by usual settings where they are unknown, and its predicted time with changes."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dsnb.base.errors import SettingsError
from dsnb.base.formulas import metrics
from dsnb.base.formulas.model_shapes import PRESETS, facts
from dsnb.base.system import hardware as machine
from dsnb.prediction import calibration, speed_range, tuned
from dsnb.prediction.candidates import usual_length
from dsnb.prediction.check.claims import Claim
from dsnb.prediction.gpus import GpuSpec, find, link
from dsnb.prediction.memory import need_gib, room_gib
from dsnb.prediction.predict import Hardware, flops_per_token
from dsnb.prediction.shapes import shape
from dsnb.prediction.speed_range import SpeedRange
from dsnb.prediction.step_time import Constants, StepTime, count_step, parts
from dsnb.prediction.target import USUAL_NETWORK
from dsnb.settings.checks import contradictions
from dsnb.settings.experiment import DECLARED, DEFAULTS, Experiment
from dsnb.settings.strategies.logged import MEGATRON
from dsnb.settings.training import text

WAYS: list[dict[str, Any]] = [
    {"strategy": "ddp"},
    {"strategy": "deepspeed", "zero_stage": 2},
    {"strategy": "fsdp"},
]
"""Ways to share a training, the simplest first; the first on which it fits is assumed."""
CHECK = tuned.numbers("check")
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([bm])(?![a-z0-9])", re.IGNORECASE)
BILLION = {"b": 1.0, "m": 1e-3}
USUAL_FAMILIES = ("llama", "qwen2.5", "gpt2", "opt", "pythia")
"""Families of presets that stand for an unknown model, the usual ones first."""
UNKNOWN_CHANGES: list[dict[str, Any]] = [
    {"compile": "default"},
    {"activation_checkpointing": True},
]
"""Settings that widen the expected range where they are unknown."""


@dataclass(frozen=True)
class Setup:
    """A training on its hardware; `assumed` are the settings that were not stated, in words."""

    experiment: Experiment
    hardware: Hardware
    stated: frozenset[str]
    assumed: tuple[str, ...]

    @property
    def gpu(self) -> GpuSpec:
        """The GPU."""
        return self.hardware.gpu

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.hardware.link.nodes(self.experiment)

    def parts(self, masked: bool = False) -> StepTime:
        """Return the parts of a predicted step."""
        counts = count_step(self.experiment, self.gpu, self.hardware.link, masked)
        return parts(counts, self.hardware.constants)

    def token_s(self, masked: bool = False) -> float:
        """Return the predicted seconds of a token."""
        return float(self.parts(masked).step_time_s) / self.experiment.tokens_per_step

    def changed(self, **changes: Any) -> "Setup | None":
        """Return the same with other settings; None if they are refused."""
        now = self.experiment
        other = Experiment.recorded({**now.model_dump(exclude_unset=True), **changes})
        if {*contradictions(other)} - {*contradictions(now)}:
            return None
        return replace(self, experiment=other)

    def on(self, **changes: Any) -> "Setup":
        """Return the same on other hardware: `link`, `constants` or `gpu`."""
        return replace(self, hardware=replace(self.hardware, **changes))

    def on_host(self, times: float) -> "Setup":
        """Return the same on a host that is slower by a factor."""
        constants: Constants = self.hardware.constants.on_host(times)
        return self.on(constants=constants)

    @property
    def fits(self) -> bool:
        """Whether it is likely to fit, by formulas."""
        return self.need_gib <= self.room_gib

    @property
    def need_gib(self) -> float:
        """The memory that is likely to be needed."""
        return need_gib(self.experiment, likely=True)

    @property
    def room_gib(self) -> float:
        """The memory that is left for tensors."""
        return room_gib(self.experiment, self.gpu.memory_gib)

    @cached_property
    def tokens_per_s(self) -> float:
        """The predicted speed."""
        return 1 / self.token_s()

    @cached_property
    def flops_per_token(self) -> float:
        """The model's own FLOPs of a token, attention as a whole square."""
        return flops_per_token(self.experiment)

    @property
    def peak_tflops(self) -> float:
        """The dense peak of the GPU in TFLOP/s."""
        return self.gpu.peak_flops(self.experiment.precision) / 1e12

    def mfu(self, tokens_per_s: float) -> float:
        """Return the MFU of a rate of all GPUs."""
        tflops = metrics.tflops(self.flops_per_token, tokens_per_s / self.experiment.gpus)
        return metrics.mfu(tflops, self.peak_tflops) or math.inf

    @cached_property
    def range(self) -> SpeedRange:
        """The range of the predicted speed, of dsnb's own runs and of other programs."""
        counts = count_step(self.experiment, self.gpu, self.hardware.link)
        by_cpu = bool(calibration.limited_by_cpu(counts, self.hardware.constants))
        found = self.hardware.speed_ranges(self.experiment, by_cpu)
        printed = found.printed
        if found.others is None and self.experiment.offload == "none":
            others = speed_range.others(self.gpu.name, self.nodes)
            low = min(printed.low, others.low)
            high = max(printed.high, others.high)
            printed = SpeedRange(low, high, f"{printed.on}, and {others.on}")
        most = speed_range.best_mfu(self.gpu.name, self.experiment) / self.mfu(self.tokens_per_s)
        return printed.at_most(most)

    def expected(self) -> tuple[float, float]:
        """Return the expected range in tokens/s; unknown compilation and recomputation widen it."""
        others = [self]
        for changes in UNKNOWN_CHANGES:
            if self.stated.isdisjoint(changes):
                others.append(self.changed(**changes) or self)
        low = min(one.range.low * one.tokens_per_s for one in others)
        high = max(one.range.high * one.tokens_per_s for one in others)
        return low, high


def trained_elsewhere(settings: Mapping[str, Any]) -> Experiment:
    """Return an experiment that another program may have run: only rules of dsnb's own loop may refuse it.

    Raises SettingsError for unknown settings and values.
    """
    try:
        return Experiment(**settings)
    except SettingsError as error:
        known = {name: settings[name] for name in settings if name in Experiment.model_fields}
        experiment = Experiment.recorded(known)
        wrong = [one for one in error.problems if one not in contradictions(experiment)]
        if wrong:
            raise SettingsError(wrong) from error
        return experiment


def of_claim(claim: Claim) -> Setup:
    """Return the training of a claim; a SettingsError says what is unknown or refused."""
    gpu = find(claim.gpu)
    stated = dict(claim.stated)
    model = str(stated.get("model") or claim.recorded["model"])
    stated["model"], assumed = known_model(model)
    checked = trained_elsewhere(stated)
    recorded, left = _predictable(claim.recorded)
    assumed += left
    stated = {**recorded, **checked.model_dump(exclude_unset=True), "device": "cuda"}
    stated.pop("deepspeed", None)
    nodes = link().nodes(Experiment.recorded(stated))
    path = link(claim.link or "nvlink")
    if nodes > 1 and not path.has_network:
        path = replace(path, network_gb_per_s=link(USUAL_NETWORK).network_gb_per_s)
        assumed.append(f"{USUAL_NETWORK.removeprefix('ib:')} Gbit/s a GPU between nodes")
    _check_split(stated)
    _check_tokens(claim, stated)
    hardware = Hardware(gpu, path)
    known = {*stated}
    if claim.link:
        known.add("link")
    chosen, added = _completed(stated, gpu)
    assumed += added
    return Setup(Experiment.recorded(chosen), hardware, frozenset(known), tuple(assumed))


def _predictable(recorded: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return recorded settings without values that dsnb does not have, and the defaults in their place in words."""
    kept = dict(recorded)
    assumed = []
    for name, value in recorded.items():
        order = DECLARED[name].order
        if order and value not in (*order, MEGATRON):
            del kept[name]
            assumed.append(f"{text(DEFAULTS[name])} for {DECLARED[name].title} {text(value)}")
    return kept, assumed


def _check_split(settings: Mapping[str, Any]) -> None:
    """Raise SettingsError if a model is split over more GPUs than there are."""
    experiment = Experiment.recorded(settings)
    split = experiment.tensor_parallel * experiment.pipeline_parallel
    if experiment.gpus % split:
        raise SettingsError(
            f"gpus is {experiment.gpus}: the model is split over {split} GPUs; give a multiple of that"
        )


def _check_tokens(claim: Claim, settings: Mapping[str, Any]) -> None:
    """Raise SettingsError if tokens/s do not follow from the speed that is known."""
    needed: tuple[str, ...] = ()
    if claim.tokens_per_s is None and claim.samples_per_s is not None:
        needed = ("seq_len",)
    elif claim.tokens_per_s is None and claim.step_s is not None:
        needed = ("seq_len", "micro_batch_size")
    missing = [name for name in needed if name not in settings]
    if missing:
        values = " ".join(f"--set {name}=NUMBER" for name in missing)
        raise SettingsError(f"tokens/s do not follow without {' and '.join(missing)}: say {values}")


def known_model(name: str) -> tuple[str, list[str]]:
    """Return a model that can be counted, and what is assumed if that is only one of its size.

    Raises SettingsError for an unknown name without a size.
    """
    hub_ids = {preset.hub_id: key for key, preset in PRESETS.items() if preset.hub_id}
    name = hub_ids.get(name, name)
    for key in PRESETS:
        if name.lower() == key:
            name = key
    size = SIZE.search(name)
    if facts(name) or not size:
        return name, []
    other = _of_size(float(size[1]) * BILLION[size[2].lower()])
    return other, [f"{other} for {name}, by its size"]


def _of_size(billions: float) -> str:
    """Return the preset whose size is nearest; of those within a tenth, one of a usual family."""
    sizes = {name: shape(name).parameters / 1e9 for name in PRESETS if shape(name).experts == 0}
    distance = {name: abs(math.log(size / billions)) for name, size in sizes.items()}
    least = min(distance.values())
    near = [name for name, far in distance.items() if far <= least + 0.1]
    for family in USUAL_FAMILIES:
        for name in near:
            if name.startswith(family):
                return name
    return near[0]


def _completed(stated: Mapping[str, Any], gpu: GpuSpec) -> tuple[dict[str, Any], list[str]]:
    """Return the settings with usual ones for those that are unknown, and these in words."""
    chosen = dict(stated)
    assumed: list[str] = []
    if "seq_len" not in chosen:
        chosen["seq_len"] = usual_length(chosen["model"])
        assumed.append(f"sequences of {chosen['seq_len']:,} tokens")
    if "precision" not in chosen:
        chosen["precision"] = "bf16"
        if not machine.peak_tflops(gpu.name, "bf16") and machine.peak_tflops(gpu.name, "fp16"):
            chosen["precision"] = "fp16"
        assumed.append(chosen["precision"])
    trial = dict(chosen)
    for trial in _trials(chosen):
        experiment = Experiment.recorded(trial)
        if need_gib(experiment, likely=True) <= room_gib(experiment, gpu.memory_gib):
            break
    if trial.keys() != chosen.keys():
        assumed += _words(Experiment.recorded(trial), trial.keys() - chosen.keys())
    return trial, assumed


def _trials(chosen: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield complete settings, the usual ones first; the last one needs the least memory."""
    for sharing in _sharing(chosen):
        for recomputed in _free(chosen, "activation_checkpointing", [False, True]):
            sizes = _free(chosen, "micro_batch_size", _sizes(chosen["seq_len"]))
            for size in sizes:
                yield {**chosen, **sharing, **recomputed, **size}


def _sharing(chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "strategy" in chosen or "zero_stage" in chosen:
        return [{}]
    if chosen.get("offload", "none") != "none":
        stage = 2
        if str(chosen["offload"]).startswith("all"):
            stage = 3
        return [{"strategy": "deepspeed", "zero_stage": stage}]
    if chosen.get("tensor_parallel", 1) * chosen.get("pipeline_parallel", 1) > 1:
        return [{"strategy": MEGATRON, "zero_stage": 1}]
    if chosen["gpus"] == 1:
        return [{"strategy": "plain"}]
    return WAYS


def _free(chosen: Mapping[str, Any], name: str, values: list[Any]) -> list[dict[str, Any]]:
    if name in chosen:
        return [{}]
    return [{name: value} for value in values]


def _sizes(seq_len: int) -> list[int]:
    """Return powers of two of sequences, the largest first."""
    most = max(1, CHECK.usual_tokens // seq_len)
    return [2**power for power in range(most.bit_length() - 1, -1, -1)]


def _words(experiment: Experiment, names: Any) -> list[str]:
    """Return the settings that were completed, in words."""
    words = []
    if "strategy" in names:
        words.append(experiment.label)
    if "micro_batch_size" in names:
        words.append(f"micro-batches of {experiment.micro_batch_size}")
    if experiment.activation_checkpointing and "activation_checkpointing" in names:
        words.append("recomputation, as it would not fit otherwise")
    return words
