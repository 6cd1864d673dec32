import pytest
import torch
from callback_runs import Watcher, follow, in_one_go_and_in_two
from toys import data

from descend.callbacks import MinibatchSchedule, MinibatchScheduleStep, StepMinibatch
from descend.errors import ConfigurationError


def sizes_and_rates(callback, epochs, most=8):
    """The largest mini-batch and the rate of each epoch of 16 samples; all samples are seen in each."""
    watcher = Watcher()
    follow(callback, watcher, epochs=epochs, batches=data(samples=16, ignored=(), batch_size=most))
    found, taken = [], 0
    sizes, rates = watcher.sizes, [entry["weight"] for entry in watcher.rates]
    while taken < len(sizes):
        steps = 16 // sizes[taken]
        assert sum(sizes[taken : taken + steps]) == 16
        assert len(set(rates[taken : taken + steps])) == 1
        found.append((sizes[taken], rates[taken]))
        taken += steps
    return found


def test_step_minibatch_doubles_size_and_rate():
    seen = sizes_and_rates(StepMinibatch(starting_mbsize=2, step=2), epochs=5)
    assert [size for size, _ in seen] == [2, 2, 4, 4, 8]
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.4])


def test_step_minibatch_ramps_the_rate():
    seen = sizes_and_rates(StepMinibatch(starting_mbsize=4, step=2, ramp_time=2), epochs=6)
    assert [size for size, _ in seen] == [4, 4, 8, 8, 8, 8]
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.1, 0.15, 0.2, 0.2])


def test_a_size_above_the_trainer_s_is_cut_with_a_warning_and_the_rate_grows_no_more_than_the_size():
    callback, watcher = StepMinibatch(starting_mbsize=5, step=1), Watcher()
    with pytest.warns(UserWarning, match=r"10 is more than the trainer's 8"):
        follow(callback, watcher, epochs=3, batches=data(samples=40, ignored=(), batch_size=8))
    assert watcher.sizes == [5] * 8 + [8] * 5 * 2
    assert [entry["weight"] for entry in watcher.rates] == pytest.approx([0.1] * 8 + [0.16] * 10)


def test_schedule(capsys):
    steps = [MinibatchScheduleStep(epoch=1, mbsize=4, lr=0.3, ramp_time=2), MinibatchScheduleStep(epoch=4, mbsize=8)]
    seen = sizes_and_rates(MinibatchSchedule(starting_mbsize=2, step=steps), epochs=5)
    assert [size for size, _ in seen] == [2, 4, 4, 4, 8]
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.3])
    assert "Model 0: changing mini-batch size to 8 at epoch 4" in capsys.readouterr().out


def test_a_run_that_was_stopped_and_continued_is_the_same_run(tmp_path):
    whole, parts = in_one_go_and_in_two(tmp_path, lambda: [StepMinibatch(starting_mbsize=1, step=1)], at=(5, 24, 30))
    assert parts.steps == whole.steps == 23 + 12 + 6 + 6
    for name, weights in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weights, rtol=0, atol=0)


@pytest.mark.parametrize("given", [{"step": 1}, {"starting_mbsize": 2}, {"starting_mbsize": 2, "step": 0}])
def test_settings_that_make_no_sense_are_refused(given):
    with pytest.raises(ConfigurationError, match="StepMinibatch"):
        StepMinibatch(**given)
