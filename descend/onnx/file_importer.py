"""A model of an ONNX file. Nothing of the file is run: nodes are looked up in a table, and constants are computed."""

from __future__ import annotations

import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import external_data_helper, helper, numpy_helper

from descend.errors import ConfigurationError, DescendError, StorageError, Unsupported, nearest
from descend.graph import DataType, Identity, Input, Layer, Model, Trained
from descend.graph.order import parents_of
from descend.onnx.folding import fold, foldable
from descend.onnx.graph_importer import GraphImporter, NodeImporter, importer, integers_of
from descend.onnx.importers import ENTRYWISE, JOINABLE
from descend.onnx.permuted import MOVING, import_permuted, joined_samples, plain_shape
from descend.onnx.values import (
    HALVES,
    INTEGERS,
    MULTIPLE,
    Budget,
    ConstantValue,
    Node,
    Permuted,
    ShapeValue,
    Tensor,
    UnsupportedNode,
    Value,
    output_types,
    primary_inputs,
)
from descend.onnx.versions import NEWEST, modernized, schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from descend.graph import Shape

__all__ = ["load"]

_MAX_PROBLEMS = 100  # that are listed; the others are counted
_WITH_GRAPHS = ("If", "Loop", "Scan", "SequenceMap")
_BAGS = " (torch writes an EmbeddingBag so: take an Embedding and the sum, mean or maximum of its vectors)"
_NUMBERS = (*INTEGERS, *HALVES, onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.BOOL)
_SAME_TENSOR = ("Cast", "Reshape", "Squeeze", "Transpose", "Unsqueeze")  # a weight that goes through them is still one


def load(path: Path, fields: Mapping[str, Shape]) -> Model:
    """See `descend.onnx.load`."""
    try:
        return _FileImporter(path, fields).model()
    except DescendError:
        raise
    except Exception as error:  # outside of all nodes: names, inputs, outputs
        raise StorageError(f"{path} is malformed, in none of its nodes: {_described(error)}") from error


class _FileImporter:
    """One file while it becomes a model."""

    def __init__(self, path: Path, fields: Mapping[str, Shape]) -> None:
        self.path, self.fields = path, _checked(fields)
        self.proto = _opened(path)
        self.problems: list[str] = []
        self.cause: Exception | None = None  # of the first node that is malformed, for its traceback
        graph = self.proto.graph
        self.opset = _opset(path, self.proto)
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.uses.update(one.name for one in graph.output)
        self.values: dict[str, Value | None] = {
            tensor.name: ConstantValue(self.array(tensor), tensor.name) for tensor in graph.initializer
        }
        self.inputs = [one for one in graph.input if one.name not in self.values]
        self.outputs = {one.name for one in graph.output}
        self.single: set[str] = set()  # inputs of one number a sample, which has no dimension of its own in the file
        self.types = {one.name: one.type.tensor_type.elem_type or onnx.TensorProto.FLOAT for one in self.inputs}
        self.moved: dict[str, int] = {}  # inputs whose samples are another dimension than the first
        given = sum(one.array.nbytes for one in self.values.values() if isinstance(one, ConstantValue))
        self.budget = Budget(given, len(graph.node))
        self.importer = GraphImporter(Counter(), _batch(self.inputs), self.budget)

    def model(self) -> Model:
        graph = self.proto.graph
        shapes = {one.name: self._shape(one) for one in self.inputs}
        for name in self.fields.keys() - shapes.keys():
            self.problems.append(f"the file has no input '{name}'{nearest(name, shapes)}")
        for name, shape in shapes.items():
            self.values[name] = None if shape is None else self._input(name, shape)
        for place, node in enumerate(graph.node):
            self.values.update(zip(node.output, self._outputs(node, place), strict=False))
        outputs = [self._named_output(one.name) for one in graph.output]
        if self.problems:
            more = len(self.problems) - _MAX_PROBLEMS
            shown = [*self.problems[:_MAX_PROBLEMS], *([f"and {more} more problems"] if more > 0 else [])]
            raise Unsupported([f"{self.path}: {problem}" for problem in shown]) from self.cause
        layers = _needed([layer for layer in outputs if layer is not None], self.importer.layers)
        model = Model(0, layers, name=graph.name or self.path.stem)
        model.trained = Trained({name: shape for name, shape in shapes.items() if shape is not None}, None)
        return model

    def _input(self, name: str, shape: Shape) -> Tensor | Permuted:
        kind = self.types[name]
        wide = DataType.DOUBLE if kind == onnx.TensorProto.DOUBLE else None
        layer = Input(data_field=name, name=self.importer.name(name), datatype=wide)
        self.importer.layers.append(layer)
        if name in self.moved:
            place = self.moved[name]
            sizes: tuple[int | None, ...] = (*shape[:place], None, *shape[place:])
            value: Tensor | Permuted = Permuted(layer, tuple((size,) for size in sizes), kind)
        else:
            value = Tensor(layer, () if name in self.single else shape, type=kind)
        if kind == onnx.TensorProto.BOOL or kind in HALVES:
            return self.importer.formatted(value, HALVES.get(kind, "float"), f"{name}/numbers")
        return value

    def _shape(self, one: onnx.ValueInfoProto) -> Shape | None:
        """The shape of a sample of an input; None, and a problem, where the file and `fields` leave it open."""
        if self.types[one.name] not in _NUMBERS:
            word = onnx.TensorProto.DataType.Name(self.types[one.name])
            self.problems.append(f"input '{one.name}' holds {word}, and layers take numbers of at least 8 bits")
            return None
        if one.name in self.fields:
            return tuple(self.fields[one.name])
        dims = [dim.dim_value for dim in one.type.tensor_type.shape.dim]
        if dims and all(size > 0 for size in dims[1:]):
            self.single.update([one.name] if len(dims) == 1 else [])
            return tuple(dims[1:]) or (1,)
        if dims.count(0) == 1 and dims[0] > 1:  # all but one are known, so that one is the samples
            self.moved[one.name] = dims.index(0)
            return tuple(size for size in dims if size)
        shown = ", ".join(str(size or "?") for size in dims)
        self.problems.append(
            f"input '{one.name}' is ({shown}), where (samples, ...) with known sizes is needed: pass "
            f"fields={{'{one.name}': (...)}}, the shape of one sample"
        )
        return None

    def _outputs(self, proto: onnx.NodeProto, place: int) -> tuple[Value | None, ...]:
        """The values of a node's outputs; None for each where there is none, which is then reported."""
        nothing = (None,) * len(proto.output)
        name = proto.name or f"{proto.op_type}_{place}"
        unknown = [one for one in proto.input if one and one not in self.values]
        if unknown:
            self.problems.append(f"node '{name}' ({proto.op_type}) takes '{unknown[0]}', which nothing before it gives")
            return nothing
        given = [self.values.get(one) if one else None for one in proto.input]
        if any(one and self.values.get(one) is None for one in proto.input):
            return nothing  # behind a node that is reported
        try:
            return self._import(proto, name, given)
        except UnsupportedNode as reason:
            self.problems.append(f"node '{name}' ({proto.op_type}){_module_of(proto)} {reason}")
        except DescendError:
            raise
        except Exception as error:  # importers check what exporters get wrong; what no exporter writes ends here
            self.problems.append(
                f"node '{name}' ({proto.op_type}){_module_of(proto)} is malformed: {_described(error)}"
            )
            self.cause = self.cause or error
        return nothing

    def _import(self, proto: onnx.NodeProto, name: str, given: list[Value | None]) -> tuple[Value | None, ...]:
        kind = proto.op_type
        if proto.domain not in ("", "ai.onnx"):
            raise UnsupportedNode(f"has no layer here: the operator of '{proto.domain}' is not known")
        if kind in _WITH_GRAPHS:
            return self._chosen(proto, given)
        if kind.startswith("Sequence"):
            raise UnsupportedNode(f"makes a list of tensors, which no layer gives{_BAGS}")
        taken = tuple(self.uses[one] > 0 for one in proto.output)
        node = Node(name, kind, tuple(given), self._attributes(proto), taken)
        schema = schema_of(kind, self.opset)
        types = output_types(node, schema)
        node = modernized(self.importer, node, schema)
        if kind == "Constant":
            return (self._constant(node),)
        if kind != "Identity" and {type(one) for one in node.inputs if one is not None} == {ConstantValue}:
            return self._folded(proto, node)
        import_node = importer(node.kind)
        if import_node is None:
            raise UnsupportedNode("has no layer here: the operator is known for constants alone")
        given_types = {one.type for one in node.inputs if isinstance(one, (Tensor, Permuted))}
        self.importer.datatype = DataType.DOUBLE if onnx.TensorProto.DOUBLE in {*given_types, *types} else None
        try:
            node = _with_integers(self.importer, node)
            made = _import_anywhere(self.importer, node, import_node)
            outputs = tuple(
                one if one is None else _typed(self.importer, node, _settled(one), kind, place)
                for place, (one, kind) in enumerate(
                    zip(made if isinstance(made, tuple) else (made,), types, strict=False)
                )
            )
        finally:
            self.importer.datatype = None
        for one, value in zip(proto.output, outputs, strict=False):
            if isinstance(value, (Tensor, Permuted)):
                self.importer.uses[value.layer.name] = self.uses[one]
        return outputs

    def _chosen(self, proto: onnx.NodeProto, given: list[Value | None]) -> tuple[Value | None, ...]:
        """What the branch of an If gives whose condition is a constant; its nodes are read as if they stood here."""
        if proto.op_type != "If":
            raise UnsupportedNode(
                f"repeats a graph of its own, and a model's layers are computed once: unroll it{_BAGS}"
            )
        schema_of(proto.op_type, self.opset)
        if not given or not isinstance(given[0], ConstantValue) or given[0].array.size != 1:
            raise UnsupportedNode("chooses between graphs by the data, and a model has the same layers for all")
        wanted = "then_branch" if given[0].array.reshape(()) else "else_branch"
        graph = self._attributes(proto).get(wanted)
        if not isinstance(graph, onnx.GraphProto) or len(graph.output) != len(proto.output):
            raise UnsupportedNode(f"has no {wanted} with {len(proto.output)} outputs")
        self.uses.update(name for node in graph.node for name in node.input)
        self.uses.update(
            {ours.name: self.uses[theirs] for ours, theirs in zip(graph.output, proto.output, strict=True)}
        )
        self.values.update(
            {tensor.name: ConstantValue(self.array(tensor), tensor.name) for tensor in graph.initializer}
        )
        for place, node in enumerate(graph.node):
            self.values.update(zip(node.output, self._outputs(node, place), strict=False))
        return tuple(self.values.get(one.name) for one in graph.output)

    def _attributes(self, proto: onnx.NodeProto) -> dict[str, Any]:
        found = {one.name: helper.get_attribute_value(one) for one in proto.attribute}
        return {name: self.array(one) if isinstance(one, onnx.TensorProto) else one for name, one in found.items()}

    def _constant(self, node: Node) -> ConstantValue:
        attributes = node.attributes
        if len(attributes) != 1:
            raise UnsupportedNode(f"has {len(attributes)} attributes; expected its value alone")
        ((name, value),) = attributes.items()
        if name == "sparse_value":
            raise UnsupportedNode("is a sparse constant")
        array = np.asarray(value, np.float32 if name in ("value_float", "value_floats") else None)
        if array.dtype == object:
            raise UnsupportedNode("has a value that is not an array")
        return ConstantValue(array)

    def _folded(self, proto: onnx.NodeProto, node: Node) -> tuple[Value, ...]:
        """A node of constants alone."""
        kind = node.kind
        if not foldable(kind):
            raise UnsupportedNode("is given constants alone, and constants of this operator are not computed here")
        first = next(one for one in node.inputs if isinstance(one, ConstantValue))
        arrays = fold(node, len(proto.output), self.budget)
        name = base = first.name if kind in _SAME_TENSOR else None
        if name is not None and self.uses[name] > 1:
            name = f"{name}_{kind}"
        turned = kind == "Transpose" and first.array.ndim == 2
        return tuple(ConstantValue(array, name, base if turned else None) for array in arrays)

    def _named_output(self, name: str) -> Layer | None:
        """The layer that gives an output of the file, called by the output's name."""
        if name not in self.values:
            self.problems.append(f"output '{name}' is given by no node")
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, (Tensor, Permuted)):
            self.problems.append(f"output '{name}' does not depend on the data")
            return None
        if joined_samples(value):
            self.problems.append(f"output '{name}' has samples joined with other dimensions")
            return None
        layer = value.layer
        taken = isinstance(layer, Input) or layer.name in self.outputs
        if layer.name == name:
            return layer
        if taken:
            wide = DataType.DOUBLE if value.type == onnx.TensorProto.DOUBLE else None
            return self.importer.layer(Identity, name, Tensor(layer, plain_shape(value)), datatype=wide).layer
        layer.name = self.importer.name(name)
        return layer

    def array(self, tensor: onnx.TensorProto) -> NDArray[Any]:
        """The values of a tensor, from the file or from one in its folder.

        Raises:
            StorageError: they are not there, or are elsewhere.
        """
        folder = self.path.resolve().parent
        if external_data_helper.uses_external_data(tensor):
            location = next((one.value for one in tensor.external_data if one.key == "location"), "")
            if not location or not _lies_in(folder, location):
                raise StorageError(
                    f"{self.path}: tensor '{tensor.name}' would be read from '{location}', outside the file's folder"
                )
        try:
            array = numpy_helper.to_array(tensor, str(folder))
        except Exception as error:  # OSError, ValueError, and the library's own
            raise StorageError(f"{self.path}: tensor '{tensor.name}' cannot be read: {error}") from None
        if array.shape != tuple(tensor.dims):
            raise StorageError(
                f"{self.path}: tensor '{tensor.name}' has dims {list(tensor.dims)} and values of shape {array.shape}"
            )
        return array


def _module_of(proto: onnx.NodeProto) -> str:
    """Which torch module a node is a part of, where torch's exporter says so: name and class from the outermost on."""
    noted = next((one.value for one in proto.metadata_props if one.key == "namespace"), "")
    for part in reversed(noted.split("/")):
        name, _, kind = part.partition(": ")
        if name and kind and not kind.startswith("aten."):
            return f" of {kind.rpartition('.')[2]} '{name}'"
    return ""


def _needed(outputs: list[Layer], layers: list[Layer]) -> list[Layer]:
    """The layers that outputs depend on, and all inputs; others, such as a last state without a reader, are dropped."""
    needed: dict[int, Layer] = {layer.serial: layer for layer in layers if isinstance(layer, Input)}
    waiting = list(outputs)
    while waiting:
        layer = waiting.pop()
        if layer.serial not in needed:
            needed[layer.serial] = layer
            waiting += parents_of(layer)
    for layer in needed.values():
        layer.children = [child for child in layer.children if isinstance(child, str) or child.serial in needed]
    return [layer for layer in layers if layer.serial in needed]


def _lies_in(folder: Path, location: str) -> bool:
    try:
        return (folder / location).resolve().is_relative_to(folder)
    except (OSError, ValueError, RuntimeError):  # a NUL in it, or links in a circle
        return False


def _checked(fields: Any) -> dict[str, Shape]:
    """Shapes of inputs, as the caller gave them.

    Raises:
        ConfigurationError: they are no shapes by name.
    """
    try:
        found = {str(name): tuple(int(size) for size in shape) for name, shape in fields.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigurationError(f"fields must map names of inputs to shapes of one sample, got {fields!r}") from None
    if any(size < 1 for shape in found.values() for size in shape):
        raise ConfigurationError(f"fields must hold sizes of at least 1, got {fields!r}")
    return found


def _described(error: Exception) -> str:
    """An error of no kind of ours, with the place in this package that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "descend" in Path(frame.filename).parts]
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


def _opened(path: Path) -> onnx.ModelProto:
    if not path.is_file():
        raise StorageError(f"{path} is not a file")
    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # the library raises errors of Protobuf's own, which differ between its versions
        raise StorageError(f"{path} is no ONNX file, or is damaged: {error}") from None
    if not proto.graph.node:
        raise StorageError(f"{path} is no ONNX file, or holds no nodes")
    return proto


def _opset(path: Path, proto: onnx.ModelProto) -> int:
    """Which set of operators a file means.

    Raises:
        StorageError: it does not say so, or says so twice.
        Unsupported: the set is newer than those that are known.
    """
    found = {one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")}
    if len(found) != 1:
        raise StorageError(f"{path} must name one opset of ONNX's own operators, got {sorted(found) or 'none'}")
    newest = min(NEWEST, onnx.defs.onnx_opset_version())
    if (opset := found.pop()) > newest:
        raise Unsupported(
            f"{path}: opset must be at most {newest}, got {opset}: convert the file with onnx.version_converter"
            + ("" if newest == NEWEST else ", or update the library (pip install -U onnx)")
        )
    return opset


def _batch(inputs: list[onnx.ValueInfoProto]) -> int | None:
    """The number of samples that a file was made for, where it fixes one."""
    first = {one.type.tensor_type.shape.dim[0].dim_value for one in inputs if one.type.tensor_type.shape.dim}
    return next(iter(first)) or None if len(first) == 1 else None


def _with_integers(r: GraphImporter, node: Node) -> Node:
    """A node that computes with integers, given them as integers.

    Raises:
        UnsupportedNode: its layers compute fractions, or not in this format.
    """
    places = primary_inputs(node)
    formats = {INTEGERS[one.type] for i in places if (one := node.inputs[i]) is not None and one.type in INTEGERS}
    what = integers_of(node.kind)
    if what == "moved" or not formats or any(isinstance(one, ShapeValue) for one in node.inputs):
        return node
    if what == "refused":
        raise UnsupportedNode(
            f"takes {', '.join(sorted(formats))}, and its layers compute fractions: put a Cast to FLOAT before it"
        )
    (word, *others) = sorted(formats)
    if others or word in ("uint16", "uint32", "uint64"):
        raise UnsupportedNode(f"computes with {', '.join(sorted(formats))}, which no layer does")
    word = "int64" if node.kind in ("ArgMax", "ArgMin") else word  # which holds the places too
    inputs = list(node.inputs)
    for place in places:
        inputs[place] = r.as_integers(inputs[place], word, f"{node.name}/{word}_{place}")
    return replace(node, inputs=tuple(inputs), integers=word)


def _typed(r: GraphImporter, node: Node, value: Value, kind: int, place: int) -> Value:
    """An output with its type: what was computed is rounded to a narrow format."""
    if not isinstance(value, (Tensor, Permuted)):
        return value
    value = replace(value, type=kind)
    if integers_of(node.kind) == "moved" or (node.integers and node.integers != INTEGERS.get(kind)):
        return value
    if kind in HALVES:
        return r.formatted(value, HALVES[kind], f"{node.name}/rounded_{place}")
    return value


def _import_anywhere(r: GraphImporter, node: Node, import_node: NodeImporter) -> Value | tuple[Value | None, ...]:
    """Read a node wherever the samples are in what it takes and gives."""
    if any(isinstance(one, Permuted) for one in node.inputs):
        return import_permuted(r, node, import_node)
    try:
        return _import_joined(r, node, import_node)
    except UnsupportedNode as reason:
        if node.kind not in MOVING or not any(isinstance(one, Tensor) for one in node.inputs):
            raise
        try:
            return import_permuted(r, node, import_node)
        except UnsupportedNode:
            raise reason from None


def _import_joined(r: GraphImporter, node: Node, import_node: NodeImporter) -> Value | tuple[Value | None, ...]:
    """Read a node; one that works within each of samples · heads works within each of the heads."""
    shapes = {one.shape for one in node.inputs if isinstance(one, Tensor)}
    if shapes == {()} and node.kind in (*ENTRYWISE, "Gather", "OneHot"):
        return _import_single(r, node, import_node)
    joined = {one.joined for one in node.inputs if isinstance(one, Tensor)}
    if joined <= {0} or node.kind == "Reshape":
        return import_node(r, node)
    if len(joined) > 1 or node.kind not in JOINABLE:
        raise UnsupportedNode("is given samples joined with other dimensions")
    (count,) = joined
    rank = max(len(one.shape) for one in node.inputs if isinstance(one, Tensor)) - count + 1
    apart = tuple(replace(one, joined=0) if isinstance(one, Tensor) else one for one in node.inputs)
    attributes = dict(node.attributes)
    if node.kind == "Transpose":
        perm = node.perm(rank)
        if perm[0] != 0:
            raise UnsupportedNode(f"moves the dimension of the samples (perm {list(perm)})")
        attributes["perm"] = [*range(count + 1), *(axis + count for axis in perm[1:])]
    elif (axis := node.axis(rank, -1) if "axis" in attributes else 0) > 0:
        attributes["axis"] = axis + count
    made = import_node(r, replace(node, inputs=apart, attributes=attributes))
    return replace(made, joined=count) if isinstance(made, Tensor) else made


def _import_single(r: GraphImporter, node: Node, import_node: NodeImporter) -> Value | tuple[Value | None, ...]:
    """Read a node of entries where each sample has one number without a dimension of its own."""
    wide = tuple(replace(one, shape=(1,)) if isinstance(one, Tensor) else one for one in node.inputs)
    made = import_node(r, replace(node, inputs=wide))
    if not isinstance(made, Tensor) or made.shape[0] != 1:
        raise UnsupportedNode("brings together dimensions of samples with others")
    return r.reshaped(made, made.shape[1:], f"{node.name}/single")


def _settled(value: Value) -> Value:
    """Sizes that are all known are a constant."""
    if isinstance(value, ShapeValue) and not {None, MULTIPLE}.intersection(value.sizes):
        array = np.array(value.sizes, np.int64)
        return ConstantValue(array.reshape(()) if value.single else array)
    return value
