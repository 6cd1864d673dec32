"""The modules of LBANN's Python package that only gather names: one table of them, and the import of each.

`import lbann.models.alexnet` gives a module with the names that the table has for it, each from where it lies here.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PLACES", "children"]

_HERE = "descend.lbann."
_TRANSFORMER = {"zoo.transformer": "Transformer TransformerDecoderLayer TransformerEncoderLayer"}
_LC = "lbann.contrib.lc.systems"
_SYSTEM = "cores_per_node gpus_per_node has_gpu procs_per_node scheduler system"
_GRIDS = {"zoo.modules": "MultiheadAttention MultiheadAttentionAllsubGraph"}
_ENCODINGS = "LearnedInputEncoding PositionalEncoding RotaryPositionalEmbedding"
_DENSE = "DenseGCNConv DenseGraphConv DenseNNConv"
_SPARSE = "GatedGraphConv GCNConv GINConv GraphConv GraphExpand GraphReduce"

# By module: its docstring, and the names that it has by the module that they come from.
PLACES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "contrib.models": ("Models that LBANN keeps apart from the others.", {}),
    "contrib.models.wide_resnet": ("Wide residual networks.", {"zoo.resnet": "WideResNet50_2"}),
    "contrib.modules": (
        "Modules that LBANN keeps apart from the others.",
        {
            "zoo.modules": "CrossEntropyWithUncertainty FFTShift GeometricDistributionNegativeLogLikelihood GroupLasso "
            "L1WeightRegularization LabelSmoothing PoissonDistributionNegativeLogLikelihood "
            "PolyaDistributionNegativeLogLikelihood RadialProfile"
        },
    ),
    "contrib.modules.fftshift": ("The zero frequency in the middle.", {"zoo.modules": "FFTShift"}),
    "contrib.modules.radial_profile": ("Means over rings of an image.", {"zoo.modules": "RadialProfile"}),
    "contrib.nersc": ("NERSC.", {}),
    "contrib.nersc.systems": (
        "The machine, as scripts of NERSC ask for it.",
        {_LC: f"{_SYSTEM} is_nersc_system"},
    ),
    "contrib.olcf": ("OLCF.", {}),
    "contrib.olcf.systems": (
        "The machine, as scripts of OLCF ask for it.",
        {_LC: f"{_SYSTEM} is_olcf_system"},
    ),
    "contrib.riken": ("RIKEN.", {}),
    "contrib.riken.systems": (
        "The machine, as scripts of RIKEN ask for it.",
        {_LC: f"{_SYSTEM} is_riken_system"},
    ),
    "models.alexnet": ("AlexNet.", {"zoo.networks": "AlexNet"}),
    "models.lenet": ("LeNet.", {"zoo.networks": "LeNet"}),
    "models.resnet": ("Residual networks.", {"zoo.resnet": "ResNet ResNet18 ResNet34 ResNet50 ResNet101 ResNet152"}),
    "models.roberta": ("RoBERTa.", {"zoo.language": "RoBERTa"}),
    "models.subgraph": ("Models whose attention heads lie on grids of processes, given `branches=`.", _TRANSFORMER),
    "models.subgraph.transformer": ("The transformer whose attention heads lie on grids of processes.", _TRANSFORMER),
    "models.transformer": ("The transformer.", _TRANSFORMER),
    "modules.activations": ("Activations made of several layers.", {"zoo.modules": "Gelu Gelu_approx Silu"}),
    "modules.graph": (
        "Convolutions of graphs.",
        {"zoo.modules": f"{_DENSE} {_SPARSE}", "lbann.modules.base": "NNConv"},
    ),
    "modules.graph.dense": ("Convolutions of graphs that are matrices.", {"zoo.modules": _DENSE}),
    "modules.graph.sparse": (
        "Convolutions of graphs that are lists of edges.",
        {"zoo.modules": _SPARSE, "lbann.modules.base": "NNConv"},
    ),
    "modules.pytorch": (
        "Layers with torch's rules for shapes.",
        {"zoo.modules": "PytorchLayerNorm PytorchLinear PytorchMatmul"},
    ),
    "modules.rnn": ("Recurrent cells.", {"zoo.modules": "GRU ChannelwiseGRU LSTMCell"}),
    "modules.subgraph": (
        "Modules whose parts lie on grids of processes.",
        {"zoo.modules": "MultiheadAttentionAllsubGraph"},
    ),
    "modules.subgraph.transformer": ("Attention whose heads lie on grids of processes.", _GRIDS),
    "modules.transformations": (
        "Modules that move the entries of tensors.",
        {"zoo.modules": "Cumsum PeriodicPadding2D PeriodicPadding3D Permute"},
    ),
    "modules.transformer": (
        "Attention and encodings of positions.",
        {"zoo.modules": f"MultiheadAttention {_ENCODINGS}"},
    ),
    "modules.transformer.attention": ("Attention.", {"zoo.modules": "MultiheadAttention"}),
    "modules.transformer.attention_allsubgraph": (
        "Attention whose heads lie on grids of processes.",
        {"zoo.modules": "MultiheadAttentionAllsubGraph"},
    ),
    "modules.transformer.encoding": ("Encodings of positions.", {"zoo.modules": _ENCODINGS}),
}


def children(package: str) -> list[str]:
    """The names of the modules of the table that lie directly in a package, such as "models"."""
    return [place.rpartition(".")[2] for place in PLACES if place.rpartition(".")[0] == package]


class _Gathered(MetaPathFinder, Loader):
    """Makes the modules of the table when they are imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        place = fullname.removeprefix(_HERE)
        if not fullname.startswith(_HERE) or place not in PLACES:
            return None
        return ModuleSpec(fullname, self, is_package=bool(children(place)))

    def exec_module(self, module: Any) -> None:
        """See `Loader`."""
        place = module.__name__.removeprefix(_HERE)
        module.__doc__, sources = PLACES[place]
        for source, names in sources.items():
            origin = import_module("descend." + source)
            vars(module).update({name: getattr(origin, name) for name in names.split()})
        for child in children(place):
            import_module(f"{module.__name__}.{child}")
        module.__all__ = sorted([*children(place), *" ".join(sources.values()).split()])


sys.meta_path.append(_Gathered())
