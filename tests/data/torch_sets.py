"""Data sets for tests that other processes can import."""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing import connection, reduction

import numpy as np
import torch

from descend.data import Field


class Augmented(torch.utils.data.Dataset):
    """Each sample draws from all three global generators."""

    def __init__(self, samples=13):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        drawn = torch.tensor([float(torch.rand(())), np.random.rand(), random.random()])
        return torch.full((3,), float(index)) + drawn, index % 2


class Sometimes(Augmented):
    """Only sample 5 draws, from the generator that is named."""

    def __init__(self, generator, samples=13):
        super().__init__(samples)
        self.generator = generator

    def __getitem__(self, index):
        draw = {"torch": lambda: float(torch.rand(())), "numpy": np.random.rand, "python": random.random}
        return torch.full((3,), float(index)) + (draw[self.generator]() if index == 5 else 0.0), index % 2


class SlowToBegin(Augmented):
    """Takes six seconds to arrive in another process."""

    def __setstate__(self, state):
        time.sleep(6)
        self.__dict__.update(state)


class Uneven(torch.utils.data.Dataset):
    """Sample 0 takes until sample 3 was read, which leaves a file in the folder."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 6

    def __getitem__(self, index):
        while index == 0 and not (self.folder / "3").exists():
            time.sleep(0.01)
        (self.folder / str(index)).touch()
        return torch.full((2,), float(index)), index % 2


class Failing(torch.utils.data.Dataset):
    """Plain samples, some of which fail in the way given."""

    def __init__(self, failing, samples=10):
        self.failing = failing
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        x = torch.full((2,), float(index))
        match self.failing.get(index):
            case "raises":
                raise OSError("disk on fire")
            case "shape":
                return torch.zeros(3), index % 2
            case "text":
                return x, "cat"
            case "hangs":
                time.sleep(600)
            case "exits slowly":
                multiprocessing.current_process()._args[0].close()  # its pipe, as if Python were being taken apart
                time.sleep(3)
                os._exit(7)
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                pass
        return x, index % 2


class Suspended(Augmented):
    """Its process is suspended in the middle of its first answer, before the part that is named."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def __setstate__(self, state):
        self.__dict__.update(state)
        if self.before == "descriptor":
            reduction.send_handle = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
        else:
            connection.Connection._send_bytes = self._send_half

    @staticmethod
    def _send_half(pipe, content):
        os.write(pipe.fileno(), len(content).to_bytes(4, "big") + bytes(content[: len(content) // 2]))
        os.kill(os.getpid(), signal.SIGSTOP)


class Own:
    """A reader of one's own, with a sample that fails in one of several ways."""

    role, shuffle = "train", False

    def __init__(self, bad=None, how="raises"):
        self.bad, self.how, self.fields = bad, how, {"x": Field((1,), np.dtype(np.float32))}

    def __len__(self):
        return 13

    def read(self, indices, epoch=0):
        if self.bad in indices.tolist():
            if self.how == "hangs":
                time.sleep(600)
            if self.how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(5, "Input/output error")
        return {"x": indices.astype(np.float32)[:, None] + epoch}
