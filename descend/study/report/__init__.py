"""The report of a study: one HTML file without a single outside request, and its tables as Markdown and CSV."""

from descend.study.report.write import write

__all__ = ["write"]
