"""The finite check: what counts as not finite, and what becomes of such a step under each policy."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from toys import Regression, data, run_of

from descend.errors import ConfigurationError, NumericalError
from descend.train.objective import Ratio, Totals
from descend.train.precision import Precision
from descend.train.transforms.base import Gradients
from descend.train.transforms.check_finite import CheckFinite, FiniteLook, LateCheck, nonfinite_parameters
from descend.train.transforms.usual import usual_transforms

LARGE = (1024, 512)  # elements that are summed; fewer are looked at in one call for all


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


def test_gradients_of_every_size_and_kind_are_looked_at():
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


def checked(policy, bad=math.nan, precision=None):
    run = run_of(Regression(), data(), transforms=usual_transforms(policy))
    for p in run.parameters.values():
        p.grad = torch.full_like(p, bad)
    if precision:
        run.precision = precision
        run.transforms.setup(run)
    batch = next(iter(run.data["train"].epoch(0)))
    gradients = Gradients(run, batch, Ratio(torch.tensor(2.0), 1.0), Totals(), 1.0)
    return run, run.transforms.one(CheckFinite)(gradients)


def test_a_good_gradient_goes_on():
    assert checked("stop", bad=1.0)[1] is None


def test_a_bad_gradient_stops_skips_or_is_allowed():
    with pytest.raises(NumericalError, match=r"step 1: the gradient of 'weight', 'bias' is not finite; the loss is 2"):
        checked("stop")
    run, withheld = checked("skip")
    assert withheld.skipped
    assert run.state.skipped_in_a_row == 1
    assert checked("allow")[1] is None


def test_ten_in_a_row_end_the_run():
    run, _ = checked("skip")
    run.state.skipped_in_a_row = 9
    batch = next(iter(run.data["train"].epoch(0)))
    with pytest.raises(NumericalError, match="the last of 10 steps in a row"):
        run.transforms.one(CheckFinite)(Gradients(run, batch, Ratio(torch.tensor(2.0), 1.0), Totals(), 1.0))


def test_a_loss_scale_that_can_be_lowered_is_to_blame_first():
    class Scaled(Precision):
        checks_for_overflow = True
        lowered = 0

        def lower_scale(self):
            self.lowered += 1
            return True

    precision = Scaled()
    run, withheld = checked("stop", math.inf, precision)
    assert withheld.skipped
    assert (precision.lowered, run.state.skipped_in_a_row) == (1, 0)


def test_an_unknown_policy_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"on_nonfinite must be one of .*got 'skp'; did you mean 'skip'"):
        CheckFinite("skp")


def gradients_of(run):
    batch = next(iter(run.data["train"].epoch(0)))
    return Gradients(run, batch, Ratio(torch.tensor(2.0), 1.0), Totals(), 1.0)


def test_a_step_that_ends_the_run_leaves_no_gradient_behind():
    """So that a caller who catches the error and continues does not add to it."""
    run = run_of(Regression(), data(), transforms=usual_transforms("stop"))
    for p in run.parameters.values():
        p.grad = torch.full_like(p, math.nan)
    with pytest.raises(NumericalError):
        run.transforms.one(CheckFinite)(gradients_of(run))
    assert all(p.grad is None for p in run.parameters.values())


def test_the_scale_is_kept_where_lowering_it_does_not_help():
    class Fixed(Precision):
        checks_for_overflow = True
        kept = 0

        def keep_scale(self):
            self.kept += 1

    precision = Fixed()
    run, withheld = checked("skip", math.inf, precision)
    assert (precision.kept, withheld.skipped, run.state.skipped_in_a_row) == (1, True, 1)


def test_an_overflow_is_looked_for_where_the_precision_asks_though_the_policy_allows():
    class Scaled(Precision):
        checks_for_overflow = True

        def lower_scale(self):
            return True

    _, withheld = checked("allow", math.inf, Scaled())
    assert "the loss scale was too large" in withheld.reason


def test_a_bad_gradient_of_another_rank_counts_on_this_one(monkeypatch):
    run, _ = checked("skip", bad=1.0)
    monkeypatch.setattr(run.strategy, "union", lambda names: [*names, "weight of rank 1"])
    withheld = run.transforms.one(CheckFinite)(gradients_of(run))
    assert withheld.reason == "the gradient of 'weight of rank 1' is not finite"


@pytest.mark.parametrize("bad", [1.0, math.nan])
@pytest.mark.parametrize("policy", ["skip", "allow"])
def test_a_changed_gradient_is_looked_at_again(policy, bad):
    """As after K-FAC, whose result is the same on all ranks."""
    run, _ = checked(policy, bad=1.0)
    withheld = run.transforms.one(CheckFinite).look_again(gradients_of(run), {"changed": parameter(0.0, bad)})
    if policy == "allow" or bad == 1.0:
        assert withheld is None
    else:
        assert withheld.reason == "the gradient of 'changed' is not finite"


def test_opposite_infinities_of_large_gradients_are_found():
    """Their sum over all is not finite either, and finite ones do not hide them."""
    large = {str(i): parameter(0.0) for i in range(3)}
    for i, p in enumerate(large.values()):
        p.data = torch.zeros(LARGE)
        p.grad = torch.full(LARGE, 1.0 + i)
    large["1"].grad[0, 0], large["2"].grad[0, 0] = math.inf, -math.inf
    assert nonfinite_parameters(large) == ["1", "2"]


def test_gradients_elsewhere_than_on_a_cpu_are_looked_at(monkeypatch):
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
    looked = []
    isfinite = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda tensor: looked.append(tensor.numel()) or isfinite(tensor))
    large = torch.zeros(LARGE)
    large.grad = torch.ones(LARGE)
    good = {"small": parameter(1.0), "large": large}
    for some in (good, {"small": good["small"]}, {"large": large}, {}):
        assert nonfinite_parameters(some) == []
    assert looked == []
    assert nonfinite_parameters({**good, "bad": parameter(math.nan)}) == ["bad"]
    assert len(looked) == 3


def test_a_small_gradient_may_become_sparse_and_dense_again():
    """One look serves all steps, and the call for all small gradients takes no sparse ones."""
    named = {"first": parameter(1.0, 2.0), "rows": parameter(1.0, 2.0), "last": parameter(1.0)}
    look = FiniteLook(named)
    assert look.nonfinite() == []
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
        assert look.nonfinite() == names


def test_a_bad_gradient_before_the_first_sparse_one_is_named():
    named = {"bad": parameter(math.nan), "rows": parameter(1.0, 2.0, sparse=True)}
    look = FiniteLook(named)
    assert look.nonfinite() == ["bad"]
    named["bad"].grad = torch.ones(1)
    assert look.nonfinite() == []


# ---- looks that the host does not wait for


def having(gradient):
    p = torch.nn.Parameter(torch.zeros(gradient.shape))
    p.grad = gradient
    return p


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("shape", [(5,), LARGE])
def test_a_flag_is_raised_by_one_bad_element(shape, bad):
    named = {str(i): having(torch.ones(shape)) for i in range(2)}
    named |= {"none": torch.nn.Parameter(torch.ones(2)), "empty": having(torch.ones(0))}
    look = FiniteLook(named)
    good = look.flag()
    assert (good.shape, good.dtype, float(good)) == ((), torch.float32, 0.0)
    named["1"].grad.view(-1)[-1] = bad
    assert float(look.flag()) > 0
    assert float(good) == 0.0  # a tensor of its own each time


def test_there_is_no_flag_of_nothing_and_of_sparse_gradients():
    rows = parameter(1.0, 2.0, sparse=True)
    assert FiniteLook({}).flag() is None
    assert FiniteLook({"none": torch.nn.Parameter(torch.ones(2))}).flag() is None
    assert FiniteLook({"empty": having(torch.ones(0))}).flag() is None
    assert FiniteLook({"one": parameter(1.0), "rows": rows}).flag() is None


class Calls(TorchDispatchMode):
    """Names of the operations with which tensors are looked at."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def looked_at(*parameters):
    look = FiniteLook({str(i): p for i, p in enumerate(parameters)})
    with Calls() as calls:
        flag = look.flag()
    return look.on_device, flag.device.type, [name for name in calls.names if name in (LIST_CALL, NORMS)]


LIST_CALL, NORMS = "_amp_foreach_non_finite_check_and_unscale_", "_foreach_norm"


def test_a_gpu_takes_one_call_for_gradients_of_one_precision_that_are_not_too_large():
    with FakeTensorMode():

        def on(device, *shape, dtype=torch.float32):
            p = torch.zeros(shape, device=device, dtype=dtype)
            p.grad = torch.zeros_like(p)
            return p

        limit = 8 * 524_288
        assert looked_at(on("cuda", 3), on("cuda", *LARGE)) == (True, "cuda", [LIST_CALL])
        assert looked_at(on("cuda", 3), on("cuda", limit - 4)) == (True, "cuda", [LIST_CALL])
        assert looked_at(on("cuda", 3), on("cuda", limit - 3)) == (True, "cuda", [NORMS])
        assert looked_at(on("cuda", 3), on("cuda", 3, dtype=torch.float64)) == (True, "cuda", [NORMS])
        assert looked_at(on("cpu", 3), on("cpu", 4)) == (False, "cpu", [LIST_CALL])
        assert not FiniteLook({"0": on("cpu", 3), "1": on("cuda", 3)}).on_device
        assert not FiniteLook({}).on_device


@pytest.mark.parametrize(
    ("policy", "possible", "on_device", "launches"),
    [("stop", 1, 1, 1), ("stop", 0, 1, 0), ("stop", 1, 0, 0), ("skip", 1, 1, 0), ("allow", 1, 1, 0)],
)
def test_a_look_is_late_where_the_run_is_to_stop_and_nothing_needs_to_know(
    policy, possible, on_device, launches, monkeypatch
):
    run, _ = checked(policy, bad=1.0)
    check, launched = run.transforms.one(CheckFinite), []
    monkeypatch.setattr(LateCheck, "can_be_late", lambda self: bool(possible))
    monkeypatch.setattr(LateCheck, "launch", lambda self, gradients, look: launched.append(look) or True)
    check._look_at(run.strategy.local_parameters()).on_device = bool(on_device)
    for p in run.parameters.values():
        p.grad = torch.full_like(p, math.nan)
    if policy == "stop" and not launches:
        with pytest.raises(NumericalError):
            check(gradients_of(run))
    else:
        assert (check(gradients_of(run)) is None) == (policy != "skip")
    assert len(launched) == launches


@pytest.mark.parametrize("again", [math.nan, 1.0])
def test_a_bad_step_that_is_computed_again_ends_the_run_and_gives_the_buffers_back(again, monkeypatch):
    run, _ = checked("stop", bad=1.0)
    before, restored = gradients_of(run), []
    monkeypatch.setattr(LateCheck, "found", lambda self: before)
    monkeypatch.setattr(type(run.buffer_snapshot), "restore", lambda self: restored.append(self))
    for p in run.parameters.values():
        p.grad = torch.full_like(p, again)
    reason = "the gradient of 'weight', 'bias' is not" if math.isnan(again) else "all are when the step is computed"
    with pytest.raises(NumericalError, match=f"step 1: .*{reason}"):
        run.transforms.one(CheckFinite).settle()
    assert restored == [run.buffer_snapshot]


def test_a_step_first_asks_how_the_one_before_went(monkeypatch):
    run, _ = checked("stop", bad=1.0)
    asked = []
    monkeypatch.setattr(LateCheck, "found", lambda self: asked.append(self))
    run.transforms.one(CheckFinite)(gradients_of(run))
    assert len(asked) == 1


def test_a_late_look_keeps_nothing_between_steps_that_a_checkpoint_would_need():
    assert CheckFinite.is_stateless
