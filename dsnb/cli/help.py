"""Help texts: no type behind an option that takes no value; messages about wrong values without pydantic's words."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class _PlainWords:
    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, `--help` included."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words of the command line.

        Raises
        ------
        typer.BadParameter
            If a value is not allowed.
        """
        try:
            parsed: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        except typer.BadParameter as error:
            error.message = _without_pydantic(error)
            raise
        return parsed


def _without_pydantic(error: typer.BadParameter) -> str:
    """Return the message of an error; recent versions of typer take it from pydantic."""
    from pydantic import ValidationError

    from dsnb.files.plain_text import short_repr
    from dsnb.settings import checks

    if not isinstance(error.__cause__, ValidationError):
        return error.message
    detail = error.__cause__.errors(include_url=False)[0]
    allowed = checks.allowed_values(dict(detail))
    return allowed if detail["type"] == "value_error" else f"it is {short_repr(detail['input'])}; {allowed}."


class Command(_PlainWords, TyperCommand):
    """A command."""


class Group(_PlainWords, TyperGroup):
    """A group of commands."""
