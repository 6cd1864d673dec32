import pytest

from descend.arguments.leniency import Deviation, lenient, refused


def test_outside_every_deviation_is_refused_in_silence(recwarn):
    assert all(refused(deviation, "a problem") for deviation in Deviation)
    assert not recwarn


def test_within_it_is_a_warning_that_names_setting_and_consequence():
    with lenient(), pytest.warns(UserWarning, match="e.prototext:3: a term: LBANN allows it, and the term counts as 0"):
        assert not refused(Deviation.ZERO_SCALE, "e.prototext:3: a term")


def test_a_door_may_allow_some_alone():
    with lenient([Deviation.ZERO_SCALE]):
        with pytest.warns(UserWarning, match="counts as 0"):
            assert not refused(Deviation.ZERO_SCALE, "a")
        assert refused(Deviation.SHORT_SAMPLE, "a")
    assert refused(Deviation.ZERO_SCALE, "a")


def test_every_deviation_has_a_consequence_of_its_own():
    assert len({deviation.value for deviation in Deviation}) == len(Deviation.__members__)
