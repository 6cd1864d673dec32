"""Formats that layers and weights ask for."""

import pytest
import torch

import descend
from descend.errors import GraphError
from descend.graph import check
from descend.lower import lower
from descend.runtime import generator


def module_of(datatype, weights=None, **fields):
    x = descend.Input(data_field="x", name="x")
    w = [descend.Weights(descend.HeNormalInitializer(), name="w", datatype=weights)]
    y = descend.FullyConnected(x, num_neurons=3, weights=w, name="y", datatype=datatype, **fields)
    z = descend.Sigmoid(y, name="z")
    total = descend.Reduction(z, name="total")
    metrics = [descend.Metric(descend.Reduction(y, name="inner", datatype=datatype), name="inner")]
    plan = check(descend.Model(1, objective_function=total, metrics=metrics), {"x": (4,)})
    return lower(plan, lambda name: generator(1, name))


def test_without_formats_nothing_is_cast():
    module = module_of(None).double()
    assert module({"x": torch.ones(2, 4, dtype=torch.float64)})["total"].dtype == torch.float64


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("DOUBLE", torch.float64), ("FP16", torch.float16), (1, torch.float32)]
)
def test_a_layer_computes_in_its_format_and_the_others_in_float32(datatype, dtype):
    module = module_of(datatype)
    assert module.get_parameter("w").dtype == dtype
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    found = module({"x": x})
    assert found["inner"].dtype == dtype
    assert found["total"].dtype == torch.float32
    w = module.get_parameter("w")
    want = torch.sigmoid((x.to(dtype) @ w.T).float()).sum(1, keepdim=True)
    torch.testing.assert_close(found["total"], want)
    found["total"].sum().backward()
    assert x.grad.dtype == torch.float32
    assert w.grad.dtype == dtype


def test_weights_may_be_kept_in_another_format_than_they_are_used_in():
    module = module_of(None, weights="DOUBLE")
    assert module.get_parameter("w").dtype == torch.float64
    module({"x": torch.ones(2, 4)})["total"].sum().backward()
    assert module.get_parameter("w").grad.dtype == torch.float64


def test_random_layers_and_several_outputs_have_their_format_too():
    noise = descend.Gaussian(neuron_dims=[4], datatype="DOUBLE", name="noise")
    cut = descend.Slice(noise, slice_points=[0, 1, 4], datatype="DOUBLE", name="cut")
    one, three = (descend.L2Norm2(cut, datatype="DOUBLE", name=f"part{i}") for i in range(2))
    x = descend.L2Norm2(descend.Input(data_field="x"), name="loss")
    model = descend.Model(1, objective_function=x, metrics=[descend.Metric(one), descend.Metric(three)])
    module = lower(check(model, {"x": (1,)}), lambda name: generator(1, name))
    found = module({"x": torch.ones(2, 1)}, seed=1)
    assert {name: y.dtype for name, y in found.items()} == {
        "loss": torch.float32,
        "part0": torch.float64,
        "part1": torch.float64,
    }


@pytest.mark.parametrize("layer", ["", "datatype: DOUBLE"])
def test_an_operator_has_formats_of_its_own_as_files_have_them(layer):
    """1e-9 + 1 − 1 is 1e-9 in float64, and 0 where the input or the constant is rounded to float32."""
    ops = "".join(
        "ops { input_datatype: DOUBLE output_datatype: DOUBLE parameters { "
        f"[type.googleapis.com/lbann_data.AddConstantOperator] {{ constant: {constant} }} }} }} "
        for constant in (1, -1)
    )
    source = f"""layer {{ name: "x" input {{ data_field: "x" }} datatype: DOUBLE }}
        layer {{ name: "y" parents: "x" {layer} operator_layer {{ {ops} }} }}
        layer {{ name: "z" parents: "x" operator_layer {{ {ops.replace("DOUBLE", "FLOAT")} }} }}
        layer {{ name: "w" parents: "y" relu {{ }} }}"""
    plan = check(descend.graph.from_text(source), {"x": (1,)})
    module = lower(plan, lambda name: generator(1, name), outputs=["y", "z", "w"])
    found = module({"x": torch.tensor([[1e-9]], dtype=torch.float64)})
    assert {name: y.dtype for name, y in found.items()} == {
        "y": torch.float64,
        "z": torch.float32,
        "w": torch.float32,
    }
    assert found["y"].item() == pytest.approx(1e-9, rel=1e-6)
    assert found["z"].item() == 0


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (lambda i: descend.Embedding(i, num_embeddings=5000, embedding_dim=1, datatype="FP16", name="y"), [(1,)]),
        (lambda i: descend.OneHot(i, size=5000, datatype="FP16", name="y"), [(1,)]),
        (lambda i, x: descend.Gather(x, i, datatype="FP16", name="y"), [(1,), (5000,)]),
        (lambda i, x: descend.Scatter(x, i, dims=[5000], datatype="FP16", name="y"), [(1,), (1,)]),
        (lambda i, x: descend.CrossEntropy(x, i, use_labels=True, datatype="FP16", name="y"), [(1,), (5000,)]),
    ],
)
def test_an_index_is_not_rounded_to_a_format(make, shapes):
    """In float16 3001 would be 3000 or 3002."""
    y = make(*(descend.Input(data_field=f"x{i}") for i in range(len(shapes))))
    plan = check(descend.Model(layers=[y]), {f"x{i}": shape for i, shape in enumerate(shapes)})
    module = lower(plan, lambda name: generator(1, name), outputs=["y"])
    line = torch.full((5000,), 0.5)
    line[3001] = 1.0
    for name, weights in module.named_parameters():
        assert name == "y_weights"
        weights.data[0] = line.half()
    found = module({"x0": torch.tensor([[3001.0]]), "x1": line[None] if shapes[-1] == (5000,) else torch.ones(1, 1)})[
        "y"
    ]
    assert found.dtype == torch.float16
    assert found.flatten()[3001 if found.numel() > 1 else 0].item() == (0 if isinstance(y, descend.CrossEntropy) else 1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: descend.DFTAbs(x),
        *(
            lambda x, mode=mode, pad=pad: descend.Pooling(
                x, pool_mode=mode, num_dims=3, pool_dims_i=3, pool_strides_i=1, pool_pads_i=pad
            )
            for mode in ("average", "average_no_pad")
            for pad in (1, 2)
        ),
    ],
)
def test_half_precision_works_where_torch_has_none(make, dtype):
    y = make(descend.Input(data_field="x"))
    plan = check(descend.Model(layers=[y]), {"x": (2, 3, 4, 3)})
    module = lower(plan, lambda name: generator(1, name), outputs=[y.name])
    x = torch.randn(2, 2, 3, 4, 3, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    found = module({"x": x})[y.name]
    assert found.dtype == dtype
    torch.testing.assert_close(found, module({"x": x.float()})[y.name].to(dtype))
    found.sum().backward()
    assert x.grad.dtype == dtype


def test_training_works_with_weights_of_several_formats():
    module = module_of("DOUBLE")
    module.register_parameter("other", torch.nn.Parameter(torch.ones(2)))
    optimizer = descend.optim.Adam(module.named_parameters(), lr=0.1)
    before = module.get_parameter("w").detach().clone()
    module({"x": torch.ones(2, 4)})["total"].sum().backward()
    optimizer.step()
    assert (module.get_parameter("w") - before).abs().sum() > 0


@pytest.mark.parametrize("datatype", ["COMPLEX_FLOAT", "COMPLEX_DOUBLE"])
def test_complex_numbers_are_refused(datatype):
    for given, what in (((datatype,), "layer 'y'"), ((None, datatype), "weights 'w'")):
        with pytest.raises(GraphError, match=f"{what} has datatype {datatype}, which is not supported: expected FLOAT"):
            module_of(*given)


def of_float16(make, x, datatype=None, widen=False):
    """What a layer of one parent makes of a tensor, in the format of its own or as under autocast."""
    y = make(descend.Input(data_field="x"), datatype)
    plan = check(descend.Model(layers=[y]), {"x": tuple(x.shape[1:])})
    module = lower(plan, lambda name: generator(1, name), outputs=[y.name])
    if widen:
        module.widen()
    return module({"x": x})[y.name]


@pytest.mark.parametrize(("datatype", "widen"), [("FP16", False), (None, True)])
@pytest.mark.parametrize(
    ("make", "size", "expression"),
    [
        (
            lambda x, d: descend.LocalResponseNormalization(
                x, window_width=1, lrn_alpha=1e-4, lrn_beta=0.75, lrn_k=1, datatype=d
            ),
            400.0,
            lambda x: x / (1 + 1e-4 * x * x) ** 0.75,
        ),
        (lambda x, d: descend.Variance(x, biased=True, datatype=d), 100.0, lambda x: x.var(1, correction=0)[:, None]),
        (
            lambda x, d: descend.MeanSquaredError(x, descend.Constant(num_neurons=[100], datatype=d), datatype=d),
            100.0,
            lambda x: x.square().mean(1)[:, None],
        ),
        (lambda x, d: descend.L2Norm2(x, datatype=d), 1e-3, lambda x: x.square().sum(1)[:, None]),
        (lambda x, d: descend.Reduction(x, mode="mean", datatype=d), 6e4, lambda x: x.mean(1)[:, None]),
    ],
)
def test_sums_and_squares_may_leave_half_precision_where_the_result_does_not(datatype, widen, make, size, expression):
    """The parts of these are above 65504 or below 6e-8, the largest and smallest numbers of float16."""
    x = (size * torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).tanh()).half()
    torch.testing.assert_close(
        of_float16(make, x, datatype, widen).double(), expression(x.double()), rtol=2e-3, atol=1e-7
    )
