"""The params file that the form writes: it reads back to the same experiments, and replaces nobody's file."""

import itertools
import random
from pathlib import Path

import pytest

from dsnb.designer import draft, values
from dsnb.designer.draft import Draft, entries
from dsnb.errors import SettingsError
from dsnb.files import plain_yaml
from dsnb.settings.experiment import Experiment
from dsnb.sweep.params import load_sweep

AXES = {
    "zero_stage": [0, 1, 2, 3],
    "offload": ["none", "optimizer-cpu", "all-cpu"],
    "strategy": ["deepspeed", "ddp", "fsdp", "plain"],
    "precision": ["fp32", "fp16", "bf16"],
    "compile": ["off", "default", "reduce-overhead"],
    "overlap_comm": ["auto", "on", "off"],
    "gpus": [1, 2, 4],
    "micro_batch_size": [1, "auto", 8],
    "activation_checkpointing": [False, True],
    "gradient_clipping": [0.0, 1e-06, 1.0],
    "learning_rate": [1e-4, 3.5e-05],
    "seq_len": [32, 64],
    "tensor_parallel": [1, 2],
    "lora_rank": [0, 8],
    "deepspeed.zero_optimization.reduce_scatter": [True, False],
}
QUESTIONS = ["", "off", "- [a: b] # c", "wie groß? 漢字", 'a "b" \\ \u2028 \x85', "2024-01-01", "*x", "null", "x" * 300]


def drawn(draw):
    chosen = draw.sample(list(AXES), draw.randint(0, 6))
    settings = {name: draw.sample(AXES[name], draw.randint(1, min(3, len(AXES[name])))) for name in chosen}
    return Draft("x", draw.choice(QUESTIONS), {"device": ["cpu"], **settings}, draw.randint(1, 3))


def accepted(made):
    """Give the experiments of every combination that is not refused, one by one."""
    found = []
    for combination in itertools.product(*made.settings.values()):
        try:
            found.append(Experiment(**dict(zip(made.settings, combination, strict=True))))
        except SettingsError:
            continue
    return found


def places(axes, refused):
    return [place for place in itertools.product(*(range(len(one)) for one in axes.values())) if refused(place)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_reads_back_to_the_same_experiments(seed, tmp_path):
    from dsnb.designer.gpu_prediction import predict_on
    from dsnb.designer.plan import plan

    made = drawn(random.Random(seed))
    wanted, path = accepted(made), tmp_path / "x.yaml"
    found = plan(made, path, tmp_path / "out", predict_on(str, "nvlink"))
    if not wanted:
        assert found.problems == ["every combination is refused: change a setting"]
        return
    assert found.problems == []
    draft.write(path, found.text)
    sweep = load_sweep(path, output=tmp_path / "out")
    assert sweep == found.sweep
    assert sweep.question == made.question
    assert sorted(run.experiment.model_dump_json() for run in sweep.runs) == sorted(
        one.model_dump_json() for one in wanted * made.repeats
    )


@pytest.mark.parametrize("seed", range(25))
def test_entries_leave_out_these_combinations_and_no_other(seed):
    draw = random.Random(seed)
    axes = {name: list(range(draw.randint(2, 4))) for name in "abcd"[: draw.randint(1, 4)]}
    every = places(axes, lambda _: True)
    left_out = sorted(draw.sample(every, draw.randint(0, len(every) - 1)))
    found = entries(axes, left_out)
    assert all(found)
    names = list(axes)
    assert [
        one
        for one in every
        if any(all(one[names.index(key)] == value for key, value in each.items()) for each in found)
    ] == left_out


def test_entries_are_as_short_as_they_can_be():
    axes = {"a": ["x", "y"], "b": [1, 2, 3]}
    assert entries(axes, places(axes, lambda place: place[0] == 1)) == [{"a": "y"}]
    assert entries(axes, [(1, 2)]) == [{"a": "y", "b": 3}]
    assert entries(axes, []) == []


def test_only_ones_own_file_is_replaced(tmp_path):
    path = tmp_path / "new" / "x.yaml"
    draft.write(path, "a: 1\n")
    draft.write(path, "a: 1\n")  # nothing to do
    with pytest.raises(SettingsError) as caught:
        draft.write(path, "a: 2\n")
    assert str(caught.value) == f"{path} exists already: choose another name, or delete it."
    draft.write(path, "a: 2\n", own=(path, "a: 1\n"))
    assert path.read_text() == "a: 2\n"
    path.write_text("a: 3\n")  # somebody else's by now
    with pytest.raises(SettingsError):
        draft.write(path, "a: 4\n", own=(path, "a: 2\n"))
    (tmp_path / "dangling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsError):
        draft.write(tmp_path / "dangling", "a: 1\n")
    with pytest.raises(SettingsError) as caught:
        draft.write(path / "y.yaml", "a: 1\n")
    assert str(caught.value) == f"{path}/y.yaml cannot be written: File exists."
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["dangling", "new", "x.yaml"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("8, 16", [8, 16]), (" auto ", ["auto"]), ("off", [False]), ("1e-4", ["1e-4"]), ("1.0e-4", [1e-4]),
     ("facebook/opt-350m, gpt2", ["facebook/opt-350m", "gpt2"]), ("{a: {b: 1}}", [{"a": {"b": 1}}])],
)  # fmt: skip
def test_typed_values(text, wanted):
    assert values.parse("x", text) == wanted
    assert values.parse("x", values.typed(wanted)) == wanted


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "seq_len has no value: type one, or several with commas between them, or remove it"),
        ("8, 8", "seq_len has the value 8 twice: leave one of them out"),
        ("1, true", "seq_len has the value True twice: leave one of them out"),
        ("8]", "seq_len is '8]': line 1: this is not valid YAML (expected '<document start>', but found ']')"),
        ("&a 1, *a", "seq_len is '&a 1, *a': aliases (*name) are not allowed in a params file: write the value out"),
        ("2024-01-01", "seq_len is '2024-01-01': '2024-01-01' is a date in YAML: put it in quotes to make it a string"),
    ],
)
def test_typed_values_that_are_refused(text, problem):
    with pytest.raises(SettingsError) as caught:
        values.parse("seq_len", text)
    assert str(caught.value) == problem


def test_the_values_that_can_be_chosen():
    assert values.choices("zero_stage") == (0, 1, 2, 3)
    assert values.choices("activation_checkpointing") == (False, True)
    assert values.choices("overlap_comm") == ("auto", "on", "off")
    assert values.choices("micro_batch_size") == values.choices("deepspeed.x") == ()
    assert values.meaning("grad_accum") == "Micro-batches per optimizer step."
    assert all(values.meaning(name) for name in Experiment.model_fields)


def test_only_plain_values_are_written():
    with pytest.raises(SettingsError) as caught:
        plain_yaml.dump({"x": [Path("a")]})
    assert str(caught.value) == "PosixPath('a') cannot be written to a params file: give numbers, texts, lists"


def test_equal_values_are_written_out():
    shared = {"a": [1]}
    assert "&" not in (text := plain_yaml.dump({"x": shared, "y": shared}))
    assert plain_yaml.parse(text) == {"x": shared, "y": shared}
