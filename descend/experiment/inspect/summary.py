"""The summary printed at the end of a run: its results and its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from descend.terminal.display import printable

if TYPE_CHECKING:
    from descend.experiment.run import Result

__all__ = ["summary"]

_ABOUT = {
    "experiment.prototext": "the run as text; `descend run` repeats it",
    "run.json": "versions, seed, command, how it ended",
    "metrics.jsonl": "one row per epoch and evaluation",
    "log.txt": "everything that was printed",
    "report.html": "charts, tables and settings of the run; opens in a browser",
    "checkpoints.json": "list of checkpoints, with training times",
}


def summary(result: Result) -> str:
    """The reason for stopping, the newest values of each mode, and the files of the run, one per line."""
    lines = [f"training stopped: {result.reason}"]
    if (folder := result.run_dir) is not None:
        lines.append(f"run directory: {folder}")
        for name in sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()):
            lines.append(f"    {name:<48} {_ABOUT.get(name, _about_checkpoint(name))}".rstrip())
    newest = {row["mode"]: row for row in result.history}
    for mode, row in newest.items():
        values = [name for name in row if name not in ("mode", "epoch", "step", "samples", "seconds")]
        lines += [f"{mode} {printable(name)}: {row[name]:.4f}" for name in values]
        if mode == "test":
            lines.insert(1, f"evaluated {row['samples']:,} of {result.samples['test']:,} test samples")
    return "\n".join(lines)


def _about_checkpoint(name: str) -> str:
    if name.endswith("/weights.safetensors"):
        return "all weights by name"
    return "checksums of the checkpoint" if name.endswith("manifest.json") else "state to resume from"
