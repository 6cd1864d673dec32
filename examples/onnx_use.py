"""Trains LeNet on the digits, writes it as ONNX, and uses the file without torch. Needs `pip install onnx
onnxruntime`.

python examples/onnx_use.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import descend


def main(epochs: int = 3) -> float:
    try:
        import onnxruntime
    except ImportError:
        raise SystemExit("this example needs the library onnxruntime: pip install onnxruntime") from None
    images, labels = descend.Input(data_field="samples"), descend.Input(data_field="labels")
    probabilities = descend.zoo.small_lenet(images)
    model = descend.Model(epochs, objective_function=descend.CrossEntropy(probabilities, labels))
    trainer = descend.Trainer(mini_batch_size=64, random_seed=1)
    descend.run(trainer, model, descend.zoo.digits(), descend.SGD(learn_rate=0.05, momentum=0.9))
    test = descend.open_readers(descend.zoo.digits())["test"]
    samples = test.read(np.arange(len(test)))
    with tempfile.TemporaryDirectory() as folder:
        file = descend.onnx.save(model, Path(folder, "lenet.onnx"))
        session = onnxruntime.InferenceSession(str(file))
        name = session.get_inputs()[0].name
        (scores,) = session.run(None, {name: samples["samples"].astype(np.float32)})
    accuracy = float((scores.argmax(1) == samples["labels"].argmax(1)).mean())
    print(f"{len(test)} test images through onnxruntime: accuracy {accuracy:.1%}")
    return accuracy


if __name__ == "__main__":
    descend.main(main)
