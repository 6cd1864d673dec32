"""RoBERTa."""

from descend.models import RoBERTa

__all__ = ["RoBERTa"]
