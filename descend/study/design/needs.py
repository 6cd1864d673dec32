"""What one trial of a study needs of a machine. Every way of running trials reads it: processes, Ray, Slurm.

[needs]
cores = 4           # processors, of each rank
memory_gib = 8      # main memory, of each rank
gpus = 1            # of each rank
ranks = 2           # processes that share the mini-batches of a trial, on one machine
"""

from __future__ import annotations

from typing import Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Needs"]

_GIB = 2**30


class Needs(BaseModel):
    """Resources of one trial.

    Attributes:
        cores: Processors of each rank, which are its threads.
        memory_gib: Main memory of each rank; None asks for none in particular.
        gpus: GPUs of each rank; by default one where the device is "cuda".
        ranks: Processes that share the mini-batches of a trial, on one machine.
        device: "cpu" or "cuda", where modules are put; None leaves them where the workload puts them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cores: int = Field(default=1, ge=1, strict=True)
    memory_gib: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    gpus: int = Field(default=0, ge=0, strict=True)
    ranks: int = Field(default=1, ge=1, strict=True)
    device: Literal["cpu", "cuda"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _gpu_of_device(cls, fields: Any) -> Any:
        """A device "cuda" is one GPU a rank."""
        if isinstance(fields, dict) and cast("dict[str, Any]", fields).get("device") == "cuda":
            return {"gpus": 1, **cast("dict[str, Any]", fields)}
        return cast("Any", fields)

    @model_validator(mode="after")
    def _agreeing(self) -> Self:
        if self.device == "cuda" and self.gpus != 1:
            raise ValueError(f"device = 'cuda' in [needs] is one GPU for each rank, and gpus is {self.gpus}")
        if self.device == "cpu" and self.gpus:
            raise ValueError(f"device = 'cpu' in [needs] uses no GPU, and gpus is {self.gpus}: remove one of them")
        return self

    @property
    def all_cores(self) -> int:
        """Processors of all ranks."""
        return self.cores * self.ranks

    @property
    def all_gpus(self) -> int:
        """GPUs of all ranks."""
        return self.gpus * self.ranks

    @property
    def memory_bytes(self) -> int | None:
        """Main memory of all ranks; None where none is asked for."""
        return None if self.memory_gib is None else round(self.memory_gib * _GIB) * self.ranks

    def trials_on(self, cores: float, memory_bytes: float, gpus: float) -> int:
        """How many trials fit on a machine at once."""
        fitting = [int(cores // self.all_cores)]
        if self.memory_bytes is not None:
            fitting.append(int(memory_bytes // self.memory_bytes))
        if self.gpus:
            fitting.append(int(gpus // self.all_gpus))
        return min(fitting)

    def __str__(self) -> str:
        amounts = [_counted(self.all_cores, "processor")]
        if self.memory_gib is not None:
            amounts.append(f"{self.memory_gib * self.ranks:g} GiB of memory")
        if self.gpus:
            amounts.append(_counted(self.all_gpus, "GPU"))
        return ", ".join(amounts)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
