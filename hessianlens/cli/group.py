"""The group of commands: it answers --help, completion and errors with as few imports as typer allows."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from hessianlens.cli.torchrun import is_first


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

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command and its arguments; `compare` was an option of `inspect`."""
        if args[:1] == ["inspect"] and "--compare" in args:
            args = ["compare", *(word for word in args[1:] if word != "--compare")]
            if not ctx.resilient_parsing and is_first():
                typer.echo("hessianlens: inspect A B --compare is now compare A B", err=True)
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, which is drawn."""
        self.rich_markup_mode = self._markup
        super().format_help(ctx, formatter)
