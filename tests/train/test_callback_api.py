"""What a callback may change in a run and read of it: parameters, options, sizes, files, the objective once more."""

import numpy as np
import pytest
import torch
from thread_ranks import on_ranks
from toys import Regression, data, run_of

from descend.data import Batch, Loading, open_data
from descend.errors import ConfigurationError
from descend.train import Mode
from descend.train.callback_api import Collectives, ObjectiveProbe


class Frozen(Regression):
    def __init__(self):
        super().__init__(decay=0.5)
        self.module.register_buffer("calls", torch.zeros(()))

    def losses(self, micro_batch):
        self.module.calls += 1
        return super().losses(micro_batch)


def made(**settings):
    task = Frozen()
    optimizer = torch.optim.SGD([task.module.weight], lr=0.1, momentum=0.9)
    return run_of(task, data(batch_size=4), optimizer=optimizer, micro_batch_size=4, **settings)


def test_weights_are_parameters_and_buffers_and_those_trained_have_an_optimizer():
    control = made().control
    assert list(control.weights) == ["weight", "bias", "calls"]
    assert list(control.trained) == ["weight"]
    assert list(control.select(())) == list(control.select(["weight"])) == ["weight"]


def test_names_that_cannot_be_selected_are_all_refused():
    with pytest.raises(ConfigurationError) as caught:
        made().control.select(["bias", "wieght", "weight"])
    first, second = caught.value.problems
    assert first == "weights 'bias' have no optimizer: they are not trained"
    assert second.startswith("there are no weights 'wieght'")
    assert "did you mean 'weight'" in second


def test_options_of_the_optimizer_by_weights():
    run = made()
    run.control.set_rate(0.25)
    assert run.control.rates() == {"weight": 0.25}
    assert run.optimizer.param_groups[0]["lr"] == 0.25
    run.control.set_each("momentum", {"weight": 0.5})
    assert run.control.options("momentum") == {"weight": 0.5}
    assert run.control.options("beta1") == {"weight": None}
    with pytest.raises(ConfigurationError, match="the optimizer of weights 'weight' has no option 'beta1'"):
        run.control.set_each("beta1", {"weight": 0.5})


def test_the_first_wish_to_stop_is_the_reason():
    run = made()
    run.control.stop("enough")
    run.control.stop("more than enough")
    assert run.stop.reason == "enough"


@pytest.mark.parametrize("size", [np.int64(5), np.uint8(5), 5])
def test_a_new_batch_size_is_an_integer_and_the_epoch_is_divided_again(size):
    run = made()
    run.control.batch_size = 4
    assert not run.state.rebatch
    run.control.batch_size = size
    assert (run.control.batch_size, type(run.control.batch_size), run.state.rebatch) == (5, int, True)


@pytest.mark.parametrize("size", [0, -3, 2.5, 5.0, "4", True, None])
def test_a_batch_size_that_is_none_is_refused(size):
    run = made()
    with pytest.raises(ConfigurationError, match="batch_size must be an integer above 0, and was set to"):
        run.control.batch_size = size
    assert run.control.batch_size == 4


def test_micro_batches_may_be_unlimited():
    control = made().control
    control.micro_batch_size = None
    assert control.micro_batch_size is None
    control.micro_batch_size = np.int32(2)
    assert (control.micro_batch_size, type(control.micro_batch_size)) == (2, int)
    with pytest.raises(ConfigurationError, match="micro_batch_size must be an integer above 0"):
        control.micro_batch_size = 0


def test_batches_of_a_stream_have_no_size_to_change():
    run = made()
    stream = open_data([(torch.zeros(2, 3),)], Loading(batch_size=2))
    object.__setattr__(run, "data", {Mode.TRAIN: stream})
    with pytest.raises(ConfigurationError, match="stream of mini-batches, whose size a callback cannot change"):
        run.control.batch_size = 3


def whole_batch():
    draw = np.random.default_rng(5)
    return Batch({"x": draw.normal(size=(6, 3)), "y": draw.normal(size=(6, 1))}, np.arange(6), 0, 0, 6, True)


def test_the_objective_and_its_gradient_once_more_change_nothing():
    run, batch = made(), whole_batch()
    weight, bias = run.parameters["weight"], run.parameters["bias"]
    weight.grad = torch.full_like(weight, 7.0)
    x, y = (torch.from_numpy(batch.fields[name]) for name in ("x", "y"))
    error = x @ weight.detach().T + bias.detach() - y
    expected = float(error.square().mean() + 0.5 * weight.detach().square().sum())
    gradient = 2 * (error * x).mean(0, keepdim=True) + weight.detach()
    assert run.control.objective(batch) == pytest.approx(expected, rel=1e-12)
    with torch.no_grad():  # as around an evaluation
        found = run.control.gradients(batch)
    assert list(found) == ["weight"]
    torch.testing.assert_close(found["weight"], gradient, rtol=1e-12, atol=1e-14)
    assert run.task.module.calls == 0
    assert weight.grad.tolist() == [[7.0] * 3]


def test_a_parameter_that_the_objective_does_not_use_has_gradient_zero():
    unused = torch.nn.Parameter(torch.ones(2))
    assert ObjectiveProbe(made()).gradients(whole_batch(), {"unused": unused})["unused"].tolist() == [0.0, 0.0]


def test_buffers_are_restored_after_an_error_too():
    class Broken(Frozen):
        def losses(self, micro_batch):
            self.module.calls += 1
            raise ZeroDivisionError

    run = run_of(Broken(), data())
    with pytest.raises(ZeroDivisionError):
        run.control.objective(whole_batch())
    assert run.task.module.calls == 0


def test_another_batch_can_take_the_place_of_the_one_under_way():
    run, batch = made(), whole_batch()
    assert run.control.last_batch(Mode.TRAIN) is None
    run.control.batch = batch
    assert run.control.batch is run.control.last_batch(Mode.TRAIN) is batch


def test_files_are_below_the_run_directory_and_on_other_ranks_below_the_scratch_folder(tmp_path):
    run = made(directory=tmp_path / "run")
    path = run.control.path("plots/a.png")
    assert path == tmp_path / "run" / "plots" / "a.png"
    assert path.parent.is_dir()
    assert run.control.path(str(tmp_path / "b")) == tmp_path / "b"
    run.store.scratch = tmp_path / "scratch"
    assert run.control.path("a") == tmp_path / "scratch" / "a"
    assert run.control.path(str(tmp_path / "b")).is_relative_to(tmp_path / "scratch")


def test_former_names_reach_their_new_places_and_others_are_answered_with_the_nearest():
    control = made().control
    assert control.first is control.collectives.is_rank_zero is True
    assert control.keeps_files is control.files.are_kept is False
    assert control.summary_dir == "tensorboard"
    with pytest.raises(AttributeError, match=r"RunControl has no attribute 'batchsize'.*'batch_size'"):
        control.batchsize  # noqa: B018


def test_generators_are_functions_of_seed_and_names():
    def draw(seed, *names):
        return torch.rand(3, generator=made(seed=seed).control.generator(*names)).tolist()

    assert draw(1, "noise", 3) == draw(1, "noise", 3)
    assert draw(1, "noise", 3) != draw(1, "noise", 4)
    assert draw(1, "noise", 3) != draw(2, "noise", 3)


def test_collectives_leave_the_argument_as_it_was():
    def act(communicator):
        own, rank = Collectives(communicator), communicator.rank
        tensor = torch.tensor([1.0 + rank])
        total = own.all_reduce(tensor)
        rows = own.all_gather_cat(torch.full((rank, 2), rank))
        ids = own.ids(Batch({}, np.arange(rank + 1), 0, 0, 3, False))
        return float(total), float(tensor), rows.tolist(), ids.tolist(), own.is_rank_zero, own.world_size

    first, second = on_ranks(2, act)
    assert first == (3.0, 1.0, [[1, 1]], [0, 0, 1], True, 2)
    assert second == (3.0, 2.0, [[1, 1]], [0, 0, 1], False, 2)


def test_a_mode_may_be_said_by_its_word_and_others_are_refused():
    run = run_of(Regression(), data(), data(batch_size=4))
    assert run.control.evaluate("validation") == run.control.evaluate(Mode.VALIDATION)
    with pytest.raises(ConfigurationError, match="mode must be one of 'train', 'validation', got 'validate'"):
        run.control.evaluate("validate")
    with pytest.raises(ConfigurationError, match=r"control\.evaluate: mode must be one of .*, got 'test'"):
        run.control.evaluate(Mode.TEST)
