"""Each torch loss, cut into parts and put together, is the loss of the whole batch."""

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from descend.errors import ConfigurationError, DataError
from descend.experiment.losses import NAMED, TorchLoss, describe, loss_of
from descend.experiment.metrics import build_metrics

N, C = 10, 4


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def unit(*shape):
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def classes(*shape, ignored=()):
    labels = torch.randint(0, C, shape, generator=torch.Generator().manual_seed(1))
    labels[list(ignored)] = -100
    return labels


WEIGHT = torch.tensor([0.2, 1.0, 3.0, 0.5], dtype=torch.float64)
SIGNS = classes(N) % 2 * 2 - 1

# name: (module, outputs, targets)
CASES = {
    "cross_entropy": (nn.CrossEntropyLoss(), [draw(N, C)], [classes(N)]),
    "cross_entropy ignored": (nn.CrossEntropyLoss(), [draw(N, C)], [classes(N, ignored=(0, 1, 4, 7))]),
    "cross_entropy ignored 2": (nn.CrossEntropyLoss(ignore_index=2), [draw(N, C)], [classes(N)]),
    "cross_entropy weights": (nn.CrossEntropyLoss(WEIGHT), [draw(N, C)], [classes(N, ignored=(3, 4))]),
    "cross_entropy smooth": (nn.CrossEntropyLoss(label_smoothing=0.1), [draw(N, C)], [classes(N, ignored=(3,))]),
    "cross_entropy smooth weights": (
        nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1),
        [draw(N, C)],
        [classes(N, ignored=(0, 9))],
    ),
    "cross_entropy probabilities": (nn.CrossEntropyLoss(), [draw(N, C)], [unit(N, C).softmax(1)]),
    "cross_entropy probabilities weights": (
        nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.2),
        [draw(N, C)],
        [unit(N, C).softmax(1)],
    ),
    "cross_entropy 2-d": (nn.CrossEntropyLoss(WEIGHT), [draw(N, C, 3, 5)], [classes(N, 3, 5, ignored=(2,))]),
    "cross_entropy 2-d probabilities": (nn.CrossEntropyLoss(), [draw(N, C, 3, 5)], [unit(N, C, 3, 5).softmax(1)]),
    "nll": (nn.NLLLoss(WEIGHT, ignore_index=1), [draw(N, C).log_softmax(1)], [classes(N)]),
    "nll 1-d": (nn.NLLLoss(), [draw(N, C, 6).log_softmax(1)], [classes(N, 6, ignored=(5,))]),
    "mse": (nn.MSELoss(), [draw(N, 3)], [draw(N, 3) + 1]),
    "l1": (nn.L1Loss(), [draw(N, 3, 2)], [draw(N, 3, 2) + 1]),
    "smooth_l1": (nn.SmoothL1Loss(beta=0.7), [draw(N, 3)], [2 * draw(N, 3)]),
    "huber": (nn.HuberLoss(delta=0.5), [draw(N, 3)], [2 * draw(N, 3)]),
    "bce": (nn.BCELoss(), [unit(N, 3)], [unit(N, 3)]),
    "bce weights": (nn.BCELoss(unit(3)), [unit(N, 3)], [unit(N, 3)]),
    "bce_with_logits": (nn.BCEWithLogitsLoss(pos_weight=unit(3) + 1), [draw(N, 3)], [(draw(N, 3) > 0).long()]),
    "kl_div mean": (nn.KLDivLoss(reduction="mean"), [draw(N, C).log_softmax(1)], [unit(N, C).softmax(1)]),
    "kl_div batchmean": (nn.KLDivLoss(reduction="batchmean"), [draw(N, C).log_softmax(1)], [unit(N, C).softmax(1)]),
    "kl_div log target": (
        nn.KLDivLoss(reduction="batchmean", log_target=True),
        [draw(N, C, 2).log_softmax(1)],
        [unit(N, C, 2).log_softmax(1)],
    ),
    "poisson_nll": (nn.PoissonNLLLoss(full=True), [draw(N, 3)], [classes(N, 3).double()]),
    "gaussian_nll": (nn.GaussianNLLLoss(), [draw(N, 3), unit(N, 3)], [draw(N, 3) + 1]),
    "soft_margin": (nn.SoftMarginLoss(), [draw(N)], [SIGNS.double()]),
    "hinge_embedding": (nn.HingeEmbeddingLoss(), [draw(N)], [SIGNS.double()]),
    "multi_margin": (nn.MultiMarginLoss(weight=WEIGHT), [draw(N, C)], [classes(N)]),
    "multi_label_margin": (nn.MultiLabelMarginLoss(), [draw(N, C)], [torch.tensor([[0, 3, -1, 1]] * N)]),
    "multi_label_soft_margin": (nn.MultiLabelSoftMarginLoss(WEIGHT), [draw(N, C)], [(draw(N, C) > 0).double()]),
    "cosine_embedding": (nn.CosineEmbeddingLoss(), [draw(N, C), draw(N, C) * 2 + 1], [SIGNS]),
    "margin_ranking": (nn.MarginRankingLoss(0.3), [draw(N), unit(N)], [SIGNS.double()]),
    "triplet_margin": (nn.TripletMarginLoss(), [draw(N, C), unit(N, C), draw(N, C) + 1], []),
    "triplet distance": (nn.TripletMarginWithDistanceLoss(), [draw(N, C), unit(N, C), draw(N, C) + 1], []),
}


def on_the_whole(module, outputs, targets):
    """Torch's own value; losses with their own order of arguments come as torch wants them."""
    if isinstance(module, nn.GaussianNLLLoss):
        return module(outputs[0], targets[0], outputs[1])
    if isinstance(module, nn.BCEWithLogitsLoss):
        targets = [targets[0].double()]
    return module(*outputs, *targets)


def gathered(loss, outputs, targets, sizes):
    tops, bottoms = [], []
    for some in zip(*(torch.split(t, sizes) for t in [*outputs, *targets]), strict=True):
        of_output, of_target = some[: len(outputs)], some[len(outputs) :]
        ratio = loss.ratio(of_output if len(of_output) > 1 else of_output[0], of_target, len(some[0]))
        tops.append(ratio.numerator)
        bottoms.append(torch.as_tensor(ratio.denominator, dtype=torch.float64))
    return sum(tops) / sum(bottoms)


@pytest.mark.parametrize("sizes", [[10], [4, 4, 2], [1, 9], [3, 7], [1] * 10], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_parts_add_up_to_the_whole(name, sizes):
    module, outputs, targets = CASES[name]
    outputs = [output.clone().requires_grad_() for output in outputs]
    whole = on_the_whole(module, outputs, targets)
    ours = gathered(loss_of(module), outputs, targets, sizes)
    torch.testing.assert_close(ours, whole, rtol=1e-12, atol=1e-15)
    for mine, torchs in zip(torch.autograd.grad(ours, outputs), torch.autograd.grad(whole, outputs), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("sizes", [[5], [2, 3], [1] * 5], ids=str)
def test_ctc_divides_by_the_length_of_each_target(sizes):
    scores = draw(12, 5, C).log_softmax(2).requires_grad_()
    targets = classes(5, 3).clamp(min=1)
    lengths, target_lengths = torch.tensor([12, 10, 11, 12, 9]), torch.tensor([3, 1, 2, 3, 2])
    module = nn.CTCLoss()
    whole = module(scores, targets, lengths, target_lengths)
    loss = loss_of(module)
    parts = zip(
        scores.split(sizes, 1), targets.split(sizes), lengths.split(sizes), target_lengths.split(sizes), strict=True
    )
    ratios = [loss.ratio(part[0], part[1:], len(part[1])) for part in parts]
    ours = sum(r.numerator for r in ratios) / sum(r.denominator for r in ratios)
    torch.testing.assert_close(ours, whole, rtol=1e-12, atol=0)
    assert loss.targets == 3


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_a_part_in_which_all_is_ignored_counts_nothing(weight):
    ratio = loss_of(nn.CrossEntropyLoss(weight)).ratio(draw(3, C), [torch.full((3,), -100)], 3)
    assert (float(ratio.numerator), float(ratio.denominator)) == (0.0, 0.0)


def test_without_reduction_the_entries_are_averaged():
    ratio = loss_of(nn.MSELoss(reduction="none")).ratio(draw(N, 3), [draw(N, 3) + 1], N)
    assert float(ratio.numerator / ratio.denominator) == pytest.approx(1.0)


def test_the_user_s_module_is_not_changed():
    module = nn.CrossEntropyLoss(WEIGHT)
    loss_of(module)
    assert module.reduction == "mean"
    assert module.weight is WEIGHT


@pytest.mark.parametrize("name", NAMED)
def test_every_name_is_a_loss_of_torch(name):
    assert isinstance(loss_of(name), TorchLoss)


def test_a_function_gives_a_ratio_or_a_mean_over_samples():
    output, target = draw(N, 3), draw(N, 3) + 1
    as_ratio = loss_of(lambda o, t: ((o - t).square().sum(), torch.tensor(7.0))).ratio(output, [target], N)
    assert (float(as_ratio.numerator), float(as_ratio.denominator)) == (pytest.approx(3 * N), 7.0)
    as_mean = loss_of(lambda o, t: (o - t).square().mean()).ratio(output, [target], N)
    assert (float(as_mean.numerator), as_mean.denominator) == (pytest.approx(N), N)


def test_a_loss_module_of_the_user_s_own_is_a_function():
    class Focal(nn.CrossEntropyLoss):
        def forward(self, output, target):
            return super().forward(output, target) * 2

    ratio = loss_of(Focal()).ratio(draw(N, C), [classes(N)], N)
    expected = 2 * nn.functional.cross_entropy(draw(N, C), classes(N))
    torch.testing.assert_close(ratio.numerator / ratio.denominator, expected)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (nn.MSELoss(reduction="sum"), r"MSELoss\(reduction='sum'\) makes the step grow.*reduction='mean'"),
        ("crossentropy", "got 'crossentropy'.*did you mean 'cross_entropy'"),
        (nn.MSELoss, r"is a class: construct it, loss=MSELoss\(\)"),
        (nn.AdaptiveLogSoftmaxWithLoss(4, 5, [2]), "has parameters|layer with parameters"),
        (3, "loss must be .* got 3"),
    ],
)
def test_what_is_no_loss_is_refused(loss, message):
    with pytest.raises(ConfigurationError, match=message):
        loss_of(loss)


def test_a_target_that_would_broadcast_is_refused():
    """Torch computes all pairs of (8, 1) and (8,), with a warning that scrolls by."""
    with pytest.raises(DataError, match=r"output has shape \(8, 1\) and the target \(8,\)"):
        loss_of("mse").ratio(draw(8, 1), [draw(8)], 8)


def test_a_tuple_from_the_module_gives_its_first_to_the_loss_and_says_so():
    with pytest.warns(UserWarning, match="returned 2 things and MSELoss is given the first one"):
        ratio = loss_of("mse").ratio((draw(N, 3), "hidden"), [draw(N, 3)], N)
    assert float(ratio.numerator) == 0


@pytest.mark.parametrize(
    ("output", "reported", "called"),
    [
        (
            {"logits": draw(2, 3), "hidden": 1},
            "a dict with 'logits', 'hidden'",
            r"cross_entropy\(output\['logits'\], target\)",
        ),
        (("hidden", draw(2, 3)), "a tuple of str, Tensor", r"cross_entropy\(output\[1\], target\)"),
        (("hidden", 1), "a tuple of str, int", r"cross_entropy\(output\[\.\.\.\], target\)"),
        (object(), "a object", r"cross_entropy\(output\.x, target\)"),
    ],
)
def test_what_is_no_tensor_needs_a_function_and_the_error_writes_it(output, reported, called):
    with pytest.raises(ConfigurationError, match=f"returned {reported}, and CrossEntropyLoss takes a tensor.*{called}"):
        loss_of("cross_entropy").ratio(output, [classes(2)], 2)


@pytest.mark.parametrize(
    ("denominator", "reported"),
    [
        (None, "the denominator must be .* got None"),
        ("8", "the denominator must be .* got '8'"),
        (-8, "the denominator must be .* got -8"),
        (float("nan"), "the denominator must be .* got nan"),
        (torch.ones(8), r"got a tensor of shape \(8,\)"),
        (torch.ones((), requires_grad=True), "that requires a gradient, which is not computed"),
    ],
    ids=str,
)
def test_a_denominator_is_a_count(denominator, reported):
    loss = loss_of(lambda o, t: ((o - t).square().sum(), denominator))
    with pytest.raises(ConfigurationError, match=reported):
        loss.ratio(draw(N, 3), [draw(N, 3)], N)


@pytest.mark.parametrize(
    "denominator", [7, 7.0, np.int64(7), np.float32(7), torch.tensor(7), torch.tensor([7.0])], ids=repr
)
def test_a_count_may_be_of_any_type(denominator):
    ratio = loss_of(lambda o, t: ((o - t).square().sum(), denominator)).ratio(draw(N, 3), [draw(N, 3)], N)
    assert float(ratio.denominator) == 7


@pytest.mark.parametrize("kind", [nn.CrossEntropyLoss, nn.NLLLoss])
@pytest.mark.parametrize("weight", [None, WEIGHT])
@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_sum_and_gradient_have_the_bits_of_torch_s(kind, weight, ignored, dtype, autocast):
    weight = None if weight is None else weight.to(torch.float32 if autocast and dtype != torch.float64 else dtype)
    output, target = draw(N, C).to(dtype).requires_grad_(), classes(N)
    target[::4] = ignored
    module = kind(weight, ignore_index=ignored, reduction="sum")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        ratio = loss_of(kind(weight, ignore_index=ignored)).ratio(output, [target], N)
        expected = module(output, target)
    assert torch.equal(ratio.numerator, expected)
    assert ratio.numerator.dtype == expected.dtype
    assert torch.equal(torch.autograd.grad(ratio.numerator, output)[0], torch.autograd.grad(expected, output)[0])
    counted = target[target != ignored]
    assert float(ratio.denominator) == pytest.approx(len(counted) if weight is None else float(weight[counted].sum()))


def test_hooks_on_a_loss_are_called():
    called, module = [], nn.CrossEntropyLoss()
    module.register_forward_hook(lambda *given: called.append(given))
    loss_of(module).ratio(draw(N, C), [classes(N)], N)
    assert len(called) == 1


def test_a_function_that_returns_a_vector_is_refused():
    with pytest.raises(ConfigurationError, match=r"must return .* got \(10, 3\)"):
        loss_of(lambda o, t: (o - t).square()).ratio(draw(N, 3), [draw(N, 3)], N)


def test_accuracy_counts_what_the_loss_does_not_ignore():
    output = torch.eye(4, dtype=torch.float64)
    target = torch.tensor([0, 1, 3, -100])
    ratio = build_metrics(["accuracy"], nn.CrossEntropyLoss())["accuracy"].ratio(output, [target], 4)
    assert (float(ratio.numerator), float(ratio.denominator)) == (2.0, 3.0)


def test_an_unknown_metric_is_answered_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"got 'acuracy'.*did you mean 'accuracy'"):
        build_metrics(["acuracy"], "cross_entropy")


def test_descriptions_are_the_same_in_every_process():
    def mine(output, target): ...

    assert describe(functools.partial(mine, 1)).endswith("mine")
    assert describe(nn.MSELoss()) == "MSELoss()"
    assert describe("cross_entropy") == describe(nn.CrossEntropyLoss()) == describe(functional.cross_entropy)
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1, weight=torch.tensor([1.0, 2.0]))
    assert describe(smooth) == "CrossEntropyLoss(weight=[1.0, 2.0], label_smoothing=0.1)"


FUNCTIONS = {
    "ignored": (functional.cross_entropy, {}, torch.tensor([0, -100, 2, -100, 1])),
    "weighed": (functional.cross_entropy, {"weight": torch.tensor([0.5, 1.0, 4.0])}, torch.tensor([0, 1, 2, 2, 1])),
    "smooth": (functional.huber_loss, {"delta": 0.3}, torch.linspace(-1, 1, 15).reshape(5, 3)),
    "summed": (functional.kl_div, {"reduction": "batchmean", "log_target": True}, -torch.rand(5, 3)),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_of_torch_add_up_as_their_modules_do(case):
    function, options, target = FUNCTIONS[case]
    loss = loss_of(functools.partial(function, **options) if options else function)
    output = torch.linspace(-2, 3, 15).reshape(5, 3).roll(4)
    parts = [loss.ratio(output[some], [target[some]], len(output[some])) for some in (slice(2), slice(2, 5))]
    top, bottom = sum(float(part.numerator) for part in parts), sum(float(part.denominator) for part in parts)
    assert top / bottom == pytest.approx(float(function(output, target, **options)), rel=1e-6)


@pytest.mark.parametrize(
    ("output", "target", "remedy"),
    [
        ((4, 1), (4,), r"by \.squeeze\(1\) at the end of forward, or by target\.unsqueeze\(1\)"),
        ((4,), (4, 1), r"by target\.squeeze\(1\)"),
        ((4, 2), (4, 3), "by reshaping one of them"),
    ],
)
def test_shapes_that_differ_are_shown_with_what_makes_them_equal(output, target, remedy):
    with pytest.raises(
        DataError, match=rf"output has shape .* and the target .*; make them equal, for example {remedy}$"
    ):
        loss_of("mse").ratio(torch.zeros(output), [torch.zeros(target)], 4)


@pytest.mark.parametrize("given", [nn.CrossEntropyLoss(label_smoothing=0.5), nn.CrossEntropyLoss(WEIGHT.clone())])
def test_a_loss_is_used_as_it_was_given(given):
    """Neither what is done to it here nor what is done to it later reaches the other."""
    (output,), (labels,) = [draw(N, C)], [classes(N)]
    expected = given(output, labels)
    ours = loss_of(given)
    assert given.reduction == "mean"
    given.label_smoothing = 0.9
    if given.weight is not None:
        given.weight.fill_(7.0)
    numerator, denominator = ours.ratio(output, [labels], N)
    torch.testing.assert_close(numerator / denominator, expected)
    given.label_smoothing = 0.0
