"""Exchange of models between trainers: capture the state of a model, send it, restore it.

The state is weights and buffers, the optimizer's state and options, the step of its schedules, the loss scale, and the
state of callbacks and of the local algorithm. A trainer keeps its own position in its data.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load as tensors_from
from safetensors.torch import save as bytes_of
from torch import distributed

from descend.runtime import (
    flatten,
    optimizer_state,
    read_state,
    read_weights,
    save_checkpoint,
    unflatten,
)
from descend.train.module_state import tensors_of
from descend.train.optimizers.state import OptimizerState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from descend.launch import TrainerLayout
    from descend.runtime import Communicator
    from descend.train.population.ltfb import ExchangeStrategy
    from descend.train.run import Run

__all__ = ["STATE", "ModelState", "ModelTransport", "capture_model", "restore_model"]

STATE = "LTFB"  # key of the progress of a tournament in the state of the algorithms


@dataclass(frozen=True)
class ModelState:
    """State of a model, without its trainer.

    Attributes:
        tensors: By path.
        plain: Everything else, as returned by `descend.runtime.flatten`.
    """

    tensors: dict[str, torch.Tensor]
    plain: Any


def capture_model(run: Run, names: Iterable[str] = (), whole: bool = True) -> ModelState:
    """A copy of the state of a model.

    A collective over the ranks of a trainer; of a sharded optimizer, rank zero gets the whole state.

    Args:
        run: The trainer's run.
        names: The weights to capture; empty for all.
        whole: Whether to capture the optimizer and everything else, too.
    """
    wanted = set(names)
    weights = {name: tensor for name, tensor in tensors_of(run.task.module).items() if not wanted or name in wanted}
    nested: dict[str, Any] = {"weights": weights, "form": _architecture(run)}
    if whole:
        optimizer = OptimizerState(run.optimizer, run.task.module).state_dict()
        if wanted:
            optimizer["weights"] = {name: entry for name, entry in optimizer["weights"].items() if name in wanted}
        nested |= {
            "optimizer": optimizer,
            "step": run.state.step,
            "callbacks": _callback_state(run),
            "precision": run.precision.state_dict(),
            "algorithm": {name: state for name, state in run.state.algorithm.items() if name != STATE},
        }
    tensors, plain = flatten(nested)
    return ModelState({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, plain)


def restore_model(run: Run, state: ModelState) -> None:
    """Load the state of a model that was captured from this run or another one."""
    # Cloned, because an optimizer keeps the tensors that it loads and several trainers may load one model.
    nested = unflatten(state.plain, {name: tensor.clone() for name, tensor in state.tensors.items()})
    if nested["form"] is not None:
        run.take_form(nested["form"])
    own = tensors_of(run.task.module)
    with torch.no_grad():
        for name, tensor in nested["weights"].items():
            own[name].copy_(tensor)
    if "optimizer" not in nested:
        return
    _restore_optimizer(run, nested["optimizer"])
    run.state.training.step = nested["step"]
    run.callbacks.load_state_dict(nested["callbacks"])
    run.precision.load_state_dict(nested["precision"])
    kept = {STATE: run.state.algorithm[STATE]} if STATE in run.state.algorithm else {}
    run.state.algorithm = {**nested["algorithm"], **kept}


def _restore_optimizer(run: Run, state: dict[str, Any]) -> None:
    """Load state and options by the names of weights; weights that were not sent keep their state."""
    names: dict[torch.Tensor, str] = {p: name for name, p in run.parameters.items()}
    kept = optimizer_state(run.optimizer, names)["weights"]
    entries = {**{name: entry for name, entry in kept.items() if name not in state["weights"]}, **state["weights"]}
    OptimizerState(run.optimizer, run.task.module).load_state_dict({"groups": state["groups"], "weights": entries})


def _architecture(run: Run) -> Any:
    """The architecture changes of a task that can have some; None for others."""
    form = getattr(run.task, "form", None)
    return form() if form else None


def _callback_state(run: Run) -> dict[str, Any]:
    """The state of callbacks, without those that save checkpoints: their files belong to the trainer."""
    own = {type(callback).__name__ for callback in run.callbacks.all if callback.saves}
    return {name: state for name, state in run.callbacks.state_dict().items() if name.rpartition(" ")[0] not in own}


class ModelTransport:
    """Sends models from trainers to trainers.

    Args:
        world: The communicator of all ranks.
        shares: Which ranks belong to which trainers.
        processes: The communicator of each trainer of this process.
        name: The model's name, for files.

    Attributes:
        sent_bytes: Bytes that this process has sent so far.
    """

    def __init__(
        self, world: Communicator, shares: TrainerLayout, processes: Mapping[int, Communicator], name: str
    ) -> None:
        self._world, self._shares, self._processes, self._name = world, shares, processes, name
        self.sent_bytes = 0

    def deliver(
        self, moves: Iterable[tuple[int, int]], taken: Mapping[int, ModelState], way: ExchangeStrategy, number: int
    ) -> dict[int, ModelState]:
        """Send models. A collective; the order of the moves must be the same on all ranks.

        Args:
            moves: (from, to) as numbers of trainers.
            taken: The captured models of this process' trainers.
            way: How they are sent.
            number: Number of the exchange.

        Returns:
            The model that each receiving trainer of this process got, by its number.
        """
        moves = list(moves)
        if way.strategy == "checkpoint_file":
            self._write(moves, taken, way, number)
        received: dict[int, ModelState] = {}
        with self._world.status.waiting_patiently():
            for source, target in moves:
                found = self._carry(source, target, taken, way, number)
                if found is not None:
                    received[target] = found
            return {
                target: self._broadcast(self._processes[target], received.get(target))
                for _, target in moves
                if target in self._processes
            }

    def _carry(
        self, source: int, target: int, taken: Mapping[int, ModelState], way: ExchangeStrategy, number: int
    ) -> ModelState | None:
        """This process' part in one move, if it is the first rank of one of the two trainers."""
        here, sender, receiver = self._world.rank, self._shares.first_of(source), self._shares.first_of(target)
        if way.strategy == "checkpoint_file":
            return self._read(source, way, number) if here == receiver else None
        if sender == receiver:
            return taken[source] if here == receiver else None
        piecewise = way.strategy == "sendrecv_weights"
        if here == sender:
            self._send(taken[source], receiver, piecewise)
        return self._receive(sender, piecewise) if here == receiver else None

    def _send(self, state: ModelState, rank: int, piecewise: bool) -> None:
        pieces = [_packed(state)] if not piecewise else [_text(_layout(state)), *state.tensors.values()]
        self._send_tensor(torch.tensor([pieces[0].numel()]), rank)
        for piece in pieces:
            self._send_tensor(piece.reshape(-1).view(torch.uint8), rank)

    def _receive(self, rank: int, piecewise: bool) -> ModelState:
        length = int(self._receive_tensor(torch.zeros(1, dtype=torch.int64), rank))
        first = self._receive_tensor(torch.zeros(length, dtype=torch.uint8), rank)
        if not piecewise:
            return _unpacked(first)
        layout = json.loads(bytes(first.numpy()))
        tensors = {name: torch.zeros(shape, dtype=getattr(torch, kind)) for name, shape, kind in layout["tensors"]}
        for name, tensor in tensors.items():
            data = self._receive_tensor(torch.zeros(tensor.numel() * tensor.element_size(), dtype=torch.uint8), rank)
            tensors[name] = data.view(tensor.dtype).view(tensor.shape)
        return ModelState(tensors, layout["plain"])

    def _send_tensor(self, tensor: torch.Tensor, rank: int) -> None:
        self.sent_bytes += tensor.numel() * tensor.element_size()
        with self._world.status.wait(f"rank {rank} to receive a model"):
            distributed.send(tensor.to(self._world.device), rank)

    def _receive_tensor(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        there = tensor.to(self._world.device)
        with self._world.status.wait(f"a model from rank {rank}"):
            distributed.recv(there, rank)
        return there.cpu()

    def _broadcast(self, process: Communicator, state: ModelState | None) -> ModelState:
        """Broadcast what the first rank of a trainer has received to all of its ranks."""
        if process.world_size == 1 and state is not None:
            return state
        packed = _packed(state) if state is not None else torch.zeros(0, dtype=torch.uint8)
        length = process.all_reduce(torch.tensor([packed.numel()], device=process.device))  # 0 on the other ranks
        if state is None:
            packed = torch.zeros(int(length), dtype=torch.uint8)
        moved = packed.to(process.device)
        process.broadcast(0, [moved])
        return _unpacked(moved.cpu())

    # ---- files

    def _write(
        self, moves: Iterable[tuple[int, int]], taken: Mapping[int, ModelState], way: ExchangeStrategy, number: int
    ) -> None:
        """Write the model of each sending trainer from its first rank, and wait until all are written."""
        for source in {source: None for source, _ in moves}:
            if self._shares.first_of(source) == self._world.rank:
                plain = {"settings": {}, "genome": taken[source].plain}
                self._folder(source, way).mkdir(parents=True, exist_ok=True)
                path = save_checkpoint(self._folder(source, way), number, taken[source].tensors, {}, plain)
                self.sent_bytes += sum(file.stat().st_size for file in path.iterdir())
        with self._world.status.waiting_patiently():
            self._world.all_gather_object(number)

    def _read(self, source: int, way: ExchangeStrategy, number: int) -> ModelState:
        path = self._folder(source, way) / f"step-{number}"
        return ModelState(read_weights(path), read_state(path)[1]["genome"])

    def _folder(self, trainer: int, way: ExchangeStrategy) -> Path:
        return Path(way.checkpoint_dir or "") / f"{self._name}_trainer{trainer}"


def _layout(state: ModelState) -> dict[str, Any]:
    forms = [
        [name, list(tensor.shape), str(tensor.dtype).removeprefix("torch.")] for name, tensor in state.tensors.items()
    ]
    return {"tensors": forms, "plain": state.plain}


def _text(value: Any) -> torch.Tensor:
    """Plain values as bytes."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _packed(state: ModelState) -> torch.Tensor:
    """A whole model as bytes: the length of the plain part, that part, and the tensors."""
    text, tensors = json.dumps(state.plain).encode(), bytes_of(state.tensors)
    return torch.frombuffer(bytearray(len(text).to_bytes(8, "little") + text + tensors), dtype=torch.uint8)


def _unpacked(packed: torch.Tensor) -> ModelState:
    data = bytes(packed.numpy())
    end = 8 + int.from_bytes(data[:8], "little")
    return ModelState(tensors_from(data[end:]), json.loads(data[8:end]))
