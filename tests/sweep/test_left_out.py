"""What is left out: a line for each reason, and names only if they are asked for."""

from dsnb.sweep.left_out import lines

LEFT_OUT = [("b", "too large"), ("a", "too large"), ("c", "refused"), ("d", "too large")]


def test_several_settings_are_counted_and_one_is_named():
    assert list(lines(LEFT_OUT, 10)) == [
        "left out 3 of 10 settings (names with -v): too large",
        "left out 1 of 10 settings (c): refused",
    ]


def test_names_follow_in_lines_of_their_own():
    assert list(lines(LEFT_OUT, 10, in_full=True)) == [
        "left out 3 of 10 settings: too large",
        "  a",
        "  b",
        "  d",
        "left out 1 of 10 settings (c): refused",
    ]


def test_a_name_that_is_also_kept_is_not_given():
    assert list(lines(LEFT_OUT, 10, in_full=True, kept={"c", "a", "b"})) == [
        "left out 3 of 10 settings (d): too large",
        "left out 1 of 10 settings: refused",
    ]
