"""Texts of values in logs: their units, and what is no number."""

import pytest

from dsnb.results.logs.values import PARSERS, amount, count, millions, number, positive, seconds

GIB = 2**30


@pytest.mark.parametrize(
    ("parser", "text", "value"),
    [
        (PARSERS["ms"], "1500", 1.5),
        (PARSERS["mib"], "2048", 2),
        (PARSERS["bytes"], str(3 * GIB), 3),
        (PARSERS["gib"], "2.50GiB", 2.5),
        (PARSERS["tflops"], "98.5TFLOPS", 98.5),
        (amount, "8.25K", 8250),
        (amount, "2.5B", 2.5e9),
        (amount, "12,345.5", 12345.5),
        (millions, "1316.5", 1_316_500_000),
        (seconds, "02:03", 123),
        (seconds, "1:02:03", 3723),
        (seconds, "1 day, 0:00:30", 86_430),
        (seconds, "2d 3h 4m 5.5s", 2 * 86_400 + 3 * 3600 + 4 * 60 + 5.5),
        (count, "2.048000e+03", 2048),
        (PARSERS["count_from_0"], "0", 0),
        (PARSERS["stages"], "0", 1),  # of no pipeline
        (PARSERS["stages"], "4", 4),
        (PARSERS["dtype"], "torch.bfloat16", "bf16"),
        (PARSERS["switch"], "False", False),
        (PARSERS["switch"], "unsloth", True),
        (PARSERS["model"], "/models/llama/config.json", "llama"),
        (PARSERS["model"], "owner/name", "name"),
    ],
)
def test_values_are_in_the_units_of_the_columns(parser, text, value):
    assert parser(text) == value


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        (number, "nan"), (number, "1e400"), (number, "1_0"), (number, ""), (number, None),
        (positive, "0"), (positive, "-1"), (amount, "0K"), (amount, "K"), (millions, "0"),
        (count, "0"), (count, "1.5"), (count, "1e16"), (seconds, "soon"), (seconds, ""),
        (PARSERS["ms"], "0"), (PARSERS["dtype"], "int8"), (PARSERS["model"], "None"), (PARSERS["stage"], "4"),
    ],
)  # fmt: skip
def test_what_is_no_value_is_unknown_and_not_0(parser, text):
    assert parser(text) is None
