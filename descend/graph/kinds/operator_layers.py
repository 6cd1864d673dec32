"""Layers of operators: a chain of them, and one class for each operator that is a layer of that operator alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from descend.errors import GraphError
from descend.graph.fields import annotation_of, field_types
from descend.graph.kinds import operators
from descend.graph.kinds.base import SameShape, same_shape
from descend.graph.kinds.operators import Operator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from descend.graph.enums import DataType
    from descend.graph.layer import Incoming, Shape

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
    "OperatorLayer",
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


class OperatorLayer(SameShape):
    """Operators one after the other: the first takes the parents, each other the output of the one before.

    Shapes: the parents and the output have one shape; there is no broadcasting.
    """

    message: ClassVar[str] = "Layer.OperatorLayer"

    ops: tuple[Operator, ...] = ()

    def output_shape(self, inputs: tuple[Incoming, ...]) -> Shape:
        """The shape of every parent."""
        if not self.ops:
            raise GraphError("has no ops; give it at least one operator")
        problems = [
            f"has an operator {type(op).__name__} that {problem}"
            for op in self.ops
            for problem in (*op.problems(), *op.format_problems())
        ]
        given = len(inputs)
        for op in self.ops:
            if op.count_inputs() != given:
                source = "parent" if op is self.ops[0] else "output of the operator before"
                end = "" if given == 1 else "s"
                takes = f"that takes {op.count_inputs()} input{'' if op.count_inputs() == 1 else 's'}"
                problems.append(f"has an operator {type(op).__name__} {takes}, and {given} {source}{end}")
            given = 1
        if problems:
            raise GraphError(problems)
        return same_shape(inputs)

    def formats(self) -> tuple[DataType | None, DataType | None]:
        """Its own, else those of its first and last operators."""
        if self.datatype or not self.ops:
            return super().formats()
        return (self.ops[0].input_datatype or None, self.ops[-1].output_datatype or None)


def _layer_of(operator: type[Operator], **usual: Any) -> type[OperatorLayer]:
    """The layer of one operator: it takes the operator's fields too, and is written as an OperatorLayer.

    Args:
        operator: Its operator.
        usual: Fields that have another value here than in a text where they are not set, which means 0.
    """
    own = field_types(operator).keys() - field_types(Operator).keys()

    def __init__(self: OperatorLayer, *args: Any, **fields: Any) -> None:  # noqa: N807  # it becomes the class's own
        given = usual | {name: fields.pop(name) for name in own & fields.keys()}
        OperatorLayer.__init__(self, *args, ops=(operator(**given),), **fields)

    def options(cls: type[OperatorLayer]) -> Mapping[str, tuple[str, Any]]:
        """See `Layer.options`."""
        return {
            name: (annotation_of(operator, name), usual.get(name, getattr(operator, name)))
            for name in field_types(operator)
            if name in own
        }

    body = {
        "__init__": __init__,
        "options": classmethod(options),
        "__doc__": operator.__doc__,
        "__module__": __name__,
    }
    return type(operator.__name__, (OperatorLayer,), body)


Clamp = _layer_of(operators.Clamp, max=1.0)
LogicalNot = _layer_of(operators.LogicalNot)
Abs = _layer_of(operators.Abs)
Negative = _layer_of(operators.Negative)
Sign = _layer_of(operators.Sign)
Round = _layer_of(operators.Round)
Ceil = _layer_of(operators.Ceil)
Floor = _layer_of(operators.Floor)
Reciprocal = _layer_of(operators.Reciprocal)
Square = _layer_of(operators.Square)
Sqrt = _layer_of(operators.Sqrt)
Rsqrt = _layer_of(operators.Rsqrt)
SafeReciprocal = _layer_of(operators.SafeReciprocal)
Exp = _layer_of(operators.Exp)
Expm1 = _layer_of(operators.Expm1)
Log = _layer_of(operators.Log)
Log1p = _layer_of(operators.Log1p)
Cos = _layer_of(operators.Cos)
Sin = _layer_of(operators.Sin)
Tan = _layer_of(operators.Tan)
Acos = _layer_of(operators.Acos)
Asin = _layer_of(operators.Asin)
Atan = _layer_of(operators.Atan)
Cosh = _layer_of(operators.Cosh)
Sinh = _layer_of(operators.Sinh)
Tanh = _layer_of(operators.Tanh)
Acosh = _layer_of(operators.Acosh)
Asinh = _layer_of(operators.Asinh)
Atanh = _layer_of(operators.Atanh)
Erf = _layer_of(operators.Erf)
ErfInv = _layer_of(operators.ErfInv)
Gelu = _layer_of(operators.Gelu)
Add = _layer_of(operators.Add)
Subtract = _layer_of(operators.Subtract)
Multiply = _layer_of(operators.Multiply)
Divide = _layer_of(operators.Divide)
Mod = _layer_of(operators.Mod)
Pow = _layer_of(operators.Pow)
SafeDivide = _layer_of(operators.SafeDivide)
SquaredDifference = _layer_of(operators.SquaredDifference)
Max = _layer_of(operators.Max)
Min = _layer_of(operators.Min)
Equal = _layer_of(operators.Equal)
NotEqual = _layer_of(operators.NotEqual)
Less = _layer_of(operators.Less)
LessEqual = _layer_of(operators.LessEqual)
Greater = _layer_of(operators.Greater)
GreaterEqual = _layer_of(operators.GreaterEqual)
LogicalAnd = _layer_of(operators.LogicalAnd)
LogicalOr = _layer_of(operators.LogicalOr)
LogicalXor = _layer_of(operators.LogicalXor)


class Select(_layer_of(operators.Select)):  # pyright: ignore[reportUntypedBaseClass]  # made by a function
    """Where |x - value| < epsilon (1e-5 unless set) the true branch, else the false one; see `ops.Select`.

    if_true=2.5 is short for constant_if_true=True, value_if_true=2.5; and if_false likewise.
    """

    def __init__(self, *args: Any, if_true: float | None = None, if_false: float | None = None, **fields: Any) -> None:
        for branch, value in (("if_true", if_true), ("if_false", if_false)):
            if value is not None:
                fields |= {f"constant_{branch}": True, f"value_{branch}": value}
        super().__init__(*args, **fields)


AddConstant = _layer_of(operators.AddConstant)
Scale = _layer_of(operators.Scale)
SubtractConstant = _layer_of(operators.SubtractConstant)
ConstantSubtract = _layer_of(operators.ConstantSubtract)
MaxConstant = _layer_of(operators.MaxConstant)
MinConstant = _layer_of(operators.MinConstant)
NotEqualConstant = _layer_of(operators.NotEqualConstant)
EqualConstant = _layer_of(operators.EqualConstant)
LessEqualConstant = _layer_of(operators.LessEqualConstant)
LessConstant = _layer_of(operators.LessConstant)
GreaterEqualConstant = _layer_of(operators.GreaterEqualConstant)
GreaterConstant = _layer_of(operators.GreaterConstant)
LogSigmoid = _layer_of(operators.LogSigmoid)
Selu = _layer_of(operators.Selu)
Sigmoid = _layer_of(operators.Sigmoid)
Softplus = _layer_of(operators.Softplus)
Softsign = _layer_of(operators.Softsign)
BinaryCrossEntropy = _layer_of(operators.BinaryCrossEntropy)
SigmoidBinaryCrossEntropy = _layer_of(operators.SigmoidBinaryCrossEntropy)
BooleanAccuracy = _layer_of(operators.BooleanAccuracy)
BooleanFalseNegative = _layer_of(operators.BooleanFalseNegative)
BooleanFalsePositive = _layer_of(operators.BooleanFalsePositive)
