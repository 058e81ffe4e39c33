"""The settings of one run: what is trained, where, and under which supervision; its name; what follows from it.

The axes of a training are in `dsnb.settings.training`, the rules between settings in `dsnb.settings.rules`, and the
checks against this machine in `dsnb.settings.checks`.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from dsnb.errors import SettingsError
from dsnb.files import records
from dsnb.formulas import model_shapes
from dsnb.settings import aliases, checks, hostfile
from dsnb.settings.hostfile import Host
from dsnb.settings.training import MOST, Training
from dsnb.system import hardware

SUPERVISION = (
    "hostfile",
    "include",
    "exclude",
    "ssh_user",
    "ssh_port",
    "interface",
    "master_port",
    "forward_env",
    "time_limit_s",
    "step_timeout_s",
    "price_per_gpu_hour",
)
"""Settings that change nothing of what is measured: in no name and no column, free to differ when a sweep goes on."""


class Experiment(Training):
    """The complete settings of one training run.

    Raises
    ------
    SettingsError
        Listing every unknown, invalid and contradictory setting at once.
    """

    hostfile: str = ""
    """Hosts to run on: a file of `NAME slots=GPUS` lines (reached by ssh), or `slurm` in a job; empty: this machine."""
    include: str = ""
    """Of the hostfile only these: `worker-1@worker-2:0,2` names one whole host and two GPUs of another."""
    exclude: str = ""
    """Of the hostfile all but these, written like `include`."""
    device: Literal["auto", "cuda", "cpu"] = Field(default="auto", validate_default=True)
    """`auto` is cuda where there is a usable GPU, cpu elsewhere; with a hostfile its hosts are asked at the launch."""
    gpus: int = Field(default=1, strict=True, ge=1, lt=MOST)
    """Ranks, one a GPU (on a CPU: processes); `auto` is every GPU, of a hostfile every slot, or two ranks on a CPU."""
    nodes: int = Field(default=1, validate_default=True, strict=True, ge=1, lt=MOST)
    """Hosts that share the ranks, at least; more where they would not fit."""
    launcher: Literal["fork", "deepspeed"] = "fork"
    """What starts a host's ranks: `fork` a process that has already imported everything; `deepspeed` its own."""
    ssh_user: str = ""
    """Who to log in as on the hosts; by default as ssh's configuration says."""
    ssh_port: int = Field(default=0, strict=True, ge=0, lt=2**16)
    """Port of the hosts' ssh; 0 for what ssh's configuration says."""
    interface: str = ""
    """Network interface for the ranks, such as `ib0`; by default the one through which the hosts were reached."""
    master_port: int = Field(default=0, strict=True, ge=0, lt=2**16)
    """TCP port on the first host where the ranks meet; 0 for any free one."""
    forward_env: str = ""
    """Further environment variables to take along to the hosts, `*` allowed: `WANDB_MODE,MY_*`."""
    time_limit_s: float = Field(default=1800.0, gt=0)
    """Seconds after which the whole run is ended as `timeout`."""
    step_timeout_s: float = Field(default=900.0, gt=0)
    """Seconds without a finished step, the start included, after which the run is ended as `timeout`."""
    price_per_gpu_hour: float = Field(default=0.0, ge=0)
    """Price of a GPU-hour in any currency, for the `cost` of a run; 0 for none."""

    def __init__(self, /, **settings: Any) -> None:
        problems = aliases.conflicts(settings)
        settings = aliases.with_current_names(settings)
        unknown = [key for key in settings if key not in type(self).model_fields]
        known = {key: value for key, value in settings.items() if key not in unknown}
        problems += [checks.unknown_setting(key, type(self).model_fields) for key in unknown]
        invalid: set[str] = set()
        try:
            super().__init__(**known)
        except ValidationError as error:
            details = {str(detail["loc"][0]): detail for detail in reversed(error.errors(include_url=False))}
            invalid = set(details)
            problems += [checks.invalid_value(detail) for detail in reversed(details.values())]
        defaults = {name: field.default for name, field in type(self).model_fields.items()}
        chosen = known if invalid else self.model_dump()  # with every `auto` resolved
        problems += checks.contradictions({**defaults, **chosen}, given=set(known), ignore=invalid)
        if problems:
            raise SettingsError(problems)

    @field_validator("device", mode="after")
    @classmethod
    def _resolve_device(cls, device: str, info: ValidationInfo) -> str:
        return hardware.default_device() if device == "auto" and not info.data.get("hostfile") else device

    @field_validator("hostfile", mode="after")
    @classmethod
    def _absolute(cls, path: str) -> str:
        return path if path in {"", hostfile.SLURM} else os.path.abspath(os.path.expanduser(path))

    @field_validator("gpus", mode="before")
    @classmethod
    def _resolve_gpus(cls, gpus: object, info: ValidationInfo) -> object:
        if gpus != "auto":
            return gpus
        if hosts := _hosts(info.data):
            return sum(len(host.devices) for host in hosts)
        return hardware.default_world_size(info.data.get("device", "cpu"))

    @field_validator("nodes", mode="after")
    @classmethod
    def _resolve_nodes(cls, nodes: int, info: ValidationInfo) -> int:
        try:
            return len(hostfile.place(_hosts(info.data), info.data.get("gpus", 1), nodes))
        except SettingsError:  # a rule of `dsnb.settings.checks` says it
            return nodes

    @classmethod
    def from_namespace(cls, names: Mapping[str, Any]) -> Self:
        """Take the settings out of a notebook's `globals()`.

        A plain value whose name is nearly that of a setting is refused: papermill would only warn about it. The former
        name of a setting replaces the default of the parameters cell.
        """
        known = {*cls.model_fields, *aliases.CURRENT_NAMES}
        settings = {key: value for key, value in names.items() if key in known}
        for former, current in aliases.CURRENT_NAMES.items():
            if former in settings and settings.get(current) == _default(current):
                del settings[current]
        misspelled = {
            key: value
            for key, value in names.items()
            if key not in known
            and isinstance(value, str | int | float)
            and not key.startswith("_")
            and checks.closest_match(key, cls.model_fields, 0.8)
        }
        return cls(**settings, **misspelled)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what was written before a launch, as it was: another machine's settings are not judged anew."""
        record = records.read_json(path)
        if record is None:
            raise SettingsError(f"{path} holds no settings: start the run again")
        return cls.recorded(record)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Self:
        """Return the settings that a record holds, unjudged, with defaults for those that it does not name."""
        settings = aliases.with_current_names(record)
        return cls.model_construct(**{key: value for key, value in settings.items() if key in cls.model_fields})

    @property
    def name(self) -> str:
        """The published form of an experiment's name, `zs2_bf16_gpus8_bs32_sl128`, without the model.

        Further parts appear only where a setting differs from its default. Steps, warm-up, time limit and device
        say how a setting is measured, not what it is, and are left out.
        """
        return "_".join(filter(None, self._parts()))

    def _parts(self) -> list[str]:
        sharing = f"zs{self.zero_stage}" if self.strategy == "deepspeed" else self.strategy
        checkpointing = [f"ac{self.checkpoint_every}" if self.checkpoint_every > 1 else "ac"]
        checkpointing += ["cpu"] if self.checkpoint_offload else []
        return [
            f"{sharing}_{self.precision}_gpus{self.gpus}_bs{self.micro_batch_size}_sl{self.seq_len}",
            f"ga{self.grad_accum}" if self.grad_accum > 1 else "",
            "-".join(checkpointing) if self.activation_checkpointing else "",
            f"tp{self.tensor_parallel}" if self.tensor_parallel > 1 else "",
            f"pp{self.pipeline_parallel}" if self.pipeline_parallel > 1 else "",
            f"offload-{self.offload}" if self.offload != "none" else "",
            self.mixed_precision if self.mixed_precision != "native" else "",
            self.attention if self.attention != "auto" else "",
            "compile" if self.compile else "",
            f"lora{self.lora_rank}" if self.lora_rank else "",
            self.optimizer if self.optimizer != "adamw" else "",
            f"powersgd{self.powersgd_rank}" if self.gradient_compression == "powersgd" else "",
            f"limit{self.memory_limit_gib:g}gib" if self.memory_limit_gib else "",
            "pretrained" if self.weights == "pretrained" else "",
            f"dropout{self.dropout:g}" if self.dropout else "",
            model_shapes.slug(self.data) if self.data != "synthetic" else "",
            f"tok-{model_shapes.slug(self.tokenizer)}" if self.tokenizer != "bytes" else "",
            f"nodes{self.nodes}" if self.nodes > 1 else "",
            f"lr{self.learning_rate:g}" if self.learning_rate != _default("learning_rate") else "",
            f"clip{self.gradient_clipping:g}" if self.gradient_clipping else "",
            f"seed{self.seed}" if self.seed else "",
            "deepspeed-launcher" if self.launcher == "deepspeed" else "",
        ]

    @property
    def name_with_model(self) -> str:
        """The name for a sweep over several models."""
        return f"{model_shapes.slug(self.model)}_{self.name}"

    @property
    def data_parallel(self) -> int:
        """Ranks, or groups of ranks, that each train on sequences of their own."""
        return self.gpus // (self.tensor_parallel * self.pipeline_parallel)

    @property
    def global_batch_size(self) -> int:
        """Sequences per optimizer step over all ranks; of a `micro_batch_size` that is found already."""
        return int(self.micro_batch_size) * self.grad_accum * self.data_parallel

    @property
    def tokens_per_step(self) -> int:
        """Tokens per optimizer step over all ranks."""
        return self.global_batch_size * self.seq_len

    @property
    def hosts(self) -> tuple[Host, ...]:
        """The hosts of the run with the GPUs that it takes on each; empty without a hostfile.

        Raises
        ------
        SettingsError
            If the hostfile cannot be read any more, or has no room for the ranks.
        """
        if not self.hostfile:
            return ()
        return hostfile.place(hostfile.hosts(self.hostfile, self.include, self.exclude), self.gpus, self.nodes)


def _hosts(settings: Mapping[str, Any]) -> tuple[Host, ...]:
    """Give the hosts that settings choose from; empty where they name none, or none that can be read."""
    if not settings.get("hostfile"):
        return ()
    try:
        return hostfile.hosts(settings["hostfile"], settings.get("include", ""), settings.get("exclude", ""))
    except SettingsError:
        return ()


def _default(name: str) -> Any:
    return Experiment.model_fields[name].default
