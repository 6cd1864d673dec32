"""Importing this module lets `import lbann` mean `descend.lbann`, in this process and in the driver that it starts.

    import descend.lbann.as_lbann
    import lbann
    import lbann.contrib.launcher

Nothing is installed, and modules are the same objects under both names. An LBANN that is installed as well is hidden.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import TYPE_CHECKING

import descend.lbann
from descend.lbann.driver.options import IMPORT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

__all__ = ["LbannFinder"]


class _SameModule(Loader):
    """Gives the module that has another name already."""

    def __init__(self, real: str) -> None:
        self.real = real
        self.spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        module = importlib.import_module(self.real)
        self.spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is executed twice; the machinery has only set another spec, which is put back."""
        module.__spec__ = self.spec


class LbannFinder(MetaPathFinder):
    """Finds `lbann` and everything below it in `descend.lbann`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        head, _, rest = fullname.partition(".")
        if head != "lbann":
            return None
        real = f"descend.lbann.{rest}" if rest else "descend.lbann"
        if rest.endswith("_pb2"):
            getattr(descend.lbann, rest, None)  # makes the module, if there is such a file in the schema
        if real not in sys.modules and find_spec(real) is None:
            return None
        return ModuleSpec(fullname, _SameModule(real), is_package=hasattr(importlib.import_module(real), "__path__"))


if not any(isinstance(finder, LbannFinder) for finder in sys.meta_path):
    sys.meta_path.insert(0, LbannFinder())
    os.environ[IMPORT_VARIABLE] = "1"  # the driver does the same then
