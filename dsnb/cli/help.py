"""Help texts: no type behind an option that takes no value."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class _WithoutTypesOfFlags:
    def get_params(self, ctx: Any) -> list[Any]:
        """Return all parameters, `--help` included."""
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class Command(_WithoutTypesOfFlags, TyperCommand):
    """A command."""


class Group(_WithoutTypesOfFlags, TyperGroup):
    """A group of commands."""
