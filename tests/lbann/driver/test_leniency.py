"""What LBANN runs and we refuse elsewhere: through its driver one warning each, and the numbers that LBANN has."""

import pytest

import descend
import descend.graph as g
from descend.arguments.leniency import lenient
from descend.callbacks import Checkpoint, DropFixedLearningRate, SetLearningRate
from descend.errors import ConfigurationError, NumericalError
from tests.lbann.driver.programs import experiment, run, write

EVALUATED = 'callback { check_metric { metric: "size" lower_bound: 0 upper_bound: 100 error_on_failure: true } }'

# What is changed in the experiment of `programs.py`, what else its model has, and what the warning says.
CASES = {
    "an epoch without an objective": (
        ('objective_function { layer_term { scale_factor: 1 layer: "z" } }', ""),
        "",
        "model 'm' has no objective",
    ),
    "an objective that reaches no weights": (
        ('scale_factor: 1 layer: "z"', 'scale_factor: 1 layer: "free"'),
        'layer { name: "free" parents: "x" l2_norm2 {} }',
        "the objective depends on none of the weights that are trained",
    ),
    "a term of scale 0": (
        ("MORE", "MORE"),
        'objective_function { layer_term { layer: "other" } layer_term { scale_factor: 1 layer: "z" } }'
        'layer { name: "other" parents: "x" l1_norm {} }',
        "has scale_factor 0",
    ),
    "metrics of one name": (
        ("MORE", "MORE"),
        'metric { layer_metric { layer: "other" name: "size" } } layer { name: "other" parents: "x" l1_norm {} }',
        "several metrics are named 'size'",
    ),
    "a first scale of batch norm": (
        ("MORE", "MORE"),
        'layer { name: "bn" parents: "x" batch_normalization { scale_init: 2 } }',
        "has scale_init or bias_init",
    ),
    "more pieces than children": (
        ("MORE", "MORE"),
        'layer { name: "cut" parents: "x" slice { slice_points: [0, 2, 4] } } '
        'layer { name: "taken" parents: "cut" relu {} }',
        "has slice_points for 2 pieces and 1 children",
    ),
    "a reshape to a scalar": (
        ("MORE", "MORE"),
        'layer { name: "flat" parents: "z" reshape {} }',
        "has no dims",
    ),
    "the older tournament": (
        ("MORE", "MORE"),
        'callback { ltfb { batch_interval: 1 metric: "size" } }',
        "the callback LTFB needs tournament or validation samples",
    ),
    "weights that no layer uses": (
        ("MORE", "MORE"),
        'weights { name: "left" initializer { constant_initializer { value: 1 } } }',
        "weights 'left' are used by no layer",
    ),
    "early stopping without validation": (
        ("MORE", "MORE"),
        "callback { early_stopping { patience: 1 } }",
        "EarlyStopping needs validation samples and this run has none",
    ),
    "a rate of a table that is not used": (
        ("MORE", "MORE"),
        'layer { name: "e" parents: "x" dist_embedding { num_embeddings: 3 embedding_dim: 2 learning_rate: 0.1 } }',
        "has sparse_sgd False and learning_rate 0.1",
    ),
    "samples held out of a test set": (
        ('role: "test" num_samples', 'role: "test" validation_fraction: 0.5 num_samples'),
        "",
        "validation_fraction is set, and only a reader of the role 'train' can hold out samples",
    ),
    "samples held out beside a reader": (
        (
            'reader { name: "synthetic" role: "train" num_samples: 8',
            'reader { name: "synthetic" role: "validate" num_samples: 4 synth_dimensions: "5" } '
            'reader { name: "synthetic" role: "train" tournament_fraction: 0.25 validation_fraction: 0.25 '
            "num_samples: 16",
        ),
        "",
        "validation_fraction makes a reader of the role 'validate', and there is one",
    ),
    "a drop of the rate at epoch 0": (
        ("MORE", "MORE"),
        "callback { drop_fixed_learning_rate { drop_epoch: [0, 1] amt: 0.5 } }",
        "DropFixedLearningRate.drop_epoch is [0, 1]",
    ),
}


def program(name: str) -> tuple[str, str]:
    (old, new), more, warning = CASES[name]
    text = experiment()
    if more.startswith("objective_function"):
        text = text.replace('objective_function { layer_term { scale_factor: 1 layer: "z" } }', "")
    text = text.replace(old, new).replace("callback { print {} }", f"callback {{ print {{}} }} {more}")
    return text, warning


@pytest.mark.parametrize("name", CASES)
def test_the_driver_runs_it_with_a_warning_that_names_the_setting(name, capsys, monkeypatch, tmp_path):
    text, warning = program(name)
    file = write(tmp_path, text)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={file}")
    assert ended.code == 0, ended.err
    assert warning in ended.err
    assert "LBANN allows it" in ended.err


@pytest.mark.parametrize("name", CASES)
def test_elsewhere_it_is_an_error(name, tmp_path):
    text, warning = program(name)
    with pytest.raises(ConfigurationError) as raised:
        strictly(tmp_path / write(tmp_path, text), tmp_path / "run")
    known = (warning, "set both, the rate above 0, or neither", "metrics are named 'size'", "has dims")
    assert any(words in problem for problem in raised.value.problems for words in known)


def strictly(file, run_dir):
    """Through another door."""
    found = descend.load(file)
    descend.run(found.trainer, found.model, found.data_reader, found.optimizer, run_dir)


def test_checks_of_a_metric_hold_for_all_of_its_name(capsys, monkeypatch, tmp_path):
    bound = 'callback { check_metric { metric: "size" lower_bound: 0 upper_bound: 1e9 error_on_failure: true } }'
    text = program("metrics of one name")[0].replace("callback { print {} }", f"callback {{ print {{}} }} {bound}")
    file = write(tmp_path, text)
    assert run(capsys, monkeypatch, tmp_path, f"--prototext={file}").code == 0
    # The sum of 5 magnitudes is above 1, the first metric, which training makes small, is not.
    write(tmp_path, text.replace("upper_bound: 1e9", "upper_bound: 1.5").replace("learn_rate: 0.1", "learn_rate: 0.2"))
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={file}", "--num_epochs=40")
    assert ended.code == 4
    assert "size (2) is" in ended.err


def test_weights_stay_where_nothing_is_to_be_learnt(capsys, monkeypatch, tmp_path):
    dump = 'callback { dump_weights { directory: "w" epoch_interval: 2 } }'
    text = program("an epoch without an objective")[0].replace("callback { print {} }", dump)
    run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, text)}")
    before, after = sorted((tmp_path / "w").rglob("y_linearity_weights.txt"))
    assert before.read_text() == after.read_text()


@pytest.mark.parametrize("kind", ["batch_normalization {}", "entrywise_batch_normalization { epsilon: 0.1 }"])
def test_statistics_of_one_sample_give_zeros(kind, capsys, monkeypatch, tmp_path):
    more = (
        f'layer {{ name: "bn" parents: "x" {kind} }} layer {{ name: "bn2" parents: "bn" l2_norm2 {{}} }}'
        'metric { layer_metric { layer: "bn2" name: "normal" } }'
        'callback { check_metric { metric: "normal" lower_bound: 0 upper_bound: 0 error_on_failure: true '
        'execution_modes: "train" } }'
    )
    file = write(tmp_path, experiment(more))
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={file}", "--mini_batch_size=1")
    assert ended.code == 0, ended.err
    assert "leaves a group of 1 sample: LBANN allows it" in ended.err


INFINITE = (
    'objective_function { layer_term { scale_factor: 1 layer: "never" } layer_term { scale_factor: 1 layer: "z" } } '
    'layer { name: "zero" constant { num_neurons: 1 } } layer { name: "never" parents: "zero" operator_layer '
    "{ ops { parameters { [type.googleapis.com/lbann_data.LogOperator] {} } } } }"
)


def test_an_objective_that_is_infinite_at_the_end_is_a_warning_and_elsewhere_an_error(capsys, monkeypatch, tmp_path):
    text = experiment(INFINITE).replace('objective_function { layer_term { scale_factor: 1 layer: "z" } }', "")
    file = write(tmp_path, text)
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={file}")
    assert ended.code == 0, ended.err
    assert "m (instance 0) test objective function : -inf" in ended.out
    assert "the training objective of the last epoch is -inf" in ended.err
    with pytest.raises(NumericalError, match="the last epoch is -inf, although all gradients were finite: look at"):
        strictly(tmp_path / file, tmp_path / "run")


def test_nothing_is_held_out_for_a_role_that_has_a_reader(capsys, monkeypatch, tmp_path):
    text = program("samples held out beside a reader")[0]
    ended = run(capsys, monkeypatch, tmp_path, f"--prototext={write(tmp_path, text)}")
    assert ended.code == 0, ended.err
    assert "iterations/epoch = [3/1/1]" in ended.out  # 16 samples, less a quarter for the tournament


def test_nested_terms_are_terms_one_after_the_other():
    x = g.Input(data_field="samples")
    terms = [g.L1Norm(x), [g.L2Norm2(x), g.LayerTerm(g.L2Norm2(x), scale=2.0)]]
    with pytest.raises(ConfigurationError, match="is not a term of an objective"):
        g.ObjectiveFunction(terms)
    with lenient(), pytest.warns(UserWarning, match="an objective term is a list"):
        assert [term.scale for term in g.ObjectiveFunction(terms).layer_terms] == [1.0, 1.0, 2.0]


def test_zeros_of_kfac_are_its_defaults():
    with pytest.raises(ConfigurationError, match="damping_warmup_steps is 0"):
        descend.KFAC(damping_warmup_steps=0, kronecker_decay=0.0)
    with lenient(), pytest.warns(UserWarning, match="K-FAC: .* is 0"):
        found = descend.KFAC(damping_warmup_steps=0, kronecker_decay=0.0)
    assert (found.damping_warmup_steps, found.kronecker_decay) == (100, 0.99)


def test_a_checkpoint_in_parts_is_one_of_the_whole():
    fields = {"checkpoint_dir": "c", "ckpt_dist_epochs": 2, "ckpt_dist_steps": 7, "per_rank_dir": "d"}
    with pytest.raises(ConfigurationError, match="one for each rank; use"):
        Checkpoint.from_fields(fields)
    with lenient(), pytest.warns(UserWarning, match="ckpt_dist_steps asks for a checkpoint in parts"):
        found = Checkpoint.from_fields(fields)
    assert (found.every_epochs, found.every_steps, found.checkpoint_dir) == (2, 7, "c")
    with lenient(), pytest.warns(UserWarning, match="it saves nothing"):
        assert Checkpoint.from_fields({"checkpoint_dir": "c"}).every_epochs == 0


@pytest.mark.parametrize(
    "make",
    [lambda: DropFixedLearningRate(drop_epoch=(0, 2), amt=0.5), lambda: SetLearningRate(step=0, val=0.5)],
    ids=["drop", "set"],
)
def test_rates_that_no_epoch_sets_are_passed_over(make):
    with lenient(), pytest.warns(UserWarning, match="no epoch ends with this number"):
        callback = make()
    assert callback.scheduled(1, 1.0) == 1.0
    with pytest.raises(ConfigurationError):
        make()
