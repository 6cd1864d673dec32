"""The page of a run: `report.html` in its directory, written from the directory's own files."""

from descend.pages.run.write import write_run_page

__all__ = ["write_run_page"]
