"""A program written for LBANN, on the digits that ship with this package: only the line that imports it is another.

python examples/from_lbann.py [WORK_DIR]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import descend.lbann as lbann  # in LBANN: import lbann


def digits() -> lbann.reader_pb2.DataReader:
    readers = lbann.reader_pb2.DataReader()
    for role in ("train", "test"):
        reader = readers.reader.add(name="digits", role=role, fraction_of_data_to_use=1.0)
        reader.shuffle = role == "train"
        reader.transforms.add().scale.scale = 1 / 16
    return readers


def main(work_dir: str, epochs: int = 3) -> float:
    images, labels = lbann.Input(data_field="samples"), lbann.Input(data_field="labels")
    x = lbann.Convolution(images, num_dims=2, out_channels=8, kernel_size=3, stride=1, padding=1, has_bias=True)
    x = lbann.Relu(x)
    x = lbann.Pooling(x, num_dims=2, pool_dims_i=2, pool_strides_i=2, pool_mode="max")
    x = lbann.FullyConnected(x, num_neurons=10, has_bias=True)
    probabilities = lbann.Softmax(x)
    loss = lbann.CrossEntropy(probabilities, labels)
    accuracy = lbann.CategoricalAccuracy(probabilities, labels)
    model = lbann.Model(
        epochs,
        layers=lbann.traverse_layer_graph([images, labels]),
        objective_function=loss,
        metrics=[lbann.Metric(accuracy, name="accuracy", unit="%")],
        callbacks=[lbann.CallbackPrint(), lbann.CallbackTimer()],
    )
    trainer = lbann.Trainer(mini_batch_size=64, random_seed=1)
    optimizer = lbann.SGD(learn_rate=0.1, momentum=0.9)
    status = lbann.run(trainer, model, digits(), optimizer, work_dir=work_dir)  # the driver, as in LBANN
    if status:
        raise SystemExit(status)
    rows = Path(work_dir, "descend_run", "metrics.jsonl").read_text().splitlines()
    return [row["accuracy"] for row in map(json.loads, rows) if row["mode"] == "test"][-1]


if __name__ == "__main__":
    print(f"test accuracy {main(*sys.argv[1:2] or ['lbann_digits']):.1%}")
