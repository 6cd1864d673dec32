import pytest

from descend.errors import ConfigurationError
from descend.train import Callback, Callbacks, Event


def test_every_event_has_a_hook_in_the_base_class():
    assert all(callable(getattr(Callback, event.value)) for event in Event)


def test_a_misspelt_hook_is_an_error_when_the_class_is_defined():
    with pytest.raises(ConfigurationError, match=r"after_backwrd.*did you mean 'after_backward'"):

        class Watcher(Callback):
            def after_backwrd(self, step):
                pass


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


def test_something_that_is_no_callback_is_refused():
    with pytest.raises(ConfigurationError, match="print"):
        Callbacks((print,))  # type: ignore[arg-type]
