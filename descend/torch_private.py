"""Every access to private parts of torch, one function each.

A name with a leading underscore may change with any release of torch. Each function here says what it does and why no
public name serves; `tests/test_torch_private.py` calls each with the torch that runs, so a release that moves one fails
there and is repaired here. No other file of the package names a private part of torch.

Importing this module does not import torch; each function imports what it needs.

    autograd        run_backward, grad_and_value, quick_checks, is_in_backward
    tensors         version_counter, view_base, tensor_address, foreach, foreach_copy,
                    AllFinite, is_functorch_wrapped
    storages        storage_identity, storage_use_count, weak_storage
    module types    norm_class, batch_norm_class, instance_norm_class, convolution_class, dropout_class
    modules         has_hooks, own_buffers, compiled_call, set_compiled_call
    optimizers      step_is_observed, skips_flagged_updates, mark_outside_graphs, dynamo_is_imported, plain_state_dict
    products        float32_product
    distributed     shard_region, reset_reducer, collectives_begun, default_store, clone_store,
                    disable_elastic_restarts, log_no_native_warnings
    compilers       operator_schema, private_operator, dispatch_mode, decomposed
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import torch
    from torch import Tensor, nn
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]  # documented there

__all__ = [
    "AllFinite",
    "batch_norm_class",
    "clone_store",
    "collectives_begun",
    "compiled_call",
    "convolution_class",
    "decomposed",
    "default_store",
    "disable_elastic_restarts",
    "dispatch_mode",
    "dropout_class",
    "dynamo_is_imported",
    "float32_product",
    "foreach",
    "foreach_copy",
    "grad_and_value",
    "has_hooks",
    "instance_norm_class",
    "is_functorch_wrapped",
    "log_no_native_warnings",
    "mark_outside_graphs",
    "norm_class",
    "operator_schema",
    "own_buffers",
    "plain_state_dict",
    "private_operator",
    "quick_checks",
    "reset_reducer",
    "run_backward",
    "set_compiled_call",
    "shard_region",
    "skips_flagged_updates",
    "step_is_observed",
    "storage_identity",
    "storage_use_count",
    "sum_is_finite",
    "tensor_address",
    "version_counter",
    "view_base",
    "weak_storage",
]


# ---- autograd


def run_backward(top: Tensor, start: Tensor) -> None:
    """Add the gradients of top, whose own gradient is start, of the same shape.

    `torch.autograd.backward` with a start compares the two shapes symbolically, and imports SymPy and torch.fx for
    that: a second, which is most of the time of a short run. This is what it calls after its checks.
    """
    import torch

    if type(top) is not torch.Tensor:  # subclasses may have a backward pass of their own
        torch.autograd.backward(top, start)
        return
    engine: Any = torch.autograd.graph._engine_run_backward  # pyright: ignore[reportPrivateUsage]  # see above
    engine((top,), (start,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def grad_and_value(function: Callable[..., tuple[Tensor, Any]]) -> Callable[..., tuple[dict[str, Tensor], Any]]:
    """`torch.func.grad_and_value(function, has_aux=True)` of tensors by name, without importing torch._dynamo.

    Torch imports it, half a second, to switch off the compilation of backward passes, which is off where it is not
    imported. What is called here is what torch calls then, in the same order.

    Args:
        function: From tensors by name, which are differentiated, and others to a scalar and anything else.

    Returns:
        A function of the same arguments to the gradients by name, and the pair that `function` returned.
    """
    import torch
    from torch._functorch import eager_transforms as transforms

    def of_all(p: dict[str, Tensor], *rest: Any) -> tuple[dict[str, Tensor], Any]:
        if dynamo_is_imported():
            return cast("Any", torch.func.grad_and_value(function, has_aux=True)(p, *rest))
        private: Any = transforms
        saved = torch.autograd.graph.disable_saved_tensors_hooks(
            "torch.func's transforms know no hooks of saved tensors"
        )
        with saved, private.grad_increment_nesting() as level, torch.enable_grad():
            p, rest = private._wrap_all_tensors((p, rest), level)
            for x in p.values():
                private._create_differentiable(x, level=level)
            value, more = function(p, *rest)
            if value.requires_grad:
                grads = torch.autograd.grad(value, list(p.values()), create_graph=True, allow_unused=True)
            else:
                grads = [None] * len(p)
            found = {
                name: torch.zeros_like(x) if g is None else g for (name, x), g in zip(p.items(), grads, strict=True)
            }
            return private._undo_create_differentiable((found, (value, more)), level)

    return of_all


@contextlib.contextmanager
def quick_checks() -> Generator[None]:
    """Let checks of torch that hold not import SymPy, as long as this is entered.

    Losses inside `vmap` are checked so; torch imports half a second of modules to ask whether a condition may be a
    symbol, before it looks at the condition. A condition that is not simply true is left to torch.
    """
    import torch

    module: Any = torch
    check = module._check_with

    def quickly(error_type: Any, condition: Any, message: Any) -> None:
        if condition is not True:
            check(error_type, condition, message)

    module._check_with = quickly
    try:
        yield
    finally:
        module._check_with = check


# ---- tensors


def version_counter(x: Tensor) -> int:
    """Number of writes in place to x and its views. Autograd's own counter; only its increment is public."""
    return x._version


def is_in_backward() -> bool:
    """Whether this thread is within a backward pass, as where checkpointing repeats a part of the forward pass."""
    import torch

    return torch._C._current_graph_task_id() != -1  # pyright: ignore[reportPrivateUsage]


def view_base(x: Tensor) -> Tensor | None:
    """The tensor that x is a view of, or None. Autograd's views say so nowhere else."""
    return x._base


def tensor_address(x: Tensor) -> int:
    """Address of the C++ tensor behind x, 0 where this torch has none: to check an assumption about memory layout."""
    return getattr(x, "_cdata", 0)


def storage_identity(storage: torch.UntypedStorage) -> int:
    """The same number for all Python objects of one storage; its data pointer is 0 for all that are empty."""
    return cast("Any", storage)._cdata


def storage_use_count(storage: torch.UntypedStorage) -> int:
    """How many C++ objects refer to a storage: tensors, and this Python object. Nothing public counts them."""
    import torch

    return cast("Any", torch)._C._storage_Use_Count(cast("Any", storage)._cdata)


def weak_storage(storage: torch.UntypedStorage) -> Callable[[], bool]:
    """Whether a storage is gone, as a function that keeps no memory; as long as it exists the identity is not reused.

    Python's weak references are to the object of Python, which torch makes again at each call of `untyped_storage`.
    """
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(cast("Any", storage)).expired


def foreach_copy(destinations: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each source into its destination, in one call for all; torch.utils has no public form."""
    import torch

    copy_all: Callable[[Sequence[Tensor], Sequence[Tensor]], None] = getattr(torch, "_foreach_copy_")  # noqa: B009
    copy_all(destinations, sources)


def foreach(name: str) -> Callable[..., list[Tensor]]:
    """The function that does `torch.NAME` to all tensors of a list, on a GPU in a few launches; none is public."""
    import torch

    return getattr(torch, f"_foreach_{name}")


def own_buffers(module: nn.Module) -> list[Tensor]:
    """The buffers of a module without those of its parts, in a tenth of the time of `buffers(recurse=False)`."""
    held: dict[str, Tensor | None] = getattr(module, "_buffers")  # noqa: B009  # a private name
    return [buffer for buffer in held.values() if buffer is not None]


def foreach_largest(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The largest magnitude of each dense tensor, 0-d; NaN where an element is NaN.

    In one call for all; the public norms take one tensor each.
    """
    import torch

    norms: Callable[[Sequence[Tensor], float], list[Tensor]] = getattr(torch, "_foreach_norm")  # noqa: B009
    return list(norms(tensors, float("inf"))) if tensors else []


def _total(tensors: Sequence[Tensor]) -> complex:
    """A number that is finite only if all elements are: on a CPU the sum of all, on a device the largest of each
    tensor, or its sum if it is sparse. What lies there is read in few launches and waited for once."""
    import torch

    total: complex = 0.0
    largest: dict[torch.device, list[Tensor]] = {}
    dense: dict[torch.device, list[Tensor]] = {}
    for x in tensors:
        if x.is_cpu:
            is_low = x.layout is torch.strided and x.dtype.itemsize < 4
            total += x.sum(dtype=torch.float32 if is_low else None).item()
        elif x.layout is not torch.strided:
            largest.setdefault(x.device, []).append(x.sum().abs())
        elif x.numel():
            dense.setdefault(x.device, []).append(x)
    for device, some in dense.items():
        largest.setdefault(device, []).extend(foreach_largest(some))
    return total + sum(torch.stack(some).max().item() for some in largest.values())


def sum_is_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether a sum over all elements is finite: then all elements are; waits for each device once.

    The sum of large finite numbers may overflow too, so an exact check has to follow one that is not.
    """
    return math.isfinite(abs(_total(tensors)))


class AllFinite:
    """Whether every element of dense, real tensors of one device is finite, in one call for all of them.

    It is the function that torch's `GradScaler` calls, with a scale of 1: each element is written back as it is. Sums
    take a call a tensor, tests of each element ten times as long, and norms on a GPU four launches where this has one.

    Args:
        device: Of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        self._found, self._scale = torch.zeros((), device=device), torch.ones((), device=device)
        name = "_amp_foreach_non_finite_check_and_unscale_"
        self._look: Callable[[Sequence[Tensor], Tensor, Tensor], None] = getattr(torch, name)

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """Look at tensors of any floating-point types and shapes. Waits for the device."""
        self._look(tensors, self._found, self._scale)
        if self._found.item() == 0.0:
            return True
        self._found.zero_()
        return False

    def flag(self, tensors: Sequence[Tensor]) -> Tensor:
        """The answer as a tensor on the device, 1 if an element is not finite, for which nothing waits."""
        found = self._found.new_zeros(())
        self._look(tensors, found, self._scale)
        return found


def skips_flagged_updates(optimizer: Any) -> bool:
    """Whether an optimizer leaves out an update where the tensor `optimizer.found_inf` is above 0.

    GradScaler sets it, beside `grad_scale`, where a private attribute of the optimizer says so: descend's do, and
    torch's own with fused=True.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def is_functorch_wrapped(x: Tensor) -> bool:
    """Whether x is inside a transform of torch.func, which has no public question for it."""
    from torch._C._functorch import is_functorch_wrapped_tensor

    return is_functorch_wrapped_tensor(x)


# ---- base classes of layers, which are the only common type of their families


def norm_class() -> type[nn.Module]:
    """Base of all batch and instance norms."""
    from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

    return _NormBase


def batch_norm_class() -> type[nn.Module]:
    """Base of all batch norms."""
    from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

    return _BatchNorm


def instance_norm_class() -> type[nn.Module]:
    """Base of all instance norms."""
    from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]

    return _InstanceNorm


def convolution_class() -> type[nn.Module]:
    """Base of all convolutions."""
    from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]

    return _ConvNd


def dropout_class() -> type[Any]:
    """Base of all dropout layers."""
    from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]

    return _DropoutNd


# ---- modules


def has_hooks(module: nn.Module) -> bool:
    """Whether a forward or backward hook is registered on this module itself."""
    held: Any = module
    return bool(held._forward_hooks or held._forward_pre_hooks or held._backward_hooks)


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """What `module.compile()` has set, None before it."""
    return cast("Any", module)._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Callable[..., Any] | None) -> None:
    """Undo `module.compile()`, which torch offers no way to do: put back what `compiled_call` gave before."""
    cast("Any", module)._compiled_call_impl = call


# ---- optimizers


def step_is_observed(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step hook, of this optimizer or of all, or a profiler would notice torch's wrapper around `step`."""
    before, after, profiler = _global_observers()
    held: Any = optimizer
    own = held._optimizer_step_pre_hooks or held._optimizer_step_post_hooks
    return bool(own or before or after or profiler._is_profiler_enabled)


@functools.cache  # asked at every step
def _global_observers() -> tuple[Any, Any, Any]:
    """Hooks before and after the step of every optimizer, and the module that says whether a profiler runs."""
    import torch

    held = vars(sys.modules[torch.optim.Optimizer.__module__])
    return held["_global_optimizer_pre_hooks"], held["_global_optimizer_post_hooks"], torch.autograd.profiler


def mark_outside_graphs(function: Callable[..., Any], reason: str) -> None:
    """Keep torch.compile from inlining a function into a caller's graph; with fullgraph=True it raises with the reason.

    These are the marks that torch.compiler.disable sets; setting them does not import the compiler, which takes two
    seconds.
    """
    marked: Any = function
    marked._torchdynamo_disable = True
    marked._torchdynamo_disable_msg = reason


def plain_state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What `torch.optim.Optimizer.state_dict` returns, whatever the subclass has made of it.

    torch's own form imports torch._dynamo first, so that no graph is made of it; that takes two seconds. Where it is
    not imported, no graphs are captured.
    """
    import torch

    method: Any = torch.optim.Optimizer.state_dict
    return (method if dynamo_is_imported() else getattr(method, "__wrapped__", method))(optimizer)


def dynamo_is_imported() -> bool:
    """Whether torch's tracing compiler has been imported, without which nothing can be tracing."""
    return "torch._dynamo" in sys.modules


# ---- products


@functools.cache
def float32_product() -> Callable[[Tensor, Tensor], Tensor] | None:
    """A function of two matrices in float32 to their product, where it is faster than `torch.mm`; else None.

    On processors of other makers than its own, MKL multiplies float32 in vectors of 256 bits at most. oneDNN, which
    torch has beside it, takes those of 512 bits, in about half the time; for products in float32 torch calls it in the
    linear layers of compiled graphs alone. Of matrices with gaps, such as some columns of another, it has a reference
    form alone, which takes a thousand times as long; so they are copied.
    """
    import torch

    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return None
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or _cpu_vendor() == "GenuineIntel":
        return None
    try:
        linear: Any = torch.ops.mkldnn._linear_pointwise.default
    except AttributeError:
        return None

    def product(a: Tensor, b: Tensor) -> Tensor:
        weight = b.mT
        if not weight.is_contiguous() and not b.is_contiguous():
            weight = weight.contiguous()
        return linear(a, weight, None, "none", [], "")

    return product


def _cpu_vendor() -> str:
    """What the first processor says of its maker, nothing where Linux does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


# ---- distributed


def shard_region(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Offsets and sizes of this rank's shard of a DTensor, of which the class itself tells only the sizes."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded: Any = tensor
    sizes, offsets = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return tuple(offsets), tuple(sizes)


def reset_reducer(module: nn.parallel.DistributedDataParallel) -> None:
    """Clear the hooks that a forward pass without a backward pass left waiting in DDP's reducer."""
    cast("Any", module).reducer._reset_state()


def collectives_begun(group: Any) -> int:
    """How many collectives of a process group this rank has begun, for the watchdog; torch logs the number alone."""
    return group._get_sequence_number_for_group()


def default_store() -> Store:
    """The key-value store of the default process group, which the caller has initialized."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]


def clone_store(store: Store) -> Store:
    """A second connection to a key-value store; requests on it do not wait for those on the first one."""
    return store.clone()  # pyright: ignore[reportAttributeAccessIssue]  # missing in torch's type stubs


def disable_elastic_restarts() -> None:
    """Let the torchrun of this process restart no worker from now on, since it was asked to stop."""
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    def restart_nothing(self: Any, worker_group: Any) -> None:
        self._remaining_restarts = 0

    setattr(LocalElasticAgent, "_restart_workers", restart_nothing)  # noqa: B010  # torch has no public way


def log_no_native_warnings() -> None:
    """Let torch's C++ code log errors alone, unless the environment variable TORCH_CPP_LOG_LEVEL says what it logs.

    torch reads that variable when it is imported, and has no call that changes it. Where a rank is lost, its warnings
    are a stack of C++ functions for each connection, without a word about the rank.
    """
    if "TORCH_CPP_LOG_LEVEL" in os.environ:
        return
    import torch

    libraries = Path(torch.__file__).parent / "lib"
    library = next((path for name in _C10 if (path := libraries / name).exists()), None)
    try:
        ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level").value = _ERROR
    except (OSError, ValueError):  # another build of torch: its warnings stay
        return


_C10 = ("libc10.so", "libc10.dylib")
_ERROR = 2  # c10::GLOG_ERROR


# ---- compilers


def operator_schema(operator: Any) -> Any:
    """The schema of an ATen operator: `is_mutable`, and as text with "(a" where results share memory with arguments."""
    return operator._schema


def private_operator(name: str) -> Any:
    """An ATen operator that traces contain and that has a leading underscore, such as "_log_softmax"."""
    import torch

    return getattr(torch.ops.aten, name)


def dispatch_mode(run: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> contextlib.AbstractContextManager[Any]:
    """A context in which every operator below autograd and vmap is called by `run`, from itself and its arguments.

    Within `run` the context is left. Torch has its base class in a private module, and marks a method that stands in a
    subclass for its compiler, which it imports for that; a function that is put there later it leaves as it is.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class CallingMode(TorchDispatchMode):
        pass

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    setattr(CallingMode, "__torch_dispatch__", dispatch)  # noqa: B010  # see above
    return CallingMode()


def decomposed(operator: Any, tensors: Sequence[Tensor], args: Sequence[Any], options: dict[str, Any]) -> Any:
    """What the parts give of which autograd would have made an operator; NotImplemented of one without parts.

    Operators that are called where autograd is bypassed arrive in a dispatch mode whole.

    Args:
        operator: An ATen operator.
        tensors: All that are among its arguments.
        args: Its arguments.
        options: Those with names.
    """
    from torch.utils._python_dispatch import autograd_would_have_decomposed

    return operator.decompose(*args, **options) if autograd_would_have_decomposed(operator, tensors) else NotImplemented
