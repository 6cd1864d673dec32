"""LBANN's callbacks that do nothing here say so, or are refused."""

import pytest
from callback_runs import follow

import descend
from descend.callbacks import CheckInit, GPUMemoryUsage, Hang, SyncLayers
from descend.errors import NumericalError


@pytest.mark.parametrize("kind", [Hang, SyncLayers, CheckInit, GPUMemoryUsage])
def test_what_has_no_effect_says_so_once(kind, capsys):
    follow(kind(), epochs=2)
    assert capsys.readouterr().out.count(f"{kind.__name__} has no effect here: ") == 1


TEXT = """
trainer { mini_batch_size: 4 random_seed: 1 IDENTICALLY }
model { num_epochs: 1
  objective_function { layer_term { scale_factor: 1 layer: "z" } }
  layer { name: "x" input { data_field: "samples" } }
  layer { name: "y" parents: "x" fully_connected { num_neurons: 3 } }
  layer { name: "z" parents: "y" l2_norm2 {} }
  callback { init {} }
}
optimizer { sgd { learn_rate: 0.1 } }
data_reader { reader { name: "synthetic" role: "train" num_samples: 4 synth_dimensions: "5" } }
"""


@pytest.mark.parametrize("identically", [False, True])
def test_first_weights_of_several_trainers_are_compared(identically, tmp_path):
    field = "random_init_trainers_identically: true" if identically else ""
    (tmp_path / "e.prototext").write_text(TEXT.replace("IDENTICALLY", field))
    given = descend.load(tmp_path / "e.prototext")
    parts = (given.trainer, given.model, given.data_reader, given.optimizer, tmp_path / "run")
    if identically:
        assert len(descend.run(*parts, trainers=3).trainers) == 3
        return
    with pytest.raises(NumericalError, match="CheckInit: the first weights of trainers 1, 2 differ from those of"):
        descend.run(*parts, trainers=3)
