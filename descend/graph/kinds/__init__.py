"""Layer kinds, one file a family. Each is one class here and one function in `descend/lower`."""

from descend.graph.kinds import (
    activations,
    inputs,
    learning,
    losses,
    operator_layers,
    regularization,
    transforms,
    unlowered,
)
from descend.graph.kinds.activations import *  # noqa: F403  # a family's own list says what is public
from descend.graph.kinds.inputs import *  # noqa: F403
from descend.graph.kinds.learning import *  # noqa: F403
from descend.graph.kinds.losses import *  # noqa: F403
from descend.graph.kinds.operator_layers import *  # noqa: F403
from descend.graph.kinds.regularization import *  # noqa: F403
from descend.graph.kinds.transforms import *  # noqa: F403
from descend.graph.kinds.unlowered import *  # noqa: F403

__all__: list[str] = []
__all__ += activations.__all__
__all__ += inputs.__all__
__all__ += learning.__all__
__all__ += losses.__all__
__all__ += operator_layers.__all__
__all__ += regularization.__all__
__all__ += transforms.__all__
__all__ += unlowered.__all__
