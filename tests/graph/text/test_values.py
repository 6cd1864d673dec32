"""Values of any room to messages and back, by names."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest

from descend.errors import ConfigurationError, TextError
from descend.graph import text
from descend.graph.text.schema import message_info


@dataclass(frozen=True)
class Normalize:
    message: ClassVar[str] = "Transform.Normalize"
    means: str = ""
    stddevs: str = ""


@dataclass(frozen=True)
class Scale:
    message: ClassVar[str] = "Transform.Scale"
    scale: float = 0.0


@dataclass(frozen=True)
class Reader:
    message: ClassVar[str] = "Reader"
    name: str = ""
    shuffle: bool = False
    validation_fraction: float = 0.0
    transforms: tuple = ()
    where: str | None = field(default=None, compare=False)

    def __post_init__(self):
        if self.validation_fraction > 1:
            raise ConfigurationError(f"Reader.validation_fraction is {self.validation_fraction}; expected at most 1")


@dataclass(frozen=True)
class DataReader:
    message: ClassVar[str] = "DataReader"
    reader: tuple = ()


@dataclass(frozen=True)
class Criteria:
    message: ClassVar[str] = "SGD.TerminationCriteria"
    max_epochs: int = 0


@dataclass(frozen=True)
class Descent:
    """An algorithm: the name is the envelope's, the criteria are its own."""

    message: ClassVar[str] = "SGD"
    name: str = ""
    stopping_criteria: Criteria | None = None


@dataclass(frozen=True)
class Tournament:
    message: ClassVar[str] = "RandomPairwiseExchange"
    metric_name_strategy_map: dict = field(default_factory=dict)
    exchange_strategy: object = None


@dataclass(frozen=True)
class SendWeights:
    message: ClassVar[str] = "RandomPairwiseExchange.ExchangeStrategy.SendRecvWeights"
    weights_name: tuple = ()
    exchange_hyperparameters: bool = False


@dataclass(frozen=True)
class Ltfb:
    message: ClassVar[str] = "LTFB"
    name: str = ""
    local_training_algorithm: object = None
    meta_learning_strategy: object = None


@dataclass(frozen=True)
class Trainer:
    message: ClassVar[str] = "Trainer"
    mini_batch_size: int = 0
    training_algorithm: object = None


CLASSES = {
    cls.message: cls
    for cls in (Normalize, Scale, Reader, DataReader, Criteria, Descent, Tournament, SendWeights, Ltfb, Trainer)
}

VALUES = [
    DataReader((Reader("mnist", True, 0.1, (Scale(0.1), Normalize("0.5", "0.25"))), Reader("x"))),
    Trainer(64, Descent("sgd", Criteria(10))),
    Trainer(
        64,
        Ltfb("ltfb", Descent("local", Criteria(1)), Tournament({"acc": 1, "loss": 0}, SendWeights(("a", "b"), True))),
    ),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_text_and_binary_are_mirrors(value):
    written = text.render(value)
    assert text.to_value(text.parse(written, message=value.message), CLASSES) == value
    assert text.to_value(text.parse_binary(text.render_binary(value), message=value.message), CLASSES) == value


def test_envelopes_and_any_fields_look_as_lbann_writes_them():
    assert text.render(VALUES[1]) == (
        "mini_batch_size: 64\n"
        "training_algorithm {\n"
        '  name: "sgd"\n'
        "  parameters {\n"
        "    [type.googleapis.com/lbann_data.SGD] {\n"
        "      stopping_criteria {\n"
        "        max_epochs: 10\n"
        "      }\n"
        "    }\n"
        "  }\n"
        "}\n"
    )


def test_a_value_knows_where_it_stood():
    value = text.to_value(text.parse("reader { }\nreader [{\n name: 'a' }, {}]", "f", "DataReader"), CLASSES)
    assert [one.where for one in value.reader] == ["f:1:1", "f:2:9", "f:3:15"]


def test_float32_fields_keep_the_number_that_was_written():
    """0.1 is not a float32; the shortest number that rounds to the same float32 is 0.1 again."""
    message = message_info("Transform.Scale").new()
    message.scale = 0.1
    assert message.scale != 0.1
    assert text.to_value(message, CLASSES).scale == 0.1


def test_all_that_classes_refuse_comes_together_with_places():
    source = (
        "reader { validation_fraction: 2 }\n"
        "reader { transforms { pad { } } transforms { } }\n"
        "reader { validation_fraction: 3 }"
    )
    with pytest.raises(TextError) as caught:
        text.to_value(text.parse(source, "f", "DataReader"), CLASSES)
    assert [problem.split(";")[0] for problem in caught.value.problems] == [
        "f:1:1: Reader.validation_fraction is 2.0",
        "f:2:10: Transform.Pad is part of the format and has no use here",
        "f:2:33: this Transform says nothing of its kind",
        "f:3:1: Reader.validation_fraction is 3.0",
    ]


def test_a_binary_form_with_unknown_fields_is_refused():
    unknown = b"\x82\xe2\x09\x01x"  # field 20000, a text of one letter
    with pytest.raises(TextError, match="fields that the schema does not know, of number 20000"):
        text.to_value(text.parse_binary(text.render_binary(VALUES[0]) + unknown, "f.protobin", "DataReader"), CLASSES)


def test_what_a_message_cannot_hold_is_refused_by_name():
    with pytest.raises(ConfigurationError, match=r"Trainer\.mini_batch_size is 'many'; expected a number \(int64\)"):
        text.render(Trainer("many"))
    with pytest.raises(ConfigurationError, match=r"DataReader\.reader .*a Transform.Scale has no place in a Reader"):
        text.render(DataReader((Scale(1.0),)))


def test_files_are_read_by_their_name(tmp_path):
    (tmp_path / "a.prototext").write_text(text.render(VALUES[1]))
    (tmp_path / "a.protobin").write_bytes(text.render_binary(VALUES[1]))
    for name in ("a.prototext", "a.protobin"):
        assert text.to_value(text.read(tmp_path / name, "Trainer"), CLASSES) == VALUES[1]
    with pytest.raises(TextError, match=r"nowhere\.prototext: there is no such file"):
        text.read(tmp_path / "nowhere.prototext")
