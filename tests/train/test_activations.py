import pytest
import torch
from torch.utils.checkpoint import checkpoint

from descend.errors import ConfigurationError
from descend.train.activations import ActivationRecorder


def module():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh())


def test_outputs_of_all_parts_together_and_nothing_afterwards():
    net = module()
    watch = ActivationRecorder(net)
    watch.layers(["1"])
    x = torch.randn(5, 2)
    with watch.attached():
        net(x[:3])
        net(x[3:])
    torch.testing.assert_close(watch.outputs("1")[0], net(x).detach())
    assert not watch.outputs("1")[0].requires_grad
    watch.clear()
    assert watch.outputs("1") == ()
    assert not any(part._forward_hooks for part in net.modules())


def test_what_a_listener_returns_goes_on():
    net = module()
    watch = ActivationRecorder(net)
    watch.listen(lambda name, outputs: (outputs[0] + 1,) if name == "0" else None)
    x = torch.randn(5, 2)
    with watch.attached():
        found = net(x)
    torch.testing.assert_close(found, torch.tanh(net[0](x) + 1))
    with watch.attached():
        watch.clear()


def test_what_checkpointing_repeats_is_recorded_once():
    class Repeated(torch.nn.Sequential):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    net = Repeated(*module())
    watch = ActivationRecorder(net)
    watch.layers(["0"])
    x = torch.randn(5, 2)
    with watch.attached():
        net(x).sum().backward()
    torch.testing.assert_close(watch.outputs("0")[0], net[0](x).detach())


def test_an_error_takes_the_hooks_away():
    net = module()
    watch = ActivationRecorder(net)
    watch.layers(["0"])
    with pytest.raises(RuntimeError), watch.attached():
        net(torch.randn(5, 7))
    assert not any(part._forward_hooks for part in net.modules())


def test_an_unknown_layer_is_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match="no layer 'Linear'; there are"):
        ActivationRecorder(module()).layers(["Linear"])
