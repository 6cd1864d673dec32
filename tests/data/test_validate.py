import pytest

from descend.data import DataReader, PythonDataReader, Reader, check
from descend.data.transforms import AdjustContrast, Normalize, RandomAffine, Scale
from descend.errors import ConfigurationError


def problems(*readers, **settings):
    with pytest.raises(ConfigurationError) as caught:
        check(DataReader(readers, **settings))
    assert caught.value.exit_code == 2
    return caught.value.problems


def train(**fields):
    return Reader(**{"name": "mnist", "role": "train", **fields})


@pytest.mark.parametrize(
    ("reader", "words"),
    [
        (train(role="validation"), ["role 'validation' does not exist", "did you mean 'validate'?", "'tournament'"]),
        (train(name="mnits"), ["reader 'mnits' (train)", "did you mean 'mnist'?", "'synthetic'"]),
        (train(name="MNIST"), ["did you mean 'mnist'?"]),
        (train(name="nci"), ["LBANN's reader 'nci' is not available here", "use 'csv'"]),
        (train(name="jag_conduit"), ["'jag_conduit' is not available", "use 'hdf5_data_reader'"]),
        (train(name="imagenett"), ["did you mean 'imagenet'?"]),
        (train(gan_label_value=1), ["gan_label_value must be 0 or 1, and needs gan_labelling"]),
        (train(gan_labelling=True, gan_label_value=2), ["gan_label_value must be 0 or 1"]),
        (train(name="mnist", python=PythonDataReader(module="m")), ["python is set and this reader does not use"]),
        (train(fraction_of_data_to_use=1.5), ["fraction_of_data_to_use must be a number >= 0 and <= 1, got 1.5"]),
        (train(fraction_of_data_to_use=float("nan")), ["fraction_of_data_to_use must be a finite number, got nan"]),
        (train(fraction_of_data_to_use=-0.1), ["fraction_of_data_to_use must be a number >= 0 and <= 1, got -0.1"]),
        (train(absolute_sample_count=-3), ["absolute_sample_count must be an integer >= 0, got -3"]),
        (train(fraction_of_data_to_use=0.5, absolute_sample_count=3), ["set one of the two"]),
        (train(validation_fraction=0.6, tournament_fraction=0.4), ["leave nothing to train on"]),
        (train(role="test", validation_fraction=0.1), ["only a reader of the role 'train'"]),
        (train(num_samples=4), ["num_samples is set and this reader does not use it", "'num_labels'"]),
        (train(separator=";"), ["separator is set"]),
        (train(shuffle="yes"), ["shuffle must be True or False, got 'yes'"]),
        (train(first_n=2.5), ["first_n must be an integer, got 2.5"]),
        (train(validation_fraction="0.1"), ["validation_fraction must be a finite number, got '0.1'"]),
        (train(transforms=[Scale()]), ["transform Scale: scale is 0"]),
        (train(transforms=[Scale("a")]), ["transform Scale: scale must be a finite number, got 'a'"]),
        (train(transforms=["flip"]), ["'flip' is not a transform"]),
        (train(transforms=[RandomAffine(rotate_min=1)]), ["transform RandomAffine: rotate_min <= rotate_max must be"]),
        (train(transforms=[Normalize("0.1", "x")]), ["transform Normalize: means='0.1' and stddevs='x'"]),
        (train(transforms=[Scale(0.1), AdjustContrast(0.5)]), ["AdjustContrast: it needs pixels", "after Scale"]),
    ],
)
def test_what_is_wrong_with_a_reader(reader, words):
    [text] = problems(reader)
    for word in words:
        assert word in text


def test_all_problems_at_once():
    found = problems(train(role="validation", name="mnits", first_n=-1), train(separator=","))
    assert len(found) == 4


def test_the_place_in_a_text_comes_first():
    [text] = problems(train(role="eval", where="data.prototext:12:3"))
    assert text.startswith("data.prototext:12:3: reader 'mnist' (eval): ")


def test_a_transform_has_a_place_of_its_own():
    [text] = problems(train(where="data.prototext:12:3", transforms=[Scale(where="data.prototext:14:5")]))
    assert text.startswith("data.prototext:14:5: reader 'mnist' (train), transform Scale: ")


def test_two_readers_of_a_role():
    assert problems(train(), train()) == ("2 readers have the role 'train'; each role can have only one",)


def test_two_sources_of_a_role():
    [text] = problems(train(validation_fraction=0.1), Reader(name="digits", role="validate"))
    assert "validation_fraction makes a reader of the role 'validate', and there is one" in text


def test_no_reader():
    assert "has no reader" in problems()[0]


def test_settings_without_effect():
    [text] = problems(train(), requires_data_set_metadata=True)
    assert "requires_data_set_metadata of the data reader has no effect" in text


def test_workers():
    [text] = problems(train(), workers=-1)
    assert "workers must be an integer >= 0, got -1" in text
    python = Reader(name="python", role="train", python=PythonDataReader(workers=2))
    assert "it has workers of its own, and so has the data reader" in "".join(problems(python, workers=2))


def test_nothing_wrong():
    check(
        DataReader(
            [
                train(shuffle=True, validation_fraction=0.1, fraction_of_data_to_use=1, transforms=[Scale(0.5)]),
                Reader(name="synthetic", role="test", num_samples=3, synth_dimensions="2", absolute_sample_count=2),
            ]
        )
    )
