"""The group of commands: it answers --help, completion and errors with as few imports as typer allows."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class CommandGroup(TyperGroup):
    """Typer's group without what it would import for nothing.

    A flag that was not given is False: typer asks pydantic what to make of None. Errors are plain text: typer draws a
    box around them with rich. Either import takes longer than all the rest.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """The options of the group, --help and those of completion among them."""
        parameters: list[Any] = super().get_params(ctx)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False) and parameter.default is None:
                parameter.default = False
        return parameters

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run; typer draws errors if the group has a markup mode at this moment."""
        self._markup, self.rich_markup_mode = self.rich_markup_mode, None
        return super().main(*args, **extra)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, which is drawn."""
        self.rich_markup_mode = self._markup
        super().format_help(ctx, formatter)
