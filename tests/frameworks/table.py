"""Trains under other people's frameworks with torch's AdamW and with ours, and prints a Markdown table.

    python -m venv frameworks
    echo "torch==2.13.0" > only-this-torch.txt
    frameworks/bin/pip install --constraint only-this-torch.txt torch==2.13.0 numpy lightning transformers accelerate \\
        torchmetrics mlflow-skinny sqlalchemy alembic wandb
    PYTHONPATH=. frameworks/bin/python tests/frameworks/table.py [NAME ...]

It needs an environment of its own, so pytest does not collect it. For each framework the model trains six steps with
torch's AdamW and with `descend.optim.AdamW` (float32); then each trains three steps, is saved by the framework's own
means, loaded into new objects and trained on. The weights must agree within 1e-6 with torch's, and to the bit with the
run that was not interrupted, unless torch's own AdamW does not come to the same bits there either. Frameworks of
several ranks run on two gloo processes. The last rows are of tools that `descend.fit` is given: what they hold must be
the rows of the history, and of a run that was continued those of one that was not. The exit status is 1 if a row fails.
"""

from __future__ import annotations

import contextlib
import copy
import os
import socket
import struct
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

import descend.optim

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS, HALF, TOLERANCE = 6, 3, 1e-6
OPTIONS: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.01}


def adamw(library: str, params: Any) -> Any:
    """The optimizer of one of the two libraries."""
    return (torch.optim.AdamW if library == "torch" else descend.optim.AdamW)(params, **OPTIONS)


def net() -> nn.Sequential:
    """The same model each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def batch() -> Tensor:
    """The one batch, (8, 4)."""
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def weights(model: nn.Module) -> list[Tensor]:
    """Copies of all parameters, whole."""
    return [(p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for p in model.parameters()]


# ---- one process: each trains up to `steps`, from the checkpoint `before` if there is one, and saves to `after`


def by_lightning(module: Any, steps: int, before: Path | None, after: Path) -> list[Tensor]:
    """Train a LightningModule by Lightning's Trainer, on from its checkpoint in `before` if there is one."""
    import lightning

    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch()), batch_size=8)
    quiet: Any = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=steps, accelerator="cpu", enable_model_summary=False, **quiet)
    saved = None if before is None else str(before / "run.ckpt")
    trainer.fit(module, data, ckpt_path=saved, weights_only=False)  # of this script, and Lightning keeps objects in it
    trainer.save_checkpoint(after / "run.ckpt")
    return weights(module.model)


def lightning_run(library: str, steps: int, before: Path | None, after: Path, *, manual: bool) -> list[Tensor]:
    """Lightning's Trainer with automatic or manual optimization."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()
            self.automatic_optimization = not manual

        def training_step(self, x: list[Tensor], index: int) -> Any:
            loss = self.model(x[0]).square().mean()
            if manual:
                optimizer: Any = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            return adamw(library, self.parameters())

    return by_lightning(Module(), steps, before, after)


def lightning_automatic(*args: Any) -> list[Tensor]:
    """Lightning, automatic optimization."""
    return lightning_run(*args, manual=False)


def lightning_manual(*args: Any) -> list[Tensor]:
    """Lightning, manual optimization."""
    return lightning_run(*args, manual=True)


def lightning_parts(library: str, steps: int, before: Path | None, after: Path) -> list[Tensor]:
    """Lightning: two optimizers in turn, each with a schedule, clipped gradients."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()
            self.automatic_optimization = False

        def training_step(self, x: list[Tensor], index: int) -> None:
            optimizers: Any = self.optimizers()
            schedules: Any = self.lr_schedulers()
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                self.toggle_optimizer(optimizer)
                optimizer.zero_grad()
                self.manual_backward(self.model(x[0]).square().mean())
                self.clip_gradients(optimizer, gradient_clip_val=0.05, gradient_clip_algorithm="norm")
                optimizer.step()
                schedule.step()
                self.untoggle_optimizer(optimizer)

        def configure_optimizers(self) -> Any:
            made = [adamw(library, part.parameters()) for part in (self.model[0], self.model[2])]
            return [
                {"optimizer": one, "lr_scheduler": torch.optim.lr_scheduler.OneCycleLR(one, 2e-2, total_steps=10)}
                for one in made
            ]

    return by_lightning(Module(), steps, before, after)


def fabric(library: str, steps: int, before: Path | None, after: Path) -> list[Tensor]:
    """Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(*(lambda m: (m, adamw(library, m.parameters())))(net()))
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "step": 0}
    if before is not None:
        fabric.load(before / "fabric.ckpt", state)
    for _ in range(state["step"], steps):
        optimizer.zero_grad()
        fabric.backward(model(batch()).square().mean())
        optimizer.step()
    fabric.save(after / "fabric.ckpt", {**state, "step": steps})
    return weights(model)


def hugging_face_by_class(library: str, steps: int, before: Path | None, after: Path) -> list[Tensor]:
    """Hugging Face's Trainer with a class and its options, accumulation, clipping and a warm-up."""
    kind: Any = torch.optim.AdamW if library == "torch" else descend.optim.AdamW
    more = {"gradient_accumulation_steps": 2, "max_grad_norm": 0.05, "lr_scheduler_type": "cosine", "warmup_steps": 2}
    arguments = {**more, "per_device_train_batch_size": 4, "learning_rate": OPTIONS["lr"]}
    return hugging_face(library, steps, before, after, arguments, optimizer_cls_and_kwargs=(kind, OPTIONS))


def hugging_face(
    library: str,
    steps: int,
    before: Path | None,
    after: Path,
    more: dict[str, Any] | None = None,
    **how: Any,
) -> list[Tensor]:
    """Hugging Face's Trainer."""
    import transformers

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": self.model(x).square().mean()}

    module = Module()
    usual: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "steps",
        "save_steps": HALF,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
    }
    # The length of a schedule is that of the whole run, which is interrupted by a callback.
    arguments = transformers.TrainingArguments(output_dir=str(after), max_steps=STEPS, **{**usual, **(more or {})})
    if not how:
        optimizer = adamw(library, module.parameters())
        how = {"optimizers": (optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))}
    data: Any = [{"x": x} for x in batch()]

    class End(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            control.should_training_stop = state.global_step >= steps

    trainer = transformers.Trainer(module, arguments, train_dataset=data, callbacks=[End()], **how)
    trainer.train(resume_from_checkpoint=None if before is None else str(before / f"checkpoint-{HALF}"))
    return weights(module)


def accelerate_loop(library: str, steps: int, before: Path | None, after: Path) -> list[Tensor]:
    """accelerate: prepare, accumulate over two halves, clip, a schedule, save_state, load_state."""
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = net()
    made = adamw(library, model.parameters())
    falling = torch.optim.lr_scheduler.ExponentialLR(made, 0.8)
    model, optimizer, schedule = accelerator.prepare(model, made, falling)
    done = 0
    if before is not None:
        accelerator.load_state(str(before))
        done = HALF
    for _ in range(done, steps):
        for half in (slice(0, 4), slice(4, 8)):
            with accelerator.accumulate(model):
                accelerator.backward(model(batch()[half]).square().mean())
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 0.05)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    accelerator.save_state(str(after))
    return weights(model)


# ---- two ranks


class Container:
    """Optimizers of the parts of a model with their schedules, saved under flat names, as torchtitan has them."""

    def __init__(self, parts: list[nn.Module], library: str) -> None:
        self.parts = parts
        self.optimizers = [adamw(library, part.parameters()) for part in parts]
        half = [torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1 / (1 + step)) for one in self.optimizers]
        self.schedules = half

    def zero_grad(self) -> None:
        for one in self.optimizers:
            one.zero_grad(set_to_none=True)

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_([p for part in self.parts for p in part.parameters()], 0.05, foreach=True)
        for one, schedule in zip(self.optimizers, self.schedules, strict=True):
            one.step()
            schedule.step()

    def state_dict(self) -> dict[str, Any]:
        """See `torch.distributed.checkpoint.stateful.Stateful`."""
        from torch.distributed.checkpoint import state_dict as distributed

        options = distributed.StateDictOptions(flatten_optimizer_state_dict=True)
        found: dict[str, Any] = {"schedule": self.schedules[0].state_dict()}
        for i, (part, one) in enumerate(zip(self.parts, self.optimizers, strict=True)):
            flat = distributed.get_optimizer_state_dict(part, one, options=options)
            found |= {f"{i}.{name}": value for name, value in flat.items()}
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `torch.distributed.checkpoint.stateful.Stateful`."""
        from torch.distributed.checkpoint import state_dict as distributed

        options = distributed.StateDictOptions(flatten_optimizer_state_dict=True)
        for i, (part, one) in enumerate(zip(self.parts, self.optimizers, strict=True)):
            own = {name.removeprefix(f"{i}."): x for name, x in state.items() if name.startswith(f"{i}.")}
            distributed.set_optimizer_state_dict(part, one, own, options=options)
            self.schedules[i].load_state_dict(copy.deepcopy(state["schedule"]))


def wrapped(kind: str, library: str) -> tuple[nn.Module, Any]:
    """Model and optimizer under a wrapper of torch.distributed."""
    model: Any = net()
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        original = "original" in kind
        model = FullyShardedDataParallel(model, use_orig_params=original, device_id=torch.device("cpu"))
    elif kind.startswith(("fsdp2", "torchtitan")):
        from torch.distributed.fsdp import fully_shard

        for layer in (model[0], model[2]) if kind == "torchtitan" else ():
            fully_shard(layer)
        model = fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model)
    if kind == "torchtitan":
        return model, Container([model[0], model[2]], library)
    if not kind.startswith("zero"):
        return model, adamw(library, model.parameters())
    from torch.distributed.optim import ZeroRedundancyOptimizer

    kind_of: Any = torch.optim.AdamW if library == "torch" else descend.optim.AdamW
    buckets = kind.endswith("buckets")
    return model, ZeroRedundancyOptimizer(model.parameters(), kind_of, parameters_as_bucket_view=buckets, **OPTIONS)


def train(model: nn.Module, optimizer: Any, steps: range, rank: int) -> None:
    """So many steps on this rank's half of the batch."""
    for _ in steps:
        optimizer.zero_grad()
        model(batch()[4 * rank : 4 * rank + 4]).square().mean().backward()
        optimizer.step()


def outputs(model: nn.Module) -> list[Tensor]:
    """What the model says; the same function of the whole weights on every rank."""
    return [model(batch()).detach().clone()]


def transferred(kind: str, old: tuple[Any, Any], new: tuple[Any, Any], folder: str) -> None:
    """Save one model and optimizer and load them into others, by the means that torch has for their kind."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as distributed
    from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp

    (model, optimizer), (again, other) = old, new
    if kind.startswith("zero"):
        again.load_state_dict(model.state_dict())
        for rank in range(2):
            optimizer.consolidate_state_dict(to=rank)  # after which this rank alone has the whole state
            if rank == torch.distributed.get_rank():
                state = copy.deepcopy(optimizer.state_dict())
                other.load_state_dict(state)
    elif kind == "torchtitan":
        states = {"model": model.state_dict(), "optimizer": optimizer}
        checkpoint.save(states, checkpoint_id=folder)
        states = {"model": again.state_dict(), "optimizer": other}
        checkpoint.load(states, checkpoint_id=folder)
        again.load_state_dict(states["model"])
    elif kind in ("fsdp1", "fsdp1_original"):
        again.load_state_dict(model.state_dict())
        other.load_state_dict(Fsdp.optim_state_dict_to_load(again, other, Fsdp.optim_state_dict(model, optimizer)))
    else:
        options = distributed.StateDictOptions(flatten_optimizer_state_dict=kind.endswith("flat"))
        saved = distributed.get_state_dict(model, optimizer, options=options)
        checkpoint.save({"model": saved[0], "optimizer": saved[1]}, checkpoint_id=folder)
        held = distributed.get_state_dict(again, other, options=options)
        state = {"model": held[0], "optimizer": held[1]}
        checkpoint.load(state, checkpoint_id=folder)
        distributed.set_state_dict(
            again, other, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options
        )


KINDS = {
    "ddp": "DDP",
    "ddp_dcp_flat": "DDP, flattened",
    "fsdp1": "FSDP1, `use_orig_params=False`",
    "fsdp1_original": "FSDP1, `use_orig_params=True`, `FSDP.optim_state_dict`",
    "fsdp1_original_dcp": "FSDP1, `use_orig_params=True`",
    "fsdp2": "FSDP2",
    "fsdp2_dcp_flat": "FSDP2, flattened",
    "zero": "ZeRO",
    "zero_buckets": "ZeRO, `parameters_as_bucket_view=True`",
    "torchtitan": "a loop as torchtitan's, flattened",
}


def rank_of(rank: int, port: int, kind: str, folder: str, results: Any) -> None:
    """One of two processes."""
    warnings.simplefilter("ignore")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=2)
    found: Any
    try:
        ends: dict[str, list[Tensor]] = {}
        for library in ("torch", "descend"):
            model, optimizer = wrapped(kind, library)
            train(model, optimizer, range(HALF), rank)
            new = wrapped(kind, library)
            transferred(kind, (model, optimizer), new, f"{folder}/{library}")
            train(*new, range(HALF, STEPS), rank)
            ends["resumed" if library == "descend" else "torch resumed"] = outputs(new[0])
            train(model, optimizer, range(HALF, STEPS), rank)
            ends[library] = outputs(model)
        found = {key: [x.numpy() for x in held] for key, held in ends.items()}
    except Exception:
        found = traceback.format_exc()
    results.put(found)
    if not isinstance(found, str):
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


def two_ranks(kind: str) -> dict[str, list[Tensor]]:
    """The ends of the three runs, as rank 0 or rank 1 has them first."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = int(s.getsockname()[1])
    results = mp.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = mp.spawn(rank_of, args=(port, kind, folder, results), nprocs=2, join=False)
        both = [results.get(timeout=100) for _ in range(2)]
        assert ranks is not None
        if any(isinstance(found, str) for found in both):
            raise RuntimeError(next(found for found in both if isinstance(found, str)))
        ranks.join()
    whole = {key: [torch.from_numpy(x) for x in held] for key, held in both[0].items()}
    other = [torch.from_numpy(x) for x in both[1]["descend"]]
    if not all(map(torch.equal, whole["descend"], other)):
        raise RuntimeError("the ranks disagree")
    return whole


ALONE = {
    "Lightning, automatic": lightning_automatic,
    "Lightning, manual": lightning_manual,
    "Lightning, two optimizers with schedules, clipped": lightning_parts,
    "Fabric": fabric,
    "Hugging Face Trainer": hugging_face,
    "Hugging Face Trainer, `optimizer_cls_and_kwargs`, accumulated, clipped, scheduled": hugging_face_by_class,
    "accelerate, accumulated, clipped, scheduled": accelerate_loop,
}


# ---- tools that `fit` is given: what they hold after `epochs`, and what the history has, by name


def fitted(folder: Path, epochs: int, **options: Any) -> Any:
    """So many epochs of `fit`, from what the folder holds."""
    import descend

    torch.manual_seed(0)
    module, labels = nn.Linear(4, 3), torch.arange(60) % 3
    x = torch.eye(3, 4)[labels] + torch.randn(60, 4, generator=torch.Generator().manual_seed(2))
    more: dict[str, Any] = {"run_dir": str(folder / "run"), "resume": True, "verbose": False, "valid": (x, labels)}
    rule = lambda params: descend.optim.AdamW(params, lr=1e-2)  # noqa: E731
    stop = descend.Epochs(epochs)
    return descend.fit(
        module, "cross_entropy", (x, labels), optimizer=rule, batch_size=7, stop=stop, **{**more, **options}
    )


def validation(result: Any, name: str) -> list[float]:
    """A metric of every validation."""
    return [row[name] for row in result.history if row["mode"] == "validation"]


def torchmetrics_tool(folder: Path, epochs: int) -> tuple[list[float], list[float]]:
    """F1 of torchmetrics over all samples, and of `fit` by its name."""
    from torchmetrics.classification import MulticlassF1Score

    metrics = {"theirs": MulticlassF1Score(3), "ours": "f1"}
    result = fitted(folder, epochs, metrics=metrics)
    return validation(result, "theirs"), validation(result, "ours")


def mlflow_tool(folder: Path, epochs: int) -> tuple[list[float], list[float]]:
    """The validation objective in MLflow's files."""
    from mlflow import MlflowClient

    import descend

    place = f"sqlite:///{folder}/mlflow.db"
    result = fitted(folder, epochs, callbacks=[descend.MLflowLogger(tracking_uri=place)])
    client: Any = MlflowClient(tracking_uri=place)
    (run,) = client.search_runs([client.get_experiment_by_name("descend").experiment_id])
    held = client.get_metric_history(run.info.run_id, "validation/objective")
    return [one.value for one in sorted(held, key=lambda one: one.step)], validation(result, "objective")


def log_records(content: bytes) -> Iterator[bytes]:
    """The records of W&B's files: LevelDB's log format after a header of 7 bytes.

    Source: https://github.com/google/leveldb/blob/main/doc/log_format.md
    """
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768  # the rest of a block has no room for a header
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        record += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def wandb_tool(folder: Path, epochs: int) -> tuple[list[float], list[float]]:
    """The validation objective in the files of W&B's offline runs."""
    import json

    from wandb.proto import wandb_internal_pb2

    import descend

    os.environ["WANDB_SILENT"] = "true"
    logger = descend.WandbLogger(project="table", mode="offline", directory=str(folder))
    result = fitted(folder, epochs, callbacks=[logger])
    held: list[float] = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in log_records(path.read_bytes()):
            record: Any = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("history"):
                values = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                held += [values["validation/objective"]] if "validation/objective" in values else []
    return held, validation(result, "objective")


TOOLS: dict[str, Any] = {"torchmetrics": torchmetrics_tool, "MLflow": mlflow_tool, "W&B, offline": wandb_tool}


def tool_row(name: str) -> tuple[str, bool]:
    """As `row`; the difference is between what the tool has and the history."""
    try:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
            whole = TOOLS[name](Path(one), STEPS)
            TOOLS[name](Path(two), HALF)
            resumed = TOOLS[name](Path(two), STEPS)
    except Exception as problem:
        traceback.print_exc()
        return f"| {name} | {type(problem).__name__} | |", False
    if len(whole[0]) != STEPS or len(whole[1]) != STEPS:
        return f"| {name} | {len(whole[0])} of {STEPS} values | |", False
    apart = max(abs(x - y) for x, y in zip(*whole, strict=True))
    return f"| {name} | {apart:.1e} | {'yes' if whole == resumed else 'no'} |", apart <= TOLERANCE and whole == resumed


def one_process(run: Any) -> dict[str, list[Tensor]]:
    """The ends of the three runs."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[Tensor]] = {}
        for library, resumed in (("torch", "torch resumed"), ("descend", "resumed")):
            whole, half, end = (Path(folder, f"{library} {name}") for name in ("whole", "half", "end"))
            for path in (whole, half, end):
                path.mkdir()
            found[library] = run(library, STEPS, None, whole)
            run(library, HALF, None, half)
            found[resumed] = run(library, STEPS, half, end)
        return found


def row(name: str) -> tuple[str, bool]:
    """One row of the table, and whether it is right."""
    if name in TOOLS:
        return tool_row(name)
    try:
        ends = one_process(ALONE[name]) if name in ALONE else two_ranks(name)
    except Exception as problem:
        traceback.print_exc()
        return f"| {KINDS.get(name, name)} | {type(problem).__name__} | |", False
    apart = max(float((x - y).abs().max()) for x, y in zip(ends["descend"], ends["torch"], strict=True))
    exact = all(map(torch.equal, ends["descend"], ends["resumed"]))
    control = all(map(torch.equal, ends["torch"], ends["torch resumed"]))
    said = "yes" if exact else "no" if control else "no, nor torch's"
    return f"| {KINDS.get(name, name)} | {apart:.1e} | {said} |", apart <= TOLERANCE and (exact or not control)


def main() -> int:
    """Print the table."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| framework | largest difference from torch's AdamW | resumed to the same bits |\n| --- | --- | --- |")  # noqa: T201
    right, known = True, [*ALONE, *KINDS, *TOOLS]
    if unknown := [name for name in sys.argv[1:] if name not in known]:
        raise SystemExit(f"there is no row '{unknown[0]}'; the rows are {'; '.join(known)}")
    for name in sys.argv[1:] or known:
        with contextlib.redirect_stdout(sys.stderr):
            text, good = row(name)
        print(text, flush=True)  # noqa: T201
        right = right and good
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
