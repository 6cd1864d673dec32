"""How much memory and work the reading of one ONNX file may take: a few bytes of a file can ask for terabytes.

Every array that is made while a file is read is counted before it is made, from the shapes of what it is made of.
"""

from __future__ import annotations

from math import prod

from descend.onnx.values import UnsupportedNode

__all__ = ["MAX_ENTRIES", "Budget"]

MAX_ENTRIES = 10**8  # of one array that is computed
_BYTES = 4 * 10**8  # of all of them; with twice as much for intermediates this stays below 1 GB
_OPERATIONS = 2 * 10**9  # some 5 seconds
_LAYERS = 100_000
_LARGEST_SHAPE = 2**48  # entries of a sample that a layer gives; more is beyond any memory


class Budget:
    """Counts what a file asks for, and refuses what is beyond the bounds.

    The bounds grow with the file: of a model with 1 GB of weights, each may be transposed and cast a few times.

    Args:
        file_bytes: Size of the file's own tensors.
        nodes: Number of the file's nodes.
    """

    def __init__(self, file_bytes: int = 0, nodes: int = 0) -> None:
        self.entries = max(MAX_ENTRIES, 2 * file_bytes)
        self.bytes = self.bytes_left = _BYTES + 8 * file_bytes
        self.operations_left = _OPERATIONS + 64 * file_bytes
        self.layers_left = _LAYERS + 100 * nodes

    def array(self, *sizes: int, itemsize: int = 8, operations: int | None = None) -> None:
        """Count an array before it is made.

        Args:
            sizes: Its shape.
            itemsize: Bytes of an entry.
            operations: What it takes to compute, in operations of about a nanosecond; by default one for each entry.

        Raises:
            UnsupportedNode: it is too large, or all arrays together are, or all operations are too many.
        """
        entries = prod(sizes)
        if entries > self.entries:
            raise UnsupportedNode(f"computes a constant of more than {self.entries:,} entries")
        self.bytes_left -= entries * itemsize
        self.operations_left -= entries if operations is None else operations
        if self.bytes_left < 0:
            raise UnsupportedNode(
                f"is one of the nodes that compute constants of more than {self.bytes:,} bytes in all"
            )
        if self.operations_left < 0:
            raise UnsupportedNode("computes constants that take too long: write the file with them computed")

    def layer(self, shape: tuple[int, ...]) -> None:
        """Count a layer.

        Args:
            shape: What it gives for a sample.

        Raises:
            UnsupportedNode: there are too many, or it gives more than any memory holds.
        """
        self.layers_left -= 1
        if self.layers_left < 0:
            raise UnsupportedNode("is one of the nodes that are written out as far more layers than the file has nodes")
        if prod(shape) > _LARGEST_SHAPE:
            raise UnsupportedNode("gives a tensor that no memory holds")
