"""The package of modules as a whole: what it exports, and the names that modules without a name get."""

import importlib
import pkgutil
from collections import defaultdict

import descend
from descend.zoo import modules


def test_the_package_exports_what_its_files_do():
    """Helpers of the base are for authors of modules alone."""
    files = [
        importlib.import_module(f"{modules.__name__}.{one.name}") for one in pkgutil.iter_modules(modules.__path__)
    ]
    public = {name for file in files for name in file.__all__}
    assert public - set(modules.__all__) == {"Activation", "activated", "fill_weights", "fixed"}
    assert set(modules.__all__) <= public
    assert len(set(modules.__all__)) == len(modules.__all__)


def test_each_prefix_belongs_to_one_family_of_modules():
    """Two that had one prefix and counts of their own would give two layers one name."""
    owners = defaultdict(set)
    for name in modules.__all__:
        cls = getattr(modules, name)
        if isinstance(cls, type):
            owners[cls.prefix].add(next(base for base in cls.__mro__ if "prefix" in vars(base)))
    assert {prefix: found for prefix, found in owners.items() if len(found) > 1} == {}
    assert len(owners) > 20


def test_a_model_of_modules_without_names_passes_the_check():
    x = descend.Input(data_field="x")
    for make in (modules.Convolution2dModule, lambda *a: modules.ConvolutionModule(2, *a), modules.Convolution2dModule):
        x = make(3, 1)(x)
    plan = descend.graph.check(descend.Model(1, objective_function=descend.L2Norm2(x)), {"x": (3, 4, 4)})
    assert [layer.name for layer in plan.layers if layer.kind == "Convolution"] == ["conv1", "conv2", "conv3"]
