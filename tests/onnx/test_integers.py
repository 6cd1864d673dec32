"""Imported models with integers are written again, and are then what they were."""

import numpy as np
import onnx
import onnxruntime
import pytest

import descend
from descend.errors import Unsupported
from tests.onnx.operator_cases import Case, by_descend

X = np.array([[7, -7, 3], [5, -4, 2]])


@pytest.mark.parametrize(
    "case",
    [
        Case("Div", (X, np.array(2))),
        Case("Mod", (X, np.array([3, -2, 4]))),
        Case("Mod", (X, np.array([3, -2, 4])), {"fmod": 1}),
        Case("Pow", (X, np.array([1, 2, 3]))),
        Case("ReduceSum", (X, np.array([1])), {"keepdims": 0}),
        *(Case(f"Reduce{kind}", (X,), {"axes": [1]}) for kind in ("Mean", "Prod", "L1", "SumSquare", "L2")),
        Case("Cast", (X + 0.75,), {"to": onnx.TensorProto.INT32}),
        Case("Cast", (np.float32([[70000, 1.0001]]),), {"to": onnx.TensorProto.FLOAT16}),
        Case("Gather", (np.arange(10, dtype="f4").reshape(5, 2), np.array([[0, -1, 3]])), data=(1,)),
        Case("Add", (X, np.array(3))),
    ],
    ids=lambda case: case.kind,
)
def test_what_is_written_again_computes_the_same(case, tmp_path):
    onnx.save(case.model(17), tmp_path / "first.onnx")
    model = descend.onnx.load(tmp_path / "first.onnx")
    path = descend.onnx.save(model, tmp_path / "second.onnx", outputs=["y0"])
    data = case.inputs[case.data[0]]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {f"i{case.data[0]}": data.astype("f4")})
    (want,) = by_descend(case, 17)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5)


def test_integers_that_no_float_is_are_refused(tmp_path):
    onnx.save(Case("Add", (X, np.array(2**24 + 1))).model(17), tmp_path / "first.onnx")
    model = descend.onnx.load(tmp_path / "first.onnx")
    with pytest.raises(Unsupported, match="holds integers beyond 16,777,216, which are no float32"):
        descend.onnx.save(model, tmp_path / "second.onnx", outputs=["y0"])
