"""Layer kinds, one file a family. Each is one class here and one function in `descend/lower`."""

from descend.graph.kinds import (
    activations,
    indexing,
    losses,
    mathematics,
    normalization,
    operator_layers,
    reductions,
    sources,
    transforms,
)
from descend.graph.kinds import integers as integers  # is no part of the format, and a text finds it by this import
from descend.graph.kinds import linear_and_convolution as learning
from descend.graph.kinds.activations import *  # noqa: F403  # a family's own list says what is public
from descend.graph.kinds.indexing import *  # noqa: F403
from descend.graph.kinds.linear_and_convolution import *  # noqa: F403
from descend.graph.kinds.losses import *  # noqa: F403
from descend.graph.kinds.mathematics import *  # noqa: F403
from descend.graph.kinds.normalization import *  # noqa: F403
from descend.graph.kinds.operator_layers import *  # noqa: F403
from descend.graph.kinds.reductions import *  # noqa: F403
from descend.graph.kinds.sources import *  # noqa: F403
from descend.graph.kinds.transforms import *  # noqa: F403

__all__: list[str] = []
__all__ += activations.__all__
__all__ += indexing.__all__
__all__ += learning.__all__
__all__ += losses.__all__
__all__ += mathematics.__all__
__all__ += normalization.__all__
__all__ += operator_layers.__all__
__all__ += reductions.__all__
__all__ += sources.__all__
__all__ += transforms.__all__
