"""LBANN's namespace: programs written for LBANN run with `import descend.lbann as lbann`, and are else unchanged.

    import descend.lbann as lbann

    x = lbann.Input(data_field="samples")
    ...
    status = lbann.run(trainer, model, data_reader, lbann.SGD(learn_rate=0.1))

Names are fetched when they are first used. docs/lbann.md has what is the same, what differs, and what is refused.
"""

from __future__ import annotations

import importlib
from typing import Any

from descend import lazy
from descend.lbann import places as places  # so that the modules of its table can be imported
from descend.machine import __version__ as __version__

_MODULES = ("contrib", "core", "launcher", "models", "modules", "onnx", "proto", "torch", "util")
_SINGLE = {
    "Model": "core.model",
    "SubgraphCommunication": "core.model",
    "Trainer": "core.trainer",
    "evaluate": "core.evaluation",
    "get_features": "core.features",
    "has_feature": "core.features",
    "lbann_exe": "core.features",
    "run": "launcher",
    "save_prototext": "proto",
}
_WHOLE = ("core.optimizer", "core.training_algorithm", "core.layer", "core.callback")  # of two the first has a name


# For a model that is called; evaluation makes a model itself.
lazy.provide("lbann_evaluate", "descend.lbann.core.evaluation", "evaluate")


def __getattr__(name: str) -> Any:
    """Fetch a public name."""
    found = None if name.startswith("__") else _found(name)
    if found is None:
        raise AttributeError(f"module 'lbann' has no attribute '{name}'{_hint(name)}")
    return found


def _found(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"descend.lbann.{name}")
    if name == "ops":
        return importlib.import_module("descend.lbann.core.operators")
    if name in _SINGLE:
        return getattr(importlib.import_module(f"descend.lbann.{_SINGLE[name]}"), name)
    if name.endswith("_pb2"):
        return _protobuf_module(name.removesuffix("_pb2"))
    for file in _WHOLE:
        module = importlib.import_module(f"descend.lbann.{file}")
        called = next((one for one in (name, f"Callback{name}") if one in module.__all__), None)
        if called is not None:
            return getattr(module, called)
    return _enumerations().get(name)


def _protobuf_module(file: str) -> Any:
    from descend.lbann.protobuf_modules import FILES, module

    return module(file) if file in FILES else None


def _enumerations() -> dict[str, Any]:
    from descend.lbann.core.messages import enumerations
    from descend.lbann.protobuf_modules import FILES

    return {name: members for file in FILES for name, members in enumerations(file).items()}


def _hint(name: str) -> str:
    from descend.errors import nearest

    return "" if name.startswith("_") else nearest(name, __dir__())


def __dir__() -> list[str]:
    """Every public name."""
    from descend.lbann.protobuf_modules import FILES

    whole = [name for file in _WHOLE for name in importlib.import_module(f"descend.lbann.{file}").__all__]
    modules = [*_MODULES, "ops", *(f"{file}_pb2" for file in FILES)]
    return sorted({*modules, *_SINGLE, *whole, *_enumerations()})
