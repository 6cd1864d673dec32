"""The arguments of MXNet's base optimizer: bounds, names, multipliers, schedules, counts."""

import numpy as np
import pytest
import torch
from optimizer_inputs import one_step, weights

from descend.errors import RuleError, Unsupported
from descend.optim import from_library


def test_half_precision_throughout_is_refused():
    half = weights((2,), dtype=torch.float16)
    with pytest.raises(Unsupported, match="multi_precision=True"):
        from_library("mxnet-2.0", "adam", half)
    one_step(from_library("mxnet-2.0", "adam", half, multi_precision=True))


@pytest.mark.parametrize(("name", "erased"), [("sgd", False), ("adam", False), ("adagrad", True), ("dcasgd", True)])
def test_a_bound_of_zero_is_none_for_kernels_and_zero_for_the_rest(name, erased):
    w = weights((3,))
    before = w[0].detach().clone()
    one_step(from_library("mxnet-2.0", name, w, clip_gradient=0))
    assert torch.equal(w[0].detach(), before) == erased


def test_the_plain_path_of_a_kernel_takes_zero_at_its_word():
    w = weights((3,))
    before = w[0].detach().clone()
    one_step(from_library("mxnet-2.0", "sgd", w, clip_gradient=0, use_fused_step=False))
    assert torch.equal(w[0].detach(), before)


def test_names_decide_who_is_decayed_in_1_9_only():
    names = {0: "fc_weight", 1: "fc_bias", 2: "bn_gamma"}
    shapes = ((2, 2), (2,), (2,))
    old = from_library("mxnet-1.9", "sgd", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [g["weight_decay"] for g in old.param_groups] == [0.1, 0.0]
    new = from_library("mxnet-2.0", "sgd", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [g["weight_decay"] for g in new.param_groups] == [0.1]
    lars = from_library("mxnet-1.9", "lars", weights(*shapes), wd=0.1, param_idx2name=names)
    assert [(g["weight_decay"], g["scaled"]) for g in lars.param_groups] == [(0.1, True), (0.0, False)]
    gluon = from_library("mxnet-1.9", "sgd", weights(*shapes), wd=0.1, param_idx2name=names, batch_size=1)
    assert [g["weight_decay"] for g in gluon.param_groups] == [0.1]


def test_multipliers_by_index_come_before_those_by_name():
    given = {"param_idx2name": {0: "a_weight", 1: "b_weight"}, "lr_mult": {0: 0.5, "b_weight": 2.0, "a_weight": 9.0}}
    optimizer = from_library("mxnet-2.0", "sgd", weights((1,), (1,)), **given)
    assert [g["lr_mult"] for g in optimizer.param_groups] == [0.5, 2.0]


def test_multipliers_go_by_the_names_of_the_tensors_where_mxnet_knows_none():
    a, b = weights((1,), (1,))
    optimizer = from_library("mxnet-2.0", "sgd", [("a", a), ("b", b)], learning_rate=0.5, lr_mult={"b": 0.0, 0: 2.0})
    one_step(optimizer)
    assert [group["lr_mult"] for group in optimizer.param_groups] == [2.0, 0.0]
    with pytest.raises(RuleError, match="lr_mult: no tensor is called 'fc_weigth'; did you mean 'fc_weight'"):
        from_library("mxnet-2.0", "sgd", [("fc_weight", a)], lr_mult={"fc_weigth": 0.1})


@pytest.mark.parametrize("library", ["mxnet-1.9", "mxnet-2.0"])
@pytest.mark.parametrize("name", ["sgd", "adam", "signum"])
def test_no_rate_is_the_base_classes_or_the_schedules(library, name):
    """As both releases show it: learning_rate=None passes the constructor's default by."""
    assert from_library(library, name, weights((1,)), learning_rate=None).param_groups[0]["lr"] == 0.01
    scheduler = ("FactorScheduler", {"step": 2, "factor": 0.5, "base_lr": 0.5})
    optimizer = from_library(library, name, weights((1,)), learning_rate=None, lr_scheduler=scheduler)
    assert [optimizer.param_groups[0]["schedule"](n - 1) for n in (1, 2, 3, 5)] == [0.5, 0.5, 0.25, 0.125]


def test_a_default_rate_that_overwrites_a_schedule_is_copied_aloud():
    scheduler = ("FactorScheduler", {"step": 4, "factor": 0.5, "base_lr": 0.5})
    with pytest.warns(UserWarning, match=r"default rate 0.1 replace the base_lr"):
        optimizer = from_library("mxnet-2.0", "sgd", weights((1,)), lr_scheduler=scheduler)
    assert optimizer.param_groups[0]["lr"] == 0.1
    kept = from_library("mxnet-1.9", "sgd", weights((1,)), lr_scheduler=scheduler)
    assert kept.param_groups[0]["lr"] == 0.5
    ftrl = from_library("mxnet-1.9", "ftrl", weights((1,)), lr_scheduler=scheduler, learning_rate=0.3)
    assert ftrl.param_groups[0]["lr"] == 0.5


def test_a_scheduler_is_a_pair():
    with pytest.raises(RuleError, match=r"lr_scheduler is \(class name, arguments\)"):
        from_library("mxnet-2.0", "sgd", weights((1,)), lr_scheduler="FactorScheduler")


def test_begin_num_update_moves_the_bias_correction_and_the_schedule():
    scheduler = ("MultiFactorScheduler", {"step": [5], "factor": 0.1, "base_lr": 1.0})
    w = weights((2,))
    optimizer = from_library("mxnet-1.9", "adam", w, lr_scheduler=scheduler, begin_num_update=5, learning_rate=1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1)
    before = w[0].detach().clone()
    one_step(optimizer)
    # by hand: m = 0.1, v = 0.001, t = 6
    move = 0.1 * np.sqrt(1 - 0.999**6) / (1 - 0.9**6) * 0.1 / (np.sqrt(0.001) + 1e-8)
    np.testing.assert_allclose((before - w[0].detach()).numpy(), move, rtol=1e-10)
