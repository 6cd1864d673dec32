"""A run of several trainers: each with a run and a folder of its own.

    run_dir/
        experiment.prototext, run.json, log.txt     of the whole
        tournament.jsonl                            exchanges of models: one row for each trainer and exchange
        trainer0/ ...                               a run directory for each: rows, checkpoints

A run that continues goes back to the newest round that every trainer has a checkpoint of.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.callbacks.console import say
from descend.errors import DAMAGED_FILE, ConfigurationError, NumericalError, Stopped, StorageError, exit_code
from descend.experiment.ranks import NoFiles
from descend.experiment.run_store import DirectoryStore, facts_of, logging_to
from descend.experiment.runner import (
    Result,
    TrainerContext,
    begin_or_resume,
    check_exchange,
    finish,
    opened,
    result_of,
    save_stopped,
    saved_after_error,
)
from descend.files import bounded_text
from descend.launch import as_trainer
from descend.lazy import instance_check, registered
from descend.runtime import RunDirectory, SignalHandler, good_checkpoints, read_state, within_trainer
from descend.train.events import announced
from descend.train.optional_classes import is_ltfb
from descend.train.population.exchange import STATE
from descend.train.population.runner import Population, TrainerRun

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from typing_extensions import TypeIs

    from descend.callbacks import LocalTournament
    from descend.experiment.runner import RunOptions
    from descend.launch import TrainerLayout
    from descend.runtime import Communicator
    from descend.train.run import Run
    from descend.train.store import RunStore

__all__ = ["execute_population"]

_is_local_tournament: Callable[[object], TypeIs[LocalTournament]] = instance_check(
    "descend.callbacks.local_tournament", "LocalTournament"
)


def execute_population(
    make: Callable[[TrainerContext], Run], layout: TrainerLayout, world: Communicator, seed: int, options: RunOptions
) -> Result:
    """Carry out a run of several trainers; see `descend.experiment.execution.execute_all`."""
    own, top = within_trainer(world, layout), _TopDirectory(world, options)
    contexts = [TrainerContext(number, own, top.store(number)) for number in layout.of_rank(world.rank)]
    with ExitStack() as stack:
        signals = stack.enter_context(SignalHandler())
        runs: list[Run] = []
        for context in contexts:
            with as_trainer(context.number, layout.trainers):
                runs.append(make(context))
        _check(runs, world)
        stack.enter_context(top.opened(runs[0].name))
        for context, run in zip(contexts, runs, strict=True):
            with as_trainer(context.number, layout.trainers):
                stack.enter_context(opened(run, signals))
        lineage = _Lineage(top.files)
        players = [TrainerRun(context.number, run) for context, run in zip(contexts, runs, strict=True)]
        population = Population(players, layout, world, seed, say, lineage.add)
        for run in runs:
            run.control.population = population
        chosen, number = _chosen(population) if options.resume else ({}, 0)
        _begin_all(top.files, players, chosen, seed, layout.trainers)
        lineage.keep(number)
        for run in runs:
            stack.enter_context(run.store.noting_end(run))
        stack.enter_context(top.noting_end())
        reasons = _run_population(population)
    results = [
        replace(result_of(run, reason), trainer=context.number)
        for context, run, reason in zip(contexts, runs, reasons, strict=True)
    ]
    return replace(results[0], trainers=tuple(results))


class _TopDirectory:
    """The directory of the whole, which belongs to rank zero of all.

    Args:
        world: This process among all ranks.
        options: Where the run is kept.

    Attributes:
        files: The directory, on rank zero, once it is open; None elsewhere and where no files are kept.
    """

    def __init__(self, world: Communicator, options: RunOptions) -> None:
        self._world, self._options = world, options
        self._folder = Path()
        self.files: RunDirectory | None = None

    def store(self, trainer: int) -> RunStore:
        """Where one trainer keeps its rows and checkpoints."""
        if not self._options.keep_files:
            return NoFiles()
        return DirectoryStore(lambda: self._folder / f"trainer{trainer}", self._options.working_dir, trainer)

    @contextmanager
    def opened(self, name: str) -> Generator[None]:
        """Within this block the directory is there, and what is printed goes into its log as well."""
        if not self._options.keep_files:
            yield
            return

        def open_it() -> str:
            self.files = RunDirectory(self._options.run_dir, name, resume=self._options.resume)
            return str(self.files.path)

        with ExitStack() as stack:
            self._folder = Path(self._world.on_rank_zero(open_it))
            if self.files is not None:
                stack.callback(self.files.close)
            stack.enter_context(logging_to(self.files))
            yield

    @contextmanager
    def noting_end(self) -> Generator[None]:
        """Leave in the directory how the whole ended."""
        code = 0
        try:
            yield
        except BaseException as error:
            code = exit_code(error)
            raise
        finally:
            if self.files is not None:
                self.files.note_end({"exit_code": code})
                if (write_page := registered("write_after_run")) is not None:
                    write_page(self.files)


def _check(runs: Sequence[Run], world: Communicator) -> None:
    """Refuse trainers of a tournament whose models cannot be exchanged; without one each may have a model of its own.

    Raises:
        ConfigurationError: weights differ between trainers; a table says which. Or a model that was taken over could
            not be changed as it should be.
    """
    for run in runs:
        check_exchange(run)
    forms = [
        {
            name: f"{tuple(tensor.shape)} {tensor.dtype}"
            for name, tensor in (*run.parameters.items(), *run.task.module.named_buffers())
        }
        for run in runs
    ]
    games = [repr(callback) for callback in runs[0].callbacks.all if _is_local_tournament(callback)]
    exchanged = is_ltfb(runs[0].config.algorithm) or bool(games)
    if exchanged and any(form != forms[0] for form in forms):
        raise ConfigurationError("the trainers' models differ in names or shapes of weights; make them equal")
    equal = {**forms[0], "algorithm": repr(runs[0].config.algorithm)} if exchanged else {"algorithm": "no tournament"}
    equal["callbacks LTFB"] = "; ".join(games)
    world.require_equal(equal, "the trainers' models and algorithms")


def _chosen(population: Population) -> tuple[dict[int, Path], int]:
    """The checkpoint from which each trainer of this process continues, and the round that all of them are in.

    Trainers that one process trains one after the other have not all come to a first checkpoint when it is killed: one
    without a checkpoint begins its first round.

    Raises:
        StorageError: a trainer has none of that round.
    """
    players = population.players
    known = population.tell({player.number: _rounds(player.run) for player in players})
    common = min(max((number for _, number in rounds), default=0) for rounds in known.values())
    if lost := [
        trainer for trainer, rounds in known.items() if rounds and all(number != common for _, number in rounds)
    ]:
        raise StorageError(
            f"trainer {lost[0]} has no good checkpoint of round {common}, which is the newest of another trainer; "
            "start over in another directory"
        )
    chosen = {
        player.number: Path(next(path for path, number in known[player.number] if number == common))
        for player in players
        if known[player.number]
    }
    return chosen, common


def _rounds(run: Run) -> list[tuple[str, int]]:
    """The good checkpoints of a trainer, the newest first, with the round that each was taken in."""
    checkpoints = run.store.checkpoints if isinstance(run.store, DirectoryStore) else None
    if checkpoints is None:
        return []
    checkpoints.open()
    found: list[tuple[str, int]] = []
    for checkpoint in good_checkpoints(checkpoints.folder):
        algorithm: dict[str, Any] = read_state(checkpoint)[1].get("parts", {}).get("algorithm", {})
        found.append((str(checkpoint), int(algorithm.get(STATE, {}).get("round", 0))))
    return found


def _begin_all(
    top: RunDirectory | None, players: Sequence[TrainerRun], chosen: dict[int, Path], seed: int, trainers: int
) -> None:
    """Write what the directories begin with, or bring all trainers to where their checkpoints are."""
    first = players[0].run
    for player in players:
        with player.run.store.logging():
            begin_or_resume(player.run, chosen.get(player.number))
    if top is None:
        return
    if chosen and (top.path / "run.json").is_file():
        at = first.state.training
        top.note_restart(at.step, at.epoch, [])
        return
    for name, text in first.config.files.items():
        top.keep_text(name, text)
    top.write_json("run.json", {**facts_of(first), "random_seed": seed, "trainers": trainers})


class _Lineage:
    """The rows of `tournament.jsonl`; without a directory there is none."""

    def __init__(self, files: RunDirectory | None) -> None:
        self._files = files
        self._path = None if files is None else files.path / "tournament.jsonl"
        self._rows: list[dict[str, Any]] = []

    def keep(self, rounds: int) -> None:
        """Keep the rows of so many exchanges; those after it are recorded again."""
        if self._path is not None and rounds and self._path.is_file():
            try:
                rows = [json.loads(line) for line in bounded_text(self._path).splitlines()]
                self._rows = [row for row in rows if row["round"] < rounds]
            except DAMAGED_FILE as error:
                raise StorageError(
                    f"{self._path} cannot be read as the rows of a tournament: {error!r:.200}; put back a copy of "
                    "it, or begin a run in another directory"
                ) from error
        self.add([])

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of an exchange."""
        self._rows += rows
        if self._files is not None:
            self._files.write_text("tournament.jsonl", "".join(f"{json.dumps(row)}\n" for row in self._rows))


def _run_population(population: Population) -> list[str]:
    """Let all trainers train, and finish each; on a signal, save all of them."""
    players, trainers = population.players, population.shares.trainers
    algorithm = players[0].run.config.algorithm

    def for_each(act: Callable[[Run], object]) -> None:
        for player in players:
            with as_trainer(player.number, trainers):
                act(player.run)

    with ExitStack() as stack:
        for player in players:
            stack.enter_context(announced(player.run, partial(as_trainer, player.number, trainers)))
            player.run.checks.begin()
        try:
            reasons = population.play(algorithm) if is_ltfb(algorithm) else population.each(algorithm)
            by_run = {id(player.run): reason for player, reason in zip(players, reasons, strict=True)}

            def end(run: Run) -> None:
                # Where trainers end on ranks of their own, none of them can stop before its end any more.
                with run.stop.deferred() if population.shares.blocks > 1 else nullcontext():
                    by_run[id(run)] = finish(run, by_run[id(run)], algorithm.trains)

            for_each(end)
            reasons = [by_run[id(player.run)] for player in players]
        except Stopped as stopped:
            said: list[str] = []
            reason = stopped
            for_each(lambda run: said.append(save_stopped(run, reason)))
            raise Stopped(f"{stopped}; {said[0]}") from None
        except NumericalError as error:
            lines: list[str] = []
            for_each(lambda run: lines.extend(saved_after_error(run)))
            raise NumericalError([*error.problems, *lines]) from None
    return reasons
