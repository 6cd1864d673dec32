"""Validators of fields, one by one; what they give together is in test_study.py."""

import numpy as np
import pytest
import torch
from pydantic import BaseModel, ValidationError

from descend.study.design import field_types
from descend.study.design.arm import Arm, arm
from descend.study.design.field_types import plain


class Fields(BaseModel):
    """Fields of each type, in the order in which they look at each other."""

    workload: field_types.Workload = "t.py:t"
    batch_sizes: field_types.BatchSizes = (32,)
    steps: field_types.Steps = (100,)
    arms: field_types.Arms = {"a": arm("SGD")}
    trials: int = 4
    sampler: field_types.Sampler = "sobol"
    shortlist: field_types.Shortlist = 1


def problems(**fields):
    with pytest.raises(ValidationError) as error:
        Fields(**fields)
    return [line for one in error.value.errors() for line in str(one["ctx"]["error"]).splitlines()]


@pytest.mark.parametrize("given", [8, [8], (8,), range(8, 9), np.int64(8), torch.tensor([8]), np.array([8])])
def test_one_or_several_numbers_are_a_tuple(given):
    assert Fields(batch_sizes=given).batch_sizes == (8,)


def test_steps_by_batch_size_are_a_table_of_numbers():
    assert Fields(batch_sizes=[8, 16], steps={"8": 100, 16: 50}).steps == {8: 100, 16: 50}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"batch_sizes": [8, 8]}, "batch_sizes has 8 more than once"),
        ({"batch_sizes": 2.0}, "batch_sizes is 2.0; expected an integer, or a list of them"),
        ({"batch_sizes": True}, "batch_sizes is True; expected an integer, or a list of them"),
        ({"batch_sizes": []}, "batch_sizes is []; expected an integer, or a list of them"),
        ({"steps": 0}, "steps is 0; expected numbers of at least 1"),
        ({"steps": {64: 5}}, "steps has the batch sizes [64], and batch_sizes [32]"),
        ({"steps": {"small": 5}}, "steps has the batch size 'small'; expected an integer"),
        ({"arms": 3}, "arms must be a table from names to arms"),
        ({"arms": {"a": "SDG"}}, "arms.a: there is no optimizer 'SDG'; did you mean 'SGD'?"),
        ({"sampler": "sobl"}, "there is no sampler 'sobl'; did you mean 'sobol'? there are sobol, random, grid"),
        ({"shortlist": 5}, "shortlist is 5 and a search has 4 trials"),
        ({"workload": "tt"}, "workload 'tt' must be of the form file.py:function"),
    ],
)
def test_a_wrong_value_is_reported(fields, said):
    (problem,) = problems(**fields)
    assert said in problem


def test_all_problems_of_all_arms_are_reported():
    found = problems(arms={"a": "SDG", "b": Arm("SGD", {}, {"lr": -1.0, "momentun": 1})})
    assert [line.partition(":")[0] for line in found] == ["arms.a", "arms.b", "arms.b"]


def test_a_workload_that_is_a_python_object_is_taken():
    assert Fields(workload=print).workload is print


def test_numbers_of_other_libraries_are_pythons():
    assert type(plain(np.float32(0.5))) is float
    assert type(plain(torch.tensor(3))) is int
    assert plain("text") == "text"
