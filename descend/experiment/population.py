"""A run of several trainers: each a session of its own with a folder of its own, and what holds them together.

    run_dir/
        experiment.prototext, run.json, log.txt     of the whole
        tournament.jsonl                            who took whose model: one row for each trainer and exchange
        trainer0/ ...                               a run directory for each: rows, checkpoints

A run that continues goes back to the newest round that every trainer has a checkpoint of.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from descend.callbacks.console import say
from descend.errors import ConfigurationError, NumericalError, Stopped, StorageError
from descend.exit_codes import exit_code
from descend.experiment.runner import (
    Opened,
    Result,
    Work,
    check_exchange,
    facts_of,
    finish,
    logging,
    open_run,
    result_of,
    save_stopped,
    saved_after_error,
)
from descend.launch import as_trainer, layout_trainers
from descend.runtime import (
    RunDirectory,
    SignalHandler,
    good_checkpoints,
    read_state,
    seed_of,
    within_trainer,
    write_beside,
)
from descend.runtime.seeds import forked_rng
from descend.train import LTFB, Mode
from descend.train.population.exchange import STATE
from descend.train.population.runner import Population, TrainerRun

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Generator, Sequence

    from descend.launch import TrainerLayout
    from descend.runtime import Communicator

__all__ = ["TrainerContext", "assign_ranks", "execute_population", "stored_trainers", "trainer_seed"]


@dataclass(frozen=True)
class TrainerContext:
    """The place of one trainer.

    Attributes:
        number: Its number.
        process: This process among the ranks of the trainer.
    """

    number: int
    process: Communicator


def trainer_seed(seed: int, number: int) -> int:
    """The seed of a trainer: the first one has that of the run, so that a single trainer is the run itself."""
    return seed_of(seed, "trainer", number) % 2**31 if number else seed


def stored_trainers(run_dir: str | os.PathLike[str] | None) -> int | None:
    """How many trainers the run in a directory has; None where that is not known."""
    path = None if run_dir is None else Path(run_dir) / "run.json"
    try:
        return json.loads(path.read_text()).get("trainers", 1) if path is not None else None
    except (OSError, ValueError, AttributeError):
        return None


def assign_ranks(
    world: Communicator, trainers: int | None, procs_per_trainer: int | None, continued: str | os.PathLike[str] | None
) -> TrainerLayout:
    """Share trainers out among all ranks.

    Args:
        world: This process among all ranks.
        trainers: How many; None for those of the run that is continued, or one a block.
        procs_per_trainer: Ranks of a block.
        continued: The directory of the run that is continued.

    Raises:
        ConfigurationError: the numbers do not fit together, or the run in the directory has other trainers.
    """
    known = world.on_rank_zero(lambda: stored_trainers(continued))
    several = known if known and known > 1 else None
    shares = layout_trainers(world.world_size, several if trainers is None else trainers, procs_per_trainer)
    if known not in (None, shares.trainers):
        raise ConfigurationError(
            f"the run in {continued} has {known} trainer{'s' * (known != 1)} and is to be continued with "
            f"{shares.trainers}; nothing was changed. Continue it with trainers={known} (--trainers {known}), or begin "
            "in another directory"
        )
    return shares


def execute_population(
    make: Callable[[TrainerContext], Work],
    shares: TrainerLayout,
    world: Communicator,
    seed: int,
    run_dir: str | os.PathLike[str] | None,
    *,
    keep_files: bool = True,
    resume: bool = False,
) -> Result:
    """Carry out a run of several trainers.

    Args:
        make: Makes the run of one trainer; called for those of this process, in order.
        shares: Which ranks work for which trainers.
        world: This process among all ranks.
        seed: Of the whole.
        run_dir: As in `conduct`.
        keep_files: As in `conduct`.
        resume: As in `conduct`.

    Returns:
        What came of the first trainer of this process; `trainers` has those of all of its trainers.

    Raises:
        As `conduct`.
    """
    own = within_trainer(world, shares)
    seats = [TrainerContext(number, own) for number in shares.of_rank(world.rank)]
    with ExitStack() as stack:
        requests = stack.enter_context(SignalHandler())
        stack.enter_context(forked_rng(world.device))
        works: list[Work] = []
        for seat in seats:
            with as_trainer(seat.number, shares.trainers):
                works.append(make(seat))
        _check(works, world)
        top, folder = _directory(world, works[0], run_dir, resume) if keep_files else (None, None)
        if top is not None:
            stack.callback(top.close)
        stack.enter_context(logging(top))
        opened: list[Opened] = []
        for seat, work in zip(seats, works, strict=True):
            place = None if folder is None else folder / f"trainer{seat.number}"
            with as_trainer(seat.number, shares.trainers):
                one = open_run(work, place, requests, keep_files=keep_files, resume=resume)
                opened.append(stack.enter_context(one))
        lineage = _Lineage(None if top is None else top.path / "tournament.jsonl")
        players = [TrainerRun(seat.number, one.session) for seat, one in zip(seats, opened, strict=True)]
        population = Population(players, shares, world, seed, say, lineage.add)
        chosen, number = _chosen(population, opened) if resume else ({}, 0)
        _begin_all(top, opened, players, chosen, works[0], seed, shares.trainers)
        lineage.keep(number)
        for one in opened:
            stack.enter_context(one.end_noted())
        if top is not None:
            stack.enter_context(_whole_noted(top))
        reasons = _carry_out(population, opened, works[0])
    results = [
        replace(result_of(one, reason), trainer=seat.number)
        for seat, one, reason in zip(seats, opened, reasons, strict=True)
    ]
    return replace(results[0], trainers=tuple(results))


def _check(works: Sequence[Work], world: Communicator) -> None:
    """Refuse trainers whose models cannot be exchanged.

    Raises:
        ConfigurationError: weights differ between trainers; a table says which. Or a model that was taken over could
            not be changed as it should be.
    """
    for work in works:
        check_exchange(work)
    forms = [
        {
            name: f"{tuple(tensor.shape)} {tensor.dtype}"
            for name, tensor in (*work.task.module.named_parameters(), *work.task.module.named_buffers())
        }
        for work in works
    ]
    if any(form != forms[0] for form in forms):
        raise ConfigurationError("the trainers' models differ in names or shapes of weights; make them equal")
    world.require_equal({**forms[0], "algorithm": repr(works[0].algorithm)}, "the trainers' models and algorithms")


def _directory(
    world: Communicator, work: Work, run_dir: str | os.PathLike[str] | None, resume: bool
) -> tuple[RunDirectory | None, Path]:
    """The directory of the whole, which belongs to the first rank of all, and its place."""
    directory: RunDirectory | None = None

    def opened() -> str:
        nonlocal directory
        directory = RunDirectory(run_dir, work.name, resume=resume)
        return str(directory.path)

    folder = Path(world.on_rank_zero(opened))
    return directory, folder


def _chosen(population: Population, opened: Sequence[Opened]) -> tuple[dict[int, Path], int]:
    """The checkpoint from which each trainer of this process goes on, and the round that all of them are in.

    Trainers that one process trains one after the other have not all come to a first checkpoint when it is killed: who
    has none begins its first round.

    Raises:
        StorageError: a trainer has none of that round.
    """
    players = population.players
    own = {player.number: _rounds(one) for player, one in zip(players, opened, strict=True)}
    told = population.tell(own)
    common = min(max((number for _, number in rounds), default=0) for rounds in told.values())
    if lost := [
        trainer for trainer, rounds in told.items() if rounds and all(number != common for _, number in rounds)
    ]:
        raise StorageError(
            f"trainer {lost[0]} has no good checkpoint of round {common}, which is the newest of another trainer; "
            "begin anew in another directory"
        )
    chosen = {
        player.number: Path(next(path for path, number in told[player.number] if number == common))
        for player in players
        if told[player.number]
    }
    return chosen, common


def _rounds(one: Opened) -> list[tuple[str, int]]:
    """The good checkpoints of a trainer, the newest first, with the round that each was taken in."""
    if one.archive is None:
        return []
    one.archive.open()
    found: list[tuple[str, int]] = []
    for checkpoint in good_checkpoints(one.archive.folder):
        algorithm: dict[str, Any] = read_state(checkpoint)[1].get("algorithm", {})
        found.append((str(checkpoint), int(algorithm.get(STATE, {}).get("round", 0))))
    return found


def _begin_all(
    top: RunDirectory | None,
    opened: Sequence[Opened],
    players: Sequence[TrainerRun],
    chosen: dict[int, Path],
    work: Work,
    seed: int,
    trainers: int,
) -> None:
    """Write what the directories begin with, or bring all trainers to where their checkpoints stand."""
    for player, one in zip(players, opened, strict=True):
        one.begin(bool(chosen), chosen.get(player.number))
    if top is None:
        return
    if chosen and (top.path / "run.json").is_file():
        at = opened[0].session.contexts[Mode.TRAIN]
        top.note_restart(at.step, at.epoch, [])
        return
    for name, text in work.files.items():
        top.keep_text(name, text)
    top.write_json("run.json", {**facts_of(work), "random_seed": seed, "trainers": trainers})


class _Lineage:
    """The rows of `tournament.jsonl`; without a path there is none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []

    def keep(self, rounds: int) -> None:
        """Keep the rows of so many exchanges; those after it are made anew."""
        if self._path is not None and rounds and self._path.is_file():
            rows = [json.loads(line) for line in self._path.read_text(encoding="utf-8").splitlines()]
            self._rows = [row for row in rows if row["round"] < rounds]
        self.add([])

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Add the rows of an exchange."""
        self._rows += rows
        if self._path is not None:
            write_beside(self._path, "".join(f"{json.dumps(row)}\n" for row in self._rows))


@contextmanager
def _whole_noted(top: RunDirectory) -> Generator[None]:
    """Leave in the directory of the whole how it ended."""
    code = 0
    try:
        yield
    except BaseException as error:
        code = exit_code(error)
        raise
    finally:
        top.note_end({"exit_code": code})


def _carry_out(population: Population, opened: Sequence[Opened], work: Work) -> list[str]:
    """Let all trainers train, and finish each; on a signal, save all of them."""
    algorithm, trainers = work.algorithm, population.shares.trainers

    def for_each(act: Callable[[Opened], object]) -> None:
        for player, one in zip(population.players, opened, strict=True):
            with as_trainer(player.number, trainers):
                act(one)

    with ExitStack() as stack:
        for player, one in zip(population.players, opened, strict=True):
            stack.enter_context(one.session.announced(partial(as_trainer, player.number, trainers)))
        try:
            reasons = population.play(algorithm) if isinstance(algorithm, LTFB) else population.each(algorithm)
            by_session = dict(zip(map(id, opened), reasons, strict=True))

            def end(one: Opened) -> None:
                # Where trainers end on ranks of their own, none of them can stop before its end any more.
                with one.session.undisturbed() if population.shares.blocks > 1 else nullcontext():
                    finish(one.session, by_session[id(one)], algorithm.trains)

            for_each(end)
        except Stopped as stopped:
            said: list[str] = []
            reason = stopped
            for_each(lambda one: said.append(save_stopped(one.session, reason)))
            raise Stopped(f"{stopped}; {said[0]}") from None
        except NumericalError as error:
            lines: list[str] = []
            for_each(lambda one: lines.extend(saved_after_error(one.session)))
            raise NumericalError([*error.problems, *lines]) from None
    return reasons
