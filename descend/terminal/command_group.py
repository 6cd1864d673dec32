"""Groups of commands: help that fits a terminal of 24 lines, and the nearest name for a misspelt command."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, ClassVar

from typer.core import TyperGroup

from descend.terminal.display import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CommandGroup"]

_GAP = 2  # spaces between columns


class CommandGroup(TyperGroup):
    """Commands under the headings that they name as `rich_help_panel`, in the order in which these first occur.

    Typer draws such panels with rich alone, which doubles the time that `--help` takes; here each command is a line of
    plain text, with its heading before the first.
    """

    synonyms: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of the help: by heading, and as they were defined under each."""
        panels = list(dict.fromkeys(map(_panel, self.commands.values())))
        return sorted(self.commands, key=lambda name: panels.index(_panel(self.commands[name])))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """See click's `Command.format_options`: the commands, then the names of the group's own options in a line."""
        self.format_commands(ctx, formatter)
        options = [max(one.opts, key=len) for one in self.get_params(ctx) if one.get_help_record(ctx) is not None]
        formatter.write_paragraph()
        formatter.write_text(f"Options: {', '.join(options)}")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """See click's `Command.format_epilog`; here without an empty line before it and without indentation."""
        for line in (self.epilog or "").splitlines():
            formatter.write_text(line)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """See click's `Group.format_commands`. A heading stands before the first of its commands."""
        visible = [name for name in self.list_commands(ctx) if not self.commands[name].hidden]
        headings = [_panel(self.commands[name]) for name in visible]
        name_width, heading_width = (max(map(len, words), default=0) + _GAP for words in (visible, headings))
        formatter.write_paragraph()
        before = ""
        for name, heading in zip(visible, headings, strict=True):
            first = "" if heading == before else heading
            room = formatter.width - heading_width - name_width
            said = self.commands[name].get_short_help_str(room)
            formatter.write(f"{first:{heading_width}}{name:{name_width}}{said}\n")
            before = heading

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
