"""Layer timelines, memory profiles, ranges for a profiler, and lines about layers and mini-batches."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from descend.callbacks.console import say
from descend.callbacks.name_fields import modes_of
from descend.callbacks.progress_bar import peak_bytes
from descend.graph.fields import described_openly
from descend.train import Callback

if TYPE_CHECKING:
    import torch

    from descend.train import EpochView, RunView, StepView
    from descend.train.activations import Outputs

__all__ = ["Debug", "DebugIO", "GPUMemoryUsage", "MemoryProfiler", "Profiler", "Timeline"]


class _LineWriter(Callback):
    """What gathers lines during a run."""

    lines: list[str]
    began: float
    mark: float

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.lines, self.began, self.mark = [], time.perf_counter(), 0.0

    def span(self, name: str) -> None:
        """A line from the last mark to now, in seconds since the run began."""
        now = time.perf_counter() - self.began
        self.lines.append(f"{name}:{self.mark:.9f}:{now:.9f}")
        self.mark = now


@described_openly
class Timeline(_LineWriter):
    """Writes when each layer's forward and backward pass and each update of weights began and ended.

    Files: DIRECTORY/timeline.m0.0.txt, lines fp-LAYER:start:end, bp-LAYER:start:end and opt-WEIGHTS:start:end in
        seconds since the start. Layers run one after the other, so each begins where the one before it ended; all
        weights are updated in one go and share its times. On a GPU these are the times of the launches.
    Runs:  before_step, after_backward, after_step, after_run.
    Reads: the clock. Changes nothing.
    Costs: a few microseconds a layer and step, and memory for the lines.

    Args:
        directory: Where the file goes.
    """

    message: ClassVar[str] = "Callback.CallbackTimeline"

    directory: str = ""

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        self.mark = time.perf_counter() - self.began

        def forward(name: str, outputs: Outputs) -> None:
            self.span(f"fp-{name}")
            # The gradient of a layer's inputs is there when its backward pass is done; that is the output of another.
            for output in outputs[:1]:
                if output.requires_grad and output.grad_fn is not None:
                    output.register_hook(lambda _gradient: self._backward(name))

        self._running = ""
        step.watch.listen(forward)

    _running = ""

    def _backward(self, name: str) -> None:
        """The gradient of this layer's output has come: the layer before it in the backward pass is done."""
        if self._running:
            self.span(f"bp-{self._running}")
        else:
            self.mark = time.perf_counter() - self.began
        self._running = name

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        if self._running:
            self.span(f"bp-{self._running}")
        self._running = ""
        self.mark = time.perf_counter() - self.began

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        start = self.mark
        for name in step.run.control.trained:
            self.mark = start
            self.span(f"opt-{name}")

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`."""
        path = run.control.path(f"{self.directory or '.'}/timeline.m0.0.txt")
        path.write_text("".join(line + "\n" for line in self.lines), encoding="utf-8")


class _Marks(Callback):
    """What is marked now, innermost last."""

    open: list[Any]

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.open = []


@described_openly
class Profiler(_Marks):
    """Marks epochs, forward-and-backward passes and updates, so that torch.profiler, and on CUDA Nsight, show them.

    Runs:  around each epoch and each step.
    Reads: nothing. Changes nothing.
    Costs: a microsecond a mark; with `sync` a wait for the device at each.

    Args:
        sync: Wait for the device at each mark, so that the times are those of the work.
        skip_init: Mark nothing in the first epoch.
    """

    message: ClassVar[str] = "Callback.CallbackProfiler"

    sync: bool = False
    skip_init: bool = False

    def before_epoch(self, epoch: EpochView) -> None:
        """See `Callback.before_epoch`."""
        self._begin(f"epoch {epoch.epoch}", epoch.epoch)

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        self._begin("forward and backward", step.epoch)

    def after_backward(self, step: StepView) -> None:
        """See `Callback.after_backward`."""
        self._end()
        self._begin("update", step.epoch)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        self._end()

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        while self.open:
            self._end()

    def after_run(self, run: RunView) -> None:
        """See `Callback.after_run`; an error leaves marks open."""
        while self.open:
            self._end()

    def _begin(self, name: str, epoch: int) -> None:
        import torch

        if self.skip_init and epoch == 0:
            return
        self._wait()
        mark = torch.autograd.profiler.record_function(name)
        mark.__enter__()
        if torch.cuda.is_initialized():
            torch.cuda.nvtx.range_push(name)
        self.open.append(mark)

    def _end(self) -> None:
        import torch

        if self.open:
            self._wait()
            self.open.pop().__exit__(None, None, None)
            if torch.cuda.is_initialized():
                torch.cuda.nvtx.range_pop()

    def _wait(self) -> None:
        import torch

        if self.sync and torch.cuda.is_initialized():
            torch.cuda.synchronize()


class _OutputSizes(Callback):
    """Bytes of each layer's outputs, and whether they were printed."""

    outputs: dict[str, int]
    done: bool

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        self.outputs, self.done = {}, False


@described_openly
class MemoryProfiler(_OutputSizes):
    """Prints in the first step what memory is used for: weights, gradients, state of the optimizer, outputs of layers.

    Runs:  before_step, after_step, in the first step of a process.
    Reads: sizes. Changes nothing.
    Costs: nothing afterwards.

    Args:
        detailed_first_step: Print the outputs of each layer, too.
    """

    message: ClassVar[str] = "Callback.CallbackMemoryProfiler"

    detailed_first_step: bool = False

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if self.done:
            return

        def measure(name: str, outputs: Outputs) -> None:
            self.outputs[name] = self.outputs.get(name, 0) + sum(map(_bytes, outputs))

        step.watch.listen(measure)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if self.done:
            return
        import torch

        self.done = True
        state = [v for entry in step.optimizer.state.values() for v in entry.values() if isinstance(v, torch.Tensor)]
        for what, count in (
            ("weights", sum(map(_bytes, step.run.control.weights.values()))),
            ("gradients", sum(map(_bytes, step.gradients.values()))),
            ("optimizer state", sum(map(_bytes, state))),
            ("outputs of layers", sum(self.outputs.values())),
            ("most held by this process so far", peak_bytes()),
        ):
            say(f"memory, {what} : {_shown(count)}")
        if self.detailed_first_step:
            for name, count in self.outputs.items():
                say(f"memory, outputs of layer {name} : {_shown(count)}")


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _shown(count: int) -> str:
    return f"{count:,} bytes"


@described_openly
class Debug(Callback):
    """Prints a line after the forward pass of each layer, to see how far a run gets.

    Runs:  before_step, before_evaluation_step.
    Reads: shapes of outputs. Changes nothing.
    Costs: a line a layer and mini-batch.

    Args:
        phase: Modes in which to print; all where none is named.

    Raises:
        ConfigurationError: an unknown mode.
    """

    message: ClassVar[str] = "Callback.CallbackDebug"

    phase: str = ""

    def __post_init__(self) -> None:
        modes_of(self.phase)

    def before_step(self, step: StepView) -> None:
        """See `Callback.before_step`."""
        if step.mode not in modes_of(self.phase):
            return

        def tell(name: str, outputs: Outputs) -> None:
            shapes = " and ".join(str(tuple(output.shape)) for output in outputs)
            say(f"{step.mode} epoch {step.epoch} step {step.step}: layer {name} gave {shapes}")

        step.watch.listen(tell)

    def before_evaluation_step(self, step: StepView) -> None:
        """See `Callback.before_evaluation_step`."""
        self.before_step(step)


@described_openly
class DebugIO(Callback):
    """Prints what the reader gave for each mini-batch.

    Runs:  after_step, after_evaluation_step.
    Reads: numbers of samples. Changes nothing.
    Costs: a line a mini-batch.

    Args:
        phase: Modes in which to print; all where none is named.
        lvl: From 1 on the number of each sample is printed.

    Raises:
        ConfigurationError: an unknown mode.
    """

    message: ClassVar[str] = "Callback.CallbackDebugIO"

    phase: str = ""
    lvl: int = 0

    def __post_init__(self) -> None:
        modes_of(self.phase)

    def after_step(self, step: StepView) -> None:
        """See `Callback.after_step`."""
        if step.mode in modes_of(self.phase):
            shown = " ".join(map(str, step.ids.tolist())) if self.lvl else ""
            say(f"{step.mode} epoch {step.epoch} step {step.step}: {step.batch.size} samples {shown}".rstrip())

    def after_evaluation_step(self, step: StepView) -> None:
        """See `Callback.after_evaluation_step`."""
        self.after_step(step)


@described_openly
class GPUMemoryUsage(Callback):
    """Prints after each epoch how much memory of the GPU is held; without a GPU says once that there is none.

    Runs:  after_setup, after_epoch.
    Reads: torch's count. Changes nothing.
    Costs: nothing.
    """

    message: ClassVar[str] = "Callback.CallbackGPUMemoryUsage"
    reads_weights = False

    def after_setup(self, run: RunView) -> None:
        """See `Callback.after_setup`."""
        import torch

        if not torch.cuda.is_available():
            say("GPUMemoryUsage has no effect here: there is no GPU")

    def after_epoch(self, epoch: EpochView) -> None:
        """See `Callback.after_epoch`."""
        import torch

        if torch.cuda.is_available():
            now, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            say(f"GPU memory usage : {now / 2**30:.3g} GiB used, {most / 2**30:.3g} GiB at most")
