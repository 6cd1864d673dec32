"""The finite check: what counts as not finite, and what becomes of such a step under each policy."""

import math

import pytest
import torch
from toys import Regression, data, run_of

from descend.errors import ConfigurationError, NumericalError
from descend.train.objective import Ratio, Totals
from descend.train.precision import Precision
from descend.train.transforms.base import Gradients
from descend.train.transforms.check_finite import CheckFinite, LateCheck
from descend.train.transforms.usual import usual_transforms

LARGE = (1024, 512)  # elements that are summed; fewer are checked in one call for all


def parameter(*values, sparse=False):
    p = torch.nn.Parameter(torch.zeros(len(values)))
    gradient = torch.tensor(values)
    p.grad = gradient.to_sparse() if sparse else gradient
    return p


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


def test_an_overflow_is_sought_where_the_precision_asks_though_the_policy_allows():
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
def test_a_changed_gradient_is_checked_again(policy, bad):
    """As after K-FAC, whose result is the same on all ranks."""
    run, _ = checked(policy, bad=1.0)
    withheld = run.transforms.one(CheckFinite).check_again(gradients_of(run), {"changed": parameter(0.0, bad)})
    if policy == "allow" or bad == 1.0:
        assert withheld is None
    else:
        assert withheld.reason == "the gradient of 'changed' is not finite"


@pytest.mark.parametrize(
    ("policy", "possible", "on_device", "launches"),
    [("stop", 1, 1, 1), ("stop", 0, 1, 0), ("stop", 1, 0, 0), ("skip", 1, 1, 0), ("allow", 1, 1, 0)],
)
def test_a_check_is_late_where_the_run_is_to_stop_and_nothing_needs_to_know(
    policy, possible, on_device, launches, monkeypatch
):
    run, _ = checked(policy, bad=1.0)
    check, launched = run.transforms.one(CheckFinite), []
    monkeypatch.setattr(LateCheck, "can_be_late", lambda self: bool(possible))
    monkeypatch.setattr(LateCheck, "launch", lambda self, gradients, check: launched.append(check) or True)
    check._check_of(run.strategy.local_parameters()).on_device = bool(on_device)
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


def test_a_late_check_keeps_nothing_between_steps_that_a_checkpoint_would_need():
    assert CheckFinite.is_stateless
