"""The settings of one run, with the experiment's name, derived values and former settings."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files
from dsnb.base.formulas import model_shapes
from dsnb.base.system import hardware
from dsnb.settings import (
    auto_precision,
    auto_values,
    checks,
    command,
    deepspeed_keys,
    flat_keys,
    hostfile,
    parameters,
    programs,
)
from dsnb.settings.hostfile import Host
from dsnb.settings.name_parts import PARTS
from dsnb.settings.parallelism import parallelism
from dsnb.settings.strategies import Numbers, States, Strategy, strategy
from dsnb.settings.tables import REFUSALS, SHOWN
from dsnb.settings.training import (
    CUDA_GRAPHS,
    AtLeast1,
    NotNegative,
    Positive,
    Setting,
    Training,
    compile_mode,
    text,
)

RECORD = "experiment.json"
"""Name of the file in a run's folder with its settings."""
CURRENT_NAMES = {"hang_limit_s": "step_timeout_s"}
"""Former name -> current name."""
SMALL_MODEL = "gpt2-tiny"
"""The model of a notebook that names none, on a CPU: it trains in seconds."""
UNNAMED = "unknown"
"""Name of an experiment of which nothing is known that names have."""
SshUser = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9._-]{0,63})?$")]
Interface = Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]{0,14})?$")]
Names = Annotated[str, Field(pattern=r"^([A-Za-z0-9_*]+(\s*,\s*[A-Za-z0-9_*]+)*)?$")]
Port = Annotated[int, Field(strict=True, ge=0, lt=2**16)]


class Experiment(Training):
    """The complete settings of one training run.

    Raises
    ------
    SettingsError
        Listing every unknown, invalid and contradictory setting at once.

    Examples
    --------
    Other settings have their defaults. The global batch is 2 x 8 x 4 sequences:

    >>> experiment = dsnb.Experiment(zero_stage=2, gpus=4, micro_batch_size=2, grad_accum=8)
    >>> experiment.name
    'zs2_bf16_gpus4_bs2_sl128_ga8'
    >>> experiment.global_batch_size
    64
    >>> dsnb.Experiment(zero=2)
    Traceback (most recent call last):
        ...
    dsnb.base.errors.SettingsError: unknown setting 'zero': did you mean 'zero_stage'?
    """

    hostfile: str = ""
    """Hosts to run on by ssh: a file of `NAME slots=GPUS` lines, or `slurm` inside a job; empty: this machine."""
    include: str = ""
    """Use only these hosts of the hostfile: `worker-1@worker-2:0,2` names a whole host and two GPUs of another one."""
    exclude: str = ""
    """Use all hosts of the hostfile but these; written like `include`."""
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", validate_default=True)
    """`auto` is cuda where there is a usable GPU and cpu elsewhere; with a hostfile it is resolved at the launch."""
    gpus: AtLeast1 = 1
    """Ranks: one per GPU, processes on a CPU; `auto` is every GPU, every slot of a hostfile, or 2 on a CPU."""
    nodes: Annotated[AtLeast1, Field(validate_default=True)] = 1
    """Minimum number of hosts that share the ranks; more are used if the ranks do not fit."""
    ssh_user: SshUser = ""
    """User name on the hosts; by default as configured for ssh."""
    ssh_port: Port = 0
    """ssh port of the hosts; 0 as configured for ssh."""
    interface: Interface = ""
    """Network interface of the ranks, such as `ib0`; by default the one through which the hosts were reached."""
    master_port: Port = 0
    """TCP port of the rendezvous on the first host; 0 for any free port."""
    forward_env: Names = ""
    """Environment variables to forward to the hosts, `*` allowed: `WANDB_MODE,MY_*`."""
    time_limit_s: Positive = 1800.0
    """Time limit of the whole run in seconds; a run that exceeds it ends as `timeout`."""
    step_timeout_s: Positive = 900.0
    """Maximum time for one step in seconds, start-up included; a run without a step for longer ends as `timeout`."""
    price_per_gpu_hour: NotNegative = 0.0
    """Price of a GPU-hour in any currency, for the `cost` of a run; 0 for no cost."""

    def __init__(self, /, **settings: Any) -> None:
        fields = type(self).model_fields
        settings = with_current_names(settings)
        problems = command.without_value(settings)
        settings = command.stated(settings)
        existing = {key: value for key, value in settings.items() if key in fields}
        for name in flat_keys.NAMES:
            existing[name] = flat_keys.flattened(settings, name)
        keys = existing["deepspeed"]
        for key in settings:
            if key not in fields and not flat_keys.is_key(key):
                problems.append(checks.unknown_setting(key, fields))
        if existing.get("precision") == "auto" and not existing.get("hostfile"):
            existing["precision"] = auto_precision.precision_of(existing.get("device", "auto"))
        if isinstance(keys, dict) and not existing.get("command"):
            every = {**DEFAULTS, **existing}
            existing["deepspeed"], without_value = auto_values.resolved(keys, every)
            problems += without_value
        invalid: dict[str, Any] = {}
        try:
            super().__init__(**existing)
        except ValidationError as error:
            for detail in error.errors(include_url=False):
                invalid.setdefault(str(detail["loc"][0]), detail)
        problems += map(checks.invalid_value, invalid.values())
        if isinstance(keys, dict) and "deepspeed" not in invalid:
            problems += deepspeed_keys.problems(existing["deepspeed"])
        chosen = self  # every `auto` is resolved
        if invalid:
            chosen = type(self).model_construct(**{**DEFAULTS, **existing})
            for name in invalid:
                del vars(chosen)[name]
        problems += checks.contradictions(chosen)
        if problems:
            raise SettingsError(problems)
        vars(self).update(dict.fromkeys(command.unknown(self, existing)))

    @field_validator("precision", mode="before")
    @classmethod
    def _refuse_auto(cls, precision: object) -> object:
        if precision == "auto":  # what this machine can do says nothing about the hosts
            raise ValueError(
                "it is measured on this machine, but the run is for other hosts; use 'bf16' or 'fp32'"
            )
        return precision

    @field_validator("device", mode="after")
    @classmethod
    def _resolve_device(cls, device: str, info: ValidationInfo) -> str:
        if device == "auto" and not info.data.get("hostfile"):
            return hardware.default_device()
        return device

    @field_validator("hostfile", mode="after")
    @classmethod
    def _absolute(cls, path: str) -> str:
        if path in {"", hostfile.SLURM}:
            return path
        return os.path.abspath(os.path.expanduser(path))

    @field_validator("gpus", mode="before")
    @classmethod
    def _resolve_gpus(cls, gpus: object, info: ValidationInfo) -> object:
        if gpus != "auto":
            return gpus
        if hosts := _hosts(info.data):
            return hostfile.total_slots(hosts)
        return hardware.default_world_size(info.data.get("device", "cpu"))

    @field_validator("nodes", mode="after")
    @classmethod
    def _resolve_nodes(cls, nodes: int, info: ValidationInfo) -> int:
        try:
            return len(hostfile.place(_hosts(info.data), info.data.get("gpus", 1), nodes))
        except SettingsError:  # a rule of `dsnb.settings.checks` reports it
            return nodes

    @classmethod
    def from_namespace(cls, names: Mapping[str, Any]) -> Self:
        """Return the experiment that the `globals()` of a notebook describe.

        What a sweep wrote into the folder `run_dir` is taken from there, if the names say the same.
        A parameter of papermill that is no setting is refused, and so is a plain value whose name
        is like that of one. The former name of a setting replaces the default of the parameters
        cell. Of a `command`, only what papermill passed or what is no default is stated. An empty
        `model` is the default, or `SMALL_MODEL` on a CPU.
        """
        fields = {*cls.model_fields, *CURRENT_NAMES, *REFUSALS["removed"]}
        problems = list(parameters.unknown(names, also=fields))
        if problems:
            raise SettingsError(problems)
        settings = {}
        for key, value in names.items():
            is_plain = isinstance(value, str | int | float) and not key.startswith("_")
            is_misspelled = is_plain and checks.similar(key, cls.model_fields)
            if is_misspelled or (key in fields and not isinstance(value, ModuleType)):
                settings[key] = value
        if settings.get("model") == "":
            settings["model"] = _usual_model(settings)
        for former, current in CURRENT_NAMES.items():
            if former in settings and settings.get(current) == DEFAULTS[current]:
                del settings[current]
        run_dir = names.get("run_dir")
        record = json_files.read_json(Path(run_dir, RECORD)) if run_dir else None
        if record:
            recorded = cls.recorded(record)
            if {**DEFAULTS, **settings} == {name: getattr(recorded, name) for name in DEFAULTS}:
                return recorded
        if settings.get("command"):
            passed = parameters.passed(names)
            settings = {
                name: value
                for name, value in settings.items()
                if name in passed or value != DEFAULTS.get(name)
            }
        return cls(**settings)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the settings that were written before a launch, unchecked: they may be another machine's."""
        record = json_files.read_json(path)
        if record is None:
            raise SettingsError(f"{path} holds no settings: start the run again")
        return cls.recorded(record)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Self:
        """Return the settings of a record, unchecked.

        Those that it lacks have their defaults, but None if another program trained: what dsnb does
        by default says nothing about it. A setting that is null is unknown.
        """
        settings = with_current_names(record)
        known: dict[str, Any] = {}
        if not programs.is_own(record):
            known = dict.fromkeys(OF_TRAINING)
        for key, value in settings.items():
            is_unused = value is None and key in SUPERVISION
            if key in cls.model_fields and not is_unused:
                known[key] = value
        for name in flat_keys.NAMES:  # keys that are unknown are not set
            if known.get(name, {}) is None:
                known[name] = {}
        return cls.model_construct(**known)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Return the settings of a row of a table of runs, unchecked.

        Settings that it lacks, or of which it has no value, have their defaults; in a recorded or
        logged run of another program, they are None. Integers and truth values are floats in
        columns with gaps. The column `deepspeed` of a table is a version, unless it holds keys.
        """
        settings: dict[str, Any] = {}
        if not programs.has_defaults(row):
            settings["program"] = programs.of_record(row)
        for column, value in row.items():
            name = str(column)
            is_setting = name in DEFAULTS or flat_keys.is_key(name)
            if not is_setting or text(value) == "-":
                continue
            settings[name] = value
            if isinstance(DEFAULTS.get(name), int):
                settings[name] = type(DEFAULTS[name])(value)
            elif name not in DEFAULTS and isinstance(value, float) and value.is_integer():
                settings[name] = int(value)
        for name in flat_keys.NAMES:
            if not isinstance(settings.get(name), dict):
                settings[name] = {}
            settings[name] = flat_keys.flattened(settings, name)
        return cls.recorded(settings)

    @property
    def name(self) -> str:
        """The name of the experiment without its model, such as `zs2_bf16_gpus8_bs32_sl128`.

        Further parts appear only where a setting differs from its default, and what is unknown is no
        part. Steps, warm-up, time limit and device are left out: they are part of how a setting is
        measured.
        """
        parts = [_in_name(self.parallel_strategy.short(self))]
        for key, form in ALWAYS_NAMED.items():
            value = getattr(self, key)
            if value is not None:
                parts.append(form.format(_in_name(value)))
        for key in IN_NAMES:
            value = getattr(self, key)
            if value is None or value == DEFAULTS[key]:
                continue
            if key in PARTS:
                parts.append(PARTS[key](self))
            else:
                parts.append(DECLARED[key].short.replace("{}", _in_name(value)))
        return "_".join(filter(None, parts)) or UNNAMED

    @property
    def name_with_model(self) -> str:
        """The name for a sweep over several models."""
        if not self.model:
            return self.name
        return f"{model_shapes.slug(self.model)}_{self.name}"

    @property
    def complete(self) -> Self:
        """The settings with defaults for those that are unknown."""
        missing = {name: DEFAULTS[name] for name in DEFAULTS if vars(self).get(name) is None}
        return self.model_copy(update=missing)

    @property
    def parallel_strategy(self) -> Strategy:
        """The strategy, to ask it about these settings."""
        return strategy(self.strategy)

    @property
    def numbers(self) -> Numbers:
        """The number formats of weights, gradients and products."""
        return self.parallel_strategy.numbers(self)

    @property
    def states(self) -> States:
        """The model states of Adam: bytes per trained parameter, and the ranks that share them."""
        return self.parallel_strategy.states(self)

    @property
    def label(self) -> str:
        """How ranks share the training, as in the column `parallelism`: "DDP", "TP 2 x ZeRO 1"."""
        return parallelism(vars(self))

    @property
    def compiles_blocks(self) -> bool:
        """Whether torch.compile sees the blocks one by one.

        By itself it does where weights are gathered block by block, and where blocks are
        recomputed: with LoRA, the backward pass of one graph of the whole model computes all of
        them again at once.
        """
        if self.compile in {"off", "deepcompile"}:
            return False
        if self.compile_unit != "auto":
            return self.compile_unit == "block"
        chosen = self.parallel_strategy
        if chosen.is_runnable and chosen.shards_weights(self):
            return True
        return self.activation_checkpointing and self.compile not in CUDA_GRAPHS

    @property
    def whole_every(self) -> int:
        """Of how many blocks one is recomputed whole; 0 if none is."""
        if self.activation_checkpointing and self.checkpoint_ops == "all":
            return int(self.checkpoint_every)
        return 0

    @property
    def gathers_blocks(self) -> bool:
        """Whether blocks are gathered whole where weights are gathered at all: hooks are then outside of graphs."""
        if self.leaf_modules == "auto":
            return self.compiles_blocks
        return self.leaf_modules == "blocks"

    @property
    def data_parallel(self) -> int:
        """Number of ranks, or groups of ranks, with separate sequences."""
        return self.known("gpus") // self.model_parallel

    @property
    def shard_ranks(self) -> int:
        """Number of data-parallel ranks that share what is shared: all, or those of a group."""
        return self.parallel_strategy.shard_ranks(self)

    @property
    def model_parallel(self) -> int:
        """Number of ranks that share one copy of the model."""
        return self.known("tensor_parallel") * self.known("pipeline_parallel")

    @property
    def micro_batch_tokens(self) -> int:
        """Tokens per rank and forward pass."""
        return self.known("micro_batch_size") * self.known("seq_len")

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step over all ranks."""
        sequences = self.known("micro_batch_size") * self.known("grad_accum")
        return sequences * self.data_parallel

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all ranks."""
        return self.global_batch_size * self.known("seq_len")

    def known(self, name: str) -> int:
        """Return a number that other figures follow from; raise SettingsError if a recorded run does not know it."""
        value = self.__dict__[name]
        if value is None:
            raise SettingsError(f"{name} is unknown")
        number: int = value
        return number

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of the run with the GPUs that it uses on each; empty without a hostfile.

        A hostfile that can no longer be read, or has too few slots, raises SettingsError.
        """
        if not self.hostfile:
            return ()
        return hostfile.place(
            hostfile.hosts(self.hostfile, self.include, self.exclude), self.gpus, self.nodes
        )


def _usual_model(settings: Mapping[str, Any]) -> str:
    """Return the model of a notebook that names none."""
    device = settings.get("device", "auto")
    if device == "auto":
        device = hardware.default_device()
    runs_elsewhere = settings.get("hostfile") or settings.get("command")
    if device == "cpu" and not runs_elsewhere:
        return SMALL_MODEL
    return str(DEFAULTS["model"])


def _hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Return the hosts that settings choose from; empty without a readable hostfile."""
    if not settings.get("hostfile"):
        return ()
    try:
        return hostfile.hosts(
            settings["hostfile"], settings.get("include", ""), settings.get("exclude", "")
        )
    except SettingsError:
        return ()


DEFAULTS: dict[str, Any] = {name: field.default for name, field in Experiment.model_fields.items()}
"""The default of every setting, `auto` as it stands."""
DECLARED = {name: Setting.of(name, field) for name, field in Experiment.model_fields.items()}
"""The words of every setting, and its part of an experiment's name."""


def _in_name(value: object) -> str:
    """Return a value as part of a folder's name; other programs have values such as `AdamW (8 bit)`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text(value)).strip("-")


ALWAYS_NAMED = {"precision": "{}", "gpus": "gpus{}", "micro_batch_size": "bs{}", "seq_len": "sl{}"}
"""Settings that are parts of every name, with any value."""
IN_NAMES = [name for name in SHOWN if DECLARED[name].short]
"""Settings that are parts of a name, in their order."""
SUPERVISION = tuple(name for name, setting in DECLARED.items() if setting.is_supervision)
"""Settings that do not affect what is measured: in no name and no column; they may change when a sweep is resumed."""
OF_TRAINING = [name for name in DECLARED if name not in SUPERVISION]
"""Settings that describe a training: what is unknown of another program's has no default in its place."""


def with_current_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under their current names, which count if both are given."""
    settings = {
        CURRENT_NAMES.get(key, key): settings[key]
        for key in settings
        if CURRENT_NAMES.get(key) not in settings
    }
    if isinstance(settings.get("compile"), bool):
        settings["compile"] = compile_mode(settings["compile"])
    return settings


def with_former_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with what it did where its record has no such setting yet.

    On GPUs torch's allocator was the default one before `allocator` chose; the strategy knows its
    own changes. A value that is null is unknown and stays so, as does all that another program's
    record lacks.
    """
    if not programs.is_own(settings):
        return {**settings}
    known = {name: value for name, value in settings.items() if text(value) != "-"}
    chosen = SimpleNamespace(**{**DEFAULTS, **known})  # thousands of runs: no model of pydantic
    former: dict[str, Any] = {}
    if settings and chosen.device != "cpu":
        former["allocator"] = "default"
    if isinstance(chosen.grad_accum, int):
        former |= strategy(chosen.strategy).former_defaults(chosen)
    return {**former, **settings}
