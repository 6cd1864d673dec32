"""Four tables and two figures of "A Large Batch Optimizer Reality Check" in form, from the studies of this directory.

    python paper.py table1 | table2 | table3 | table4 | figure1 | figure2

Tables are Markdown, figures the numbers behind them as CSV: a schedule at its true height, a part of trials that reach
a target. Each is computed from records; the command at the head of a study's file runs it again.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from descend.study import analysis, read_directory
from descend.study.design.schedules import make_schedule

HERE = Path(__file__).resolve().parent


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def head(*cells: str) -> list[str]:
    return [row(*cells), f"|{'---|' * len(cells)}"]


def number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def percent(values: list[float]) -> str:
    return f"{100 * analysis.median(values):.2f} %"


def asked(study: str, kind: str) -> dict:
    return next(one for one in read_directory(HERE / study).follow_ups if one["kind"] == kind)


def table1() -> list[str]:
    """What of Nesterov's winner must differ from that of LARS."""
    found = asked("nesterov_lars/confirmatory", "minimize")
    lines = head("setting", found["arm"], found["reference"], "needed")
    for part, said in (("needed", "yes"), ("taken_back", "no")):
        for name, (theirs, ours) in found[part].items():
            lines.append(row(name, number(ours), number(theirs), said))
    return lines


def table2() -> list[str]:
    """Warm-up powers exchanged, and training beside test."""
    cells = asked("nesterov_lars/confirmatory", "swap")["cells"]
    lines = head("winner of", "warm-up power of", "median")
    lines += [row(cell["arm"], cell["giver"], f"{100 * cell['median']:.2f} %") for cell in cells]
    lines += ["", *head("optimizer", "train", "test")]
    for group in read_directory(HERE / "nesterov_lars/confirmatory").groups:
        for arm in ("nesterov", "lars"):
            train, test = ([x for one in group.of(arm) for x in getattr(one, part)] for part in ("train", "test"))
            lines.append(row(arm, percent(train), percent(test)))
    return lines


def table3() -> list[str]:
    """LAMB and AdamW by batch size and budget."""
    lines = head("batch size", "updates", "LAMB", "AdamW")
    for name, size in (("pretraining", "{}"), ("mixed", "{}, then 64")):
        for group in read_directory(HERE / "table3" / name).groups:
            medians = [percent([x for one in group.of(arm) for x in one.values]) for arm in ("lamb", "adamw")]
            lines.append(row(size.format(group.batch_size), group.steps, *medians))
    return lines


def table4() -> list[str]:
    """The rule of the weights and that of biases and normalization."""
    comparison = read_directory(HERE / "table4/matrix")
    lines = head("arm", "median of re-runs", "published")
    for arm in comparison.study.arms:
        values = [x for one in comparison.groups[0].of(arm) for x in one.values]
        lines.append(row(arm, percent(values), comparison.study.reference.get(arm, "")))
    return lines


def figure1() -> list[str]:
    """The schedules of the winners of the first search, at their true height."""
    (group,) = read_directory(HERE / "nesterov_lars/confirmatory").groups
    rates = {}
    for arm in ("nesterov", "lars"):
        winner = group.of(arm)[0].winner
        options = {k.partition(".")[2]: v for k, v in winner.items() if k.startswith("schedule.")}
        rates[arm] = make_schedule(winner["schedule"], options, float(winner["lr"]), group.steps).curve(group.steps)
    lines = [",".join(("update", *rates))]
    for place, at in enumerate(zip(*rates.values(), strict=True)):
        lines.append(",".join((str(place), *(f"{rate:.6g}" for _, rate in at))))
    return lines


def figure2() -> list[str]:
    """The part of trials that reach a validation accuracy."""
    (group,) = read_directory(HERE / "nesterov_lars/confirmatory").groups
    values = {arm: [x for one in group.of(arm) for x in one.search_values] for arm in ("nesterov", "lars")}
    lines = [",".join(("target", *values))]
    for target in np.linspace(0.7, 0.87, 35):
        reached = (analysis.fraction_reaching(own, float(target)) for own in values.values())
        lines.append(",".join((f"{target:.3f}", *(f"{part:.4f}" for part in reached))))
    return lines


FORMS = {one.__name__: one for one in (table1, table2, table3, table4, figure1, figure2)}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Tables and figures of the paper in form.")
    parser.add_argument("form", choices=[*FORMS])
    sys.stdout.write("\n".join(FORMS[parser.parse_args().form]()) + "\n")
