"""Kinds of the format that are read and written and cannot be had; each says why and what to use."""

from __future__ import annotations

from typing import ClassVar

from descend.graph.layer import Layer

__all__ = ["CategoricalRandom", "DiscreteRandom", "External", "Unpooling"]


class CategoricalRandom(Layer):
    """Obsolete in LBANN: a one-hot vector of an index drawn from a vector of probabilities."""

    message: ClassVar[str] = "Layer.CategoricalRandom"
    refusal: ClassVar[str | None] = "is obsolete in LBANN; compare a Uniform with cumulated probabilities instead"


class DiscreteRandom(Layer):
    """Obsolete in LBANN: one of `values`, drawn by a vector of probabilities."""

    message: ClassVar[str] = "Layer.DiscreteRandom"
    refusal: ClassVar[str | None] = "is obsolete in LBANN; compare a Uniform with cumulated probabilities instead"

    values: tuple[float, ...] = ()
    dims: tuple[int, ...] = ()


class External(Layer):
    """A layer from a shared library."""

    message: ClassVar[str] = "Layer.External"
    num_parents: ClassVar[int | None] = None
    refusal: ClassVar[str | None] = (
        "runs code from a shared library, and loading a description never runs code; write it as a kind of its own"
    )

    filename: str = ""
    layer_name: str = ""


class Unpooling(Layer):
    """Inverse of the max pooling that hint_layer names."""

    message: ClassVar[str] = "Layer.Unpooling"
    refusal: ClassVar[str | None] = "is broken in LBANN, so no result could be right; use Upsample or Deconvolution"

    num_dims: int = 0
