"""What the design of a study gives away before it runs."""

from descend.study.design import Arm, Study, lint, lint_edges, log, one_minus_log, preset
from descend.study.design.lint import Remark, counted


def study(**arms):
    return Study(workload="t.py:t", batch_sizes=(64,), steps=(100,), arms=arms, trials=8)


def kinds(found):
    return {(remark.kind, remark.arm) for remark in found}


LR = {"lr": log(0.01, 10)}


def test_the_round_one_design_is_unequal_in_freedom():
    """LARS had a rate of its own for biases and normalization; Nesterov had not."""
    found = lint(study(nesterov=Arm("SGD", LR), lars=Arm("LARS", LR, {"roles.vectors.lr_mult": 0.01})))
    assert kinds(found) == {("freedom", "nesterov")}
    assert "roles.vectors.lr_mult" in found[0].text


def test_a_rule_of_its_own_for_some_roles_is_what_is_compared():
    assert lint(study(a=Arm("LARS", LR), b=Arm("LARS", LR, {"roles.vectors.optimizer": "SGD"}))) == []


def test_an_option_of_that_rule_is_no_freedom_and_its_decay_is():
    adam = {"roles.vectors.optimizer": "AdamW", "roles.vectors.eps": 1e-6}
    assert lint(study(a=Arm("LARS", LR), b=Arm("LARS", LR, adam))) == []
    found = lint(study(a=Arm("LARS", LR), b=Arm("LARS", LR, {**adam, "roles.vectors.weight_decay": 0.0})))
    assert kinds(found) == {("freedom", "a")}
    assert kinds(lint(study(a=Arm("LARS", LR), b=Arm("LARS", LR, {"roles.vectors.momentum": 0.5})))) == {
        ("freedom", "a")
    }


def test_tuning_more_or_wider_is_unequal():
    more = lint(study(a=Arm("SGD", LR), b=Arm("SGD", {**LR, "weight_decay": log(1e-4, 1)})))
    assert ("freedom", "a") in kinds(more)
    wider = lint(study(a=Arm("SGD", LR), b=Arm("SGD", {"lr": log(1e-3, 10)})))
    assert "3 decades" in wider[0].text
    assert "4 decades" in wider[0].text


def test_trials_and_switches_are_compared():
    found = lint(study(a=Arm("Adam", LR, {"bias_correction": False}, trials=3), b=Arm("Adam", LR)))
    assert kinds(found) == {("budget", "a"), ("variant", "a")}


def test_the_confirmatory_design_is_matched():
    assert lint(preset("table2", "t.py:t", batch_size=1024, steps=100)) == []


def test_a_jump_of_a_schedule_is_seen():
    arm = Arm("AdamW", LR, {"schedule.warmup_fraction": 0.4}, schedule="bert")
    found = [remark for remark in lint(study(a=arm, b=arm)) if remark.arm == "a"]
    assert [remark.kind for remark in found] == ["schedule"]
    assert "38% of its peak" in found[0].text


def test_a_ramp_in_a_short_run_is_no_jump():
    arm = Arm("AdamW", LR, {"schedule.warmup_fraction": 0.2}, schedule="cosine")
    short = Study(workload="t.py:t", batch_sizes=(64,), steps=(20,), arms={"a": arm, "b": arm}, trials=8)
    assert lint(short) == []


def test_a_value_that_is_the_others_default_is_no_freedom():
    assert lint(study(lamb=Arm("LAMB", LR, {"weight_decay": 0.0}), adam=Arm("Adam", LR))) == []
    assert kinds(lint(study(a=Arm("SGD", LR, {"weight_decay": 0.1}), b=Arm("SGD", LR)))) == {("freedom", "b")}


def test_winners_at_the_end_of_their_range_are_named():
    spaces = {"nesterov": {"weight_decay": log(1e-4, 1e-2), "lr": log(0.01, 10)}}
    found = lint_edges({"nesterov": [{"weight_decay": 7.8e-3, "lr": 0.5}, {"weight_decay": 1e-3, "lr": 0.5}]}, spaces)
    assert len(found) == 1
    assert "search 1 ended at weight_decay = 0.0078, near the upper end of its range, 0.0001 to 0.01" in found[0].text


def test_the_range_of_a_momentum_is_that_of_its_values():
    (found,) = lint_edges({"sgd": [{"momentum": 0.994}]}, {"sgd": {"momentum": one_minus_log(5e-3, 0.3)}})
    assert "momentum = 0.994, near the upper end of its range, 0.7 to 0.995" in found.text


def test_remarks_are_counted_in_words():
    assert counted([]) == ""
    remarks = [Remark(kind, "a", "") for kind in ("freedom", "edge", "edge")]
    assert counted(remarks) == "2 best values near an end of their range, 1 difference in what is tuned"


def test_a_run_of_any_length_is_looked_at_in_bounded_time():
    arm = Arm("AdamW", LR, {"schedule.warmup_fraction": 0.4}, schedule="bert")
    long = Study(workload="t.py:t", batch_sizes=(64,), steps=(10**15,), arms={"a": arm, "b": arm}, trials=8)
    assert {remark.kind for remark in lint(long)} == {"schedule"}
