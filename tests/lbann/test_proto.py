"""Experiments as files."""

import pytest

import descend.lbann as lbann
from descend.errors import ConfigurationError, TextError
from descend.lbann.proto import bin2text, generic_load, save_prototext, text2bin


def test_text_and_binary_form_are_turned_into_each_other(tmp_path):
    x = lbann.Input(data_field="samples", name="x")
    save_prototext(tmp_path / "a.prototext", model=lbann.Model(3, [x]), trainer=lbann.Trainer(4))
    text2bin(tmp_path / "a.prototext", tmp_path / "a.protobin")
    bin2text(tmp_path / "a.protobin", tmp_path / "b.prototext")
    assert (tmp_path / "a.prototext").read_text() == (tmp_path / "b.prototext").read_text()
    assert (tmp_path / "a.protobin").read_bytes() != (tmp_path / "a.prototext").read_bytes()
    for name in ("a.prototext", "a.protobin"):
        found = generic_load(tmp_path / name)
        assert (found.model.num_epochs, found.trainer.mini_batch_size) == (3, 4)
    lbann.save_prototext(str(tmp_path / "c.protobin"), binary=True, optimizer=lbann.SGD(learn_rate=0.5))
    assert generic_load(tmp_path / "c.protobin").optimizer.sgd.learn_rate == 0.5


def test_parts_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="no part 'modell'; did you mean 'model'"):
        save_prototext(tmp_path / "a", modell=1)
    with pytest.raises(ConfigurationError, match=r"experiment\.model is 3"):
        save_prototext(tmp_path / "a", model=3)
    (tmp_path / "bad.prototext").write_text("model { layer { nam: 'x' } }")
    with pytest.raises(TextError, match=r"bad\.prototext:1:17: .*did you mean 'name'"):
        text2bin(tmp_path / "bad.prototext", tmp_path / "bad.protobin")
    assert not (tmp_path / "bad.protobin").exists()
