"""Every refusal of settings: its whole sentence, and neighbours that are accepted.

The cases are in `refusals/*.yaml`, written by hand. The fields of a case:

settings
    Settings of an `Experiment` that differ from `BASE`, which is accepted.
each
    Values of some settings: there is a case for each combination, and `{zero_stage}` anywhere in
    it is the value. A name that is no setting only stands for its values.
refused
    The sentence, or several, that refuse it; without it, the case is accepted. `{here}` is the
    current folder.
accepted
    Neighbours that are accepted: changes of the settings, one or several.
files, environment
    Files of the current folder, and environment variables.
machine
    Ask whether this machine can run the settings. It has these `gpus`, number of `cores` and
    `flags` of a CPU, and lacks what is `missing`.
recorded
    Settings of a record, which are not checked when it is read.
record
    The content of a file of a run folder, by the file's name.
params, only
    The content of a params file, and the names of experiments to make of it.
"""

import ast
import ctypes.util
import functools
import importlib.util
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

import dsnb
from dsnb.base.errors import SettingsError
from dsnb.base.files import json_files, plain_yaml
from dsnb.base.system import hardware, interpreter
from dsnb.settings import checks, flat_keys, given, hostfile, known
from dsnb.settings.experiment import Experiment
from dsnb.settings.params_file import read_params
from dsnb.settings.records import record_schema
from dsnb.settings.records import values as column_values
from dsnb.settings.records.paths import RunPaths, SweepPaths
from dsnb.settings.records.run_record import RunRecord
from dsnb.settings.strategies import base, strategy
from dsnb.settings.strategies.deepspeed import ONLY_ZERO
from dsnb.settings.tables import REFUSALS
from tests import ROOT

BASE = {"model": "opt-tiny", "device": "cuda"}
CAPABILITIES = {"V100": (7, 0), "A100": (8, 0), "L4": (8, 9)}
"""The GPUs of machines in cases."""
HIDDEN = ("SLURM_JOB_NODELIST", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "HF_HUB_OFFLINE")
"""Environment variables that refusals depend on."""
FILES = sorted(Path(__file__).with_name("refusals").glob("*.yaml"))


def filled(value: Any, words: dict[str, Any]) -> Any:
    """Return a value with the words in place of their names in braces."""
    if isinstance(value, dict):
        return {filled(key, words): filled(inside, words) for key, inside in value.items()}
    if isinstance(value, list):
        return [filled(inside, words) for inside in value]
    if not isinstance(value, str):
        return value
    for name, word in words.items():
        if value == f"{{{name}}}":
            return word
        value = value.replace(f"{{{name}}}", str(word)).replace(f"{{{name}!r}}", repr(word))
    return value


def as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [value]


def read_cases() -> Iterator[dict[str, Any]]:
    """Yield every case, those of `each` one by one."""
    for path in FILES:
        for topic, cases in plain_yaml.parse(path.read_text()).items():
            for case in cases:
                each = case.get("each", {})
                for values in itertools.product(*each.values()):
                    words = dict(zip(each, values, strict=True))
                    chosen = {key: words[key] for key in words if key in Experiment.model_fields}
                    settings = {**chosen, **case.get("settings", {})}
                    yield filled({**case, "topic": topic, "settings": settings}, words)


CASES = list(read_cases())


@pytest.fixture
def ask(tmp_path, monkeypatch) -> Callable[..., list[str]]:
    """Return a function that gives the sentences that refuse a case with changed settings."""
    return lambda case, change: problems(case, change, tmp_path, monkeypatch)


def problems(
    case: dict[str, Any], change: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    monkeypatch.chdir(folder)
    for name in HIDDEN:
        monkeypatch.delenv(name, raising=False)
    for name, content in case.get("files", {}).items():
        write(folder / name, content)
    for name, value in case.get("environment", {}).items():
        monkeypatch.setenv(name, value)
    set_machine(monkeypatch, **case.get("machine", {}))
    try:
        return answer(case, {**BASE, **case["settings"], **change})
    except SettingsError as error:
        return error.problems


def write(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)


def answer(case: dict[str, Any], settings: dict[str, Any]) -> list[str]:
    """Ask what a case is about; return the sentences that refuse it unless they are raised."""
    if "recorded" in case:
        return checks.contradictions(Experiment.recorded(case["recorded"]))
    if "record" in case:
        ((name, record),) = case["record"].items()
        return list(filter(None, record_schema.cleaned(name, record)[1:]))
    if "params" in case:
        Path("sweep.yaml").write_text(case["params"])
        dsnb.load_sweep("sweep.yaml", only=case.get("only"))
        return []
    experiment = Experiment(**settings)
    if "machine" in case:
        return checks.unsupported(experiment)
    return []


def set_machine(
    monkeypatch: pytest.MonkeyPatch,
    gpus: list[str] | None = None,
    cores: int = 4,
    flags: str = "avx2",
    missing: tuple[str, ...] = (),
    loopback: bool = True,
) -> None:
    """Replace what dsnb finds on this machine."""
    installed = []
    for index, name in enumerate(gpus or ()):
        installed.append(hardware.InstalledGpu(index, name, "GPU-1", 80.0, CAPABILITIES[name]))
    monkeypatch.setattr(hardware, "gpus", lambda: tuple(installed))
    monkeypatch.setattr(hardware, "cores", lambda: cores)
    monkeypatch.setattr(hardware, "cpu_facts", lambda: {"flags": flags})
    monkeypatch.setattr(hardware, "loopback_works", lambda: loopback)
    for finder in (
        (importlib.util, "find_spec"),
        (PathFinder, "find_spec"),
        (ctypes.util, "find_library"),
    ):
        monkeypatch.setattr(*finder, finds(getattr(*finder), missing))


def finds(finder: Callable[..., Any], missing: tuple[str, ...]) -> Callable[..., Any]:
    """Return a finder that finds the libraries of a training, but for the missing ones."""

    def find(name: str, *more: Any) -> Any:
        if name in {"torch", "deepspeed", "transformers", "torchao", "aio"}:
            return None if name in missing else name
        return finder(name, *more)

    return find


def name_of(case: dict[str, Any]) -> str:
    about = case.get("params") or case.get("record") or case["settings"]
    return f"{case['topic']}: {about}"[:100]


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_refusal_is_the_whole_sentence_and_its_neighbours_are_accepted(case, ask, tmp_path):
    expected = filled(as_list(case.get("refused", [])), {"here": tmp_path})
    assert ask(case, {}) == expected
    for change in as_list(case.get("accepted", [])):
        assert (change, ask(case, change)) == (change, [])


def settings_file(content: str) -> Path:
    """Return the path of a file with this content, in the folder of the test."""
    path = Path("mine.yaml")
    path.write_text(content)
    return path


def recorded_run() -> RunRecord:
    """Return the record of a script that a user recorded."""
    folder = Path("mine")
    folder.mkdir(exist_ok=True)
    json_files.write_json(folder / "experiment.json", {"program": "own", "gpus": 1})
    return RunRecord(RunPaths(folder))


OTHERS: list[tuple[Callable[[], object], str]] = [
    (
        lambda: column_values.checked("tokens_per_s", "41k"),
        "tokens_per_s is '41k': give a plain number, without a unit",
    ),
    (
        lambda: column_values.checked("status", "good"),
        "status is 'good': allowed are ok, oom, nan, untrained, failed, timeout, interrupted",
    ),
    (
        lambda: column_values.parse("zero_stage", "7"),
        "zero_stage is 7: allowed are 0, 1, 2 or 3",
    ),
    (
        lambda: Experiment.read(Path("gone/experiment.json")),
        "gone/experiment.json holds no settings: start the run again",
    ),
    (
        lambda: Experiment.from_namespace({"In": ["", "gpus = 1", "# Parameters\nzzz = 2"]}),
        "unknown parameter 'zzz': allowed are gpus",
    ),
    (
        lambda: dsnb.check_parameters({"In": ["", "page = ''", "# Parameters\npages = 2"]}),
        "unknown parameter 'pages': did you mean 'page'?",
    ),
    (
        lambda: read_params("params/sweep.yaml"),
        "there is no folder 'params': `dsnb init` writes one, with params files in it",
    ),
    (
        lambda: read_params("others/sweep.yaml"),
        "params file 'others/sweep.yaml' cannot be read: No such file or directory; check the path",
    ),
    (
        lambda: (Path("params").mkdir(), read_params("params/sweep.yaml")),
        "params file 'params/sweep.yaml' cannot be read: No such file or directory; check the path",
    ),
    (
        lambda: hostfile.hosts("slurm"),
        "hostfile is 'slurm': this process is not in a Slurm job; use --slurm, or start it inside salloc",
    ),
    (
        lambda: strategy("megatron").trainer(None),
        "strategy 'megatron' is not installed on this host: install its package here, too",
    ),
    (
        lambda: SweepPaths(Path("out")).run("a/b", 1),
        "experiment name 'a/b' is not a plain folder name: leave out '/' and '..'",
    ),
    (
        lambda: SweepPaths(Path("out")).run("n" * 256, 1),
        f"experiment name '{'n' * 40}...' has 256 bytes: file systems allow 255; "
        "set fewer settings to other values than their defaults",
    ),
    (
        lambda: SweepPaths(Path("o" * 256)).run("name", 1),
        f"folder name '{'o' * 40}...' has 256 bytes: file systems allow 255; shorten it",
    ),
    (
        lambda: Experiment.recorded({"program": "own", "gpus": 1}).tokens_per_step,
        "micro_batch_size is unknown",
    ),
    (
        lambda: known.check(
            Experiment(gpus=1).model_copy(update={"attention": "flash_attention_2"})
        ),
        "unknown to the model of time: attention 'flash_attention_2'",
    ),
    (
        lambda: known.check(Experiment(gpus=1).model_copy(update={"precision": None})),
        "unknown to the model of time: precision",
    ),
    (
        lambda: given.experiment_of(settings_file("- gpt2")),
        "settings file 'mine.yaml' holds no settings: give 'name: value' lines",
    ),
    (
        lambda: given.experiment_of(
            settings_file("name: two\ndefaults: {gpus: 1}\ngrid: {zero_stage: [1, 2]}")
        ),
        "params file 'mine.yaml' has 2 settings of runs, but one model is trained in one way: give a file with one "
        "of them",
    ),
    (
        lambda: flat_keys.flattened(
            {"deepspeed": {"a": dict.fromkeys(range(10_001), 1)}}, "deepspeed"
        ),
        "there are more than 10,000 keys, or one of more than 1,000 characters: this is no configuration of a training",
    ),
    (
        lambda: recorded_run().check_repeatable(),
        "run_dir is 'mine': it holds a recorded run of 'own'; choose another folder",
    ),
]
"""Refusals of what is asked in other ways."""


@pytest.mark.parametrize(
    ("call", "sentence"), OTHERS, ids=[sentence[:60] for _, sentence in OTHERS]
)
def test_other_refusals(call, sentence, ask):
    ask({"settings": {}}, {})  # its folder and its machine
    with pytest.raises(SettingsError) as caught:
        call()
    assert caught.value.problems == [sentence]
    assert SweepPaths(Path("out")).run("n" * 255, 1).dir == Path("out", "n" * 255, "run1")


def test_what_deepspeed_says_of_its_keys_is_what_a_machine_cannot_run(ask, monkeypatch):
    words = "deepspeed.fast is no key of DeepSpeed: did you mean 'faster'?"
    monkeypatch.setattr(
        interpreter, "ask", lambda module, *stage, given: [words, f"{stage} {given}"]
    )
    case = {"settings": {"device": "cpu", "zero_stage": 1}, "machine": {}}
    assert ask(case, {"deepspeed": {"fast": 3}}) == [words, "('1',) {\"fast\": 3}"]
    assert ask(case, {}) == []
    missing = {**case, "machine": {"missing": ["deepspeed"]}}
    assert ask(missing, {"deepspeed": {"fast": 3}}) == [
        "training needs deepspeed: pip install 'dsnb[train]'"
    ]


def refusals_in_code() -> Iterator[tuple[str, range]]:
    """Yield the file and the lines of every statement of `dsnb.settings` that can refuse something."""
    for path in sorted((ROOT / "dsnb" / "settings").rglob("*.py")):
        if "exchange" in path.parts:  # files of other programs; their refusals have tests elsewhere
            continue
        is_record = "records" in path.parts  # their sentences are also about files of runs
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for statement in ast.walk(function):
                if raises(statement) or (not is_record and says(statement, function)):
                    yield str(path), range(statement.lineno, statement.end_lineno + 1)


def raises(statement: ast.AST) -> bool:
    """Return whether a statement raises a SettingsError, or what pydantic makes part of one."""
    if not isinstance(statement, ast.Raise) or statement.exc is None:
        return False
    return ast.unparse(statement.exc).startswith(("SettingsError(", "ValueError("))


def says(statement: ast.AST, function: ast.FunctionDef) -> bool:
    """Return whether a statement yields, appends or returns a sentence."""
    has_words = any(is_words(node) for node in ast.walk(statement))
    if isinstance(statement, ast.Return):
        return has_words
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Yield):
        return ast.unparse(function.returns) == "Iterator[str]"
    return has_words and isinstance(value, ast.Call) and "append" in ast.unparse(value.func)


def is_words(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and " " in str(node.value).strip()


def lines_run(function: Callable[[], object], wanted: set[tuple[str, int]]) -> set[tuple[str, int]]:
    """Return which of the wanted lines, each with its file, a call runs."""
    run = set()

    @functools.cache
    def is_wanted(code):
        return any((code.co_filename, line) in wanted for _, _, line in code.co_lines())

    def trace(frame, event, argument):
        if not is_wanted(frame.f_code):
            return None
        run.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return run & wanted


def test_every_refusal_in_the_code_has_a_case(ask):
    """A new one fails here until it has a case."""
    refusals = list(refusals_in_code())

    def ask_all():
        for case in CASES:
            if "refused" in case:
                ask(case, {})
        for call, _ in OTHERS:
            with pytest.raises(SettingsError):
                call()

    run = lines_run(ask_all, {(path, line) for path, lines in refusals for line in lines})
    missing = []
    for path, lines in refusals:
        if not any((path, line) in run for line in lines):
            missing.append(f"{Path(path).relative_to(ROOT)}, line {lines[0]}")
    assert missing == []
    assert len(refusals) > 100  # what finds them still does


SENTENCES = [sentence for case in CASES for sentence in as_list(case.get("refused", []))]


def has_sentence(*parts: str) -> bool:
    """Return whether a case has a sentence of these parts, with anything between them."""
    pattern = re.compile(".*".join(map(re.escape, parts)))
    return any(pattern.fullmatch(sentence) for sentence in SENTENCES)


def entries_of_tables() -> Iterator[tuple[str, ...]]:
    """Yield what the sentence of each entry of the tables of refusals has in it."""
    for first, others in REFUSALS["exclusive"].items():
        for second, why in others.items():
            yield f"{first} is ", f", but {second} is ", f": {why}"
    for setting, keys in REFUSALS["keys_of_settings"].items():
        for key in keys:
            yield f"{setting} is ", f", but deepspeed.{key} is ", ": both set it; drop one"
    for key, why in REFUSALS["decided_keys"].items():
        yield f"deepspeed.{key}", f": dsnb decides {key} itself; {why}"
    for setting, why in REFUSALS["removed"].items():
        yield (f"{setting} is no longer a setting: {why}",)
    for allowed in REFUSALS["allowed_by_error"].values():
        yield "", " is ", ": ", *re.split("{.*?}", allowed)
    for field, allowed in REFUSALS["allowed_by_name"].items():
        yield "", f"{field} is ", f": {allowed}"
    for kind in REFUSALS["model_types"]["encoder_decoders"]:
        yield "model is ", f": {kind} is an encoder-decoder; ", ""
    for kind in REFUSALS["model_types"]["decoders_if_set"]:
        yield "model is ", f": {kind} is an encoder: ", ""
    for setting, rest in base.USED_BY.items():
        yield f"{setting} is ", ", but strategy is ", rest
    for setting, (_, why) in ONLY_ZERO.items():
        yield f"{setting} is ", ", but zero_stage is ", f": {why}; use zero_stage ", ""


def test_every_entry_of_the_tables_of_refusals_has_a_case():
    assert [parts for parts in entries_of_tables() if not has_sentence(*parts)] == []
