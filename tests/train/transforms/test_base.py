"""The chain of transforms: order, insertion, observers, and state by class."""

import pytest
import torch
from toys import Regression, data, run_of

from descend.errors import ConfigurationError
from descend.train.objective import Ratio, Totals
from descend.train.transforms.base import Gradients, GradientTransform, TransformChain, Withheld


class Named(GradientTransform):
    def __init__(self, heard, name, result=None):
        self.heard, self.name, self.result = heard, name, result

    def __call__(self, gradients):
        self.heard.append(self.name)
        return self.result


class Local(Named):
    is_local = True


class Other(Named):
    def state_dict(self):
        return {"name": self.name}

    def load_state_dict(self, state_dict):
        self.name = state_dict.get("name", "initial")


def test_local_ones_complete_the_gradient_and_the_others_follow_in_order():
    heard = []
    chain = TransformChain([Named(heard, "a"), Local(heard, "b"), Named(heard, "c")])
    assert chain.apply_local("gradients") == "gradients"
    assert heard == ["b"]
    for transform in chain.after_reduce:
        transform(None)
    assert heard == ["b", "a", "c"]


def test_a_transform_stands_after_another_while_it_is_wanted():
    chain = TransformChain([Named([], "a"), Other([], "b"), Named([], "c")])
    with chain.inserted(Named([], "new"), after=Other):
        assert [one.name for one in chain.after_reduce] == ["a", "b", "new", "c"]
    assert [one.name for one in chain.after_reduce] == ["a", "b", "c"]
    with pytest.raises(LookupError, match="no Local"):
        chain.insert(Named([], "x"), after=Local)


def test_only_transforms_that_observe_are_entered():
    entered = []

    class Observer(GradientTransform):
        def observing(self, micro_batch):
            entered.append(micro_batch)
            return super().observing(micro_batch)

    with TransformChain([Named([], "a"), Observer()]).observing("part"):
        assert entered == ["part"]
    with TransformChain([Named([], "a")]).observing("part"):
        assert entered == ["part"]


def test_state_goes_by_class_and_what_was_not_saved_starts_over():
    chain = TransformChain([Named([], "a"), Other([], "b")])
    saved = chain.state_dict()
    assert saved == {"Other": {"name": "b"}}
    again = TransformChain([Other([], "x")])
    again.load_state_dict(saved)
    assert again.one(Other).name == "b"
    again.load_state_dict({})
    assert again.one(Other).name == "initial"


def test_two_transforms_of_a_class_have_states_of_their_own():
    saved = TransformChain([Other([], "a"), Other([], "b"), Named([], "c")]).state_dict()
    assert saved == {"Other": {"name": "a"}, "Other 2": {"name": "b"}}
    again = TransformChain([Other([], "x"), Other([], "y")])
    again.load_state_dict(saved)
    assert again.state_dict() == saved


def test_a_local_transform_cannot_withhold_an_update():
    class Stubborn(Named):
        is_local = True

        def __call__(self, gradients):
            return Withheld("it is Sunday")

    with pytest.raises(ConfigurationError, match="Stubborn has is_local=True and withheld an update"):
        TransformChain([Stubborn([], "a")]).apply_local("gradients")


def test_the_usual_chain_is_in_the_order_that_its_file_says():
    run = run_of(Regression(), data())
    assert [type(one).__name__ for one in run.transforms.after_reduce] == ["AfterBackward", "CheckFinite", "Clip"]
    assert Withheld("why").skipped


def test_setup_and_begin_reach_every_transform_in_order():
    heard = []

    class Listening(Named):
        def setup(self, run):
            heard.append((self.name, "setup", run))

        def begin(self):
            heard.append((self.name, "begin"))

    chain = TransformChain([Listening([], "a"), Listening([], "b")])
    chain.setup("the run")
    chain.begin()
    assert heard == [("a", "setup", "the run"), ("b", "setup", "the run"), ("a", "begin"), ("b", "begin")]


def test_the_base_changes_nothing_and_keeps_nothing():
    plain = GradientTransform()
    assert plain(None) is None
    assert plain.state_dict() == {}
    assert not plain.is_local
    assert not plain.needs_all_gradients
    assert TransformChain.resets_with_optimizer


def test_the_value_is_the_mean_and_the_view_is_of_this_step():
    run = run_of(Regression(), data())
    batch = next(iter(run.data["train"].epoch(0)))
    gradients = Gradients(run, batch, Ratio(torch.tensor(6.0), 4.0), Totals(), 4.0)
    assert float(gradients.value) == 1.5
    assert gradients.divisor == 1.0
    assert gradients.view is gradients.view
    assert float(gradients.view.objective) == 1.5
