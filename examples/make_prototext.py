"""Write the prototext of each demo beside this file: `python examples/make_prototext.py`."""

from pathlib import Path

import descend

for name in ("digits", "fashion-mnist"):
    experiment = descend.zoo.demo_experiment(name)
    path = Path(__file__).parent / f"lenet_{name.replace('-', '_')}.prototext"
    descend.save_prototext(
        path,
        trainer=experiment.trainer,
        model=experiment.model,
        data_reader=experiment.data_reader,
        optimizer=experiment.optimizer,
    )
    print(path)
