"""What the terminal shows."""

import math

from descend.study.simulate import plot, table

SIZES = [64, 1024, 16384]
STEPS = {"sgd": [100.0, 80.0, 79.0], "heavy_ball": [98.0, 10.0, math.inf]}


def test_table_has_a_row_a_rule_and_no_number_where_the_target_was_missed():
    lines = table(SIZES, STEPS).splitlines()
    assert [line.split() for line in lines] == [
        ["batch", "64", "1,024", "16,384"],
        ["sgd", "100", "80", "79"],
        ["heavy_ball", "98", "10", "-"],
    ]


def test_plot_places_marks_by_logarithm():
    lines = plot(SIZES, STEPS).splitlines()
    assert lines[0].startswith("o")
    assert lines[0].endswith("100 steps")
    assert lines[19].index("x") == 36  # 1,024 stands in the middle of 64 and 16,384
    assert "o sgd   x heavy_ball   . perfect scaling" in lines[-1]
    assert plot(SIZES, {"sgd": [math.inf] * 3}) == "no rule met the target at any batch size"
