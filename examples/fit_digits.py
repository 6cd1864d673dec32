"""Train a torch module of one's own on the bundled digits, with checkpoints and a resume that changes nothing.

python examples/fit_digits.py [DIRECTORY]       stop it with Ctrl-C and start it again: it continues where it was
"""

import functools
import sys

import torch
from torch import nn

import descend


class Net(nn.Module):
    """Knows nothing of descend."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Dropout(0.2))
        self.scores = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.scores(self.features(images))


class Watch(descend.Callback):
    def after_epoch(self, epoch: descend.train.EpochView) -> None:
        print(f"epoch {epoch.epoch + 1}: objective {epoch.values['objective']:.4f}")


def train(run_dir: str = "digits_run") -> None:
    readers = descend.open_readers(descend.zoo.digits())
    torch.manual_seed(0)
    module = Net()
    module(torch.zeros(1, *readers["train"].fields["samples"].shape))  # a lazy layer learns its size
    result = descend.fit(
        module,
        nn.CrossEntropyLoss(),
        readers["train"],
        valid=readers.get("validate"),
        test=readers["test"],
        metrics=["accuracy"],
        optimizer=functools.partial(torch.optim.AdamW, lr=2e-3),
        batch_size=64,
        stop=descend.Epochs(10) | descend.Reached("validation/accuracy", 0.99),
        callbacks=[Watch(), descend.Checkpoint(every_epochs=1, keep=2)],
        run_dir=run_dir,
        resume=True,
    )
    print(f"{result.reason} after {result.steps} updates; test accuracy {result.history[-1]['accuracy']:.1%}")


if __name__ == "__main__":
    descend.main(functools.partial(train, *sys.argv[1:2]))
