"""The program that trained: dsnb's own loop, or another one whose runs are recorded, logged or published.

The column `program` names it, and `source` says how its figures came here: the program itself for
run folders, its log, or a published table.
"""

import re
from collections.abc import Mapping
from typing import Any

DSNB = "dsnb"
"""dsnb's own loop; also the program of records without one, which are older than the field."""
PUBLISHED = "published: "
"""Begins the `source` of a run of a published table, before the table's name."""
PROGRAMS_OF_TABLES = {
    "bigscience_1b3": "Megatron-DeepSpeed",
    "dist_training_gpt2": "dist-training",
    "jean_zay_bloom7b": "JeanZay benchmark",
    "lambda_1cc_opt": "DeepSpeed-Chat",
}
"""The programs of published tables that were not measured with dsnb."""
LOG = " log"
"""Ends the `source` of a run that was read from a program's log."""
_VERSION = re.compile(r" v?[0-9][^ ]*$")


def of_record(record: Mapping[str, Any]) -> str:
    """Return the program of a record or a row."""
    program = record.get("program")
    if isinstance(program, str) and program:
        return program
    return DSNB


def is_own(record: Mapping[str, Any]) -> bool:
    """Return whether dsnb's own loop trained: then a setting without a value has its default."""
    return of_record(record) == DSNB


def is_standalone(record: Mapping[str, Any]) -> bool:
    """Return whether a script of a user was recorded, which dsnb did not start."""
    return not is_own(record) and not record.get("command")


def loop(program: str) -> str:
    """Return a program without its version: two versions of one loop are compared, as those of torch are.

    >>> loop("transformers Trainer 5.23.0")
    'transformers Trainer'
    """
    return _VERSION.sub("", program)


def has_defaults(row: Mapping[str, Any]) -> bool:
    """Return whether settings without a value in a row of a table of runs have their defaults.

    They do in dsnb's own runs, and in published tables, which leave out what was usual.
    """
    return is_own(row) or str(row.get("source")).startswith(PUBLISHED)


def of_source(source: object) -> str:
    """Return the program of a run whose table is older than the column `program`, by its `source`."""
    name = str(source)
    if name.startswith(PUBLISHED):
        return PROGRAMS_OF_TABLES.get(name.removeprefix(PUBLISHED), DSNB)
    return name.removesuffix(LOG)


def source_of_log(program: str) -> str:
    """Return the `source` of a run in a log of a program."""
    if program.endswith("CSV"):
        return program
    return program + LOG
