"""Targets that a loss of torch does not take: which samples and values are named, and what is let through."""

import numpy as np
import pytest
import torch
from torch import nn

from descend.data import Batch
from descend.errors import ConfigurationError, DataError
from descend.experiment.labels import LabelCheck
from descend.experiment.losses import TorchLoss


def batch(**fields):
    count = len(next(iter(fields.values())))
    return Batch(fields, np.arange(count) + 50, 0, 0, count, False)


def check(module, output, *, fields=("y",), on_cpu=False, **targets):
    made = LabelCheck(TorchLoss(module), fields, on_cpu)
    made.learn(output)
    made.check(batch(**targets))
    return made


LOGITS = torch.zeros(3, 4)


def test_classes_within_range_and_the_ignored_one_are_accepted():
    check(nn.CrossEntropyLoss(), LOGITS, y=np.array([0, 3, -100]))
    check(nn.CrossEntropyLoss(ignore_index=9), LOGITS, y=torch.tensor([0, 9, 3]))
    check(nn.CrossEntropyLoss(), torch.zeros(3, 4, 2), y=np.array([[0, 1], [2, 3], [-100, 0]]))


def test_it_is_known_whether_all_targets_of_the_newest_batch_count():
    made = check(nn.CrossEntropyLoss(), LOGITS, y=np.array([0, 3, 1]))
    assert made.all_count
    made.check(batch(y=np.array([0, 3, -100])))
    assert not made.all_count
    made.check(batch(y=np.array([2, 2, 1])))
    assert made.all_count
    assert not check(nn.CrossEntropyLoss(ignore_index=2), LOGITS, y=np.array([0, 3, 1])).all_count  # 2 may be there
    assert not check(nn.CrossEntropyLoss(), LOGITS, y=np.full((3, 4), 0.25)).all_count
    trusted = check(nn.CrossEntropyLoss(), LOGITS, y=np.array([0, 3, 1]), on_cpu=True)
    trusted.check(batch(y=torch.tensor([0, 3, -100])))  # which is not looked at
    assert not trusted.all_count


@pytest.mark.parametrize("wrap", [np.asarray, torch.as_tensor])
def test_classes_out_of_range_are_named_by_sample_and_value(wrap):
    with pytest.raises(DataError) as caught:
        check(nn.CrossEntropyLoss(), LOGITS, y=wrap([4, 0, -1]))
    assert list(caught.value.problems) == [
        "field 'y': 2 targets are not class numbers from 0 to 3 or -100 to be ignored, as CrossEntropyLoss takes:",
        "    sample 50: 4",
        "    sample 52: -1",
    ]


def test_each_sample_is_named_once_and_five_of_them():
    wrong = np.full((8, 2), 7)
    wrong[0] = [1, 9]
    with pytest.raises(DataError) as caught:
        check(nn.CrossEntropyLoss(), torch.zeros(8, 4, 2), y=wrong)
    first, *rows = caught.value.problems
    assert first.startswith("field 'y': 15 targets are not")
    assert first.endswith("takes, in 8 samples of which 5 are:")
    assert [row.strip() for row in rows] == ["sample 50: 9", *(f"sample {i}: 7" for i in range(51, 55))]


def test_class_numbers_of_floats_are_refused_with_the_remedy():
    with pytest.raises(DataError, match=r"class numbers as float32 \(sample 50: 2\.0\).* takes integers.*\.long\(\)"):
        check(nn.CrossEntropyLoss(), LOGITS, y=np.array([2, 1, 0], np.float32))


def test_an_output_without_classes_is_a_wrong_configuration():
    with pytest.raises(ConfigurationError, match=r"shape \(samples, classes\) with at least 3 classes, got one number"):
        check(nn.CrossEntropyLoss(), torch.zeros(3), y=np.array([0, 2, 1]))


@pytest.mark.parametrize(
    ("module", "good", "bad", "allowed"),
    [
        (nn.BCELoss(), [0.0, 1.0, 0.5], [0.5, 1.1, -0.1], "probabilities in [0, 1]"),
        (nn.BCEWithLogitsLoss(), [0.0, 1.0, 0.5], [0.5, np.nan, 2.0], "probabilities in [0, 1]"),
        (nn.SoftMarginLoss(), [1.0, -1.0, 1.0], [1.0, 0.0, 2.0], "1 or -1"),
        (nn.PoissonNLLLoss(), [0.0, 7.0, 2.5], [0.0, -1.0, np.inf], "counts of at least 0"),
        (nn.MSELoss(), [-9.0, 1e30, 0.0], [0.0, np.nan, -np.inf], "finite numbers"),
    ],
)
def test_targets_that_torch_computes_a_loss_of_without_an_error(module, good, bad, allowed):
    check(module, torch.zeros(3), y=np.array(good))
    with pytest.raises(DataError) as caught:
        check(module, torch.zeros(3), y=np.array(bad))
    first, *rows = caught.value.problems
    assert f"field 'y': 2 targets are not {allowed}, as {type(module).__name__} takes:" == first
    assert [row.split(":")[0].strip() for row in rows] == ["sample 51", "sample 52"]


def test_class_probabilities_are_fractions():
    check(nn.CrossEntropyLoss(), LOGITS, y=np.full((3, 4), 0.25))
    with pytest.raises(DataError, match=r"1 targets are not probabilities in \[0, 1\]"):
        check(nn.CrossEntropyLoss(), LOGITS, y=np.array([[2.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]))


def test_logarithms_of_probabilities_may_be_negative_but_not_nan():
    check(nn.KLDivLoss(log_target=True), LOGITS, y=np.full((3, 4), -1.4))
    with pytest.raises(DataError, match="finite numbers"):
        check(nn.KLDivLoss(log_target=True), LOGITS, y=np.full((3, 4), np.nan))


def test_missing_class_numbers_are_named():
    """As a table has them, whose column of integers is one of numbers with a point where some are missing."""
    message = r"1 targets are not class numbers, which are missing \(nan\).*\n *sample 51: nan"
    with pytest.raises(DataError, match=message):
        check(nn.CrossEntropyLoss(), LOGITS, y=np.array([2, np.nan, 0], np.float32))
    with pytest.raises(DataError, match=r"2 targets are not class numbers, which are integers.*\n *sample 50: 0.5"):
        check(nn.CrossEntropyLoss(), LOGITS, y=np.array([0.5, 1.0, 1.5]))


def test_bfloat16_is_looked_at():
    with pytest.raises(DataError, match="finite numbers"):
        check(nn.MSELoss(), torch.zeros(2), y=torch.tensor([1.0, float("nan")]).bfloat16())


def test_nothing_is_checked_before_the_output_is_known_or_without_samples():
    made = LabelCheck(TorchLoss(nn.CrossEntropyLoss()), ("y",), False)
    made.check(batch(y=np.array([99])))
    assert made.learn(LOGITS)
    assert not made.learn((LOGITS, None))
    assert not made.learn("text")
    made.check(batch(y=np.array([], dtype=int)))


def test_on_a_cpu_class_numbers_are_left_to_torch_after_the_first_batch_until_it_refuses():
    made = check(nn.CrossEntropyLoss(), LOGITS, on_cpu=True, y=torch.tensor([0, 1, 2]))
    wrong = batch(y=torch.tensor([0, 9, 2]))
    made.check(wrong)
    with pytest.raises(DataError, match="sample 51: 9"):
        made.check(wrong, refused=True)
    made = check(nn.CrossEntropyLoss(), LOGITS, on_cpu=False, y=torch.tensor([0, 1, 2]))
    with pytest.raises(DataError, match="sample 51: 9"):
        made.check(wrong)


CTC = {"fields": ("labels", "inputs", "lengths"), "inputs": np.array([5, 5])}
OUTPUT = torch.zeros(2, 5, 4)


def test_labels_of_ctc_are_checked_within_their_length():
    check(nn.CTCLoss(), OUTPUT, labels=np.array([[1, 2, 3], [3, 0, 99]]), lengths=np.array([3, 1]), **CTC)
    with pytest.raises(DataError, match="from 0 to 3 other than the blank 0") as caught:
        check(nn.CTCLoss(), OUTPUT, labels=np.array([[1, 4, 3], [3, 0, 9]]), lengths=np.array([3, 2]), **CTC)
    assert [row.strip() for row in caught.value.problems[1:]] == ["sample 50: 4", "sample 51: 0"]
    with pytest.raises(DataError, match="field 'lengths': 1 targets are not lengths up to 3"):
        check(nn.CTCLoss(), OUTPUT, labels=np.array([[1, 2, 3], [3, 1, 1]]), lengths=np.array([3, 4]), **CTC)
