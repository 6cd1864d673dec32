"""Which entries of LBANN's format have a program that is run by the driver, true and spoilt.

    python -m tests.lbann.driver.coverage

An entry is a message that the format lets one choose: a layer, an operator, a callback, an initializer, an optimizer, a
metric, a term, an algorithm, a strategy, a transform; and the name of a reader.
"""

import sys
from collections import Counter

from descend.graph.text.schema import message_info
from tests.lbann.driver.callback_programs import PROGRAMS
from tests.lbann.driver.other_programs import ALGORITHMS, RANDOM, READERS, TRANSFORMS
from tests.lbann.driver.test_initializers_and_metrics import INITIALIZERS
from tests.lbann.driver.test_layer_programs import FIRST
from tests.lbann.driver.test_update_rules import RULES
from tests.lower.test_operators import NAMES

COVERED, NOT_COVERED = "true and spoilt", "not covered"

OBSOLETE = "LBANN calls it obsolete or broken, and it is refused by name"
PROJECT = "reads files of one project of LLNL, and is refused by name"
REASONS = {
    "layer unpooling": OBSOLETE,
    "layer categorical_random": OBSOLETE,
    "layer discrete_random": OBSOLETE,
    "layer external": "calls a shared library that LBANN's build compiles, and is refused by name",
    "callback custom_learning_rate": "LBANN cannot build it, and it is refused",
    "reader hdf5": "of builds with distconv alone, and refused by name",
    "reader hdf5_data_reader": "needs h5py, an extra; tests/lbann/readers/test_hdf5_schema.py reads its files",
    "reader python_dataset": "needs a signed file of a script: tests/lbann/test_programs.py, true and spoilt",
    **{f"reader {name}": PROJECT for name in ("nci", "mesh", "jag_conduit", "jag_conduit_hdf5", "ras_lipid",
                                              "pilot2_molecular_reader", "node2vec", "multi_conduit")},
}  # fmt: skip
_DENSE = 'layer { name: "p" parents: "x" '
REFUSED = {
    "unpooling": (f"{_DENSE} unpooling {{ num_dims: 1 }} }}", "Unpooling"),
    "categorical_random": (f"{_DENSE} categorical_random {{}} }}", "CategoricalRandom"),
    "discrete_random": (f"{_DENSE} discrete_random {{ values: [1, 2] dims: [1] }} }}", "DiscreteRandom"),
    "external": (f'{_DENSE} external {{ filename: "a.so" layer_name: "l" }} }}', "External"),
    "custom_learning_rate": ("callback { custom_learning_rate {} }", "CustomLearningRate"),
}
READER_NAMES = (
    *("mnist", "cifar10", "imagenet", "synthetic", "python", "python_dataset", "csv", "numpy", "numpy_npz", "smiles"),
    *("numpy_npz_conduit_reader", "hdf5_data_reader", "hdf5", "merge_samples", "merge_features", "multi_conduit"),
    *("nci", "mesh", "jag_conduit", "jag_conduit_hdf5", "pilot2_molecular_reader", "ras_lipid", "node2vec"),
)
_OWN_NUMBERS = 10_000  # fields of ours have numbers from here on


def entries() -> dict[str, str]:
    """Each entry, and how it is covered or why it is not."""
    tested = {
        "layer": {*map(str.lower, FIRST), *(name.replace("_", "") for name in RANDOM), "operatorlayer"},
        "callback": {name.replace("_", "") for name in PROGRAMS},
        "initializer": {name.replace("_", "") for name in INITIALIZERS},
        "optimizer": {rule.split(" ")[0].replace("_", "") for rule in RULES},
        "metric": {"layermetric", "executablemetric", "pythonmetric"},  # of test_initializers_and_metrics.py
        "transform": {name.replace("_", "") for name in TRANSFORMS},
    }
    found: dict[str, str] = {}
    for kind, message in (("layer", "Layer"), ("callback", "Callback"), ("initializer", "Initializer"),
                          ("optimizer", "Optimizer"), ("metric", "Metric"), ("transform", "Transform")):  # fmt: skip
        for name, short in _choices(message):
            known = {name.replace("_", ""), short.lower()} & tested[kind]
            found[f"{kind} {name}"] = _how(f"{kind} {name}", bool(known))
    for name in NAMES:
        found[f"operator {name}"] = COVERED  # one model holds all of them: test_layer_programs.py
    algorithms = " ".join(ALGORITHMS).split()
    for name in ("SGD", "KFAC", "LTFB", "RandomPairwiseExchange", "TruncationSelectionExchange",
                 "RegularizedEvolution", "CheckpointBinary", "CheckpointFile", "SendRecvWeights",
                 "max_batches", "max_epochs", "max_seconds"):  # fmt: skip
        found[f"algorithm {name}"] = _how(f"algorithm {name}", name in algorithms)
    for name, short in _choices("MutationStrategy"):
        known = name == "null_mutation" or short in algorithms  # that of every other tournament
        found[f"mutation {name}"] = _how(f"mutation {name}", known)
    found["term LayerTerm"] = COVERED  # of every program
    found["term L2WeightRegularization"] = _how("", "L2WeightRegularization" in ALGORITHMS)
    for name in READER_NAMES:
        found[f"reader {name}"] = _how(f"reader {name}", name in READERS)
    return found


def _how(entry: str, covered: bool) -> str:
    return COVERED if covered else REASONS.get(entry, NOT_COVERED)


def _choices(message: str) -> list[tuple[str, str]]:
    """The fields of a message of which one is chosen, and the last names of their messages."""
    info = message_info(message)
    assert info is not None
    return [
        (name, field.message.name.rpartition(".")[2])
        for name, field in info.fields.items()
        if field.oneof is not None and field.kind == "message" and field.descriptor.number < _OWN_NUMBERS
    ]


if __name__ == "__main__":
    counted = entries()
    kinds = Counter(entry.split(" ")[0] for entry in counted)
    for kind, total in kinds.items():
        covered = sum(how == COVERED for entry, how in counted.items() if entry.split(" ")[0] == kind)
        sys.stdout.write(f"{kind}: {covered} of {total} true and spoilt\n")
    sys.stdout.write(f"together: {sum(how == COVERED for how in counted.values())} of {len(counted)}\n")
    for entry, how in counted.items():
        if how != COVERED:
            sys.stdout.write(f"  {entry}: {how}\n")
