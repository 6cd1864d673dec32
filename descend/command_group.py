"""Groups of commands whose help has sections, and which answer a misspelt command with the nearest one."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, ClassVar

from typer.core import TyperGroup

from descend.display import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandGroup"]


class CommandGroup(TyperGroup):
    """Commands under the headings that they name as `rich_help_panel`, in the order in which these first occur.

    Typer draws such panels with rich alone, which doubles the time that `--help` takes; here they are plain text.
    """

    synonyms: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the help: by heading, and as they were defined under each."""
        panels = list(dict.fromkeys(map(_panel, self.commands.values())))
        return sorted(self.commands, key=lambda name: panels.index(_panel(self.commands[name])))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See click's `Group.format_commands`."""
        sections: dict[str, list[tuple[str, str]]] = {}
        names = self.list_commands(ctx)
        wide = max(map(len, names), default=0)
        for name in names:
            command = self.commands[name]
            if not command.hidden:
                said = command.get_short_help_str(formatter.width - wide - 6)
                sections.setdefault(_panel(command), []).append((name.ljust(wide), said))
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click's `Group.resolve_command`."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            word = args[0].casefold()
            commands = difflib.get_close_matches(word, self.list_commands(ctx), n=1)
            synonyms = difflib.get_close_matches(word, self.synonyms, n=1)
            near = commands[0] if commands else self.synonyms[synonyms[0]] if synonyms else ""
            hint = f" Did you mean '{ctx.command_path} {near}'?" if near else ""
            ctx.fail(f"No such command '{printable(args[0])}'.{hint}")
        return super().resolve_command(ctx, args)


def _panel(command: Any) -> str:
    """The heading of a command; typer marks one that was left out with an object of its own."""
    named = getattr(command, "rich_help_panel", None)
    return named if isinstance(named, str) else "Commands"
