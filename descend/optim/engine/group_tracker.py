"""Follows the parameter groups of an optimizer from step to step: which parameters they hold, and their names.

A user may take groups out, or put other parameters into a group (as FSDP and `model.to` do). Then the layout of the
arenas, the checks of the parameters and the remembered learning rates of schedules no longer hold.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from descend.optim.engine import parameter_checks
from descend.optim.engine.gradient_scan import TensorList
from descend.optim.engine.step_inputs import names_of

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from descend.optim.engine.gradient_scan import GradientScanner
    from descend.optim.engine.settings import GroupSettingsReader

__all__ = ["GroupTracker"]


class GroupTracker:
    """The parameters of each group at the last step.

    Args:
        title: Name of the optimizer in error messages.
        settings: Reads the settings of the groups, and remembers learning rates by number of the group.
        names: Of each parameter of each group, in messages and state dicts.

    Attributes:
        settings: The same.
        names: The same.
        lists: The parameters of each group at the last step.
        meshes: Device meshes of the distributed ones, each once, in the order of the parameters.
    """

    def __init__(self, title: str, settings: GroupSettingsReader, names: Sequence[list[str]] = ()) -> None:
        self._title = title
        self.settings = settings
        self.names = list(names)
        self.lists: list[TensorList] = []
        self.meshes: list[Any] = []
        self._adds_many = False

    @contextmanager
    def adding_many(self) -> Generator[None]:
        """Within this block `check_added` does nothing: to look at all groups at each of n would take n² steps."""
        self._adds_many = True
        try:
            yield
        finally:
            self._adds_many = False

    def check_added(self, groups: list[dict[str, Any]]) -> None:
        """Check groups of which some are new, and name them.

        Raises:
            RuleError: A parameter cannot be trained, or is there twice.
        """
        if not self._adds_many:
            names = names_of(groups)
            parameter_checks.check(groups, names, self._title)
            self.names = names

    def rename(self, groups: list[dict[str, Any]]) -> None:
        """Take the names from the groups, for groups that were cut, joined or loaded on purpose."""
        self.names = names_of(groups)
        self.settings.forget_schedules()

    def follow(self, groups: list[dict[str, Any]], scanner: GradientScanner) -> bool:
        """Compare the groups with those of the last step, and check and name them again where they differ.

        Returns:
            Whether they hold the same parameters as at the last step.

        Raises:
            RuleError: A list of parameters without names changed its length, or a parameter cannot be trained.
        """
        if len(self.names) == len(groups) and self._hold_the_same(groups, scanner):
            return True
        names = names_of(groups)
        if len(names) == len(self.names):
            named = ["param_names" in group for group in groups]
            names = [now if known else before for known, now, before in zip(named, names, self.names, strict=True)]
        if self.lists or len(names) != len(self.names):
            self.settings.forget_schedules()  # they are remembered by number of the group
        parameter_checks.check(groups, names, self._title)
        self.names = names
        return False

    def _hold_the_same(self, groups: Sequence[Mapping[str, Any]], scanner: GradientScanner) -> bool:
        same = scanner.same
        return len(groups) == len(self.lists) and all(
            same(group["params"], known) for group, known in zip(groups, self.lists, strict=True)
        )

    def remember(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Take the parameters of the groups as those of the last step.

        Raises:
            RuleError: A parameter has no values yet, as on the meta device.
        """
        parameter_checks.has_values(groups, self.names, self._title)
        self.lists = [TensorList(group["params"]) for group in groups]
        meshes = [getattr(p, "device_mesh", None) for known in self.lists for p in known.tensors]
        self.meshes = [mesh for mesh in dict.fromkeys(meshes) if mesh is not None]
