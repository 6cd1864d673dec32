"""A workload in two phases with a fine-tuned outcome, as BERT's, small enough that a trial takes seconds on one core.

    pretraining    a transformer goes on byte by byte through Python's sources: pieces of 8 bytes for four fifths of
                   the updates, then pieces of 32 bytes for the last fifth
    outcome        the same transformer with a new head says after 32 bytes whether a letter or digit, a blank, the end
                   of the line or a mark follows; trained on 500 pieces by AdamW for 40 updates, the same for all arms

The text is that of `text.py`; the files of the outcome are not read in pretraining.
"""

import functools
import sysconfig
from pathlib import Path

import torch
from text import FEATURES, Block
from torch import Tensor, nn

import descend

SHORT, LONG = 8, 32  # bytes of context in the first and in the second phase
MEASURED = 256  # pieces that scores of pretraining are taken from
LABELLED = 20  # files that are labelled; the others are read in pretraining
KINDS = torch.tensor([0 if chr(b).isalnum() or b == 95 else 1 if b == 32 else 2 if b == 10 else 3 for b in range(256)])


def files() -> list[Path]:
    return sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))


@functools.cache
def pieces(length: int) -> Tensor:
    """The text cut into pieces of one byte more than the context, in an order drawn once."""
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files()[LABELLED:])), dtype=torch.uint8)
    cut = text[: len(text) // (length + 1) * (length + 1)].view(-1, length + 1).long()
    return cut[torch.randperm(len(cut), generator=torch.Generator().manual_seed(0))[:20_000]]


@functools.cache
def labelled() -> tuple[Tensor, Tensor]:
    """Windows of 32 bytes of the first files, and of each the kind of the byte that follows."""
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files()[:LABELLED])), dtype=torch.uint8)
    windows = text.long().unfold(0, LONG + 1, 37)  # 37: they do not meet, and begin anywhere in a line
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))
    return windows[order, :LONG], KINDS[windows[order, LONG]]


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, FEATURES)
        self.places = nn.Embedding(LONG, FEATURES)
        self.blocks = nn.Sequential(*(Block() for _ in range(2)))

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.blocks(self.bytes(text) + self.places(places))


class NextByte(Transformer):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next byte, (batch, 256, places)."""
        return self.head(super().forward(text)).transpose(1, 2)


class KindOfNextByte(Transformer):
    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Linear(FEATURES, 4)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the four kinds, (batch, 4)."""
        return self.kind(super().forward(text)[:, -1])


def pretraining(length: int, **options) -> descend.study.Task:
    held, train = pieces(length)[:MEASURED], pieces(length)[MEASURED:]
    return descend.study.Task(
        model=NextByte,
        loss=nn.CrossEntropyLoss(),
        train=(train[:, :-1], train[:, 1:]),
        validation=(held[:, :-1], held[:, 1:]),
        metrics={},
        **options,
    )


def task(long_batch_size: int | None = None) -> descend.study.Task:
    x, y = labelled()
    outcome = descend.study.Task(
        model=KindOfNextByte,
        loss=nn.CrossEntropyLoss(),
        train=(x[2000:2500], y[2000:2500]),
        validation=(x[:1000], y[:1000]),
        test=(x[1000:2000], y[1000:2000]),
    )
    return pretraining(
        SHORT,
        phases=(descend.study.PretrainingPhase("long", 0.2, pretraining(LONG), batch_size=long_batch_size),),
        fine_tuning=descend.study.FineTuning(
            outcome,
            steps=40,
            batch_size=32,
            settings={"optimizer": "AdamW", "lr": 2e-3, "schedule": "linear", "schedule.warmup_fraction": 0.1},
        ),
    )
