"""A few hundred mutated prototexts."""

from tests.fuzz.fuzz_prototext import attempt
from tests.fuzz.harness import run


def test_mutated_prototexts_are_drawn_or_refused_with_an_error_of_ours():
    report = run(attempt, 80, seed=15)
    assert report.findings == {}
    assert report.accepted > 2
    assert report.refused > 20
