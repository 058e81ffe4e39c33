"""The files of a run folder: their fields, what these mean, and the kind of value of each.

Records come from other machines, other versions and text editors. A value of a wrong kind is left out when it is read,
and described in one sentence. Fields that are not listed here are not read and may have any value.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dsnb.files import plain_text, records
from dsnb.run_folder.columns import FIGURES, MACHINE, RUNS, SAMPLES, STEPS, TEXTS
from dsnb.run_folder.declarations import (
    AMOUNT,
    COUNT,
    FLAG,
    NUMBER,
    SETTING_COLUMNS,
    STATUS,
    TEXT,
    Column,
    Kind,
    each,
    list_of,
    object_of,
)
from dsnb.run_folder.paths import RunPaths
from dsnb.settings import aliases

INPUTS = object_of("digests of files", each=TEXT)
_EXIT_CODE = Kind("a whole number", frozenset({int}), -(2**31), 2**31)
_CODES = object_of("exit codes by rank", each=_EXIT_CODE, keys=r"-?[0-9]{1,9}")
_RUN = RunPaths(Path())


def _run_columns(*names: str) -> list[Column]:
    return [RUNS[name] for name in names]


def _fields(columns: Iterable[Column]) -> dict[str, Kind]:
    return {column.name: column.kind for column in columns}


_MACHINE = [
    *(column for column in MACHINE if column.name not in {"gpu_name", "gpu_memory_gib", "variables"}),
    *each(TEXT, os="Operating system.", nccl_package="Version of the installed NCCL package."),
    Column("memory_gib", "Memory of the machine."),
    Column("variables", RUNS["variables"].meaning, kind=object_of(each=TEXT)),
    Column(
        "gpus",
        "Name and memory of each GPU.",
        kind=list_of(object_of(fields={"name": TEXT, "memory_gib": AMOUNT})),
    ),
]
_SUMMARY = [*FIGURES, *TEXTS, RUNS["note"], Column("profile_missing", "Why a profile lacks something.", kind=TEXT)]
_NODE = object_of(fields={"host": TEXT, "environment": object_of(fields=_fields(_MACHINE))})
FILES: dict[str, list[Column]] = {
    _RUN.experiment.name: [
        *SETTING_COLUMNS.values(),
        *_run_columns("order_seed", "order_place"),
        Column("name", "Name of the experiment; its folder is named like this.", kind=TEXT),
        Column("model_name", "Name of the model in names of experiments, decided by the sweep.", kind=TEXT),
        Column("inputs", RUNS["inputs"].meaning, kind=INPUTS),
        Column(
            "asked",
            "Settings as requested, where dsnb replaced them, such as `micro_batch_size: auto`.",
            kind=object_of(fields=_fields(SETTING_COLUMNS.values())),
        ),
    ],
    _RUN.result.name: [
        Column("status", "How the run ended.", kind=STATUS),
        Column("cause", "Why it is not `ok`, in one sentence.", kind=TEXT),
        Column("exit_codes", "Exit code of each rank; negative for a signal.", kind=_CODES),
        Column("phases_s", "Wall time by phase: start, build, warmup, timed, stop, wall.", kind=object_of(each=AMOUNT)),
        Column(
            "summary",
            "Figures of the run, named like the columns of the table of runs.",
            kind=object_of(fields=_fields(_SUMMARY)),
        ),
    ],
    _RUN.environment.name: _MACHINE,
    _RUN.steps.name: [*STEPS.values()],
    _RUN.gpu.name: [*SAMPLES.values()],
    _RUN.worker.name: [
        *_run_columns("parameters", "trainable_parameters", "active_parameters", "energy_j", "update_rms"),
        *_run_columns("peak_allocated_gib", "peak_reserved_gib", "device_memory_gib", "host_memory_gib"),
        *_run_columns("rank_host_memory_gib", "power_source", "gpu_name", "attention_kernel"),
        Column(
            "flops_per_token",
            "FLOPs of the model for one token, forward and backward, as `tflops_per_gpu` counts them.",
        ),
        Column("forward_flops_per_token", "FLOPs of a forward pass for one token."),
        Column("masked_flops_per_token", "Those of `flops_per_token` that a causal mask makes unnecessary."),
        Column(
            "recomputed_flops_per_token", "FLOPs of recomputed blocks for one token, not part of `flops_per_token`."
        ),
        *each(
            AMOUNT,
            layers="Transformer blocks of the model.",
            hidden="Hidden size of the model.",
            cpu_threads="Threads of a rank that compute on the CPU, an offloaded optimizer among them.",
            block_parameters="Parameters of all transformer blocks, without embeddings, output layer and final norm.",
            timed_wall_s="Wall time of the timed steps, as earlier versions recorded it; now in `phases_s`.",
            ended_s="End of the last step, since the launch.",
        ),
        *each(
            NUMBER,
            step_skew=RUNS["step_skew"].meaning,
            forward_skew=RUNS["forward_skew"].meaning,
            steps_from_s="Begin of the first step, since the launch.",
            timed_from_s="Begin of the timed steps, since the launch.",
            timed_to_s="End of the timed steps, since the launch.",
        ),
        *each(
            COUNT,
            first_bad_step="First step whose loss was not a finite number.",
            recompilations=RUNS["recompilations"].meaning,
            graph_breaks=RUNS["graph_breaks"].meaning,
            compiled_graphs="Graphs that torch.compile captured; missing if nothing was to be compiled.",
        ),
        Column("weights_moved", "False if the steps did not change the weights beyond weight decay.", kind=FLAG),
        *each(
            TEXT,
            flops_missing="Why there are no FLOPs of a token.",
            attention="Attention implementation that the model really used.",
        ),
        Column("phases_s", "Wall time by phase, as rank 0 measured it.", kind=object_of(each=AMOUNT)),
        Column("versions", "Versions that only torch knows: CUDA, NCCL.", kind=object_of(each=TEXT)),
    ],
    _RUN.profile.name: [
        *_run_columns("forward_s", "backward_s", "optimizer_s", "communication_s"),
        *each(
            AMOUNT,
            handover_s="Communication between pipeline stages.",
            between_s="Rest of the step between the marked parts.",
            step_s="Time of the step that was split into its parts.",
            exposed_communication_s="Communication during which no other kernel ran; GPUs only.",
            traced_step_s="Time of the step that was traced.",
            ended_s="End of the profile, since the launch.",
        ),
        Column("missing", "What could not be measured, with the reason.", kind=object_of(each=TEXT)),
    ],
    _RUN.failures.name: [
        Column("rank", "Rank that failed.", kind=COUNT),
        Column("status", "Status that its failure gives the run.", kind=STATUS),
        *each(
            TEXT,
            cause="Type and first line of the exception.",
            phase="Part of the work it was in: build, forward, loss, backward, optimizer, communication.",
        ),
        Column("step", "Step it was in, from 1; missing while the model was built.", kind=COUNT),
        *each(
            AMOUNT,
            allocated_gib="Memory allocated when the allocation failed.",
            reserved_gib="Memory reserved when the allocation failed.",
            requested_gib="Size of the allocation that failed.",
        ),
    ],
    _RUN.nodes.name: [
        Column(
            "nodes",
            "For each host: name, address, interface, ranks, GPUs, exit codes, environment, and why it was lost.",
            kind=list_of(_NODE),
        ),
        Column("differences", "In what the hosts differ, such as driver or torch version.", kind=list_of(TEXT)),
    ],
    _RUN.slurm.name: each(
        TEXT,
        name="Name of the Slurm job.",
        job="Number of the Slurm job.",
        state="Last known state of the job.",
        script="Script that was submitted.",
    ),
    _RUN.bandwidth_plan.name: [Column("most_bytes", "Largest message to measure.", kind=COUNT)],
    _RUN.bandwidth.name: [
        *each(
            COUNT,
            bytes="Size of the message.",
            count="Elements of the message.",
            ranks="Ranks that took part.",
            calls="All-reduces that were timed.",
            errors="Elements with a wrong sum.",
        ),
        Column("dtype", "Type of the elements.", kind=TEXT),
        *each(
            AMOUNT,
            time_us="Mean time of one all-reduce on the slowest rank.",
            algbw_gb_per_s="Bytes of the message over its time.",
            busbw_gb_per_s="algbw x 2(n - 1)/n, as nccl-tests defines it.",
        ),
    ],
}
"""By file name, the fields of the object in a `.json`, or of each line of a `.jsonl`."""
FORMS = {name: object_of(fields=_fields(columns)) for name, columns in FILES.items()}


def cleaned(name: str, record: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return a record without missing values and values of a wrong kind, and the first wrong one in words.

    Parameters
    ----------
    name
        The name of its file.
    record
        Its content.
    """
    problems: list[str] = []
    if name == _RUN.experiment.name:
        record = with_current_names(record)
    content: dict[str, Any] = _cleaned(record, FORMS[name], "", problems)
    if name == _RUN.experiment.name:
        content = aliases.with_former_defaults(content)
    return content, f"{name}: {problems[0]}" if problems else None


def with_current_names(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run under their current names, those that were asked for too."""
    settings = aliases.with_current_names(settings)
    if isinstance(asked := settings.get("asked"), dict):
        settings["asked"] = aliases.with_current_names(asked)
    return settings


def _cleaned(value: Any, kind: Kind, where: str, problems: list[str]) -> Any:
    if not kind.holds(value):
        problems.append(f"{where} is {plain_text.short_repr(value)}, not {kind.name}")
        return None
    if type(value) is dict:
        content = {key: _inside(value, key, kind, where, problems) for key in value}
        return {key: item for key, item in content.items() if item is not None}
    if type(value) is list and kind.each is not None:
        items = [_cleaned(item, kind.each, f"{where}[{place}]", problems) for place, item in enumerate(value)]
        return [item for item in items if item is not None]
    return value


def _inside(record: dict[str, Any], key: str, kind: Kind, where: str, problems: list[str]) -> Any:
    inside = kind.fields.get(key, kind.each)
    if inside is None:
        return record[key]
    name = plain_text.short_repr(key)[1:-1]
    return _cleaned(record[key], inside, f"{where}.{name}" if where else name, problems)


def read(path: Path) -> dict[str, Any] | None:
    """Read one of a run's `.json` files, None if it is missing; values of a wrong kind are left out with a warning."""
    record = records.read_json(path)
    if record is None:
        return None
    content, problem = cleaned(path.name, record)
    if problem:
        records.warn(f"{path.parent / problem}; it is left out")
    return content


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read one of a run's `.jsonl` files; values of a wrong kind are left out with one warning."""
    lines = [cleaned(path.name, record) for record in records.read_lines(path)]
    if problems := [problem for _, problem in lines if problem]:
        more = f", and so are those of {len(problems) - 1} more lines" if problems[1:] else ""
        records.warn(f"{path.parent / problems[0]}; it is left out{more}")
    return [content for content, _ in lines]


def steps(tail: records.Tail) -> Iterator[dict[str, Any]]:
    """Yield the numbered steps that were appended to a file of steps since the last call."""
    for record in tail.new():
        step, _ = cleaned(tail.path.name, record)
        if step.get("step") is not None:
            yield step
