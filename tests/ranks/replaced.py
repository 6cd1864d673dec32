"""A tournament whose trainers replace a convolution, on one process or, as a script, on two ranks a trainer."""

from __future__ import annotations

from dataclasses import replace

from ranks.start import leave
from ranks.tournament import outcome

import descend

BEST = {"objective": descend.RandomPairwiseExchange.MetricStrategy.LOWER_IS_BETTER}


def graph():
    images, labels = (descend.Input(data_field=name, name=name) for name in ("samples", "labels"))
    x = descend.Convolution(images, num_dims=2, out_channels=4, kernel_size=[3], padding=[1], name="conv")
    scores = descend.FullyConnected(descend.Tanh(x), num_neurons=10, has_bias=True, name="scores")
    loss = descend.CrossEntropy(descend.Softmax(scores), labels, name="loss")
    return descend.Model(
        1,
        layers=descend.traverse_layer_graph([images, labels]),
        objective_function=descend.ObjectiveFunction([loss]),
        metrics=[descend.Metric(loss, name="objective")],
    )


def play(run_dir, **settings):
    shares = {"train": {"tournament_fraction": 0.2, "fraction_of_data_to_use": 0.1}}
    readers = descend.zoo.digits()
    readers = replace(readers, reader=tuple(replace(one, **shares.get(one.role, {})) for one in readers.reader))
    strategy = descend.TruncationSelectionExchange(BEST, 1, descend.MutationStrategy("replace_convolution"))
    local = descend.BatchedIterativeOptimizer(num_iterations=4)
    algorithm = descend.LTFB(local_algo=local, metalearning=strategy, metalearning_steps=3)
    trainer = descend.Trainer(mini_batch_size=20, random_seed=3, training_algo=algorithm)
    return descend.run(trainer, graph(), readers, descend.SGD(learn_rate=0.05, momentum=0.9), run_dir, **settings)


if __name__ == "__main__":
    descend.main(lambda: leave(outcome(play("run", procs_per_trainer=2))))
