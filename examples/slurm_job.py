"""Writes a Slurm job that continues by itself after a preemption or its time limit, and submits it with --submit.

python examples/slurm_job.py [DIRECTORY] [--submit]
"""

from __future__ import annotations

import sys
from pathlib import Path

import descend


def main(directory: str, submit: bool = False) -> int:
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    probabilities = descend.zoo.small_lenet(images)
    accuracy = descend.Metric(descend.CategoricalAccuracy(probabilities, labels), name="accuracy", unit="%")
    model = descend.Model(
        100,
        objective_function=descend.CrossEntropy(probabilities, labels),
        metrics=[accuracy],
        callbacks=[descend.Print(), descend.Checkpoint(every_epochs=1)],
    )
    status = descend.launcher.run(
        descend.Trainer(mini_batch_size=256, random_seed=1),
        model,
        descend.zoo.digits(),
        descend.SGD(learn_rate=0.05, momentum=0.9),
        work_dir=directory,
        nodes=1,
        procs_per_node=2,
        time_limit=30,  # minutes
        scheduler="slurm",
        setup_only=not submit,
        batch_job=submit,
    )
    print(Path(directory, "batch.sh").read_text())
    return status


if __name__ == "__main__":
    folder = next((word for word in sys.argv[1:] if word != "--submit"), "slurm_job")
    descend.main(lambda: main(folder, "--submit" in sys.argv))
