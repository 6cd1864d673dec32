"""What to write in place of a field that a message does not have: an older name, another message, or a near name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from descend.errors import nearest
from descend.graph.text.schema import PACKAGE, FieldInfo, MessageInfo, message_info

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

__all__ = ["FieldHints"]

_WINDOW: Final = {"dims": "kernel_size", "strides": "stride", "pads": "padding", "dilations": "dilation"}


class FieldHints:
    """Hints for one text; the same mistake has the same hint each time, which is worked out once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def unknown_field(self, name: str, enclosing: Sequence[MessageInfo], close: str, seen: Collection[str]) -> str:
        """The end of the sentence that reports an unknown field.

        Args:
            name: The field's name.
            enclosing: The messages around it, from the root to the one that has no such field.
            close: The bracket that ends the last of them.
            seen: Fields that the last of them has had before this one.
        """
        info = enclosing[-1]
        key = (info.full_name, name)
        if key not in self._known:
            self._known[key] = (
                _in_outer_message(enclosing, close, name)
                or _formerly(info, name)
                or _in_inner_message(info, seen, name)
                or _in_part(enclosing[0], name)
                or nearest(name, info.fields)
                or _known(info)
            )
        return self._known[key]


def _in_outer_message(enclosing: Sequence[MessageInfo], close: str, name: str) -> str:
    """For a field of a message around this one."""
    outer = next((info for info in reversed(enclosing[:-1]) if name in info.fields), None)
    return f"; {outer.name} has one: is a '{close}' missing before it?" if outer else ""


# What fields of older LBANN files are called now, by the name of the message.
_FORMERLY: Final = {
    name: {
        "num_output_channels": "it is now out_channels",
        "num_groups": "it is now groups { value: ... }",
        "has_vectors": "it is gone: kernel_size and the others are lists, or one number for all dimensions",
        **{f"conv_{old}{ending}": f"it is now {new}" for old, new in _WINDOW.items() for ending in ("", "_i")},
    }
    for name in ("Convolution", "Deconvolution")
} | {
    "Input": {
        "target_mode": "it is gone: labels and responses are fields of their own; take it out and write data_field",
        "io_buffer": "it is gone: a trainer reads ahead by itself; take it out",
    }
}


def _formerly(info: MessageInfo, name: str) -> str:
    """What an older field, or an operator that was a kind of layer, is written as now."""
    now = _FORMERLY.get(info.name.rpartition(".")[2], {}).get(name)
    if now is not None:
        return f"; {now}"
    operator = f"{''.join(word.capitalize() for word in name.split('_'))}Operator"
    if info.name != "Layer" or message_info(PACKAGE + operator) is None:
        return ""
    return (
        "; it is an operator: write "
        f"operator_layer {{ ops {{ parameters {{ [type.googleapis.com/{PACKAGE}{operator}] {{}} }} }} }}"
    )


def _in_inner_message(info: MessageInfo, seen: Collection[str], name: str) -> str:
    """What to say of a field that messages within this one have, perhaps one that ended too early."""
    inside = [one.name for one in info.fields.values() if not one.repeated and _holds(one, name)]
    if not inside:
        return ""
    ended = next((field for field in inside if field in seen), None)
    if ended is not None:
        return f"; {ended} has one: is there a '}}' too many before it?"
    if inside[1:]:
        return f"; it belongs within one of {', '.join(inside[:6])}{', ...' if inside[6:] else ''}"
    return f"; {inside[0]} has one: write {inside[0]} {{ {name} ... }}"


def _in_part(root: MessageInfo, name: str) -> str:
    """What to say of a field that another part of the whole has."""
    inside = [field.name for field in root.fields.values() if _holds(field, name)]
    return f"; {inside[0]} has one" if inside else ""


def _holds(field: FieldInfo, name: str) -> bool:
    return field.kind == "message" and not field.wrapped and name in field.message.fields


def _known(info: MessageInfo) -> str:
    names = list(info.fields)
    if not names:
        return "; it has no fields"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"; its fields are {shown}"
