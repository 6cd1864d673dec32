"""Operators: functions of one entry at a time, which an OperatorLayer applies.

x is the first input, x1 and x2 are the two of those that take two. There is no broadcasting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from descend.graph.enums import DataType, DeviceAllocation, Exported
from descend.graph.fields import described

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "AddConstant",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BinaryCrossEntropy",
    "BooleanAccuracy",
    "BooleanFalseNegative",
    "BooleanFalsePositive",
    "Ceil",
    "Clamp",
    "ConstantSubtract",
    "Cos",
    "Cosh",
    "Divide",
    "Equal",
    "EqualConstant",
    "Erf",
    "ErfInv",
    "Exp",
    "Expm1",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterConstant",
    "GreaterEqual",
    "GreaterEqualConstant",
    "Less",
    "LessConstant",
    "LessEqual",
    "LessEqualConstant",
    "Log",
    "Log1p",
    "LogSigmoid",
    "LogSoftmax",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "LogicalXor",
    "Max",
    "MaxConstant",
    "Min",
    "MinConstant",
    "Mod",
    "Multiply",
    "Negative",
    "NotEqual",
    "NotEqualConstant",
    "Operator",
    "Pow",
    "Reciprocal",
    "Round",
    "Rsqrt",
    "SafeDivide",
    "SafeReciprocal",
    "Scale",
    "Select",
    "Selu",
    "Sigmoid",
    "SigmoidBinaryCrossEntropy",
    "Sign",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Square",
    "SquaredDifference",
    "Subtract",
    "SubtractConstant",
    "Tan",
    "Tanh",
]


@described
class Operator(Exported, envelope="Operator"):
    """What all operators have in common: the formats that its inputs and its output are brought to, and a device.

    The device is a hint. Without a format nothing is changed.
    """

    message: ClassVar[str]
    num_inputs: ClassVar[int] = 1

    input_datatype: DataType = DataType.DEFAULT_DATATYPE
    output_datatype: DataType = DataType.DEFAULT_DATATYPE
    device_allocation: DeviceAllocation = DeviceAllocation.DEFAULT_DEVICE

    def count_inputs(self) -> int:
        """How many tensors it takes."""
        return self.num_inputs

    def problems(self) -> Iterator[str]:
        """What is wrong with its fields; each text completes "Clamp ..."."""
        return iter(())

    def format_problems(self) -> Iterator[str]:
        """Formats that are not supported; each text completes "Clamp ..."."""
        for name in ("input_datatype", "output_datatype"):
            wanted: DataType = getattr(self, name)
            if wanted.is_complex:
                yield f"has {name} {wanted.name}, which is not supported: expected FLOAT, DOUBLE or FP16"


@described
class Clamp(Operator):
    """min(max(x, min), max); the gradient is 0 at and outside the bounds."""

    message: ClassVar[str] = "ClampOperator"

    min: float = 0.0
    max: float = 0.0

    def problems(self) -> Iterator[str]:
        """Bounds between which there is nothing, as two that are not set are."""
        if not self.min < self.max:
            yield f"has min {self.min!r} and max {self.max!r}; max must be above min (0 and 1 are usual)"


@described
class LogicalNot(Operator):
    """1 where x is 0, else 0. No gradient. True is: not 0 and not NaN; so NaN gives 1."""

    message: ClassVar[str] = "LogicalNotOperator"


@described
class Abs(Operator):
    """|x|"""

    message: ClassVar[str] = "AbsOperator"


@described
class Negative(Operator):
    """-x"""

    message: ClassVar[str] = "NegativeOperator"


@described
class Sign(Operator):
    """-1, 0 or 1. No gradient."""

    message: ClassVar[str] = "SignOperator"


@described
class Round(Operator):
    """To the nearest integer, of two to the even one. No gradient."""

    message: ClassVar[str] = "RoundOperator"


@described
class Ceil(Operator):
    """To the integer above. No gradient."""

    message: ClassVar[str] = "CeilOperator"


@described
class Floor(Operator):
    """To the integer below. No gradient."""

    message: ClassVar[str] = "FloorOperator"


@described
class Reciprocal(Operator):
    """1 / x; the gradient is 0 where that of the output is, whatever x is."""

    message: ClassVar[str] = "ReciprocalOperator"


@described
class Square(Operator):
    """x^2"""

    message: ClassVar[str] = "SquareOperator"


@described
class Sqrt(Operator):
    """Square root of x."""

    message: ClassVar[str] = "SqrtOperator"


@described
class Rsqrt(Operator):
    """1 / sqrt(x)"""

    message: ClassVar[str] = "RsqrtOperator"


@described
class SafeReciprocal(Operator):
    """1 / x, and 0 where that is not finite; the gradient is 0 there too."""

    message: ClassVar[str] = "SafeReciprocalOperator"


@described
class Exp(Operator):
    """e^x"""

    message: ClassVar[str] = "ExpOperator"


@described
class Expm1(Operator):
    """e^x - 1"""

    message: ClassVar[str] = "Expm1Operator"


@described
class Log(Operator):
    """Natural logarithm."""

    message: ClassVar[str] = "LogOperator"


@described
class Log1p(Operator):
    """log(1 + x)"""

    message: ClassVar[str] = "Log1pOperator"


@described
class Cos(Operator):
    """cos x"""

    message: ClassVar[str] = "CosOperator"


@described
class Sin(Operator):
    """sin x"""

    message: ClassVar[str] = "SinOperator"


@described
class Tan(Operator):
    """tan x"""

    message: ClassVar[str] = "TanOperator"


@described
class Acos(Operator):
    """arccos x"""

    message: ClassVar[str] = "AcosOperator"


@described
class Asin(Operator):
    """arcsin x"""

    message: ClassVar[str] = "AsinOperator"


@described
class Atan(Operator):
    """arctan x"""

    message: ClassVar[str] = "AtanOperator"


@described
class Cosh(Operator):
    """cosh x"""

    message: ClassVar[str] = "CoshOperator"


@described
class Sinh(Operator):
    """sinh x"""

    message: ClassVar[str] = "SinhOperator"


@described
class Tanh(Operator):
    """tanh x"""

    message: ClassVar[str] = "TanhOperator"


@described
class Acosh(Operator):
    """arcosh x"""

    message: ClassVar[str] = "AcoshOperator"


@described
class Asinh(Operator):
    """arsinh x"""

    message: ClassVar[str] = "AsinhOperator"


@described
class Atanh(Operator):
    """artanh x"""

    message: ClassVar[str] = "AtanhOperator"


@described
class Erf(Operator):
    """The error function."""

    message: ClassVar[str] = "ErfOperator"


@described
class ErfInv(Operator):
    """The inverse of the error function."""

    message: ClassVar[str] = "ErfInvOperator"


@described
class Gelu(Operator):
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the tanh form."""

    message: ClassVar[str] = "GeluOperator"


@described
class Add(Operator):
    """x1 + x2; like all operators of two inputs without broadcasting."""

    message: ClassVar[str] = "AddOperator"
    num_inputs: ClassVar[int] = 2


@described
class Subtract(Operator):
    """x1 - x2"""

    message: ClassVar[str] = "SubtractOperator"
    num_inputs: ClassVar[int] = 2


@described
class Multiply(Operator):
    """x1 x2"""

    message: ClassVar[str] = "MultiplyOperator"
    num_inputs: ClassVar[int] = 2


@described
class Divide(Operator):
    """x1 / x2"""

    message: ClassVar[str] = "DivideOperator"
    num_inputs: ClassVar[int] = 2


@described
class Mod(Operator):
    """Remainder of x1 / x2 with the sign of x1, as C's fmod; the gradient for x2 is −floor(x1 / x2)."""

    message: ClassVar[str] = "ModOperator"
    num_inputs: ClassVar[int] = 2


@described
class Pow(Operator):
    """x1^x2"""

    message: ClassVar[str] = "PowOperator"
    num_inputs: ClassVar[int] = 2


@described
class SafeDivide(Operator):
    """x1 / x2, and 0 where that is not finite; the gradient is 0 there too."""

    message: ClassVar[str] = "SafeDivideOperator"
    num_inputs: ClassVar[int] = 2


@described
class SquaredDifference(Operator):
    """(x1 - x2)^2"""

    message: ClassVar[str] = "SquaredDifferenceOperator"
    num_inputs: ClassVar[int] = 2


@described
class Max(Operator):
    """The larger; a tie halves the gradient."""

    message: ClassVar[str] = "MaxOperator"
    num_inputs: ClassVar[int] = 2


@described
class Min(Operator):
    """The smaller; a tie halves the gradient."""

    message: ClassVar[str] = "MinOperator"
    num_inputs: ClassVar[int] = 2


@described
class Equal(Operator):
    """1 where x1 = x2, else 0. Comparisons have no gradient."""

    message: ClassVar[str] = "EqualOperator"
    num_inputs: ClassVar[int] = 2


@described
class NotEqual(Operator):
    """1 where x1 and x2 differ."""

    message: ClassVar[str] = "NotEqualOperator"
    num_inputs: ClassVar[int] = 2


@described
class Less(Operator):
    """1 where x1 < x2."""

    message: ClassVar[str] = "LessOperator"
    num_inputs: ClassVar[int] = 2


@described
class LessEqual(Operator):
    """1 where x1 <= x2."""

    message: ClassVar[str] = "LessEqualOperator"
    num_inputs: ClassVar[int] = 2


@described
class Greater(Operator):
    """1 where x1 > x2."""

    message: ClassVar[str] = "GreaterOperator"
    num_inputs: ClassVar[int] = 2


@described
class GreaterEqual(Operator):
    """1 where x1 >= x2."""

    message: ClassVar[str] = "GreaterEqualOperator"
    num_inputs: ClassVar[int] = 2


@described
class LogicalAnd(Operator):
    """1 where both are true. True is: not 0 and not NaN."""

    message: ClassVar[str] = "LogicalAndOperator"
    num_inputs: ClassVar[int] = 2


@described
class LogicalOr(Operator):
    """1 where one is true or both."""

    message: ClassVar[str] = "LogicalOrOperator"
    num_inputs: ClassVar[int] = 2


@described
class LogicalXor(Operator):
    """1 where exactly one is true."""

    message: ClassVar[str] = "LogicalXorOperator"
    num_inputs: ClassVar[int] = 2


@described
class Select(Operator):
    """Where |x - value| < epsilon (1e-5 unless set) the true branch, else the false one.

    A branch is the next input, or a constant if constant_if_... is set. The gradient goes to the chosen branch alone.
    """

    message: ClassVar[str] = "SelectOperator"

    value: float = 0.0
    constant_if_true: bool = False
    constant_if_false: bool = False
    value_if_true: float = 0.0
    value_if_false: float = 0.0
    epsilon: float = 0.0

    def count_inputs(self) -> int:
        """The predicate, and each branch that is not a constant."""
        return 3 - self.constant_if_true - self.constant_if_false

    def problems(self) -> Iterator[str]:
        """A width that no difference is below."""
        if self.epsilon < 0:
            yield f"has epsilon {self.epsilon!r}; it must be above 0 (unset means 1e-5)"


@described
class AddConstant(Operator):
    """x + constant"""

    message: ClassVar[str] = "AddConstantOperator"

    constant: float = 0.0


@described
class Scale(Operator):
    """x constant"""

    message: ClassVar[str] = "ScaleOperator"

    constant: float = 0.0


@described
class SubtractConstant(Operator):
    """x - constant"""

    message: ClassVar[str] = "SubtractConstantOperator"

    constant: float = 0.0


@described
class ConstantSubtract(Operator):
    """constant - x"""

    message: ClassVar[str] = "ConstantSubtractOperator"

    constant: float = 0.0


@described
class MaxConstant(Operator):
    """The larger of x and constant; a tie halves the gradient."""

    message: ClassVar[str] = "MaxConstantOperator"

    constant: float = 0.0


@described
class MinConstant(Operator):
    """The smaller of x and constant; a tie halves the gradient."""

    message: ClassVar[str] = "MinConstantOperator"

    constant: float = 0.0


@described
class NotEqualConstant(Operator):
    """1 where x differs from constant."""

    message: ClassVar[str] = "NotEqualConstantOperator"

    constant: float = 0.0


@described
class EqualConstant(Operator):
    """1 where x = constant."""

    message: ClassVar[str] = "EqualConstantOperator"

    constant: float = 0.0


@described
class LessEqualConstant(Operator):
    """1 where x <= constant."""

    message: ClassVar[str] = "LessEqualConstantOperator"

    constant: float = 0.0


@described
class LessConstant(Operator):
    """1 where x < constant."""

    message: ClassVar[str] = "LessConstantOperator"

    constant: float = 0.0


@described
class GreaterEqualConstant(Operator):
    """1 where x >= constant."""

    message: ClassVar[str] = "GreaterEqualConstantOperator"

    constant: float = 0.0


@described
class GreaterConstant(Operator):
    """1 where x > constant."""

    message: ClassVar[str] = "GreaterConstantOperator"

    constant: float = 0.0


@described
class LogSigmoid(Operator):
    """log of the sigmoid, stable."""

    message: ClassVar[str] = "LogSigmoidOperator"


@described
class LogSoftmax(Operator):
    """x − log Σ eˣ over the whole sample; the layer LogSoftmax does the same."""

    message: ClassVar[str] = "LogSoftmaxOperator"


@described
class Selu(Operator):
    """1.0507 (x if x > 0 else 1.6733 (e^x - 1))"""

    message: ClassVar[str] = "SeluOperator"


@described
class Sigmoid(Operator):
    """1 / (1 + e^-x), kept a machine epsilon away from 0 and 1; no gradient there."""

    message: ClassVar[str] = "SigmoidOperator"


@described
class Softplus(Operator):
    """log(1 + e^x), stable."""

    message: ClassVar[str] = "SoftplusOperator"


@described
class Softsign(Operator):
    """x / (1 + |x|)"""

    message: ClassVar[str] = "SoftsignOperator"


@described
class BinaryCrossEntropy(Operator):
    """-x2 log x1 - (1 - x2) log(1 - x1) with prediction x1 and label x2; a term of weight 0 is left out."""

    message: ClassVar[str] = "BinaryCrossEntropyOperator"
    num_inputs: ClassVar[int] = 2


@described
class SigmoidBinaryCrossEntropy(Operator):
    """The same of the sigmoid of x1, stable; the label is kept in [0, 1]."""

    message: ClassVar[str] = "SigmoidBinaryCrossEntropyOperator"
    num_inputs: ClassVar[int] = 2


@described
class BooleanAccuracy(Operator):
    """1 where prediction and label are on the same side of 0.5."""

    message: ClassVar[str] = "BooleanAccuracyOperator"
    num_inputs: ClassVar[int] = 2


@described
class BooleanFalseNegative(Operator):
    """1 where the label is at least 0.5 and the prediction is not."""

    message: ClassVar[str] = "BooleanFalseNegativeOperator"
    num_inputs: ClassVar[int] = 2


@described
class BooleanFalsePositive(Operator):
    """1 where the prediction is at least 0.5 and the label is not."""

    message: ClassVar[str] = "BooleanFalsePositiveOperator"
    num_inputs: ClassVar[int] = 2
