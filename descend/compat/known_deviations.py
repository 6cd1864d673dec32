"""What another library does and `from_library` does not: defects, each with its reason.

A row stands for a kind: a library, an optimizer, and the defect in a few of the words that describe it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NOT_COPIED", "KnownDeviation"]


@dataclass(frozen=True)
class KnownDeviation:
    """One defect that is not copied.

    Attributes:
        library: As `from_library` names it.
        optimizer: The library's name, in lower case.
        defect: What is wrong there; every word of `words` occurs in descriptions of it.
        words: By which a description of the defect is known; none where the whole optimizer is meant.
        instead: What ours does, and why.
    """

    library: str
    optimizer: str
    defect: str
    words: tuple[str, ...]
    instead: str

    def covers(self, library: str, optimizer: str, description: str) -> bool:
        """Whether a described defect of an optimizer is this one; an empty description describes none."""
        same = (library, optimizer.lower()) == (self.library, self.optimizer)
        described = bool(description) or not self.words
        return same and described and all(word in description.lower() for word in self.words)

    @property
    def row(self) -> str:
        """This defect as a row of the table in the documentation."""
        return f"| {self.library} | {self.optimizer} | {self.defect} | {self.instead} |"


_ONE_PRODUCT = (
    "one product of the momentum schedule for all tensors, multiplied once a tensor",
    ("product",),
    "A product for each tensor, as published: a step must not depend on the number or order of tensors.",
)

NOT_COPIED: tuple[KnownDeviation, ...] = (
    KnownDeviation("mxnet-1.9", "nadam", *_ONE_PRODUCT),
    KnownDeviation("mxnet-2.0", "nadam", *_ONE_PRODUCT),
    KnownDeviation(
        "mxnet-1.9",
        "nag",
        "the decay kept in the momentum uses the weight just written",
        ("weight decay", "momentum"),
        "The old weight, as published and as in 2.0.",
    ),
    KnownDeviation(
        "mxnet-1.9",
        "lars",
        "momentum correction reaches only the first group of tensors after a change of the rate",
        ("momentum correction",),
        "All tensors are corrected: which ones are first is an accident of how updates are batched.",
    ),
    KnownDeviation(
        "mxnet-1.9",
        "lbsgd",
        "with a schedule, the first tensor uses the rate of the step before",
        ("learning rate", "first tensor"),
        "All tensors use the rate of their step.",
    ),
    KnownDeviation(
        "mxnet-1.9",
        "lbsgd",
        "a gradient array that is used again makes the first big batch twice its last part",
        ("alias",),
        "Every big batch is the mean of its parts.",
    ),
    KnownDeviation(
        "mxnet-2.0",
        "lamb",
        "with aggregate_num=1 the update count advances twice a step",
        ("count", "twice"),
        "Counts advance once: the bias correction is for the update that is made.",
    ),
    KnownDeviation(
        "mxnet-2.0",
        "lans",
        "a gradient of zeros gives NaN",
        ("nan",),
        "A gradient of zeros has no direction, so the normalised gradient is zero.",
    ),
    KnownDeviation(
        "mxnet-1.9",
        "adamax",
        "a first gradient of zero gives NaN",
        ("nan",),
        "An entry whose gradients were all zero does not move.",
    ),
    KnownDeviation(
        "pytorch_optimizer",
        "lamb",
        "v is not corrected, the ratio is of the uncorrected direction, the weights' norm is limited to 10",
        (),
        "Refused: it is not a published rule; its first step is about 10 times too long.",
    ),
)
