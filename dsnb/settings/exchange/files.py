"""The files that take a setting into other programs, with the reason of each line and what the file cannot say.

Those for axolotl and LLaMA-Factory are lines to copy; the others work unedited.
"""

import contextlib
import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsnb.base.files import json_files
from dsnb.settings.exchange import programs
from dsnb.settings.exchange.facts import ACCELERATE_FILE, AUTO_FILE
from dsnb.settings.exchange.left_out import LeftOut, left_out
from dsnb.settings.exchange.table import Line, tree
from dsnb.settings.experiment import DEFAULTS, Experiment

Writer = Callable[[Mapping[str, Any], str], Iterator[str]]
"""Writes a tree of lines with an indent."""
SETTINGS_FILE = "settings.json"
"""The settings for `dsnb.adapt`."""
ARGUMENTS_FILE = "training_arguments.py"
PLAIN_FILE = "deepspeed.json"
"""DeepSpeed's configuration for `deepspeed.initialize`."""
WORDS_FILE = "training_arguments.args"
YAML_FILES = ("accelerate.yaml", "axolotl.yaml", "llamafactory.yaml")
NAMES = (
    ARGUMENTS_FILE, WORDS_FILE, *YAML_FILES, AUTO_FILE, ACCELERATE_FILE, PLAIN_FILE, SETTINGS_FILE,
)  # fmt: skip
"""All files that a setting may have."""
OF_TRAINING = "# These values shape the training, not its speed: keep your own."


def of_trainer(experiment: Experiment) -> list[object]:
    """Return what the files for the Trainer have."""
    return [
        programs.trainer_lines(experiment),
        programs.deepspeed_auto(experiment),
        programs.model_lines(experiment),
        programs.lora_lines(experiment),
    ]


def of_accelerate(experiment: Experiment) -> list[object]:
    """Return what the files for accelerate have."""
    return [programs.accelerate_lines(experiment), programs.deepspeed_accelerate(experiment)]


def of_axolotl(experiment: Experiment) -> list[object]:
    """Return what the files for axolotl have."""
    return [programs.axolotl_lines(experiment), programs.deepspeed_auto(experiment)]


def of_llama_factory(experiment: Experiment) -> list[object]:
    """Return what the files for LLaMA-Factory have."""
    return [programs.llama_factory_lines(experiment), programs.deepspeed_auto(experiment)]


CONTENT: dict[str, Callable[[Experiment], object]] = {
    "trainer": of_trainer,
    "accelerate": of_accelerate,
    "axolotl": of_axolotl,
    "llama_factory": of_llama_factory,
    "deepspeed": programs.deepspeed_plain,
}
"""Program -> what its files have, to find out which settings they carry."""


def not_said(experiment: Experiment, program: str = "trainer") -> list[LeftOut]:
    """Return what the files of a program do not say."""
    return left_out(experiment, program, CONTENT[program])


def stated(experiment: Experiment) -> dict[str, Any]:
    """Return the settings other than the defaults, as `dsnb.adapt` and params files take them."""
    settings = experiment.model_dump(exclude={"nodes"})
    return {name: value for name, value in settings.items() if value != DEFAULTS[name]}


def files(experiment: Experiment, folder: str | Path = "") -> dict[str, str]:
    """Return the files by their names.

    Parameters
    ----------
    experiment
        The settings.
    folder
        Where the files will be: programs open DeepSpeed's configuration by this path.
    """
    found = {
        ARGUMENTS_FILE: _training_arguments(experiment),
        WORDS_FILE: _words(experiment, folder),
    }
    for name, write_yaml in zip(YAML_FILES, (_accelerate, _axolotl, _llama_factory), strict=True):
        found[name] = write_yaml(experiment, folder)
    if experiment.parallel_strategy.is_deepspeed:
        found[AUTO_FILE] = _json(programs.deepspeed_auto(experiment))
        found[ACCELERATE_FILE] = _json(programs.deepspeed_accelerate(experiment))
        found[PLAIN_FILE] = _json(programs.deepspeed_plain(experiment))
    return {**found, SETTINGS_FILE: _json(stated(experiment))}


def write(experiment: Experiment, folder: Path) -> None:
    """Write the files into a folder, in place of those that an earlier setting left there."""
    remove(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files(experiment, folder.absolute()).items():
        json_files.write_text(folder / name, content)


def remove(folder: Path) -> None:
    """Remove the files of a setting, and their folder if nothing else is in it."""
    for name in NAMES:
        (folder / name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"


def _adapters(experiment: Experiment) -> Iterator[str]:
    """Yield the line that adds adapters, without which all weights are trained."""
    if experiment.lora_rank:
        yield "    model = peft.get_peft_model(model, peft.LoraConfig(**lora_arguments))"


def _training_arguments(experiment: Experiment) -> str:
    """Return a module with the arguments of the Trainer and of the model."""
    name = experiment.name_with_model
    names = ["arguments", "model_arguments"]
    if experiment.lora_rank:
        names.insert(1, "lora_arguments")
    lines = [
        f'"""{name} for transformers\' Trainer.',
        "",
        f"    from {Path(ARGUMENTS_FILE).stem} import {', '.join(names)}",
        "",
        '    args = TrainingArguments("output", **arguments)  # before the model, for ZeRO 3',
        "    model = AutoModelForCausalLM.from_pretrained(NAME, **model_arguments)",
        *_adapters(experiment),
        f'    model = dsnb.adapt(model, "{SETTINGS_FILE}")  # optional: what is marked * below',
        "    Trainer(model, args, train_dataset=...).train()",
        "",
        _start(experiment),
        "",
        *_missing(experiment, "trainer"),
        '"""',
        "",
    ]
    arguments = programs.trainer_lines(experiment)
    named = {
        "model_arguments": programs.model_lines(experiment),
        "lora_arguments": programs.lora_lines(experiment),
    }
    after: list[str] = []
    if experiment.parallel_strategy.is_deepspeed:
        lines += ["from pathlib import Path", ""]
        comment = "its values come from these arguments where it says auto"
        after = [f'    "deepspeed": str(Path(__file__).with_name("{AUTO_FILE}")),  # {comment}']
    lines += ["arguments = {", *_grouped(_python, arguments, "    "), *after, "}"]
    for variable, found in named.items():
        if found:
            lines += [f"{variable} = {{", *_python(tree(found), "    "), "}"]
    return "\n".join(lines) + "\n"


def _start(experiment: Experiment) -> str:
    """Return how to start a script."""
    each = experiment.gpus // experiment.nodes
    nodes = f" --nnodes {experiment.nodes}" if experiment.nodes > 1 else ""
    return f"Start: torchrun{nodes} --nproc-per-node {each} train.py"


def _missing(experiment: Experiment, program: str) -> Iterator[str]:
    """Yield lines on what a program's files do not say."""
    yield "Speed and memory were predicted or measured in dsnb's loop. Not in this file:"
    for sentence in not_said(experiment, program):
        mark = "*" if sentence.adapted else "-"
        yield f"{mark} {sentence.text}"
    yield f'dsnb.adapt(model, "{SETTINGS_FILE}") does what is marked *.'


def _words(experiment: Experiment, folder: str | Path) -> str:
    """Return the arguments as words of a command line, a flag a line: `train.py $(cat FILE)`."""
    arguments = programs.training_arguments(experiment)
    if experiment.parallel_strategy.is_deepspeed:
        arguments["deepspeed"] = shlex.quote(str(Path(folder, AUTO_FILE)))
    return " ".join(programs.flags(arguments)).replace(" --", "\n--") + "\n"


def _accelerate(experiment: Experiment, folder: str | Path) -> str:
    start = "accelerate launch --config_file accelerate.yaml train.py"
    if experiment.device == "cpu":
        start = f"ACCELERATE_USE_CPU=true {start}"  # it does not pass the file's use_cpu on
    found = programs.accelerate_lines(experiment, str(Path(folder, ACCELERATE_FILE)))
    more = []
    if experiment.parallel_strategy.is_deepspeed:
        more = [
            "With a Trainer, use the arguments of training_arguments.py, or name deepspeed_auto.json:",
            f"{ACCELERATE_FILE} has numbers that a Trainer with other arguments refuses.",
        ]
    return _yaml(experiment, "accelerate", start, found, more)


def _axolotl(experiment: Experiment, folder: str | Path) -> str:
    start = "Lines for the file of: axolotl train FILE"
    found = programs.axolotl_lines(experiment, str(Path(folder, AUTO_FILE)))
    return _yaml(experiment, "axolotl", start, found)


def _llama_factory(experiment: Experiment, folder: str | Path) -> str:
    start = "Lines for the file of: llamafactory-cli train FILE"
    found = programs.llama_factory_lines(experiment, str(Path(folder, AUTO_FILE)))
    return _yaml(experiment, "llama_factory", start, found)


def _yaml(
    experiment: Experiment,
    program: str,
    start: str,
    found: Iterable[Line],
    more: Iterable[str] = (),
) -> str:
    """Return a file with comments."""
    head = [experiment.name_with_model, start, *more, "", *_missing(experiment, program)]
    comments = [f"# {line}".rstrip() for line in head]
    return "\n".join([*comments, "", *_grouped(_yaml_lines, found, "")]) + "\n"


def _grouped(write: Writer, found: Iterable[Line], indent: str) -> Iterator[str]:
    """Yield the lines that decide the speed, then those of the training."""
    of_speed: list[Line] = []
    of_training: list[Line] = []
    for line in found:
        group = of_training if line.own == "training" else of_speed
        group.append(line)
    yield from write(tree(of_speed), indent)
    if of_training:
        yield indent + OF_TRAINING
        yield from write(tree(of_training), indent)


def _reason(line: Line) -> str:
    return f"  # {line.why}" if line.why else ""


def _python(section: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of a dict."""
    for name, inside in section.items():
        if isinstance(inside, Line):
            yield f'{indent}"{name}": {_literal(inside.value)},{_reason(inside)}'
        else:
            yield f'{indent}"{name}": {{'
            yield from _python(inside, indent + "    ")
            yield f"{indent}}},"


def _literal(value: Any) -> str:
    """Return a value as Python writes it, with double quotes."""
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)


def _yaml_lines(section: Mapping[str, Any], indent: str) -> Iterator[str]:
    """Yield the lines of a mapping; JSON's values are YAML's, but for numbers such as 1e-08."""
    for name, inside in section.items():
        if isinstance(inside, Line):
            yield f"{indent}{name}: {_scalar(inside.value)}{_reason(inside)}"
        else:
            yield f"{indent}{name}:"
            yield from _yaml_lines(inside, indent + "  ")


def _scalar(value: Any) -> str:
    """Return a value as YAML; without a point PyYAML would read 1e-08 as text."""
    if isinstance(value, float) and "e" in repr(value) and "." not in repr(value):
        return repr(value).replace("e", ".0e")
    return json.dumps(value)
