"""RoBERTa."""

from descend.zoo.language import RoBERTa

__all__ = ["RoBERTa"]
