"""`descend.compare` as a user calls it: what is ranked, and what is not."""

import contextlib
import re

import numpy as np
import pytest
import torch
from study_tasks import digits, mlp
from torch import nn

import descend
from descend.errors import ConfigurationError, DescendError
from descend.study import Arm, Study, choice, linear, log, run_study

TASK = mlp(width=8)
DATA = {"train": TASK.train, "validation": TASK.validation}


def compare(arms, **fields):
    sizes = {
        "batch_size": 32,
        "steps": 15,
        "trials": 4,
        "seeds": 6,
        "shortlist": 2,
        "shortlist_seeds": 2,
        "searches": 2,
    }
    given = {**sizes, "evaluations": 3, **fields}
    return descend.compare(TASK.model, TASK.loss, DATA, arms, **given)


def test_the_same_optimizer_under_two_names_is_no_difference():
    result = compare({"a": "nesterov", "b": "nesterov"})
    assert result.ranked is False
    assert result.verdict.startswith("cannot rank: no difference between arms exceeds")
    a, b = (result.groups[0].of(name) for name in "ab")
    assert [row.values for row in a] == [row.values for row in b]


def test_an_arm_that_cannot_learn_is_ranked_below():
    arms = {"sgd": Arm("SGD", {"lr": log(0.05, 0.5)}), "stuck": Arm("SGD", {"lr": log(1e-7, 1e-6)})}
    result = compare(arms, searches=3, steps=40)
    assert result.ranked
    assert re.search(r"sgd is better than stuck by 0\.\d+", result.verdict)
    assert "training beside validation: faster optimizer" in result.verdict


def test_three_trials_against_twelve_are_refused_with_the_reason():
    arms = {"sgd": Arm("SGD", {"lr": log(0.05, 0.5)}), "stuck": Arm("SGD", {"lr": log(1e-7, 1e-6)})}
    result = compare(arms, trials={"sgd": 12, "stuck": 3})
    assert not result.ranked
    assert "different budgets (trials a search: sgd 12, stuck 3)" in result.verdict
    assert any(remark.kind == "budget" and remark.arm == "stuck" for remark in result.remarks)


def test_one_search_and_few_seeds_are_refused():
    assert "at least two" in compare(["SGD", "Adam"], searches=1, trials=2, seeds=2).verdict
    result = compare(
        {"sgd": Arm("SGD", {"lr": log(0.05, 0.5)}), "stuck": Arm("SGD", {}, {"lr": 1e-7})}, seeds=5, trials=2
    )
    assert not result.ranked


def test_successes_and_failures_are_counted():
    result = compare(
        {"wild": Arm("SGD", {"lr": log(1e25, 1e30)}, {"momentum": 0.9}), "sgd": Arm("SGD", {"lr": log(0.3, 0.6)})},
        target=0.2,
    )
    wild, sgd = (result.groups[0].of(name)[0] for name in ("wild", "sgd"))
    assert wild.successes == 0
    assert all(value == float("-inf") for value in wild.search_values)
    assert sgd.successes >= 5
    assert sgd.success.high == 1.0
    assert result.costs["wild"].statuses == {"diverged": 2 * (4 + 4 + 6)}
    assert "sgd is better than wild (accuracy on validation samples): 2 searches each, p = " in result.verdict
    assert "every re-run of the worse one failed" in result.verdict


class Pair(nn.Linear):
    """Logits, and something beside them."""

    def __init__(self, known=False):
        super().__init__(64, 10)
        self.known = known

    def forward(self, x):
        return {"logits": super().forward(x)} if self.known else (super().forward(x), x.sum(1))


def test_what_a_loss_or_a_metric_cannot_take_is_said_before_any_trial(tmp_path):
    ran = []
    given = {"arms": ["SGD"], "batch_size": 32, "steps": 5, "trials": 2, "seeds": 6, "directory": tmp_path / "runs"}
    given["said"] = lambda records, record: ran.append(record)
    with pytest.raises(ConfigurationError, match=r"'accuracy': the output must be a tensor .* got a tuple"):
        descend.compare(Pair, nn.CrossEntropyLoss(), DATA, **given)
    with pytest.raises(ConfigurationError, match="returned a dict with 'logits', and CrossEntropyLoss takes a tensor"):
        descend.compare(lambda: Pair(known=True), nn.CrossEntropyLoss(), DATA, **given)
    wrong = {"far": lambda output, y: output[2].mean()}
    said = r"'far' cannot be taken from .* a tuple of a tensor \(32, 10\) of float32, .* IndexError"
    with pytest.raises(ConfigurationError, match=said):
        descend.compare(Pair, nn.CrossEntropyLoss(), DATA, metrics=wrong, metric="far", **given)
    assert not ran
    assert not (tmp_path / "runs").exists()
    right = {"accuracy": lambda output, y: (output[0].argmax(1) == y).double().mean()}
    found = descend.compare(Pair, nn.CrossEntropyLoss(), DATA, metrics=right, **given)
    assert all(record.status == "done" for record in ran)
    assert found.costs["SGD"].statuses == {"done": len(ran)}


def test_a_winner_at_the_edge_is_flagged():
    result = compare({"low": Arm("SGD", {"lr": log(1e-4, 0.02)})}, trials=16, steps=40)
    assert ("edge", "low") in {(remark.kind, remark.arm) for remark in result.remarks}
    assert result.verdict.splitlines() == [
        "cannot rank: low is the one arm, and there is no other",
        "read the warnings before you rely on this: 1 best value near an end of its range",
    ]
    assert str(result) == f"{result.verdict}\n\n{result.table}"


def test_a_module_a_class_and_a_function_are_taken_as_they_are():
    model = nn.Sequential(nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 1))
    x, y = digits("train")
    before = {name: p.clone() for name, p in model.named_parameters()}
    result = descend.compare(
        model,
        nn.MSELoss(),
        (x, y.float()[:, None]),
        {"torch": torch.optim.SGD, "ours": "SGD"},
        batch_size=64,
        steps=5,
        trials=2,
        seeds=2,
        shortlist=1,
    )
    assert result.unit == "loss on validation samples"
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_directory_goes_on_and_gives_the_same_report(tmp_path):
    def run(place, **given):
        return compare(["SGD", "Adam"], trials=2, searches=1, directory=tmp_path / place, **given)

    first = run("one").report(tmp_path / "a" / "report.html")
    ran = []
    again = run("one", said=lambda records, record: ran.append(record))
    assert ran == []
    other = run("two")
    for number, result in enumerate((again, other)):
        path = result.report(tmp_path / str(number))
        for kind in (".html", ".md", ".csv"):
            assert path.with_suffix(kind).read_bytes() == first.with_suffix(kind).read_bytes()


def test_steps_to_a_target_against_the_batch_size():
    study = Study(
        workload=mlp,
        batch_sizes=(64, 256),
        steps={64: 40, 256: 30},
        arms={"sgd": Arm("SGD", {"lr": log(0.2, 0.5)})},
        trials=2,
        searches=1,
        shortlist=1,
        confirmation_seeds=3,
        metric="loss",
        target={"value": 1.8},
        select="steps",
        evaluations=10,
    )
    result = run_study(study)
    (one,) = result.scaling
    assert one.batch_sizes == (64, 256)
    assert all(0 < steps <= 40 for steps in one.steps)
    assert "2 batch sizes cannot show" in one.refused[0]
    assert result.unit == "steps to loss 1.8 on validation samples"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": {"a": "nestrov"}}, "did you mean 'nesterov'"),
        ({"arms": {"a": Arm("SGD", {"lr": log(0.1, 1)}, {"momentun": 0.9})}}, "did you mean 'momentum'"),
        (
            {"arms": {"a": Arm("SGD", {"lr": log(0.1, 1)}, {"roles.vectors.optimizer": "SDG"})}},
            "arms.a: .*did you mean 'sgd'",
        ),
        (
            {"arms": {"a": Arm("torch.optim:SGD", {"lr": log(0.1, 1)}, {"momentun": 0.9})}},
            "arms.a: .*did you mean 'momentum'",
        ),
        ({"arms": {"a": Arm("torch.optim:SDG", {"lr": log(0.1, 1)})}}, "did you mean 'SGD'"),
        ({"metric": "acuracy"}, "did you mean 'accuracy'"),
        ({"trials": 0}, "trials is 0"),
        ({"steps": 0}, "at least 1"),
        ({"batch_size": [32, 5000]}, r"batch_sizes has 5,000 and there are [\d,]+ samples to train on"),
        ({"target": float("nan")}, "finite"),
        ({"arms": ["SGD", "SGD"]}, "the arm 'SGD' is given twice"),
        ({"trials": {"SDG": 3}}, "an arm 'SDG' that there is not; did you mean 'SGD'"),
    ],
)
def test_mistakes_are_answered_before_anything_runs(change, said):
    ran = []
    with pytest.raises(ConfigurationError, match=said):
        compare(**{"arms": ["SGD"], "said": lambda records, record: ran.append(record), **change})
    assert ran == []


def test_what_only_the_workload_shows_is_reported_in_one_pass():
    """The ends of ranges among it, which trials would meet later."""
    arms = {
        "none": Arm("torch.optim:AdamX", {}, {"lr": 0.1}),
        "beyond": Arm("SGD", {"lr": log(0.1, 1), "momentum": linear(0.5, 1.1)}),
        "within": Arm("SGD", {"lr": log(0.1, 1), "momentum": linear(0.5, 1.0)}),
        "role": Arm("SGD", {"lr": log(0.1, 1)}, {"roles.norm.lr_mult": 0.1}),
    }
    with pytest.raises(ConfigurationError) as error:
        compare(arms, metric="acuracy")
    metric, none, beyond, role = error.value.problems
    assert "did you mean 'accuracy'" in metric
    assert "did you mean 'Adamax'" in none
    assert beyond.startswith("arms.beyond: SGD: momentum must be a number >= 0 and < 1, got 1.0999999")
    assert "arms.role: 'roles.norm.lr_mult'" in role


def test_an_argument_that_a_workload_does_not_take_is_reported_with_what_is_wrong_beside_it():
    arms = {"a": Arm("torch.optim:AdamX", {}, {"lr": 0.1, "workload.widht": 4})}
    study = Study(workload=mlp, batch_sizes=(32,), steps=(5,), arms=arms, trials=4)
    with pytest.raises(ConfigurationError) as error:
        run_study(study)
    workload, optimizer = error.value.problems
    assert "unexpected keyword argument 'widht'" in workload
    assert "did you mean 'Adamax'" in optimizer


def test_a_single_name_and_a_class_are_arms():
    assert set(compare("Adam", searches=1, trials=1, seeds=1).study.arms) == {"Adam"}
    assert set(compare([torch.optim.SGD, "Adam"], searches=1, trials=1, seeds=1).study.arms) == {"SGD", "Adam"}


def test_the_parts_of_split_are_taken():
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    parts = descend.data.split((x, y), {"train": 0.5, "validate": 0.5})
    result = descend.compare(lambda: nn.Linear(3, 1), "mse", parts, ["SGD"], 10, 2, 1, 1, searches=1)
    assert len(result.study.workload.prepared().validation[0]) == 20


def test_a_split_that_is_misspelt_is_answered():
    with pytest.raises(ConfigurationError, match="did you mean 'validation'"):
        descend.compare(TASK.model, TASK.loss, {"train": TASK.train, "validaton": 1}, ["SGD"], 32, 5, 2, 2)


def test_arguments_of_the_workload_are_part_of_an_arm():
    arms = {"a": Arm("SGD", {"lr": log(0.1, 1), "workload.width": choice(4, 8)})}
    study = Study(workload=mlp, batch_sizes=(32,), steps=(5,), arms=arms, trials=4, searches=1, shortlist=1)
    widths = {record.trial.configuration["workload.width"] for record in run_study(study).records.values()}
    assert widths == {4, 8}


def test_a_role_without_weights_is_found_before_the_first_trial():
    ran = []
    with pytest.raises(ConfigurationError) as error:
        compare(
            {"a": Arm("SGD", {"lr": log(0.1, 1)}, {"roles.norm.lr_mult": 0.1}), "b": Arm("SGD", {"lr": log(0.1, 1)})},
            said=lambda records, record: ran.append(record),
        )
    assert "arms.a: 'roles.norm.lr_mult' is for weights of a role that the module has none of" in str(error.value)
    assert not ran


@pytest.mark.parametrize("executor", ["one", "together"])
def test_test_samples_are_looked_at_by_confirmed_winners_alone(executor):
    x, y = digits("train")
    test = digits("test")
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    result = descend.compare(
        model,
        nn.CrossEntropyLoss(),
        {"train": (x, y), "test": test},
        arms={"sgd": Arm("SGD", {"lr": log(0.1, 0.5)}), "wild": Arm("SGD", {"lr": log(1e28, 1e30)}, {"momentum": 0.9})},
        batch_size=32,
        steps=20,
        trials=2,
        seeds=3,
        shortlist=1,
        executor=executor,
    )
    for record in result.records.values():
        looked = record.trial.phase == "confirmation" and record.status == "done"
        assert ("test" in record.scores) == looked
        if looked:
            assert [len(values) for values in record.scores["test"].values()] == [1, 1]
    sgd, wild = (result.groups[0].of(name)[0] for name in ("sgd", "wild"))
    assert len(sgd.test) == 3
    assert sgd.test != sgd.values
    assert wild.test == ()


def test_matched_is_said_of_equal_designs_that_meet_the_target():
    arms = {"a": Arm("SGD", {"lr": log(0.3, 0.5)}), "b": Arm("SGD", {"lr": log(0.3, 0.5)}, {"momentum": 0.1})}
    assert "matched: a, b all meet the target" in compare(arms, target=0.3, trials=2).verdict


def test_a_model_that_is_none_and_an_arm_that_is_made_already_are_reported():
    with pytest.raises(ConfigurationError, match=r"model must be a torch\.nn\.Module or a function, got 3"):
        descend.compare(3, TASK.loss, DATA, ["Adam"], batch_size=32, steps=1, trials=1, seeds=1)
    made = torch.optim.SGD(TASK.model().parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"and not an object of SGD$"):
        compare({"mine": made})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": lambda: None}, "model returned None; it must be a function that returns a new torch module"),
        ({"model": "mlp"}, "model must be a torch.nn.Module or a function, got 'mlp'"),
        ({"steps": 6.0}, r"steps is 6\.0; expected an integer"),
        ({"batch_size": "20"}, "batch_sizes is '20'; expected an integer"),
        ({"trials": "3"}, None),
        ({"trials": 0}, r"^trials is 0: [^\n]*$"),
        ({"trials": None}, "trials is None"),
    ],
)
def test_arguments_of_other_types_are_reported(change, said):
    x, y = torch.randn(50, 4), torch.randint(2, (50,))
    given = {"model": lambda: nn.Linear(4, 2), "loss": nn.CrossEntropyLoss(), "data": (x, y), "arms": ["SGD"]}
    sizes = {"batch_size": 20, "steps": 2, "trials": 2, "seeds": 1, "searches": 1}
    if said is None:
        assert descend.compare(**{**given, **sizes, **change}).study.trials == 3
        return
    with pytest.raises(ConfigurationError, match=said):
        descend.compare(**{**given, **sizes, **change})


def test_numbers_of_numpy_and_torch_are_numbers():
    x, y = torch.randn(50, 4), torch.randint(2, (50,))
    sizes = {"batch_size": torch.tensor([10, 20]), "steps": np.int64(2), "trials": np.int32(2), "seeds": np.int64(1)}
    result = descend.compare(lambda: nn.Linear(4, 2), nn.CrossEntropyLoss(), (x, y), ["SGD"], **sizes, searches=1)
    assert result.study.batch_sizes == (10, 20)
    assert len(result.records) == 18  # at each size two trials, each repeated three times, and the winner once more


class Odd:
    """Has neither a repr nor an answer to ==."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("no repr")

    def __eq__(self, other):
        raise RuntimeError("no answer")


ODD = [
    None,
    True,
    -1,
    2.5,
    10**400,
    "",
    "x",
    b"x",
    [],
    [1],
    {1: 2},
    Odd(),
    np.array([1, 2]),
    torch.zeros(3),
    lambda x: x,
]
NAMES = (
    *("model", "loss", "arms", "batch_size", "steps", "trials", "seeds", "searches", "target", "margin", "targets"),
    *("metric", "metrics", "lower_is_better", "select", "seed", "shortlist", "shortlist_seeds", "evaluations"),
    *("executor", "directory"),
)


@pytest.mark.parametrize("name", NAMES)
def test_arguments_of_any_type_are_taken_or_refused_in_our_words(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some = tuple(part[:40] for part in TASK.train)
    given = {"model": TASK.model, "loss": TASK.loss, "data": {"train": some, "validation": some}, "arms": ["SGD"]}
    given |= {"batch_size": 8, "steps": 1, "trials": 1, "seeds": 1, "searches": 1, "executor": "one"}
    for place, value in enumerate(ODD):
        more = {"directory": f"study{place}"} if name != "directory" else {}
        with contextlib.suppress(DescendError):
            descend.compare(**{**given, **more, name: value})
