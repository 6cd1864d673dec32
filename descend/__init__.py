"""descend: trains neural networks by first-order descent at any batch size, and says which optimizer deserves the
credit.

    import descend
    result = descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.1))

Importing this package imports no torch and does nothing else; each public name is fetched when it is first used.
`descend.optim` holds the same optimizers for anybody's own torch loop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from descend import callbacks, data, errors, graph, optim, train, zoo
