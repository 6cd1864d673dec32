"""A model of Hugging Face in our loop; the loss is its own. Needs `pip install transformers`; downloads nothing.

python examples/hugging_face.py
"""

from __future__ import annotations

import torch

import descend


def main(steps: int = 60) -> float:
    try:
        import transformers
    except ImportError:
        raise SystemExit("this example needs the library transformers: pip install transformers") from None
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    starts = torch.randint(0, 32, (256, 1))
    tokens = (starts + 3 * torch.arange(16)) % 32  # each token is the one before it and 3
    schedule = descend.optim.schedules.WarmupLinear(5e-3, steps, warmup_steps=steps // 10)
    groups = descend.optim.groups.no_decay(model, weight_decay=0.01)
    result = descend.fit(
        model,
        [descend.Phase("loss", lambda model, **batch: model(**batch).loss, weights=["*"])],
        {"input_ids": tokens, "labels": tokens},
        optimizer=lambda params: descend.optim.AdamW(groups, lr=schedule),
        batch_size=32,
        clip_global_norm=1.0,
        stop=descend.Steps(steps),
    )
    return result.history[-1]["loss"]


if __name__ == "__main__":
    descend.main(main)
