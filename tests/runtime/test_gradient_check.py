"""The finite check: what counts as not finite, and what becomes of such a step under each policy."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from descend.runtime.gradient_check import GradientCheck, nonfinite_parameters

LARGE = (1024, 512)  # elements that are summed; fewer are checked in one call for all


def parameter(*values, sparse=False):
    p = torch.nn.Parameter(torch.zeros(len(values)))
    gradient = torch.tensor(values)
    p.grad = gradient.to_sparse() if sparse else gradient
    return p


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_one_bad_element_is_found_and_named(bad, sparse):
    named = {
        "good": parameter(1.0, 2.0),
        "bad": parameter(0.0, bad, sparse=sparse),
        "none": torch.nn.Parameter(torch.ones(1)),
    }
    assert nonfinite_parameters(named) == ["bad"]


def test_gradients_of_every_size_and_kind_are_checked():
    def of(gradient):
        p = torch.nn.Parameter(torch.zeros_like(gradient))
        p.grad = gradient
        return p

    for bad in range(4):
        gradients = [
            torch.ones(5),
            torch.ones(LARGE),
            torch.ones(3, dtype=torch.complex64),
            torch.ones(2, 2).double(),
        ]
        assert nonfinite_parameters({str(i): of(g) for i, g in enumerate(gradients)}) == []
        gradients[bad].view(-1)[1] = math.nan
        assert nonfinite_parameters({str(i): of(g) for i, g in enumerate(gradients)}) == [str(bad)]


def test_a_sum_that_overflows_by_itself_is_no_fault():
    large = parameter(0.0)
    large.data, large.grad = torch.zeros(LARGE), torch.full(LARGE, 3e38)
    assert nonfinite_parameters({"large": large, "small": parameter(3e38, 3e38)}) == []


def test_opposite_infinities_of_large_gradients_are_found():
    """Their sum over all is not finite either, and finite ones do not hide them."""
    large = {str(i): parameter(0.0) for i in range(3)}
    for i, p in enumerate(large.values()):
        p.data = torch.zeros(LARGE)
        p.grad = torch.full(LARGE, 1.0 + i)
    large["1"].grad[0, 0], large["2"].grad[0, 0] = math.inf, -math.inf
    assert nonfinite_parameters(large) == ["1", "2"]


def test_gradients_elsewhere_than_on_a_cpu_are_checked(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False), raising=False)

    def having(gradient):
        p = torch.zeros(gradient.shape, dtype=gradient.dtype)
        p.grad = gradient
        return p

    def rows(number):
        return having(torch.sparse_coo_tensor([[1]], [number], (2,)))

    good = {
        "one": having(torch.tensor([3e38, 3e38])),  # whose sum is not finite
        "half": having(torch.tensor([6e4, 6e4], dtype=torch.float16)),
        "wide": having(torch.tensor([1e300], dtype=torch.float64)),
        "empty": having(torch.tensor([])),
        "rows": rows(2.0),
    }
    assert nonfinite_parameters(good) == []
    for number in (math.nan, math.inf, -math.inf):
        assert nonfinite_parameters({**good, "bad": having(torch.tensor([1.0, number]))}) == ["bad"]
        assert nonfinite_parameters({**good, "rows": rows(number)}) == ["rows"]


def test_good_gradients_are_not_read_element_by_element(monkeypatch):
    """That is for naming the bad ones, and takes twenty times as long."""
    tested = []
    isfinite = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda tensor: tested.append(tensor.numel()) or isfinite(tensor))
    large = torch.zeros(LARGE)
    large.grad = torch.ones(LARGE)
    good = {"small": parameter(1.0), "large": large}
    for some in (good, {"small": good["small"]}, {"large": large}, {}):
        assert nonfinite_parameters(some) == []
    assert tested == []
    assert nonfinite_parameters({**good, "bad": parameter(math.nan)}) == ["bad"]
    assert len(tested) == 3


def test_a_small_gradient_may_become_sparse_and_dense_again():
    """One check serves all steps, and the call for all small gradients takes no sparse ones."""
    named = {"first": parameter(1.0, 2.0), "rows": parameter(1.0, 2.0), "last": parameter(1.0)}
    check = GradientCheck(named)
    assert check.nonfinite() == []
    sparse = torch.tensor([0.0, 3.0]).to_sparse()
    bad = torch.tensor([0.0, math.nan])
    for gradients, names in (
        ({"rows": sparse}, []),
        ({"rows": sparse, "first": bad}, ["first"]),
        ({"rows": bad.to_sparse()}, ["rows"]),
        ({"rows": bad}, ["rows"]),
        ({"rows": bad, "last": bad[1:]}, ["rows", "last"]),
        ({}, []),
    ):
        for name, p in named.items():
            p.grad = gradients.get(name, torch.ones_like(p))
        assert check.nonfinite() == names


def test_a_bad_gradient_before_the_first_sparse_one_is_named():
    named = {"bad": parameter(math.nan), "rows": parameter(1.0, 2.0, sparse=True)}
    check = GradientCheck(named)
    assert check.nonfinite() == ["bad"]
    named["bad"].grad = torch.ones(1)
    assert check.nonfinite() == []


# ---- checks that the host does not wait for


def having(gradient):
    p = torch.nn.Parameter(torch.zeros(gradient.shape))
    p.grad = gradient
    return p


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(5,), LARGE])
def test_a_flag_is_raised_by_one_bad_element(shape, bad):
    named = {str(i): having(torch.ones(shape)) for i in range(2)}
    named |= {"none": torch.nn.Parameter(torch.ones(2)), "empty": having(torch.ones(0))}
    check = GradientCheck(named)
    good = check.flag()
    assert (good.shape, good.dtype, float(good)) == ((), torch.float32, 0.0)
    named["1"].grad.view(-1)[-1] = bad
    assert float(check.flag()) > 0
    assert float(good) == 0.0  # a tensor of its own each time


def test_there_is_no_flag_of_nothing_and_of_sparse_gradients():
    rows = parameter(1.0, 2.0, sparse=True)
    assert GradientCheck({}).flag() is None
    assert GradientCheck({"none": torch.nn.Parameter(torch.ones(2))}).flag() is None
    assert GradientCheck({"empty": having(torch.ones(0))}).flag() is None
    assert GradientCheck({"one": parameter(1.0), "rows": rows}).flag() is None


class Calls(TorchDispatchMode):
    """Names of the operations with which tensors are checked."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def checked(*parameters):
    check = GradientCheck({str(i): p for i, p in enumerate(parameters)})
    with Calls() as calls:
        flag = check.flag()
    return check.on_device, flag.device.type, [name for name in calls.names if name in (LIST_CALL, NORMS)]


LIST_CALL, NORMS = "_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm"


def test_a_gpu_takes_one_call_for_gradients_of_one_precision_that_are_not_too_large():
    with FakeTensorMode():

        def on(device, *shape, dtype=torch.float32):
            p = torch.zeros(shape, device=device, dtype=dtype)
            p.grad = torch.zeros_like(p)
            return p

        limit = 8 * 524_288
        assert checked(on("cuda", 3), on("cuda", *LARGE)) == (True, "cuda", [LIST_CALL])
        assert checked(on("cuda", 3), on("cuda", limit - 4)) == (True, "cuda", [LIST_CALL])
        assert checked(on("cuda", 3), on("cuda", limit - 3)) == (True, "cuda", [NORMS])
        assert checked(on("cuda", 3), on("cuda", 3, dtype=torch.float64)) == (True, "cuda", [NORMS])
        assert checked(on("cpu", 3), on("cpu", 4)) == (False, "cpu", [LIST_CALL])
        assert not GradientCheck({"0": on("cpu", 3), "1": on("cuda", 3)}).on_device
        assert not GradientCheck({}).on_device
