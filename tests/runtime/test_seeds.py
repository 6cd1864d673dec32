import torch

from descend.runtime import generator, seed_of
from descend.runtime.seeds import forked_rng


def test_a_stream_depends_on_the_seed_and_the_name_alone():
    draw = lambda *key: torch.rand(3, generator=generator(*key)).tolist()  # noqa: E731
    assert draw(1, "weights", "a") == draw(1, "weights", "a")
    different = [draw(1, "weights", "a"), draw(2, "weights", "a"), draw(1, "weights", "b"), draw(1, "weightsa")]
    assert len({tuple(numbers) for numbers in different}) == 4


def test_seeds_are_the_ones_that_sha_256_gives():
    """Pinned, because a change would change every run: sha256(b'1\\x1fweights\\x1fa')[:8] >> 1."""
    import hashlib

    digest = hashlib.sha256(b"1\x1fweights\x1fa").digest()
    assert seed_of(1, "weights", "a") == int.from_bytes(digest[:8], "big") >> 1


def test_a_run_on_the_cpu_initializes_no_cuda(monkeypatch):
    """torch's own `fork_rng()` asks every GPU for its state, which takes its memory."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(device))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    for device in (None, torch.device("cpu")):
        with forked_rng(device):
            torch.rand(1)
    assert asked == []
