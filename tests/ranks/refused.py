"""A run that workers cannot carry out. As a script, on several ranks."""

from __future__ import annotations

from ranks.served import RULES, data, network
from torch import nn

import descend


class Parts(descend.Callback):
    """Looks at micro-batches."""

    def after_part(self, part):
        pass


def main() -> None:
    descend.fit(
        network(),
        nn.CrossEntropyLoss(),
        data(),
        optimizer=RULES["sgd"],
        batch_size=5,
        stop=descend.Epochs(1),
        callbacks=[Parts()],
        skip_bad=1,
        asynchronous=descend.ParameterServer(delays=(1, 2)),
    )


if __name__ == "__main__":
    descend.main(main)
