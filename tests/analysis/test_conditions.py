"""Environment variables and files in which runs differ."""

import pandas as pd

from dsnb.analysis.flags import Flag, changed_conditions, flags, odd_conditions, parsed
from dsnb.runs import run_folders


def runs(*variables, experiment="a", inputs=None):
    table = pd.DataFrame({"variables": variables, "sweep": "s", "experiment": experiment, "status": "ok"})
    return table.assign(repeat=range(1, len(table) + 1), tokens_per_s=100.0, inputs=inputs)


def words(table):
    return list(odd_conditions(table))


def test_the_odd_repeat_is_named_with_what_is_usual():
    found = words(runs("", "NCCL_DEBUG=INFO", ""))
    assert found == ["", "NCCL_DEBUG is INFO, in other runs of the setting unset", ""]
    table = flags(runs("", "NCCL_DEBUG=INFO", ""))
    assert (list(table["flags"]), list(table["words"])) == ([(), (Flag.CONDITIONS,), ()], found)
    found = words(runs("NCCL_DEBUG=INFO", "NCCL_DEBUG=INFO", ""))
    assert found[2] == "NCCL_DEBUG is unset, in other runs of the setting INFO"


def test_runs_of_other_settings_and_of_unknown_variables_are_not_compared():
    assert words(runs("", "NCCL_DEBUG=INFO", experiment=["a", "b"])) == ["", ""]
    assert words(runs(None, "NCCL_DEBUG=INFO", float("nan"))) == ["", "", ""]


def test_values_with_spaces_quotes_and_nonsense():
    odd = "TORCH_LOGS='a b=c' DS_X=1"
    assert parsed(odd) == {"TORCH_LOGS": "a b=c", "DS_X": "1"}
    assert parsed("'unbalanced") is None
    assert words(runs(odd, odd, "DS_X=1"))[2] == "TORCH_LOGS is unset, in other runs of the setting a b=c"


def test_a_run_of_another_file():
    found = words(runs("", "", "", inputs=["m.json=1a", "m.json=1a", "m.json=2b"]))
    assert found == ["", "", "version of m.json is 2b, in other runs of the setting 1a"]


def test_names_with_spaces_and_quotes_survive_the_table():
    files = {"bob's dir/l m.json": "abc", "x y.txt": "1", "z y.txt": "2=3"}
    assert parsed(run_folders._words(files)) == files


def test_more_than_three_are_counted():
    many = " ".join(f"NCCL_{letter}=1" for letter in "ABCDE")
    assert words(runs("", "", many))[2].endswith("NCCL_C is 1, in other runs of the setting unset; and 2 more")


def test_two_sets_of_runs():
    before, after = runs("", "", inputs="m.json=1a"), runs("OMP_PROC_BIND=true", "", inputs="m.json=2b")
    assert changed_conditions(before, after) == [
        "OMP_PROC_BIND was unset before and true or unset after, which may explain a difference.",
        "version of m.json was 1a before and 2b after, which may explain a difference.",
    ]
    assert changed_conditions(before, before) == []
    assert changed_conditions(before.drop(columns=["variables", "inputs"]), after) == []


def test_the_allocator_of_runs_that_were_made_before_it_was_a_setting():
    before, after = runs("", "").assign(allocator="default"), runs("", "").assign(allocator="expandable")
    words = "allocator was default before and expandable after, which may explain a difference."
    assert changed_conditions(before, after) == [words]
    assert changed_conditions(before.assign(allocator=None), after) == []  # on a CPU
    mixed = pd.concat([before, after.iloc[:1]], ignore_index=True)
    assert odd_conditions(mixed)[2] == "allocator is expandable, in other runs of the setting default"
