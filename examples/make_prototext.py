"""Write the prototext of each demo beside this file: `python examples/make_prototext.py`.

That of Fashion-MNIST stays as it is where the images are missing.
"""

from pathlib import Path

import descend
from descend.errors import DataError

for name in ("digits", "fashion-mnist"):
    path = Path(__file__).parent / f"lenet_{name.replace('-', '_')}.prototext"
    try:
        experiment = descend.zoo.demo_experiment(name)
    except DataError as error:
        print(f"{path} stays as it is: {error}")
        continue
    descend.save_prototext(
        path,
        trainer=experiment.trainer,
        model=experiment.model,
        data_reader=experiment.data_reader,
        optimizer=experiment.optimizer,
    )
    print(path)
