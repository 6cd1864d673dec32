"""Lowered modules as a whole: their outputs, what is overwritten, and options that may not change the numbers."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import descend
from descend import zoo
from descend.errors import ConfigurationError, GraphError
from descend.graph import check
from descend.lower import PlainModule, lower
from descend.runtime import generator

FIELDS = {"x": (3, 8, 8), "t": (4,)}


def network(**options):
    """Convolution, batch norm, ReLU, dropout, pooling, a residual sum, a classifier and its cross entropy."""
    x, t = descend.Input(data_field="x", name="x"), descend.Input(data_field="t", name="t")
    conv = {"num_dims": 2, "out_channels": 4, "kernel_size": 3, "padding": 1}
    y = descend.Relu(descend.Convolution(x, name="conv1", **conv), name="relu1")
    z = descend.BatchNormalization(descend.Convolution(y, name="conv2", **conv), name="bn")
    z = descend.Dropout(descend.Relu(z, name="relu2"), keep_prob=0.5, name="drop")
    total = descend.Relu(descend.Add(y, z, name="sum"), name="relu3")
    pooled = descend.Pooling(total, num_dims=2, pool_mode="max", pool_dims_i=2, pool_strides_i=2, name="pool")
    logits = descend.FullyConnected(pooled, num_neurons=4, has_bias=True, name="fc")
    loss = descend.CrossEntropy(descend.Softmax(logits, name="p"), t, name="loss")
    return descend.Model(1, objective_function=loss, name="net", **options)


def made(outputs=None, **options):
    return lower(check(network(), FIELDS), lambda name: generator(1, name), outputs, **options)


def batch(samples=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(samples, 3, 8, 8, generator=draw), "t": torch.eye(4)[torch.arange(samples) % 4]}


def loss_and_gradients(module, seed=7, samples=6):
    module.zero_grad()
    loss = module(batch(samples), seed=seed, position=0, batch_size=samples)["loss"]
    loss.mean().backward()
    return [loss.detach(), *(p.grad for p in module.parameters()), *(b.clone() for b in module.buffers())]


def close(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_an_overwritten_input_is_seen_by_no_other_layer():
    """The layers one by one, each shown to a hook, give the bits of the layers in place."""
    seen = {}

    def look(name, outputs):
        seen[name] = [output.detach().clone() for output in outputs]
        return outputs

    quick, watched = made(), made()
    watched.on_layer = look
    for one, other in zip(loss_and_gradients(quick), loss_and_gradients(watched), strict=True):
        assert torch.equal(one, other)
    assert (seen["conv1"][0] < 0).any()
    assert (seen["relu1"][0] >= 0).all()
    in_place = {step.name for step in quick._program.steps if step.quick is torch.relu_}
    assert in_place == {"relu1", "relu2"}  # the sum's output is its own gradient's business, and stays


def test_an_input_that_others_read_is_not_overwritten():
    x = descend.Input(data_field="x")
    y = descend.FullyConnected(x, num_neurons=4, name="fc")
    model = descend.Model(1, objective_function=descend.L2Norm2(descend.Add(descend.Relu(y, name="r"), y)), name="m")
    for outputs in (None, ["r", "fc"]):
        module = lower(check(model, {"x": (3,)}), lambda name: generator(1, name), outputs)
        assert not any(step.quick for step in module._program.steps)
    got = module({"x": torch.randn(5, 3)})
    assert torch.equal(got["r"], got["fc"].relu())
    assert (got["fc"] < 0).any()


def test_an_output_in_another_format_is_not_overwritten():
    x = descend.Input(data_field="x")
    y = descend.Relu(descend.FullyConnected(x, num_neurons=4), datatype="DOUBLE", name="r")
    module = lower(check(descend.Model(layers=[y]), {"x": (3,)}), lambda name: generator(1, name), ["r"])
    assert module({"x": torch.randn(5, 3)})["r"].dtype == torch.float64


def steps_of(make):
    """What is known of a loss behind what `make` makes of an Input."""
    x, label = descend.Input(data_field="x"), descend.Input(data_field="label")
    p = make(x)
    loss = descend.CrossEntropy(p, label, name="loss")
    right = descend.Metric(descend.CategoricalAccuracy(p, label))
    plan = check(descend.Model(1, objective_function=loss, metrics=[right]), {"x": (3,), "label": (3,)})
    module = lower(plan, lambda name: generator(1, name))
    return module, next(step for step in module._program.steps if step.name == "loss")


def test_a_cross_entropy_behind_a_softmax_does_not_look_for_zeros():
    x, label = torch.tensor([[0.0, -2000.0, 1.0], [1e9, 0.0, 0.0]]), torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    for make in (lambda x: descend.Softmax(x), lambda x: descend.Identity(descend.Softmax(x, softmax_mode="channel"))):
        module, step = steps_of(make)
        assert step.quick is not None
        z = x.clone().requires_grad_()
        loss = module({"x": z, "label": label})["loss"]
        want = -np.log(np.sqrt(np.finfo(np.float32).tiny))
        np.testing.assert_allclose(loss.detach()[:, 0], [want, 0], rtol=1e-5, atol=1e-6)
        loss.sum().backward()
        assert z.grad.isfinite().all()
        assert z.grad[0, 1] == pytest.approx(-1)  # a sample whose own class is clipped continues to learn


def test_a_cross_entropy_behind_anything_else_does():
    for make in (lambda x: x, lambda x: descend.Sigmoid(x), lambda x: descend.Abs(descend.Softmax(x))):
        module, step = steps_of(make)
        assert step.quick is None
        assert module({"x": torch.zeros(1, 3), "label": torch.zeros(1, 3)})["loss"].item() == 0


def test_outputs_that_are_asked_for_need_no_labels():
    module = made(["p", "conv1"])
    got = module({"x": batch()["x"]})
    assert list(got) == ["p", "conv1"]
    assert not {"loss", "t"} & {step.name for step in module._program.steps}
    with pytest.raises(GraphError, match="there is no layer 'poool'; did you mean 'pool'"):
        made(["poool"])


def test_channels_last_gives_the_same_numbers_in_another_order_of_memory():
    plain, last = made(), made(channels_last=True)
    close(loss_and_gradients(last), loss_and_gradients(plain))
    outputs = lower(check(network(), FIELDS), lambda name: generator(1, name), ["conv2"], channels_last=True)
    assert outputs(batch())["conv2"].is_contiguous(memory_format=torch.channels_last)
    assert outputs.conv2_kernel.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.slow(seconds=40)
@pytest.mark.timeout(900)  # it waits for a compiler, three times
def test_a_compiled_module_gives_the_same_numbers_and_draws():
    plain, compiled = made(), made()
    compiled.compile()
    for seed, samples in ((1 << 62, 6), (5, 6), (6, 6), (7, 5)):
        close(loss_and_gradients(compiled, seed, samples), loss_and_gradients(plain, seed, samples))


@pytest.mark.slow
def test_a_module_is_one_graph_for_torchs_compiler():
    plain, traced = made(), made()
    step = torch.compile(traced, backend="aot_eager", fullgraph=True)
    for seed in (3, 4):
        got = step(batch(), seed=seed, position=0, batch_size=6)["loss"]
        want = plain(batch(), seed=seed, position=0, batch_size=6)["loss"]
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def plain_module():
    return PlainModule(check(network(), FIELDS), lambda name: generator(1, name), ["p"])


def test_a_plain_module_takes_tensors_by_position_or_name():
    module = plain_module().eval()
    x = batch()["x"]
    assert module(x).shape == (6, 4)
    assert torch.equal(module(x), module(x=x))
    for arguments, named in (((), {}), ((x, x), {}), ((x,), {"x": x}), ((), {"y": x})):
        with pytest.raises(ConfigurationError, match="model 'net' takes x and was given"):
            module(*arguments, **named)


def test_outputs_that_no_input_leads_to_are_refused_in_words():
    """A constant layer has as many rows as there are samples, and nothing says how many those are."""
    x, one = descend.Input(data_field="x"), descend.Constant(value=1.0, num_neurons=[4], name="one")
    model = descend.Model(1, layers=[one], objective_function=descend.L2Norm2(x))
    module = PlainModule(check(model, FIELDS), lambda name: generator(1, name), ["one"])
    with pytest.raises(ConfigurationError, match="no Input layer leads to its outputs"):
        module()


def test_a_plain_module_is_trained_by_anybodys_loop():
    module = plain_module()
    other = copy.deepcopy(module)
    optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
    given = batch(32)
    first = last = None
    for _ in range(30):
        optimizer.zero_grad()
        last = nn.functional.nll_loss(other(given["x"]).log(), given["t"].argmax(1))
        last.backward()
        optimizer.step()
        first = first or last.item()
    assert last.item() < 0.7 * first
    assert torch.equal(module.conv1_kernel, plain_module().conv1_kernel)
    module.load_state_dict(other.state_dict())
    assert torch.equal(module.eval()(given["x"]), other.eval()(given["x"]))


def test_random_layers_of_a_plain_module_follow_torchs_generator():
    module = plain_module()
    x = batch()["x"]
    torch.manual_seed(1)
    one = module(x)
    torch.manual_seed(1)
    assert torch.equal(module(x), one)
    assert not torch.equal(module(x), one)


@pytest.mark.parametrize("kind", [zoo.ResNet18, zoo.LeNet])
def test_options_do_not_change_what_a_network_is(kind):
    options = {"small_images": True} if kind is zoo.ResNet18 else {}
    shape = (3, 32, 32) if options else (1, 28, 28)
    y = kind(5, name="n", **options)(descend.Input(data_field="x"))
    plan = check(descend.Model(objective_function=descend.L2Norm2(y)), {"x": shape})
    x = torch.randn(4, *shape)
    values = [
        lower(plan, lambda name: generator(1, name), [y.name], channels_last=last)({"x": x})[y.name]
        for last in (False, True)
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-5)
