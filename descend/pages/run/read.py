"""What the files of a run directory say, as one value. Nothing here changes a file.

A run may be under way, or may have been killed, and any of its files may be damaged: what cannot be read is left out,
`problems` says so, and the rest is shown. `RunReader` reads a directory again and again, each time what is new in it.
"""

from __future__ import annotations

import copy
import json
import math
import re
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from descend.arguments import shown
from descend.errors import DAMAGED_FILE, ConfigurationError, StorageError
from descend.files import has_file, has_folder, regular_file
from descend.pages.run.metrics import Passes, RunMetrics, is_count, is_number
from descend.pages.run.metrics_file import MetricsFile
from descend.runtime.directory_lock import OWNER
from descend.runtime.json_object import CheckedFields, read_json, without_repeats
from descend.terminal.display import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = [
    "RunFacts",
    "RunGlance",
    "RunReader",
    "RunRecord",
    "facts_from",
    "is_run_directory",
    "read_run",
    "short",
    "stamp",
]

_FILES = ("run.json", "metrics.jsonl")
_HEADER_BYTES = 10_000_000  # the longest header of a file of weights that is read
_LEASE_SECONDS = 60.0  # the clocks of two machines may differ
_LOG_BYTES = 4_000_000  # from the end of log.txt, where warnings are looked for
_MAX_SETTINGS = 2_000
_MAX_TRAINERS = 1_000
_MAX_RANK = 64  # dimensions of a tensor
_SHOWN = 2_000  # characters of a value
_BLOCK = 1 << 20  # bytes that are read while others wait for the same run
_VERSIONS = ("descend", "torch", "python", "platform")
_BY_MODE = ("validation", "train", "test")  # by which runs are compared: validation where it was measured


@dataclass(frozen=True)
class RunFacts:
    """The content of `run.json` that pages show, each value of its kind.

    Attributes:
        exit_code: How it ended; None while it continues and after a kill.
        has_end: Whether its end was written.
        reason: Of its end.
        errors: That ended it.
        save_seconds: Duration of the longest save; 0 where that is not known.
        failed_saves: Checkpoints that could not be saved.
        command: The command line.
        random_seed: Of the run.
        versions: By name of what has them.
        settings: As text.
        monitored: The mode and the metric by which the best epoch is chosen, "" for none.
        is_maximized: Whether its largest value is the best.
        trainers: How many trainers the run says that it has.
        problems: What was left out.
    """

    exit_code: int | None = None
    has_end: bool = False
    reason: str = ""
    errors: tuple[str, ...] = ()
    save_seconds: float = 0.0
    failed_saves: int = 0
    command: tuple[str, ...] = ()
    random_seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    monitored: tuple[str, str] = ("", "")
    is_maximized: bool = False
    trainers: int = 1
    problems: tuple[str, ...] = ()


def short(value: Any) -> str:
    """A number in five digits, anything else as text of one line or several."""
    if isinstance(value, float):
        return f"{value:.5g}"
    return "" if value is None else shortened(str(value), _SHOWN)


def facts_from(found: Any) -> RunFacts:
    """The facts of a run from what its `run.json` has, whatever that is."""
    problems: list[str] = []
    fields = CheckedFields(found, "run.json", problems)
    end, monitored = fields.inner("end"), fields.inner("monitored")
    errors = end.take("error", _is_texts, "a text or a list of texts") or end.take(
        "errors", _is_texts, "a text or a list of texts", ()
    )
    mode, _, name = monitored.take("metric", _is_text, "a text", "").partition("/")
    settings = fields.take("settings", _is_object, "an object", {})
    return RunFacts(
        exit_code=end.take("exit_code", _is_exit_code, "an integer"),
        has_end=isinstance(found, dict) and isinstance(found.get("end"), dict),
        reason=end.take("reason", _is_text, "a text", ""),
        errors=(errors,) if isinstance(errors, str) else tuple(errors),
        save_seconds=end.take("save_seconds", _is_positive_or_0, "a number >= 0", 0.0),
        failed_saves=end.take("failed_saves", is_count, "an integer >= 0", 0),
        command=tuple(fields.take("command", _is_list_of_texts, "a list of texts", ())),
        random_seed=fields.take("random_seed", is_count, "an integer >= 0"),
        versions={name: value for name in _VERSIONS if (value := fields.take(name, _is_text, "a text"))},
        settings=_settings(settings, problems),
        monitored=(mode, name),
        is_maximized=monitored.take("direction", _is_text, "a text") == "max",
        trainers=fields.take("trainers", _is_positive_count, "an integer >= 1", 1),
        problems=tuple(problems),
    )


def _settings(found: Mapping[Any, Any], problems: list[str]) -> dict[str, str]:
    if len(found) > _MAX_SETTINGS:
        problems.append(
            f"run.json: settings has {len(found):,} entries, of which the first {_MAX_SETTINGS:,} are shown"
        )
    return {shortened(str(name), _SHOWN): short(value) for name, value in [*found.items()][:_MAX_SETTINGS]}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_texts(value: object) -> bool:
    return _is_text(value) or _is_list_of_texts(value)


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_exit_code(value: object) -> bool:
    return type(value) is int and abs(value) < 2**31


def _is_positive_count(value: object) -> bool:
    return is_count(value) and value != 0


def _is_positive_or_0(value: object) -> bool:
    return is_number(value) and 0 <= cast("float", value) < math.inf


@dataclass(frozen=True)
class RunRecord:
    """A run directory as it was read.

    Attributes:
        folder: The directory.
        facts: The content of `run.json`.
        metrics: Of each trainer what the rows of its `metrics.jsonl` say; of a run of one trainer, of 0.
        warnings: Lines of `log.txt` that begin with "warning:" and how often each occurs.
        checkpoints: Names of checkpoints.
        has_several: Whether the run has several trainers.
        is_active: Whether a process owns the directory.
        problems: What could not be read and is left out.
    """

    folder: Path
    facts: RunFacts
    metrics: Mapping[int, RunMetrics]
    warnings: Mapping[str, int]
    checkpoints: tuple[str, ...]
    has_several: bool
    is_active: bool
    problems: tuple[str, ...] = ()

    @property
    def trainers(self) -> list[int]:
        """The numbers of the trainers."""
        return list(self.metrics)

    @property
    def status(self) -> str:
        """In a word or two."""
        return _status(self.facts, is_active=self.is_active)

    @property
    def step(self) -> int:
        """Updates made, as far as they were recorded."""
        return max((one.step for one in self.metrics.values()), default=0)

    @property
    def seconds(self) -> float:
        """The number of mini-batches of all passes over samples."""
        return sum(one.seconds for one in self.metrics.values())

    @property
    def restarts(self) -> tuple[int, ...]:
        """Steps at which the run was continued, the last ones."""
        return tuple(step for one in self.metrics.values() for step in one.restarts)

    @property
    def quantities(self) -> list[str]:
        """Names of what was recorded, in the order of the file, those of whole passes over samples first."""
        return _objective_first(one.quantities for one in self.metrics.values())

    def series(self, quantity: str, mode: str | None = None, trainer: int | None = None) -> list[tuple[float, float]]:
        """(step, value) of a quantity, thinned where there are many, in the order of the steps."""
        found = [
            point
            for number, metrics in self.metrics.items()
            for (one, name), series in metrics.series.items()
            if name == quantity and (mode is None or one == mode) and (trainer is None or number == trainer)
            for point in series.points()
        ]
        return found if mode is not None and trainer is not None else sorted(found, key=lambda point: point[0])

    def undrawn(self, quantity: str) -> int:
        """How many values of a quantity have no place on a chart."""
        every = [(name, series) for one in self.metrics.values() for (_, name), series in one.series.items()]
        return sum(series.undrawn for name, series in every if name == quantity)

    @property
    def modes(self) -> list[str]:
        """Modes of rows with an objective, training first."""
        found = dict.fromkeys(mode for one in self.metrics.values() for mode, has in one.modes.items() if has)
        return sorted(found, key=lambda mode: (mode != "train", mode != "validation"))

    @property
    def passes(self) -> dict[str, Passes]:
        """Passes over samples, by mode."""
        found: dict[str, Passes] = {}
        for one in self.metrics.values():
            for mode, passes in one.passes.items():
                total = found.setdefault(mode, Passes())
                total.count += passes.count
                total.seconds += passes.seconds
                total.samples += passes.samples
        return found

    @property
    def weights(self) -> list[tuple[str, tuple[int, ...], str]]:
        """Name, shape and type of each tensor of the newest checkpoint; none where it has none, or there is none.

        Raises:
            StorageError: its file is damaged.
        """
        place = self.folder / f"trainer{self.trainers[0]}" if self.has_several else self.folder
        names = self.checkpoints or tuple(_checkpoints(place))
        if not names:
            return []
        path = place / "checkpoints" / names[-1] / "weights.safetensors"
        try:
            with regular_file(path).open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if length > _HEADER_BYTES:
                    raise ValueError(f"its header has {length:,} bytes, and at most {_HEADER_BYTES:,} are read")
                header = json.loads(file.read(length), object_pairs_hook=without_repeats)
            entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
            return [(str(name), _shape(one["shape"]), str(one["dtype"])) for name, one in entries.items()]
        except FileNotFoundError:
            return []
        except DAMAGED_FILE as error:
            raise StorageError(f"The weights in {path.relative_to(self.folder)} cannot be read: {error}") from error


def _shape(found: Any) -> tuple[int, ...]:
    shape = tuple(found)
    if len(shape) > _MAX_RANK or not all(map(is_count, shape)) or not is_count(math.prod(shape)):
        raise ValueError(f"{shown(found)} is no shape of a tensor")
    return shape


def _status(facts: RunFacts, *, is_active: bool) -> str:
    if is_active:
        return "under way"
    code = facts.exit_code
    if code is None:
        return "ended without saying how, as after a kill"
    return {0: "finished", 75: "stopped on request", 130: "interrupted"}.get(code, f"ended with exit code {code}")


def _objective_first(named: Iterable[Mapping[str, bool]]) -> list[str]:
    found: dict[str, bool] = {}
    for names in named:
        for name, has_objective in names.items():
            found[name] = found.get(name, False) or has_objective
    return sorted(found, key=lambda name: not found[name])


@dataclass(frozen=True)
class RunGlance:
    """A run as the list of all runs shows it.

    Attributes:
        facts: The content of `run.json`.
        status: In a word or two.
        step: Updates made.
        quantities: Names of what was recorded, those of whole passes over samples first.
        last: By quantity, the mode by which runs are compared and its last value.
        versions: By quantity, text that changes with its series.
        is_whole: Whether all rows were read, and not only the first and the last ones.
        problems: What could not be read and is left out.
    """

    facts: RunFacts
    status: str
    step: int
    quantities: tuple[str, ...]
    last: Mapping[str, tuple[str, float]]
    versions: Mapping[str, str]
    is_whole: bool
    problems: tuple[str, ...]


def is_run_directory(folder: Path) -> bool:
    """Whether a directory has the files of a run."""
    return any(has_file(folder / name) for name in _FILES)


def stamp(folder: Path) -> str:
    """Changes whenever the run has written something."""
    places = [folder, *sorted(folder.glob("trainer*"))]
    files = [place / name for place in places for name in (*_FILES, "log.txt", "tournament.jsonl")]
    return "-".join(f"{stat.st_size:x}.{stat.st_mtime_ns:x}" for file in files if (stat := _stat(file)) is not None)


def _stat(file: Path) -> Any:
    try:
        return file.stat()
    except OSError:
        return None


class RunReader:
    """Reads a run directory again and again; of rows, each time those that are new.

    Several threads may use it. They wait for each other for the time of a block, not of a file.

    Args:
        folder: The directory.

    Attributes:
        is_whole: Whether the last reading came to the end of all rows.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._facts: tuple[Any, RunFacts] = None, RunFacts()
        self._files: dict[int, MetricsFile] = {}
        self._has_several = False
        self._generation = 0  # of files of rows, of which one was begun again
        self.is_whole = False

    @property
    def parsed_bytes(self) -> int:
        """Bytes of rows that were read so far."""
        return sum(file.parsed_bytes for file in self._files.values())

    def advance(self, at_most: int = _BLOCK) -> bool:
        """Read at most so many bytes of new rows of each trainer; True once there are none."""
        with self._lock:
            self._open()
            ended = [self._advance(file, at_most) for file in self._files.values()]
            self.is_whole = all(ended)
            return self.is_whole

    def advance_if_near(self, most: int) -> bool:
        """Read all new rows if these have at most so many bytes; whether there are none now."""
        with self._lock:
            self._open()
            if sum(file.unread_bytes for file in self._files.values()) > most:
                self.is_whole = False
                return False
        return self.advance(most)

    def _advance(self, file: MetricsFile, at_most: int) -> bool:
        before = file.metrics
        done = file.advance(at_most)
        self._generation += file.metrics is not before
        return done

    def read(self) -> RunRecord:
        """The run as its files are now.

        Raises:
            ConfigurationError: the directory has none of the files of a run.
        """
        if not is_run_directory(self.folder):
            what = "has no run.json and no metrics.jsonl" if has_folder(self.folder) else "is not a directory"
            raise ConfigurationError(f"{self.folder} {what}: name the directory of a run, which the run printed")
        while not self.advance():
            pass
        with self._lock:
            facts, is_active = self._facts[1], self._is_active()
            warnings, unreadable = _warnings(self.folder / "log.txt")
            metrics = {number: copy.deepcopy(file.metrics) for number, file in self._files.items()}
            return RunRecord(
                self.folder,
                facts,
                metrics,
                warnings,
                tuple(_checkpoints(self.folder)),
                self._has_several,
                is_active,
                (*self._problems(), *unreadable, *([] if is_active else self._cut_off())),
            )

    def glance(self) -> RunGlance:
        """The run for the list of all, from the first and last rows where not all were read."""
        with self._lock:
            self._open()
            found = [file.glance() for file in self._files.values()]
            metrics = [one for one, _ in found]
            names = _objective_first(one.quantities for one in metrics)
            last = {name: value for name in names if (value := _last(metrics, name)) is not None}
            versions = {name: f"{self._generation} {_count(metrics, name)}" for name in names}
            return RunGlance(
                self._facts[1],
                _status(self._facts[1], is_active=self._is_active()),
                max((one.step for one in metrics), default=0),
                tuple(names),
                last,
                versions,
                all(whole for _, whole in found),
                tuple(self._problems()),
            )

    def points(self, quantity: str, most: int) -> list[tuple[float, float]]:
        """(step, value) of a quantity in the mode by which runs are compared, of the rows that were read."""
        with self._lock:
            metrics = [file.metrics for file in self._files.values()]
            mode = _compared_mode(metrics, quantity)
            found = [one.series[mode, quantity].points(most) for one in metrics if (mode, quantity) in one.series]
        return found[0] if len(found) == 1 else sorted((point for one in found for point in one), key=lambda at: at[0])

    def _open(self) -> None:
        """Read `run.json` if it is another one, and find the files of rows."""
        found = _stat(self.folder / "run.json")
        identity = found and (found.st_ino, found.st_size, found.st_mtime_ns)
        if identity is None or identity != self._facts[0]:
            self._facts = identity, _read_facts(self.folder / "run.json")
        claimed = self._facts[1].trainers
        numbers = _trainers(self.folder, claimed) if claimed > 1 else []
        self._has_several = bool(numbers)
        paths = {number: self.folder / f"trainer{number}" / "metrics.jsonl" for number in numbers}
        for number, path in (paths or {0: self.folder / "metrics.jsonl"}).items():
            if number not in self._files or self._files[number].path != path:
                self._files[number] = MetricsFile(path)
        for number in [number for number in self._files if number not in (paths or {0: None})]:
            del self._files[number]

    def _is_active(self) -> bool:
        return not self._facts[1].has_end and _is_owned(self.folder / OWNER)

    def _problems(self) -> list[str]:
        facts = self._facts[1]
        found = [*facts.problems]
        if facts.trainers > 1 and len(self._files) != facts.trainers:
            there = len(self._files) if self._has_several else 0
            found.append(f"run.json: trainers is {facts.trainers:,}, and {there:,} of their folders are there")
        return [*found, *(f"{self._name(file)}: {one}" for file in self._files.values() for one in file.problems)]

    def _cut_off(self) -> list[str]:
        said = "the last line has no end and is left out: it was cut off by a kill, or another process writes it"
        return [f"{self._name(file)}: {said}" for file in self._files.values() if file.is_cut_off]

    def _name(self, file: MetricsFile) -> str:
        return str(file.path.relative_to(self.folder))


def read_run(folder: Path) -> RunRecord:
    """Read a run directory.

    Raises:
        ConfigurationError: it has none of the files of a run.
    """
    return RunReader(folder).read()


def _compared_mode(metrics: Iterable[RunMetrics], quantity: str) -> str:
    known = {mode for one in metrics for mode, name in one.series if name == quantity}
    return next((mode for mode in _BY_MODE if mode in known), "")


def _last(metrics: Iterable[RunMetrics], quantity: str) -> tuple[str, float] | None:
    mode = _compared_mode(metrics := list(metrics), quantity)
    values = [one.series[mode, quantity].last for one in metrics if (mode, quantity) in one.series]
    return (mode, values[-1]) if values else None


def _count(metrics: Iterable[RunMetrics], quantity: str) -> int:
    """Rows with a quantity in the mode by which runs are compared."""
    mode = _compared_mode(metrics := list(metrics), quantity)
    return sum(one.series[mode, quantity].count for one in metrics if (mode, quantity) in one.series)


def _trainers(folder: Path, claimed: int) -> list[int]:
    """Numbers of the trainers that have a folder; a run says how many there are, which folders must show."""
    found = [re.fullmatch(r"trainer(0|[1-9]\d{0,8})", path.name, re.ASCII) for path in folder.glob("trainer*")]
    numbers = sorted(number for match in found if match and (number := int(match[1])) < claimed)
    return numbers[:_MAX_TRAINERS]


def _is_owned(owner: Path) -> bool:
    """Whether a process has touched the file lately, which it does every second."""
    found = _stat(owner)
    return found is not None and time.time() - found.st_mtime < _LEASE_SECONDS


def _checkpoints(folder: Path) -> list[str]:
    """Names of checkpoints that are there, the newest last."""
    found = [path.name for path in (folder / "checkpoints").glob("step-*") if has_folder(path)]
    return sorted(found, key=lambda name: int(re.sub(r"\D", "", name) or 0))


def _read_facts(path: Path) -> RunFacts:
    try:
        return facts_from(read_json(path))
    except FileNotFoundError:
        return RunFacts(problems=("run.json is missing",))
    except StorageError as error:
        said = str(error).replace(str(path), "run.json", 1)
        return RunFacts(problems=(said,))


def _warnings(path: Path) -> tuple[dict[str, int], list[str]]:
    """Warnings in a log, and why it cannot be read."""
    try:
        with regular_file(path).open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return {}, []
    except OSError as error:
        return {}, [f"{path.name} cannot be read: {error.strerror or error}"]
    counts: dict[str, int] = {}
    for line in text.splitlines():
        if line.startswith("warning: "):
            said = line.removeprefix("warning: ")[:1000]
            counts[said] = counts.get(said, 0) + 1
    return counts, []
