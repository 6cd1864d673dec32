"""Convolution modules against torch's functions, with the same weights."""

import pytest
import torch
from torch.nn import functional

import descend
from descend.zoo import modules
from tests.zoo.lowered import agree, random

PLAIN = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("dims", "bias"), [(1, True), (2, False), (2, True), (3, True)])
def test_a_convolution_module_is_torchs_function(dims, bias, transpose):
    fields = {"stride": 2, "padding": 1, "dilation": 2, "groups": 2}
    module = modules.ConvolutionModule(
        dims, 4, 3, bias=bias, transpose=transpose, activation=descend.Tanh, name="c", **fields
    )
    function = (TRANSPOSED if transpose else PLAIN)[dims]

    def twin(get, x):
        return function(x, get("c_kernel"), get("c_bias") if bias else None, **fields).tanh()

    agree(module, twin, random(2, 2, *(6, 5, 4)[:dims]))


@pytest.mark.parametrize(("module", "dims"), [(modules.Convolution2dModule, 2), (modules.Convolution3dModule, 3)])
def test_modules_for_images_and_volumes_have_so_many_dimensions(module, dims):
    made = module(4, [3, 2, 1][:dims], padding=1, name="c")

    def twin(get, x):
        return PLAIN[dims](x, get("c_kernel"), get("c_bias"), padding=1)

    agree(made, twin, random(2, 2, *(4, 3, 5)[:dims]))


def test_numbers_may_differ_between_dimensions():
    fields = {"stride": [2, 1], "padding": [0, 2], "dilation": [1, 2]}
    module = modules.Convolution2dModule(3, [3, 2], name="c", **fields)
    agree(module, lambda get, x: functional.conv2d(x, get("c_kernel"), get("c_bias"), **fields), random(2, 2, 7, 6))


def test_unset_numbers_are_torchs_defaults():
    twin = torch.nn.Conv2d(3, 4, 5)
    fields = modules.ConvolutionModule(2, 4, 5).fields
    layer = modules.ConvolutionModule(2, 4, 5)(descend.Input())
    assert layer.window() == (twin.kernel_size, twin.stride, twin.padding, twin.dilation)
    assert (fields["groups"], fields["has_bias"]) == (twin.groups, True)


def test_calls_share_the_weights():
    module = modules.ConvolutionModule(1, 2, 3, padding=1, name="c")

    def twin(get, x):
        for _ in range(2):
            x = functional.conv1d(x, get("c_kernel"), get("c_bias"), padding=1)
        return x

    agree(lambda x: module(module(x)), twin, random(2, 2, 5))
