"""Reading the text form, against google's own reader and writer."""

import math

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from descend.errors import TextError
from descend.graph import text
from descend.graph.text.parser import MAX_BYTES, check_size
from descend.graph.text.schema import ANY, RANGES, message_info, pool

PACKABLE = ["SGD", "LTFB", "KFAC", "RandomPairwiseExchange", "ClampOperator", "TanhOperator", "SelectOperator"]
ROOTS = [
    "LbannPB",
    "Model",
    "DataReader",
    "Trainer",
    "Layer",
    "Callback",
    "TrainingAlgorithm",
    "RandomPairwiseExchange",
]


def scalars(field):
    if field.kind in RANGES:
        low, high = RANGES[field.kind]
        return st.integers(low, high)
    if field.kind == "enum":
        return st.sampled_from(sorted(field.enum.values()))
    return {
        "bool": st.booleans(),
        "string": st.text(max_size=8),
        "bytes": st.binary(max_size=8),
        "double": st.floats(allow_nan=False),
        "float": st.floats(width=32, allow_nan=False),
    }[field.kind]


@st.composite
def messages(draw, root, depth=3):
    """A random message of the schema."""
    info = message_info(root)
    message = info.new()
    if info.full_name == ANY:
        message.Pack(draw(messages(draw(st.sampled_from(PACKABLE)), depth - 1)), deterministic=True)
        return message
    for name in draw(st.lists(st.sampled_from(sorted(info.fields)), max_size=4, unique=True)) if info.fields else ():
        field = info.fields[name]
        target = getattr(message, name)
        if field.is_map:
            for key in draw(st.lists(st.text(max_size=3), max_size=2)):
                target[key] = draw(scalars(field.message.fields["value"]))
        elif field.kind != "message" and field.repeated:
            target.extend(draw(st.lists(scalars(field), max_size=3)))
        elif field.kind != "message":
            setattr(message, name, draw(scalars(field)))
        elif depth > 0 and field.repeated:
            for _ in range(draw(st.integers(0, 2))):
                target.add().CopyFrom(draw(messages(field.message.full_name, depth - 1)))
        elif depth > 0:
            target.SetInParent()
            target.CopyFrom(draw(messages(field.message.full_name, depth - 1)))
    return message


roots = st.sampled_from(ROOTS).flatmap(lambda root: st.tuples(st.just(root), messages(root)))


@given(
    roots,
    st.fixed_dictionaries(
        {name: st.booleans() for name in ("as_utf8", "as_one_line", "use_short_repeated_primitives", "pointy_brackets")}
    ),
)
def test_reads_what_googles_writer_writes(case, style):
    root, message = case
    written = text_format.MessageToString(message, descriptor_pool=pool(), **style)
    if written.strip():
        assert text.parse(written, message=root).message == message


@given(roots, st.data())
def test_a_damaged_text_is_refused_or_read_as_google_reads_it(case, data):
    root, message = case
    written = text_format.MessageToString(message, descriptor_pool=pool())
    at = data.draw(st.integers(0, len(written)))
    cut = data.draw(st.integers(0, 3))
    put = data.draw(st.text("{}[]<>:,;\"'\\#-.0e1xinf \nab", max_size=3))
    damaged = written[:at] + put + written[at + cut :]
    try:
        ours = text.parse(damaged, message=root).message
    except TextError:
        return
    theirs = text_format.Parse(damaged, message_info(root).new(), descriptor_pool=pool())
    # As text, since google packs maps in no certain order, and NaN equals nothing.
    assert text.render(ours) == text.render(theirs)


SPELLINGS = [
    'name: "a"',
    "name: 'a' 'b'  # joined",
    'name: "\\x41\\101\\n\\u00e9\\U0001F600\\"\'"',
    "num_epochs: 0x1F; data_layout: 'x',",
    "num_epochs: -0017",
    "disable_cuda: t enable_subgraph_topology: 1",
    "amp { init_scale: 1.5e3f growth_factor: .5 backoff_factor: -inf growth_interval: 0 }",
    "amp < init_scale: 2. >",
    "amp: { init_scale: 3 }",
    "subgraph_communication: COLL_OPT",
    "subgraph_communication: 2",
    'layer [{ name: "a" }, < name: "b" >]',
    "layer { convolution { kernel_size: [] stride: [1, 2] padding: 3 padding: 4 } }",
    "layer { weighted_sum { scaling_factors: [1, 2.5, -3e-2, 7f] } }",
    "layer { weighted_sum { scaling_factors: [1, inf] } };",
    "layer { operator_layer { ops { parameters { [type.googleapis.com/lbann_data.ClampOperator] { min: 1 } } } } }",
    'layer { operator_layer { ops { parameters { type_url: "x" value: "\\001\\377" } } } }',
]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_means_what_google_takes_it_to_mean(spelling):
    expected = text_format.Parse(spelling, message_info("Model").new(), descriptor_pool=pool())
    assert text.parse(spelling, message="Model").message == expected


def test_nan_is_a_number_of_the_format():
    assert math.isnan(text.parse("amp { init_scale: nan }", message="Model").message.amp.init_scale)


def problems(source, message="LbannPB"):
    with pytest.raises(TextError) as caught:
        text.parse(source, "f.prototext", message)
    return list(caught.value.problems)


def test_all_problems_of_a_text_come_together_with_their_places():
    source = """model {
  layer { name: "a" input { data_feild: "samples" } }
  layer { convolution { num_dims: "x" kernel_size: [5, q] } relu {} }
  num_epochs: 1  num_epochs: 2
  objectiv_function { x { y: "}" } }
  weights { sharding_strategy: FULLL }
  disable_cuda: maybe
}
trainer { mini_batch_size: 9223372036854775808 }
"""
    assert problems(source) == [
        "f.prototext:2:29: model.layer[0].input has no field 'data_feild'; did you mean 'data_field'?",
        "f.prototext:3:35: model.layer[1].convolution.num_dims: a text in quotes, 'x', is not a number (int64)",
        "f.prototext:3:56: model.layer[1].convolution.kernel_size: 'q' is not an integer (int64)",
        "f.prototext:3:61: model.layer[1] has 'relu' beside 'convolution' at 3:11; only one of them may stand",
        "f.prototext:4:18: model.num_epochs is given twice, first at 4:3; it is not a list",
        "f.prototext:5:3: model has no field 'objectiv_function'; did you mean 'objective_function'?",
        "f.prototext:6:32: model.weights[0].sharding_strategy: 'FULLL' is not one of FULL, GRID_ROWS, GRID_COLS; "
        "did you mean 'FULL'?",
        "f.prototext:7:17: model.disable_cuda: 'maybe' is not true or false",
        "f.prototext:9:28: trainer.mini_batch_size: '9223372036854775808' is outside the range of int64, "
        "-9223372036854775808 to 9223372036854775807",
    ]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("", "f.prototext:1:1: the text is empty; a LbannPB was expected, such as 'data_reader { ... }'"),
        (" # nothing\n", "f.prototext:1:1: the text is empty; a LbannPB was expected, such as 'data_reader { ... }'"),
        ("model {\n  layer {", "f.prototext:2:10: the text ends inside model.layer[0], opened at 2:3; '}' is missing"),
        ("model { } }", "f.prototext:1:11: unexpected '}' in LbannPB; expected a field name"),
        ("model { layer { > }", "f.prototext:1:17: unexpected '>' in model.layer[0]; expected a field name or '}'"),
        ("model", "f.prototext:1:1: model is a message; expected model { ... }"),
        ("model: 3", "f.prototext:1:1: model is a message; expected model { ... }"),
        ("model { num_epochs 3 }", "f.prototext:1:20: model.num_epochs needs a ':' and a number (int64)"),
        ("model { num_epochs: [3] }", "f.prototext:1:9: model.num_epochs is given a list; expected a number (int64)"),
        (
            "model { num_epochs: { a: 1 } }",
            "f.prototext:1:9: model.num_epochs is given a message; expected a number (int64)",
        ),
        ("model { num_epochs: 1_0 }", "f.prototext:1:21: model.num_epochs: '1_0' is not an integer (int64)"),
        ("model { num_epochs: 1.0 }", "f.prototext:1:21: model.num_epochs: '1.0' is not an integer (int64)"),
        (
            "model { amp { init_scale: 1e999 } }",
            "f.prototext:1:27: model.amp.init_scale: '1e999' is outside the range of double",
        ),
        ('model { name: "a }', "f.prototext:1:15: model.name: a text in quotes that does not end on its line"),
        ("model { name: }", "f.prototext:1:15: model.name: expected a text in quotes"),
        (r'model { name: "\xff" }', r"f.prototext:1:15: model.name: '\\xff' is not valid UTF-8"),
        (r'model { name: "\q" }', r"f.prototext:1:15: model.name: '\q' is not an escape"),
        (b'model {\n name: "\xff" }', "f.prototext:2:9: byte 0xff is not UTF-8; is this a binary file (.protobin)?"),
        ("model { name: '\ud800' }", "f.prototext:1:16: half of a surrogate pair is not a character"),
        (
            "trainer { training_algorithm { parameters { [type.googleapis.com/lbann_data.SDG] { } } } }",
            "f.prototext:1:46: trainer.training_algorithm.parameters names a message type "
            "'type.googleapis.com/lbann_data.SDG' that does not exist; did you mean 'SGD'?",
        ),
        (
            "model { layer { convolution { groups: 2 } } }",
            "f.prototext:1:31: model.layer[0].convolution.groups is a message; expected groups { value: ... }",
        ),
        (
            "optimizer { no_optimizer { rate: 1 } }",
            "f.prototext:1:28: optimizer.no_optimizer has no field 'rate'; it has no fields",
        ),
        (
            "model { weights { constant_initializer { value: 1 } } }",
            "f.prototext:1:19: model.weights[0] has no field 'constant_initializer'; initializer has one: write "
            "initializer { constant_initializer ... }",
        ),
        (
            "model { } } layer { }",
            "f.prototext:1:11: unexpected '}' in LbannPB; expected a field name",
        ),
        (
            "model { num_epochs: 1 } layer { }",
            "f.prototext:1:25: LbannPB has no field 'layer'; model has one: is there a '}' too many before it?",
        ),
    ],
)
def test_what_is_wrong_where_and_what_was_expected(source, problem):
    assert problems(source)[0] == problem


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ('name: "a\nlayer { nme: "b" }', ["1:7", "2:9"]),
        ('layer { name: "a" relu { > }\nlayer < nme: "b" >', ["1:26", "2:9"]),
        ("} layer { } } layer { nme: 1 }", ["1:1", "1:13", "1:23"]),
        ("layer { // said so: { \n nme: 1 } # name: }\nnum_epochs = 3\nname: 4", ["1:9", "2:2", "3:12", "4:7"]),
        ("layer { reshape { dims: [1, 2,] dims: [3 4] dims: } } nme: 1", ["1:31", "1:42", "1:51", "1:55"]),
        ("layer: [{ nme: 1 } { }] name: 2", ["1:11", "1:20", "1:31"]),
        ("layer { reshape { dims { value: 1 } num_dims: 2 } nme: 3 }", ["1:19", "1:37", "1:51"]),
        ("layer { 12: { name: 3 } name: 4 }", ["1:9", "1:31"]),
        ("[lbann_data.extension] { name: 1 } name: 2", ["1:1", "1:42"]),
        (
            "layer { operator_layer { ops { parameters { [x/lbann_data.Tahn] { } ? } parameters: 3 } } } nme: 1",
            ["1:46", "1:69", "1:73", "1:73", "1:93"],
        ),
        ('layer { nme { "}\n } } num_epochs: 1.5 layer { ', ["1:9", "2:18", "2:30"]),
        ('{ "layer": [{ "name": "x" }] }', ["1:1"]),
    ],
)
def test_after_a_mistake_reading_goes_on(source, places):
    """What follows is judged as if the mistake were not there, and nothing else is made of it."""
    assert [problem.split(": ")[0] for problem in problems(source, "Model")] == ["f.prototext:" + at for at in places]


def test_what_a_mistake_was_meant_to_be_is_said():
    found = problems('layer { reshape { dims: "1 -1" } datatype: "FP16" relu { layer { } } } /* a comment */', "Model")
    assert found == [
        "f.prototext:1:25: layer[0].reshape.dims: a text in quotes, '1 -1', is not a number (int64); "
        "write dims: [1, -1]",
        "f.prototext:1:44: layer[0].datatype: a text in quotes, 'FP16', is not one of DEFAULT_DATATYPE, FLOAT, DOUBLE, "
        "FP16, COMPLEX_FLOAT, COMPLEX_DOUBLE; write datatype: FP16",
        "f.prototext:1:51: layer[0] has 'relu' beside 'reshape' at 1:9; only one of them may stand",
        "f.prototext:1:58: layer[0].relu has no field 'layer'; Model has one: is a '}' missing before it?",
        "f.prototext:1:72: unexpected '/' in Model; expected a field name (a comment begins with '#')",
    ]


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert text.parse(b'\xef\xbb\xbfname: "m"', message="Model").message.name == "m"


@pytest.mark.parametrize(
    "source",
    [
        "x { " * 10_000,
        "model { " + "layer { " * 10_000,
        "x [ " * 10_000,
        "training_algorithm { parameters { [type.googleapis.com/lbann_data.LTFB] { "
        + "local_training_algorithm { parameters { [type.googleapis.com/lbann_data.LTFB] { " * 5_000,
    ],
    ids=["unknown", "known and unknown", "lists", "any"],
)
def test_nesting_beyond_the_limit_is_refused_with_the_limit(source):
    assert "nested deeper than the limit of 100 messages" in problems(source)[-1]


def test_nesting_within_the_limit_is_read():
    depth = 24  # three messages each, and four more
    inner = "local_training_algorithm { parameters { [type.googleapis.com/lbann_data.LTFB] { "
    source = "parameters { [type.googleapis.com/lbann_data.LTFB] { " + inner * depth + "} } } " * depth + "} }"
    expected = text_format.Parse(source, message_info("TrainingAlgorithm").new(), descriptor_pool=pool())
    assert text.parse(source, message="TrainingAlgorithm").message == expected


def test_a_text_beyond_the_limit_is_refused_with_how_to_raise_it(monkeypatch):
    with pytest.raises(TextError) as caught:
        check_size(100_000_018, "f.prototext")
    assert caught.value.problems == (
        "f.prototext: 100,000,018 bytes are more than the limit of 67,108,864; keep large values in a .npy file "
        "(NumpyInitializer), or set the environment variable DESCEND_MAX_TEXT_BYTES=100000018",
    )
    check_size(MAX_BYTES, "f.prototext")
    source = 'model { name: "' + "x" * 82 + '" }'
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "99")
    assert problems(source)[0].startswith("f.prototext: 100 bytes are more than the limit of 99; ")
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "100")
    assert len(text.parse(source).message.model.name) == 82
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "10")
    assert "are more than the limit of 10;" in problems("model { num_epochs: 1 }")[0]
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "1e9")
    assert problems("model {}") == ["DESCEND_MAX_TEXT_BYTES is '1e9'; expected a number of bytes"]


def test_a_hopeless_text_is_given_up_after_a_hundred_problems():
    found = problems("a: 1\n" * 10_000)
    assert len(found) == 101
    assert found[-1] == "f.prototext:100:1: stopped reading here, after 100 problems"


@pytest.mark.slow
def test_time_is_linear_in_hostile_spaces_and_comments():
    """Quadratic matching of 2 MB would take hours, and the test's own limit would end it."""
    for junk in (
        " " * 2_000_000,
        "#\n" * 1_000_000,
        "# " * 1_000_000,
        '"' * 2_000_000,
        "\\" * 2_000_000,
        "'" + "\\'" * 1_000_000,
        '"\n' * 1_000_000,
        "? " * 1_000_000,
        "/" * 2_000_000,
        "/ " * 1_000_000,
        "a" * 2_000_000 + " " * 2_000_000 + "?",
    ):
        with pytest.raises(TextError):
            text.parse("model { name: " + junk)


@pytest.mark.parametrize("written", ["02", "0x2", "2"])
def test_an_enum_may_be_a_number_in_any_base(written):
    source = f"model {{ layer {{ datatype: {written} }} }}"
    assert text.parse(source).message.model.layer[0].datatype == 2
    assert "'017' is not" in problems("model { layer { datatype: 017 } }")[0]
    assert "is not" in problems(f"model {{ layer {{ datatype: {'9' * 5000} }} }}")[0]
