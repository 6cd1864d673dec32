"""Trials of several phases: pretraining on one kind of samples and then another, and a fine-tuned outcome.

    Task(
        model=Transformer, loss=..., train=short, validation=short_held,
        phases=(PretrainingPhase("long", share=0.2, task=Task(Transformer, ..., train=long, validation=long_held)),),
        fine_tuning=FineTuning(Task(Classifier, ..., train=labelled, validation=held), steps=60, batch_size=32,
                               settings={"optimizer": "AdamW", "lr": 1e-3, "schedule": "linear"}),
    )

A later phase begins with the weights at which the one before it ended, with a new optimizer and its own schedule from
the beginning. An arm sets or searches over `phases.NAME.lr` and so on; what it does not set is as in the first phase.
Fine-tuning is the same for all arms, outside of the budget of updates, and its result is the split "finetuned".
Source: the two phases of BERT, Devlin et al. 2019, https://arxiv.org/abs/1810.04805, A.2, tuned one by one in Nado et
al. 2021, https://arxiv.org/abs/2102.06356, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from descend.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from descend.study.task import StudyTask

__all__ = ["FineTuning", "PretrainingPhase", "Stage", "carry_weights", "phase_problems", "phase_settings", "stages"]


@dataclass(frozen=True)
class PretrainingPhase:
    """A later phase of a trial.

    Args:
        name: By which arms name its settings, `phases.NAME.lr`.
        share: Of the updates of a trial, above 0 and below 1; the first phase has what all later ones leave.
        task: Its samples, loss and module, whose weights must have the names and shapes of those of the phase before.
        batch_size: Samples of an update; None is that of the trial.

    Raises:
        ConfigurationError: the share is out of range, or the name is not a word.
    """

    name: str
    share: float
    task: StudyTask
    batch_size: int | None = None

    def __post_init__(self) -> None:
        problems: list[str] = []
        if not self.name.isidentifier():
            problems.append(f"the name of a phase must be a word of letters, digits and _, got {self.name!r}")
        if not 0 < self.share < 1:
            problems.append(f"phase '{self.name}': share must be above 0 and below 1, got {self.share!r}")
        if self.batch_size is not None and self.batch_size < 1:
            problems.append(f"phase '{self.name}': batch_size must be an integer >= 1, got {self.batch_size!r}")
        if problems:
            raise ConfigurationError(problems)

    def prepared(self) -> PretrainingPhase:
        """The same with all samples in memory."""
        return replace(self, task=self.task.prepared())


@dataclass(frozen=True)
class FineTuning:
    """What the weights of a trial are tried at in its end, the same for every arm.

    Args:
        task: Its samples, loss, metrics and module; weights whose names and shapes agree are taken over from the
            trial, the others, such as those of a new head, start over.
        steps: Updates.
        batch_size: Samples of an update.
        settings: Of the optimizer, as an arm fixes them: "optimizer", "lr", "schedule", "schedule.warmup_fraction", ...
    """

    task: StudyTask
    steps: int
    batch_size: int
    settings: Mapping[str, Any] = field(default_factory=lambda: {"optimizer": "AdamW", "lr": 1e-3})

    def __post_init__(self) -> None:
        problems = [
            f"fine tuning: {name} must be an integer >= 1, got {value!r}"
            for name, value in (("steps", self.steps), ("batch_size", self.batch_size))
            if value < 1
        ]
        problems += [
            f"fine tuning: settings need '{name}'" for name in ("optimizer", "lr") if name not in self.settings
        ]
        if problems:
            raise ConfigurationError(problems)

    @property
    def configuration(self) -> dict[str, Any]:
        """Its settings as those of a trial."""
        return {"schedule": "constant", **self.settings}

    def prepared(self) -> FineTuning:
        """The same with all samples in memory."""
        return replace(self, task=self.task.prepared())


@dataclass(frozen=True)
class Stage:
    """A phase of one trial.

    Attributes:
        name: "" for the first.
        task: Prepared.
        first: Updates that were made before it.
        steps: Updates that it makes.
        batch_size: Samples of each.
        configuration: Settings of its optimizer.
    """

    name: str
    task: StudyTask
    first: int
    steps: int
    batch_size: int
    configuration: dict[str, Any]


def phase_settings(configuration: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings of a phase: those of the first, and over them those that begin with `phases.NAME.`."""
    general = {key: value for key, value in configuration.items() if not key.startswith("phases.")}
    head = f"phases.{name}."
    return general | {key[len(head) :]: value for key, value in configuration.items() if key.startswith(head)}


def stages(task: StudyTask, configuration: Mapping[str, Any], steps: int, batch_size: int) -> list[Stage]:
    """The phases of a trial in order, without those that have no update.

    Args:
        task: Prepared.
        configuration: Of the trial.
        steps: Updates of all phases.
        batch_size: Of the trial.
    """
    later = [round(steps * phase.share) for phase in task.phases]
    first = steps - sum(later)
    found = [Stage("", task, 0, first, batch_size, phase_settings(configuration, ""))]
    for phase, count in zip(task.phases, later, strict=True):
        own = phase_settings(configuration, phase.name)
        found.append(Stage(phase.name, phase.task, first, count, phase.batch_size or batch_size, own))
        first += count
    return [stage for stage in found if stage.steps]


def phase_problems(task: StudyTask, names: list[str], budgets: list[int]) -> list[str]:
    """What is wrong with the phases of a task, seen with a study.

    Args:
        task: Prepared.
        names: Settings of all arms.
        budgets: Updates of trials.
    """
    known = [phase.name for phase in task.phases]
    problems = [f"two phases are called '{name}'" for name in dict.fromkeys(known) if known.count(name) > 1]
    asked = dict.fromkeys(name.split(".")[1] for name in names if name.startswith("phases."))
    has = f"it has {', '.join(known)}" if known else "it has none after the first"
    problems += [
        f"the workload has no phase '{name}'{nearest(name, known) or ';'} {has}" for name in asked if name not in known
    ]
    if (all_shares := sum(phase.share for phase in task.phases)) >= 1:
        return [*problems, f"the phases after the first take {all_shares:.0%} of the updates, and leave none for it"]
    for steps in budgets:
        made = [round(steps * phase.share) for phase in task.phases]
        if task.phases and (min(made) < 1 or sum(made) >= steps):
            problems.append(f"a budget of {steps} updates leaves a phase without one: give more, or other shares")
    for phase in task.phases:
        if set(phase.task.metrics) != set(task.metrics):
            problems.append(
                f"phase '{phase.name}' has the metrics {', '.join(phase.task.metrics) or 'none'}, and the first phase "
                f"{', '.join(task.metrics) or 'none'}: they must be the same"
            )
        samples = len(phase.task.train[0])
        if phase.batch_size is not None and phase.batch_size > samples:
            problems.append(f"phase '{phase.name}' has {samples:,} samples and batch_size {phase.batch_size:,}")
    return problems


def carry_weights(module: torch.nn.Module, earlier: torch.nn.Module, *, all_of_them: bool, what: str) -> None:
    """Give a module the weights and buffers of an earlier one that have the same names and shapes.

    Args:
        module: The one that is trained further.
        earlier: That was trained.
        all_of_them: Whether every weight of both must be among them.
        what: The phase, for errors.

    Raises:
        ConfigurationError: they are not, or none is.
    """
    theirs, ours = earlier.state_dict(), module.state_dict()
    same = {name: value for name, value in theirs.items() if name in ours and ours[name].shape == value.shape}
    if all_of_them and (left := [name for name in (theirs | ours) if name not in same]):
        shapes = " and ".join(str(tuple(part[left[0]].shape)) if left[0] in part else "none" for part in (theirs, ours))
        raise ConfigurationError(
            f"{what} continues with the weights of the phase before, and '{left[0]}' is {shapes} there and here: give "
            "both phases the same module"
        )
    if not same:
        raise ConfigurationError(
            f"{what}: no weight of its module has the name and shape of one that was trained; theirs are "
            f"{', '.join(list(theirs)[:5])}, its own {', '.join(list(ours)[:5])}"
        )
    module.load_state_dict(same, strict=False)
