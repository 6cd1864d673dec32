"""A workload on text, small enough that a trial takes seconds on one core: a transformer that goes on byte by byte.

    bytes_ahead    post-norm, 32 features, 3 layers of 4 heads, 16 bytes of context; 55,000 weights

The text is what every machine with Python has: the modules at the top of its standard library, 4 to 5 MB. Another
version of Python has other bytes, which the hash of the data in a study's report tells.
"""

import functools
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn

import descend

CONTEXT, FEATURES, LAYERS, HEADS = 16, 32, 3, 4
MEASURED = 512  # sequences that scores are taken from


@functools.cache
def sequences() -> Tensor:
    """The text cut into pieces of one byte more than the context, in an order drawn once; (pieces, 17)."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    pieces = text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].view(-1, CONTEXT + 1).long()
    return pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]


class Block(nn.Module):
    """Attention and a network for each place, with layer norm after each sum, as in the first transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = nn.Linear(FEATURES, 3 * FEATURES)
        self.out = nn.Linear(FEATURES, FEATURES)
        self.inner = nn.Sequential(nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(), nn.Linear(4 * FEATURES, FEATURES))
        self.norms = nn.ModuleList(nn.LayerNorm(FEATURES) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.joined(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = self.norms[0](x + self.out(seen.transpose(1, 2).flatten(2)))
        return self.norms[1](x + self.inner(x))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, FEATURES)
        self.places = nn.Embedding(CONTEXT, FEATURES)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(FEATURES, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next byte, (batch, 256, places): classes second, as cross entropy takes them."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.blocks(self.bytes(text) + self.places(places))).transpose(1, 2)


def bytes_ahead() -> descend.study.Task:
    held = sequences()[:MEASURED]
    train = sequences()[MEASURED:]
    return descend.study.Task(
        model=Transformer,
        loss=nn.CrossEntropyLoss(),
        train=(train[:, :-1], train[:, 1:]),
        validation=(held[:, :-1], held[:, 1:]),
        metrics={},
    )
