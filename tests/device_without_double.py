"""A stand-in for a device that refuses float64, as Apple's GPUs do: tensors say that they are on "single".

They hold a tensor of the CPU and compute with it. What would not run on such a device fails: a result in float64, and
an operation of tensors of both devices, unless the other one is a number. There is no backward pass: torch's engine has
a queue for each device that its C++ knows.

Import it in a process of its own: torch has room for one such device.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("single")
REFUSED = "Cannot convert a tensor of 'single' to float64: it has none"
_BETWEEN_DEVICES = ("aten::copy_", "aten::_to_copy")


class Single(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        if inner.dtype == torch.float64:
            raise TypeError(REFUSED)
        facts = {"dtype": inner.dtype, "strides": inner.stride(), "storage_offset": inner.storage_offset()}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, device="single", **facts)

    def __init__(self, inner):
        self.inner = inner

    def untyped_storage(self):
        return self.inner.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


class OnSingle(TorchDispatchMode):
    """Makes tensors of the device, too."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


def computed(function, args, kwargs):
    """The result of an operation by the tensors inside."""
    name, device = function.overloadpacket._qualified_op_name, kwargs.get("device")
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    ours = [x for x in tensors if isinstance(x, Single)]
    if ours and name not in _BETWEEN_DEVICES and any(x.ndim for x in tensors if not isinstance(x, Single)):
        raise RuntimeError(f"{name}: expected all tensors to be on one device")
    here = torch.device(device).type == "single" if device is not None else bool(ours)
    if device is not None:
        kwargs = {**kwargs, "device": "cpu"}
    args, kwargs = tree_map(_inner, (args, kwargs))
    known = {id(x.inner): x for x in ours}  # what is written in place is given back as it is
    return tree_map(lambda x: _wrapped(x, known) if here else x, function(*args, **kwargs))


def _inner(x):
    return x.inner if isinstance(x, Single) else x


def _wrapped(x, known):
    if not isinstance(x, torch.Tensor):
        return x
    return known[id(x)] if id(x) in known else Single(x)


def _empty_strided(size, stride, *, dtype=None, layout=None, device=None, pin_memory=None):
    return Single(torch.empty_strided(size, stride, dtype=dtype, device="cpu"))


def _copy_from(x, place, non_blocking=False):
    _inner(place).copy_(_inner(x))
    return place


_LIBRARY = torch.library.Library("aten", "IMPL")  # for what reaches the device below the modes, as torch.tensor does
_LIBRARY.impl("empty_strided", _empty_strided, "PrivateUse1")
_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
