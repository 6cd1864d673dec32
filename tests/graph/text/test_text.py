"""The front of the text form: files by their names, messages by theirs, and what is said of those that do not exist."""

import pytest

from descend.errors import TextError
from descend.graph import text
from descend.graph.text.schema import message_info

CONTENT = "num_epochs: 3\n"


def refused(call, *args):
    with pytest.raises(TextError) as caught:
        call(*args)
    (problem,) = caught.value.problems
    return problem


def test_a_file_is_binary_if_its_name_says_so(tmp_path):
    message = text.parse(CONTENT, message="Model").message
    (tmp_path / "a.prototext").write_text(CONTENT)
    (tmp_path / "b.txt").write_text(CONTENT)
    (tmp_path / "c.protobin").write_bytes(text.render_binary(message))
    (tmp_path / "d.protobin.old").write_bytes(text.render_binary(message))
    for name in ("a.prototext", "b.txt", "c.protobin", "d.protobin.old"):
        assert text.read(tmp_path / name, "Model").message == message
    assert text.read(str(tmp_path / "a.prototext"), "Model").where("num_epochs") == f"{tmp_path / 'a.prototext'}:1:1"


def test_a_missing_file_is_named_with_the_one_that_may_have_been_meant(tmp_path):
    (tmp_path / "lenet.prototext").write_text(CONTENT)
    (tmp_path / "lenet.py").write_text("")
    wrong = tmp_path / "lenett.prototext"
    assert refused(text.read, wrong) == f"{wrong}: there is no such file; did you mean 'lenet.prototext'?"
    wrong = tmp_path / "zoo" / "lenet.prototext"
    assert refused(text.read, wrong) == f"{wrong}: there is no such file, and no folder {tmp_path / 'zoo'}"
    assert refused(text.read, tmp_path / "qqq.py") == f"{tmp_path / 'qqq.py'}: there is no such file"


def test_a_folder_is_named_with_a_file_in_it(tmp_path):
    expected = f"{tmp_path}: this is a directory, and a file of text was expected"
    assert refused(text.read, tmp_path) == expected
    for name in ("b.prototext", "a.prototext", "a.py"):
        (tmp_path / name).write_text(CONTENT)
    assert refused(text.read, tmp_path) == f"{expected}, such as {tmp_path / 'a.prototext'}"


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("DESCEND_MAX_TEXT_BYTES", "10")
    (tmp_path / "m.prototext").write_text(CONTENT)
    assert f"m.prototext: {len(CONTENT)} bytes are more than the limit of 10" in refused(
        text.read, tmp_path / "m.prototext"
    )
    with pytest.raises(TextError, match="11 bytes are more than the limit of 10"):
        text.parse_binary(b"x" * 11)


def test_rendered_text_is_utf8_with_short_lists_and_is_read_again():
    message = message_info("Layer").new()
    message.name = "größe"
    message.reshape.dims.extend([1, 2, 3])
    written = text.render(message)
    assert written == 'name: "größe"\nreshape {\n  dims: [1, 2, 3]\n}\n'
    assert text.parse(written, message="Layer").message == message
    assert text.parse_binary(text.render_binary(message), message="Layer").message == message


def test_equal_maps_give_equal_bytes_whatever_their_order():
    one, other = (message_info("RandomPairwiseExchange").new() for _ in range(2))
    for message, keys in ((one, "abcdef"), (other, "fedcba")):
        for key in keys:
            message.metric_name_strategy_map[key] = 1
    assert text.render_binary(one) == text.render_binary(other)


@pytest.mark.parametrize("call", [text.parse, text.parse_binary])
def test_a_message_without_a_near_name_is_refused_alone(call):
    empty = "" if call is text.parse else b""
    assert refused(call, empty, "f", "Zzzzzz") == "the schema has no message 'Zzzzzz'"


def test_bytes_that_are_no_message_are_refused():
    with pytest.raises(TextError, match=r"f\.protobin: this is not the binary form of a LbannPB"):
        text.parse_binary(b"\xff\xff\xff", "f.protobin")


def test_an_unknown_message_name_is_refused():
    with pytest.raises(TextError, match=r"no message 'Modell'; did you mean 'Model'\?"):
        text.parse("", message="Modell")


@pytest.mark.parametrize(("name", "what"), [("README.md", "Markdown"), ("a.onnx", "an ONNX model"), ("s.toml", "TOML")])
def test_a_file_of_another_kind_is_one_error_and_not_one_a_line(tmp_path, name, what):
    (tmp_path / name).write_text("# words\n\nmore (words)\n")
    with pytest.raises(TextError) as found:
        text.read(tmp_path / name)
    assert str(found.value).startswith(f"{tmp_path / name}: this is {what}")
    assert len(found.value.problems) == 1


def test_the_directory_of_a_run_is_named_as_such(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(TextError, match=r"a file of text was expected; it is of a run: .* --weights"):
        text.read(tmp_path)
