import pytest
import torch
from callback_runs import Watcher, follow, in_one_go_and_in_two
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import data

from descend.callbacks import MinibatchRamp, MinibatchSchedule, MinibatchScheduleStep, StepMinibatch
from descend.errors import ConfigurationError
from descend.train import Callback


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


class Seen(Callback):
    """Sizes and numbers of the samples of each step."""

    def after_setup(self, run):
        self.sizes, self.ids = [], []

    def after_step(self, step):
        self.sizes.append(step.batch.size)
        self.ids += step.batch.ids.tolist()


@given(
    start=st.integers(1, 9),
    target=st.integers(0, 20),
    num_samples=st.integers(1, 120),
    multiple_of=st.integers(0, 5),
    shuffle=st.booleans(),
)
@settings(max_examples=12)
def test_a_ramp_is_its_formula_and_each_epoch_takes_every_sample_once(start, target, num_samples, multiple_of, shuffle):
    end, multiple = target or 20, multiple_of or 1
    if end < start:
        return
    seen = Seen()
    ramp = MinibatchRamp(start, target, num_samples, multiple_of)
    follow(seen, ramp, epochs=3, batches=data(samples=47, ignored=(), batch_size=20, shuffle=shuffle))
    for epoch in range(3):
        assert sorted(seen.ids[47 * epoch : 47 * (epoch + 1)]) == list(range(47))
    taken, expected = 0, []
    while taken < 3 * 47:
        growth = (end - start) * taken // num_samples
        size = end if taken >= num_samples else start + growth // multiple * multiple
        expected.append(min(size, 47 - taken % 47))
        taken += expected[-1]
    assert seen.sizes == expected


def test_a_ramp_that_was_stopped_and_continued_is_the_same_run(tmp_path):
    def make():
        return [MinibatchRamp(starting_mbsize=1, num_samples=60)]

    whole, parts = in_one_go_and_in_two(tmp_path, make, at=(3, 20, 31))
    assert parts.steps == whole.steps > 24
    for name, weights in whole.weights.items():
        torch.testing.assert_close(parts.weights[name], weights, rtol=0, atol=0)


def test_a_size_that_a_callback_sets_in_the_midst_of_an_epoch_holds_from_the_next_step():
    class Set(Callback):
        def after_step(self, step):
            if step.step == 2:
                step.run.control.batch_size = 5

    seen = Seen()
    follow(Set(), seen, epochs=1, batches=data(samples=16, ignored=(), batch_size=3))
    assert seen.sizes == [3, 3, 5, 5]
    assert seen.ids == list(range(16))


def test_ramps_that_cannot_be_are_refused():
    with pytest.raises(ConfigurationError, match="num_samples must be a number >= 1, got 0"):
        MinibatchRamp(starting_mbsize=2)
    with pytest.raises(ConfigurationError, match="from 2 to 16 with mini-batches of 8 at most"):
        follow(MinibatchRamp(2, 16, 10), batches=data(samples=16, batch_size=8))


def test_step_minibatch_doubles_the_rate_that_a_ramp_is_on_its_way_to():
    seen = sizes_and_rates(StepMinibatch(starting_mbsize=2, step=1, ramp_time=2), epochs=6)
    assert [size for size, _ in seen] == [2, 4, 8, 8, 8, 8]
    # 0.1 -> 0.2 is begun after epoch 1; 0.4 = 2 x 0.2 is the aim after epoch 2, and is there two epochs later.
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.1, 0.25, 0.4, 0.4])


def test_a_schedule_that_leaves_the_rate_does_not_hold_up_its_ramp():
    steps = [MinibatchScheduleStep(epoch=1, mbsize=4, lr=0.3, ramp_time=2), MinibatchScheduleStep(epoch=2, mbsize=8)]
    seen = sizes_and_rates(MinibatchSchedule(starting_mbsize=2, step=steps), epochs=4)
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.2, 0.3])


def test_a_rate_that_is_set_at_once_ends_a_ramp():
    steps = [
        MinibatchScheduleStep(epoch=1, mbsize=4, lr=0.5, ramp_time=4),
        MinibatchScheduleStep(epoch=2, mbsize=8, lr=0.2),
    ]
    seen = sizes_and_rates(MinibatchSchedule(starting_mbsize=2, step=steps), epochs=5)
    assert [rate for _, rate in seen] == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.2])


@pytest.mark.parametrize("step", [{"mbsize": 2}, {"epoch": 1}, {"epoch": 1, "mbsize": 2, "lr": -1.0}])
def test_a_step_of_a_schedule_that_makes_no_sense_is_refused(step):
    with pytest.raises(ConfigurationError, match="MinibatchScheduleStep"):
        MinibatchSchedule(starting_mbsize=2, step=[MinibatchScheduleStep(**step)])
