"""A model that is a torch module, as anybody writes one. This room only holds it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from descend.errors import ConfigurationError
from descend.graph.model import AutomaticMixedPrecision, Model

__all__ = ["TorchModel"]


class TorchModel(Model):
    """Any torch module with what it is trained for: `descend.run` and `descend.fit` train it in place.

        model = descend.Model.from_torch(net, loss="cross_entropy", metrics=["accuracy"], epochs=5)
        descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1))

    It has no layers and no text form: a description holds no code.

    Args:
        module: Called with the inputs of a sample, by name where the data are named and `forward` has those names.
        loss: A loss module of torch, a name such as "cross_entropy", or a function (output, *targets); see docs/fit.md.
        metrics: Names ("accuracy", "mse", ...), or anything that can be a loss, by name.
        epochs: Passes over the data where the trainer has no algorithm that says otherwise.
        callbacks: What watches the run. Layers are named as by `module.named_modules()`.
        name: The class of the module without one.
        targets: Names of the fields that are targets, or how many of the last ones are, where that is not clear.
        amp: As in `Model`.
        batch_norm_group_size: As in `Model`.
        compile: Whether the module goes through torch.compile during the run; afterwards it is as it was.

    Raises:
        ConfigurationError: a value of a wrong type.
    """

    def __init__(
        self,
        module: Any,
        loss: Any,
        metrics: Mapping[str, Any] | Iterable[str] = (),
        epochs: int = 0,
        callbacks: Iterable[Any] = (),
        name: str | None = None,
        targets: int | Iterable[str] | None = None,
        amp: AutomaticMixedPrecision | Mapping[str, Any] | None = None,
        batch_norm_group_size: int = 0,
        compile: bool = False,  # noqa: A002  # as of Model
    ) -> None:
        if not callable(getattr(module, "named_parameters", None)) or isinstance(module, type):
            what = f"the class {module.__name__}" if isinstance(module, type) else f"a {type(module).__name__}"
            raise ConfigurationError(f"Model.from_torch was given {what}; expected a torch.nn.Module, made and ready")
        options: dict[str, Any] = {"amp": amp, "batch_norm_group_size": batch_norm_group_size, "compile": compile}
        super().__init__(epochs, callbacks=callbacks, name=name or type(module).__name__, **options)
        self.module, self.loss = module, loss
        named = (metrics,) if isinstance(metrics, str) else metrics
        self.measures: Mapping[str, Any] | tuple[str, ...] = named if isinstance(named, Mapping) else tuple(named)
        self.targets = targets if targets is None or isinstance(targets, int) else tuple(targets)

    def to_fields(self) -> dict[str, Any]:
        """A text contains no code.

        Raises:
            ConfigurationError: always.
        """
        raise ConfigurationError(
            f"model '{self.name}' is a torch module ({type(self.module).__module__}.{type(self.module).__qualname__}), "
            "and a prototext holds no code: keep the script that makes it, or write it with descend's layers"
        )

    def __eq__(self, other: object) -> bool:
        """Whether both hold the same module, not an equal one."""
        return self is other

    __hash__ = None  # pyright: ignore[reportAssignmentType]  # as of Model

    def __repr__(self) -> str:
        return f"Model.from_torch({type(self.module).__name__}, loss={self.loss!r})"
