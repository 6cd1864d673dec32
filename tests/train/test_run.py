"""A run as the sum of its parts: what is set up when it is made, and what a checkpoint keeps."""

import torch
from toys import Regression, data, run_of

from descend.train import BatchedIterativeOptimizer, Epochs
from descend.train.evaluation import external_metrics
from descend.train.run import RunConfig, clears_more_than_gradients


class Clearing(torch.optim.SGD):
    calls = 0

    def zero_grad(self, set_to_none=True):
        self.calls += 1
        super().zero_grad(set_to_none)


def with_optimizer(make):
    task = Regression()
    run = run_of(task, data(), optimizer=make(task.module.parameters(), lr=0.1))
    for p in task.module.parameters():
        p.grad = torch.ones_like(p)
    return run


def test_gradients_are_cleared_and_an_optimizer_s_own_zero_grad_is_called():
    run = with_optimizer(Clearing)
    run.clear_gradients()
    assert run.optimizer.calls == 1
    assert all(p.grad is None for p in run.parameters.values())


def test_torch_s_zero_grad_is_not_called(monkeypatch):
    run = with_optimizer(torch.optim.SGD)
    monkeypatch.setattr(run.optimizer, "zero_grad", None)
    run.clear_gradients()
    assert all(p.grad is None for p in run.parameters.values())
    assert not clears_more_than_gradients(run.optimizer)


def test_gradients_of_parameters_that_the_optimizer_lacks_are_cleared_too():
    task = Regression()
    run = run_of(task, data(), optimizer=torch.optim.SGD([task.module.weight], lr=0.1))
    task.module.bias.grad = torch.ones_like(task.module.bias)
    run.clear_gradients()
    assert task.module.bias.grad is None


def test_parts_are_loaded_in_one_order_and_give_plain_states():
    run = run_of(Regression(), data())
    parts = run.stateful_parts()
    assert list(parts) == [
        "optimizer",
        "train",
        "algorithm",
        "stop",
        "modules",
        "data",
        "micro_batch_size",
        "precision",
        "transforms",
        "strategy",
        "callbacks",
    ]
    resetting = [name for name, part in parts.items() if part.resets_with_optimizer]
    assert resetting[:2] == ["optimizer", "algorithm"]
    assert all(isinstance(part.state_dict(), dict) for part in parts.values())


def test_the_state_of_one_run_continues_in_another():
    first, second = run_of(Regression(), data()), run_of(Regression(), data())
    first.state.training.step, first.state.training.epoch = 7, 3
    first.stop.stop("enough")
    for name, part in first.stateful_parts().items():
        second.stateful_parts()[name].load_state_dict(part.state_dict())
    assert (second.state.step, second.state.epochs_done, second.stop.reason) == (7, 3, "enough")


def test_micro_batches_of_a_strategy_that_cannot_repeat_a_step_are_not_adapted():
    run = run_of(Regression(), data(), micro_batch_size="auto")
    assert run.micro_batch_size.adaptive
    run.strategy.can_repeat_step = False
    run.__post_init__()
    assert not run.micro_batch_size.adaptive


def test_values_of_the_configuration():
    said = []
    config = RunConfig("name", 3, BatchedIterativeOptimizer(), default_epochs=5, say=said.append)
    run = run_of(Regression(), data())
    object.__setattr__(run, "config", config)
    run.say("a line")
    assert (run.name, run.seed, run.epochs, said) == ("name", 3, 5, ["a line"])
    object.__setattr__(run, "config", RunConfig("name", 3, BatchedIterativeOptimizer(stop=Epochs(2)), 5))
    assert run.epochs == 2


def test_external_metrics_are_copied_from_the_task_with_the_run_directory(tmp_path):
    asked, values = [], {"score": 1.0}

    class Scored(Regression):
        def external_metrics(self, directory):
            asked.append(directory)
            return values

    run = run_of(Scored(), data(), directory=tmp_path)
    found = external_metrics(run)
    assert (found, asked) == ({"score": 1.0}, [tmp_path])
    assert found is not values
