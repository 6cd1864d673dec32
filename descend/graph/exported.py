"""What descriptions give to programs that handle Protobuf messages themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = ["Exported"]


class Exported:
    """A description that LBANN's programs ask for its message.

    Attributes:
        envelope: The message that holds this one among others of its sort, such as "Layer"; None where it stands alone.
    """

    message: ClassVar[Any]
    envelope: ClassVar[str | None] = None

    def export_proto(self) -> Message:
        """The Protobuf message of this description, in its envelope if it has one.

        Raises:
            ConfigurationError: a field holds what its message cannot.
        """
        from descend.graph import text  # which alone knows Protobuf

        return text.to_message(self, self.envelope)
