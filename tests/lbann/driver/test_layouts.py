"""Settings that divide work over processes: on one process the numbers are those of the plain layers."""

import pytest

from tests.lbann.driver.programs import experiment, run, write

DEFINITION = 'layer { name: "y" parents: "x" fully_connected { num_neurons: 3 } }'
SHARDED = 'weights { name: "w" initializer { he_normal_initializer {} } sharded: true sharding_strategy: GRID_ROWS }'
LAYOUTS = {
    "model parallel": DEFINITION.replace("parents", 'data_layout: "model_parallel" parents'),
    "on a GPU": DEFINITION.replace("parents", 'device_allocation: "GPU" parents'),
    "of a sub-grid": DEFINITION.replace("parents", "grid_tag { value: 1 } parents"),
    "a parallel strategy": DEFINITION.replace(
        "parents", "parallel_strategy { channel_groups: 2 filter_groups: 2 sample_groups: 4 height_groups: 0 } parents"
    ),
    "sharded weights": f"{DEFINITION.replace('parents', chr(39).join(['weights: ', 'w', ' parents']))} {SHARDED}",
    "sub-graphs": f"{DEFINITION} subgraph_communication: COLL_OPT enable_subgraph_topology: true "
    "subgraph_parent_grid_resources: 2",
    "channels": DEFINITION.replace(
        "fully_connected { num_neurons: 3 }",
        "channelwise_fully_connected { output_channel_dims: [1] bias { value: false } } "
        'data_layout: "model_parallel" parallel_strategy { channel_groups: 2 }',
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_numbers_are_those_of_the_plain_layer(layout, capsys, monkeypatch, tmp_path):
    file = "--prototext=experiment.prototext"
    plain, divided = DEFINITION, LAYOUTS[layout]
    if layout == "channels":
        plain = divided.replace('data_layout: "model_parallel" parallel_strategy { channel_groups: 2 }', "")
    if layout == "sharded weights":
        plain = divided.replace("sharded: true sharding_strategy: GRID_ROWS", "")
    found = []
    for definition in (plain, divided):
        write(tmp_path, experiment().replace(DEFINITION, definition))
        ended = run(capsys, monkeypatch, tmp_path, file, "--num_epochs=1", "--num-subgrids=2")
        assert ended.code == 0, ended.err
        found.append(ended.out)
    assert found[0] == found[1]
    assert "test objective function : " in found[0]
