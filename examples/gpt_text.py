"""A small GPT learns to continue a text, character by character: python examples/gpt_text.py FILE [STEPS]

Without a file it reads this package's own licence. It prints the loss in bits a character, and a paragraph drawn from
what it has learnt.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path

import torch

import descend

LENGTH, BATCH = 64, 32
LICENCE = Path(__file__).parent.parent / "LICENSE"


def network(characters: int) -> descend.Model:
    """Two layers of 64 features; the layer "scores" has the logits of each next character."""
    tokens, targets = descend.Input(data_field="tokens"), descend.Input(data_field="targets")
    gpt = descend.zoo.GPT(characters, LENGTH, hidden_size=64, num_layers=2, num_heads=4, dropout=0.0, name="gpt")
    scores = descend.Identity(gpt(tokens), name="scores")
    return descend.Model(1, objective_function=descend.zoo.next_token_loss(scores, targets, LENGTH))


def paragraph(
    score: torch.nn.Module,
    alphabet: list[str],
    start: str,
    characters: int,
    draw: torch.Generator,
    temperature: float = 0.7,
) -> str:
    """`start` and what is drawn after it; `score` gives logits (1, LENGTH, alphabet) of tokens (1, LENGTH)."""
    numbers = [alphabet.index(character) for character in start]
    with torch.no_grad():
        for _ in range(characters):
            window = numbers[-LENGTH:]
            padded = torch.tensor([window + [0] * (LENGTH - len(window))], dtype=torch.float32)
            logits = score(padded).reshape(LENGTH, len(alphabet))[len(window) - 1]  # a position sees none after it
            numbers.append(int(torch.multinomial((logits / temperature).softmax(0), 1, generator=draw)))
    return "".join(alphabet[number] for number in numbers)


def main(file: str | Path = LICENCE, steps: int = 200) -> float:
    """Train, print, and return the last loss in bits a character."""
    text = Path(file).read_text()
    alphabet = sorted(set(text))
    numbers = torch.tensor([alphabet.index(character) for character in text], dtype=torch.float32)
    model, fields = network(len(alphabet)), {"tokens": (LENGTH,), "targets": (LENGTH,)}
    plan = descend.graph.check(model, fields)
    module = descend.lower.lower(plan, partial(descend.runtime.generator, 1))
    optimizer = descend.optim.AdamW(module.named_parameters(), lr=3e-3, weight_decay=0.01)
    draw = torch.Generator().manual_seed(0)
    bits = math.nan
    for step in range(steps):
        starts = torch.randint(len(numbers) - LENGTH, (BATCH,), generator=draw)
        windows = torch.stack([numbers[i : i + LENGTH + 1] for i in starts])
        loss = module({"tokens": windows[:, :-1], "targets": windows[:, 1:]})["loss"].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bits = loss.item() / math.log(2)
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step + 1}: {bits:.2f} bits a character")
    scores = model.to_torch(weights=dict(module.state_dict()), fields=fields, outputs=["scores"])
    print("-" * 40, paragraph(scores, alphabet, text[:20], 300, draw), "-" * 40, sep="\n")
    return bits


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:3]))
