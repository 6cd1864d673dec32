"""Loggers: what a run measures, in a file or in a tracking tool. All are one protocol of three methods.

    begin(run)                what the run is; called once, before the first step
    log(values, step)         numbers by name, of the moment after `step` updates
    end(reason, complete)     why the run ended

`Logger` calls them; a tool of your own is a subclass with these three. The numbers are the rows of the history under
the names "train/objective", "validation/accuracy" and so on, those that other callbacks record included, and with
`every_steps` the objective of single mini-batches. Of several ranks, rank zero logs.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, cast

from descend.arguments import check_instance, check_integer, check_path, check_string, require, shown
from descend.callbacks.name_fields import require_extra
from descend.callbacks.tensorboard import close_writer, missing_tensorboard, open_writer
from descend.errors import ConfigurationError, DescendError, StorageError, missing_library, warn
from descend.files import regular_file
from descend.terminal.display import printable
from descend.train import Callback
from descend.train.callback import Beginning
from descend.train.param_groups import group_learning_rates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from descend.train import EpochView, EvaluationView, RunView, StepView

__all__ = ["CSVLogger", "Logger", "MLflowLogger", "TensorBoardLogger", "WandbLogger"]

_PLACE = ("mode", "epoch", "step", "samples")  # of a row; all else that is a number was measured
_SHOWN = 500  # characters of a setting in a tracking tool; MLflow's limit is 6,000


@dataclass
class Logger(Callback):
    """The base class of loggers: override `begin`, `log` and `end`.

    An error that a tool raises in `log` or `end` is a warning, once, and training continues; one in `begin`, any of
    `descend.errors` and a method that a subclass does not define end the run.

    Runs:  after_setup, before_run, after_step, around evaluations and epochs, after_training, after_run.
    Reads: the rows of the history, the objective and the learning rates. Changes nothing.
    Costs: a wait for the device every `every_steps` steps; else nothing within an epoch.

    Args:
        every_steps: Steps between two values of `train/step_objective`, with the learning rates; 0 logs none.

    Raises:
        ConfigurationError: a setting is wrong.
        MissingExtra: at the start, where the tool's library is missing.
    """

    every_steps: int = field(default=0, kw_only=True)
    _rows: int = field(default=0, init=False, repr=False, compare=False)  # of the history that are logged
    _logs: bool = field(default=False, init=False, repr=False, compare=False)
    _complete: bool = field(default=False, init=False, repr=False, compare=False)
    _warned: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(check_integer("every_steps", self.every_steps, 0), where=type(self).__name__)

    @property
    def beginning(self) -> Beginning | None:
        """See `Callback.beginning`; rows of epochs are logged in any case."""
        return Beginning(f"every_steps={self.every_steps}", "updates", self.every_steps) if self.every_steps else None

    # ---- the protocol

    def begin(self, run: RunView) -> None:
        """The run begins, or continues where `run.step` is not 0."""
        raise NotImplementedError(f"{type(self).__name__} defines no begin()")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Numbers by name after `step` updates; a step may come several times, with other names."""
        raise NotImplementedError(f"{type(self).__name__} defines no log()")

    def end(self, reason: str, complete: bool) -> None:
        """The run has ended; `complete` is False after an error or a signal."""
        raise NotImplementedError(f"{type(self).__name__} defines no end()")

    # ---- where it is called

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self._logs = self._complete = self._warned = False
        require_extra(self)

    def before_run(self, run: RunView) -> None:
        """See `Callback.before_run`."""
        self._rows = len(run.history)
        if run.control.collectives.is_rank_zero:
            self._begin(run)
            self._logs = True

    def _begin(self, run: RunView) -> None:
        """Begin, with errors of a tracking tool, such as a server that cannot be reached, in our words."""
        try:
            self.begin(run)
        except (DescendError, OSError):
            raise
        except Exception as error:  # a library of others, each with errors of its own
            if type(self).begin.__module__ != __name__:
                raise  # a logger of one's own, whose author wants to see where
            reason = next(iter(str(error).splitlines()), "")
            raise ConfigurationError(
                f"{type(self).__name__} cannot begin: {type(error).__name__}: {reason[:_SHOWN]}; correct its settings "
                "or leave it out"
            ) from error

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if self._logs and self.every_steps and step.step % self.every_steps == 0:
            self._log({"train/step_objective": step.loss, **group_learning_rates(step.optimizer)}, step.step)

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        self._rows = min(self._rows, len(epoch.run.history))  # rows of an interrupted epoch are written again

    def before_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.before_evaluation`."""
        self._log_rows(evaluation.run)

    def after_evaluation(self, evaluation: EvaluationView) -> None:
        """See `Callback.after_evaluation`."""
        self._log_rows(evaluation.run)

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        self._log_rows(epoch.run)

    def after_training(self, run: RunView) -> None:
        """See `Callback.after_training`."""
        self._log_rows(run)
        self._complete = True

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        if not self._logs:
            return
        self._log_rows(run)
        self._logs = False
        self._guarded(lambda: self.end(run.reason or "", self._complete))

    def _log_rows(self, run: RunView) -> None:
        """Log the rows that are new since the last time."""
        self._rows = min(self._rows, len(run.history))
        rows = run.history[self._rows :]
        self._rows = len(run.history)
        if self._logs:
            for row in rows:
                self._log(_measured(row), row["step"])

    def _log(self, values: Mapping[str, float], step: int) -> None:
        self._guarded(lambda: self.log(values, step))

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except (DescendError, NotImplementedError):  # a mistake of the user's, which a warning would hide
            raise
        except Exception as error:  # a tracking tool that is out of reach must not end hours of training
            if not self._warned:
                self._warned = True
                problem = f"{type(error).__name__}: {error}"
                warn(f"{type(self).__name__} could not log, training continues: {problem}")


def _measured(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row by the names that loggers give them."""
    numbers = {name: value for name, value in row.items() if name not in _PLACE and isinstance(value, Real)}
    rated = {
        name if name.partition("/")[0] == "learning_rate" else f"{row['mode']}/{name}": float(value)
        for name, value in numbers.items()
    }
    return {"epoch": row["epoch"], **rated}


def _plain_settings(run: RunView) -> dict[str, str | float | bool | None]:
    """The settings of a run as tracking tools take them: numbers as they are, all else as text."""

    def plain(value: Any) -> Any:
        return value if value is None or isinstance(value, (str, int, float)) else repr(value)

    return {
        name: value[:_SHOWN] if isinstance(value := plain(given), str) else value
        for name, given in run.settings.items()
    }


@dataclass
class CSVLogger(Logger):
    """Writes a table: a line for each step at which something was measured, a column for each name.

    Columns are `step`, `epoch`, and names as they first appear; what was not measured at a step is empty. A run that
    continues from a checkpoint takes back the lines of later steps. Numbers have all their digits.

    Runs:  as Logger.
    Reads: as Logger. Changes nothing.
    Costs: as Logger; all lines are written again where a new column appears.

    Args:
        path: The file; a relative name is within the run directory.
        every_steps: As for `Logger`.

    Raises:
        ConfigurationError: `path` is not a name of a file.
        StorageError: there is a file that is not such a table, or it cannot be written.
    """

    path: str = "metrics.csv"
    _file: Any = field(default=None, init=False, repr=False, compare=False)
    _columns: list[str] = field(default_factory=list[str], init=False, repr=False, compare=False)
    _line: dict[str, Any] = field(default_factory=dict[str, Any], init=False, repr=False, compare=False)
    _line_at: int = field(default=0, init=False, repr=False, compare=False)  # where the last line begins, in bytes

    def __post_init__(self) -> None:
        super().__post_init__()
        require(check_path("path", self.path), where="CSVLogger")

    def begin(self, run: RunView) -> None:
        """See `Logger.begin`."""
        self._find = lambda: run.control.path(str(self.path))
        self._place = self._find()
        lines = _lines_of(self._place)
        self._columns = list(lines[0]) if lines and run.step else ["step", "epoch"]
        self._write_all([line for line in lines if int(line["step"]) <= run.step] if run.step else [])

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See `Logger.log`."""
        if self._line.get("step") != str(step):
            self._line, self._line_at = {"step": str(step)}, self._file.seek(0, io.SEEK_END)
        self._line.update({printable(name): repr(value) for name, value in values.items()})
        if new := [name for name in self._line if name not in self._columns]:
            self._file.truncate(self._line_at)
            self._file.flush()
            self._place = self._find()  # an error where the directory is no longer that of the run
            lines = _lines_of(self._place)
            self._columns += new
            self._write_all([*lines, self._line])
            return
        self._file.seek(self._line_at)
        self._file.truncate()
        self._file.write(_csv_line([self._line.get(name, "") for name in self._columns]))
        self._file.flush()

    def end(self, reason: str, complete: bool) -> None:
        """See `Logger.end`."""
        self._file.close()

    def _write_all(self, lines: list[dict[str, Any]]) -> None:
        """Rewrite the table; the last of the lines may still grow."""
        from descend.runtime import write_beside

        if self._file is not None:
            self._file.close()
        rows = [_csv_line(self._columns)]
        rows += [_csv_line([line.get(name, "") for name in self._columns]) for line in lines]
        write_beside(self._place, b"".join(rows))
        self._line, self._line_at = dict(lines[-1]) if lines else {}, sum(map(len, rows[:-1]))
        self._file = self._place.open("r+b")


def _csv_line(cells: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


def _lines_of(path: Path) -> list[dict[str, str]]:
    """The lines of a table that `CSVLogger` wrote; none where there is no file, and a line cut short left out.

    Raises:
        StorageError: it is not such a table.
    """
    try:
        text = regular_file(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"CSVLogger: {path} cannot be read ({error}); move it away") from None
    whole = text[: text.rfind("\n") + 1]
    try:
        head, *rows = list(csv.reader(io.StringIO(whole), strict=True)) or [[]]
    except csv.Error:
        head, rows = [], []
    if text and (head[:2] != ["step", "epoch"] or any(len(row) != len(head) or not row[0].isdecimal() for row in rows)):
        raise StorageError(
            f"CSVLogger: {path} is not a table that it wrote, whose first columns are step and epoch; move the file "
            "away, or pass another path="
        )
    return [dict(zip(head, row, strict=True)) for row in rows]


@dataclass
class TensorBoardLogger(Logger):
    """Writes scalars for TensorBoard into `tensorboard/` of the run directory. `Summary` adds histograms.

    A run that continues from a checkpoint takes back what was written of later steps.

    Runs:  as Logger.
    Reads: as Logger. Changes nothing.
    Costs: as Logger.

    Args:
        every_steps: As for `Logger`.

    Raises:
        MissingExtra: at the start, without TensorBoard.
    """

    _writer: Any = field(default=None, init=False, repr=False, compare=False)
    _run: Any = field(default=None, init=False, repr=False, compare=False)

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        return missing_tensorboard(self)

    def begin(self, run: RunView) -> None:
        """See `Logger.begin`."""
        self._writer, self._run = open_writer(run), run

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See `Logger.log`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def state(self) -> dict[str, Any]:
        """See `Callback.state`: what was logged before a checkpoint is in the file before it."""
        if self._logs:
            self._writer.flush()
        return super().state()

    def end(self, reason: str, complete: bool) -> None:
        """See `Logger.end`."""
        close_writer(self._run, self._writer)
        self._writer = self._run = None


@dataclass
class MLflowLogger(Logger):
    """Logs to an MLflow server or database: settings as parameters, numbers as metrics.

    A run that is resumed from a checkpoint continues the same run of MLflow. What a killed process had logged after its
    checkpoint stays there, since MLflow cannot take metrics back; those steps then have two values.

    Runs:  as Logger.
    Reads: as Logger, and the settings of the run. Changes nothing.
    Costs: a request a call of `log`.

    Args:
        experiment: Name of MLflow's experiment; it is made where it does not exist.
        tracking_uri: The server, or a database such as "sqlite:///mlflow.db"; None is MLflow's own, by
            `MLFLOW_TRACKING_URI`.
        run_name: Shown by MLflow; None is the model's name.
        tags: Texts by name.
        every_steps: As for `Logger`.

    Raises:
        ConfigurationError: a setting is wrong.
        MissingExtra: at the start, without MLflow.
    """

    remembers: ClassVar[tuple[str, ...]] = ("run_id",)

    experiment: str = "descend"
    tracking_uri: str | None = None
    run_name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    run_id: str | None = field(default=None, init=False, compare=False)
    _client: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            check_string("experiment", self.experiment, empty=False, one_line=True),
            check_string("tracking_uri", self.tracking_uri, empty=False, also=(None,)),
            check_string("run_name", self.run_name, empty=False, one_line=True, also=(None,)),
            check_instance("tags", self.tags, Mapping, "a dict"),
            where="MLflowLogger",
        )

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        return None if find_spec("mlflow") else missing_library("MLflowLogger", "mlflow")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        super().after_setup(run)
        self.run_id = None

    def begin(self, run: RunView) -> None:
        """See `Logger.begin`."""
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]  # an extra

        self._client = client = cast("Any", MlflowClient)(tracking_uri=self.tracking_uri)
        if self.run_id is not None:
            client.update_run(self.run_id, status="RUNNING")
            return
        known = client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known else client.create_experiment(self.experiment)
        made = client.create_run(number, tags=dict(self.tags), run_name=self.run_name or run.name or None)
        self.run_id = made.info.run_id
        for name, value in _plain_settings(run).items():
            client.log_param(self.run_id, _mlflow_name(name), value)

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See `Logger.log`."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]  # an extra

        now = int(time.time() * 1000)
        metrics = [cast("Any", Metric)(_mlflow_name(name), float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def end(self, reason: str, complete: bool) -> None:
        """See `Logger.end`."""
        self._client.set_tag(self.run_id, "descend.reason", reason[:_SHOWN])
        self._client.set_terminated(self.run_id, status="FINISHED" if complete else "FAILED")


def _mlflow_name(name: str) -> str:
    """A name with those characters alone that MLflow takes."""
    return "".join(one if one.isalnum() or one in "_-./ :" else "_" for one in name)


@dataclass
class WandbLogger(Logger):
    """Logs to Weights & Biases: settings as config, numbers over `step`.

    A run that is resumed from a checkpoint continues the same run there. What a killed process had logged after its
    checkpoint stays, so those steps then have two values.

    Runs:  as Logger.
    Reads: as Logger, and the settings of the run. Changes nothing.
    Costs: as wandb's, which sends from a process of its own.

    Args:
        project: Name of the project; None is wandb's own.
        run_name: Shown by wandb; None lets wandb choose.
        mode: "online", "offline" or "disabled"; None is wandb's own, by `WANDB_MODE`.
        directory: Where wandb keeps its files; None is the run directory.
        options: Further arguments of `wandb.init`, such as `{"group": "sweep", "tags": ["a"]}`.
        every_steps: As for `Logger`.

    Raises:
        ConfigurationError: a setting is wrong.
        MissingExtra: at the start, without wandb.
    """

    remembers: ClassVar[tuple[str, ...]] = ("run_id",)

    project: str | None = None
    run_name: str | None = None
    mode: str | None = None
    directory: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    run_id: str | None = field(default=None, init=False, compare=False)
    _wandb: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            check_string("project", self.project, empty=False, one_line=True, also=(None,)),
            check_string("run_name", self.run_name, empty=False, one_line=True, also=(None,)),
            None if self.mode in _WANDB_MODES else f"mode must be one of {_WANDB_MODES}, got {shown(self.mode)}",
            check_path("directory", self.directory, also=(None,)),
            check_instance("options", self.options, Mapping, "a dict"),
            where="WandbLogger",
        )

    def missing_extra(self) -> str | None:
        """See `Callback.missing_extra`."""
        return None if find_spec("wandb") else missing_library("WandbLogger", "wandb")

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        super().after_setup(run)
        self.run_id = None

    def begin(self, run: RunView) -> None:
        """See `Logger.begin`."""
        import wandb  # pyright: ignore[reportMissingImports]  # an extra

        own = {"project": self.project, "name": self.run_name, "id": self.run_id, "config": _plain_settings(run)}
        if both := [name for name in self.options if name in (*own, "mode", "dir", "resume")]:
            raise ConfigurationError(f"WandbLogger: '{both[0]}' of options is set by the logger itself; leave it out")
        place = self.directory or str(run.control.path("wandb").parent)
        more = {"reinit": "create_new", **self.options}
        self._wandb = cast("Any", wandb).init(**own, mode=self.mode, dir=place, resume="allow", **more)
        self.run_id = self._wandb.id
        self._wandb.define_metric("step")
        self._wandb.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        """See `Logger.log`."""
        self._wandb.log({"step": step, **values})

    def end(self, reason: str, complete: bool) -> None:
        """See `Logger.end`."""
        self._wandb.summary["reason"] = reason[:_SHOWN]
        self._wandb.finish(exit_code=0 if complete else 1)


_WANDB_MODES = (None, "online", "offline", "disabled")
