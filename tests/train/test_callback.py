import json

import pytest
import torch

from descend.errors import ConfigurationError
from descend.runtime import flatten, unflatten
from descend.train import Callback, Callbacks, Event


def test_every_event_has_a_hook_in_the_base_class():
    assert all(callable(getattr(Callback, event.value)) for event in Event)


def test_a_misspelt_hook_is_an_error_when_the_class_is_defined():
    with pytest.raises(ConfigurationError, match=r"after_backwrd.*did you mean 'after_backward'"):

        class Watcher(Callback):
            def after_backwrd(self, step):
                pass


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("afterstep", lambda self, step: None),
        ("After_step", lambda self, step: None),
        ("after_stp", staticmethod(lambda step: None)),
        ("on_train_begin", lambda self, run: None),
    ],
)
def test_what_is_called_like_a_hook_and_is_none_is_an_error(name, method):
    with pytest.raises(ConfigurationError, match=rf"defines {name}\(\), which no event calls[;.]"):
        type("Watcher", (Callback,), {name: method})


def test_helpers_of_a_callback_may_have_any_other_name():
    type("Watcher", (Callback,), {"write": lambda self: None, "_after_step": lambda self: None, "step": 3})


async def later(self, step): ...


@pytest.mark.parametrize("hook", [lambda self: None, lambda self, step, loss: None, later])
def test_a_hook_that_cannot_be_called_with_its_record_is_an_error(hook):
    with pytest.raises(ConfigurationError, match=r"after_step\(self.* is called with one record"):
        type("Watcher", (Callback,), {"after_step": hook})


def test_a_hook_may_be_set_on_an_object():
    heard: list[object] = []
    callback = Callback()
    callback.after_step = heard.append
    Callbacks((callback,)).fire(Event.AFTER_STEP, 1)
    assert heard == [1]


def test_hooks_are_called_in_the_order_of_the_callbacks_and_only_where_they_are_overridden():
    heard: list[str] = []

    class Ear(Callback):
        def __init__(self, name: str):
            self.name = name

        def after_step(self, step):
            heard.append(f"{self.name} {step}")

    callbacks = Callbacks((Ear("a"), Ear("b")))
    callbacks.fire(Event.AFTER_STEP, 1)
    callbacks.fire(Event.BEFORE_STEP, 1)
    assert heard == ["a 1", "b 1"]
    assert callbacks.wants(Event.AFTER_STEP)
    assert not callbacks.wants(Event.BEFORE_STEP)


def test_a_callback_that_unsubscribes_is_called_no_more_and_others_are():
    class Watcher(Callback):
        def after_step(self, step):
            called.append(self)
            if step == "last":
                callbacks.unsubscribe(self, Event.AFTER_STEP)

        def after_epoch(self, epoch):
            called.append(epoch)

    called = []
    first, second = Watcher(), Watcher()
    callbacks = Callbacks((first, second))
    callbacks.fire(Event.AFTER_STEP, "last")
    assert called == [first, second]
    assert not callbacks.wants(Event.AFTER_STEP)
    callbacks.fire(Event.AFTER_EPOCH, "an epoch")
    assert called[2:] == ["an epoch"] * 2


def test_something_that_is_no_callback_is_refused():
    with pytest.raises(ConfigurationError, match="print"):
        Callbacks((print,))  # type: ignore[arg-type]


def test_what_is_remembered_comes_back_in_its_own_types():
    value = {3: (1, [2.5, {"a": None}]), (0, 1): "pair", "entries of a tuple": torch.ones(2)}

    class Counter(Callback):
        remembers = ("seen", "state")
        state = 0  # a name that a method of the base has, too

    first, second = Counter(), Counter()
    first.seen, first.state = value, {"entries of a tuple": 1}
    tensors, plain = flatten(Callbacks((first,)).state_dict())
    Callbacks((second,)).load_state_dict(unflatten(json.loads(json.dumps(plain)), tensors))
    assert second.seen == value
    assert second.state == {"entries of a tuple": 1}
