"""Mixed precision as scripts ask for it."""

import argparse

import descend.lbann as lbann
from descend.lbann.contrib.args import add_amp_arguments
from descend.lbann.util.amp import AmpOptions, enable_amp, set_layer_datatypes


def test_options_become_those_of_the_model():
    model = lbann.Model(1)
    enable_amp(model, AmpOptions(init_scale=128.0, growth_interval=5))
    found = model.export_proto().amp
    assert (found.enabled, found.init_scale, found.growth_factor) == (True, 128.0, 2.0)
    assert (found.backoff_factor, found.growth_interval) == (0.5, 5)


def test_arguments_of_a_script_switch_it_on():
    parser = argparse.ArgumentParser()
    add_amp_arguments(parser)
    model = lbann.Model(1)
    enable_amp(model, parser.parse_args([]))
    assert model.amp is None
    enable_amp(model, parser.parse_args(["--amp", "--amp-init-scale", "8"]))
    assert model.export_proto().amp.init_scale == 8.0


def test_formats_of_layers_are_set():
    x = lbann.Input(data_field="x")
    y = lbann.FullyConnected(x, num_neurons=2)
    set_layer_datatypes(y, kinds=(lbann.FullyConnected,))
    assert (x.datatype, y.datatype) == (None, lbann.DataType.FP16)
