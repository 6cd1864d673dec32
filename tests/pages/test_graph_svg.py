"""Pictures of graphs: what stands in them and where."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import descend
from descend import zoo
from descend.errors import Unsupported
from descend.graph import check
from descend.pages.graph_svg import MAX_LAYERS, picture

SVG = "{http://www.w3.org/2000/svg}"


def plan_of(network, shape):
    x = descend.Input(data_field="x", name="images")
    model = descend.Model(objective_function=descend.L2Norm2(network(x), name="norm"), name="<net & co>")
    return check(model, {"x": shape})


def drawn(plan):
    """Boxes by name (left, top, right, bottom), and edges (from, to, points)."""
    tree = ElementTree.fromstring(picture(plan))
    boxes = {}
    for group in tree.iter(f"{SVG}g"):
        if group.get("class") == "layer":
            rect = group.find(f"{SVG}rect")
            left, top, width, height = (float(rect.get(key)) for key in ("x", "y", "width", "height"))
            assert group.get("data-name") not in boxes
            boxes[group.get("data-name")] = (left, top, left + width, top + height)
    edges = []
    for path in tree.iter(f"{SVG}path"):
        edges.append((path.get("data-from"), path.get("data-to"), points(path.get("d"))))
    return tree, boxes, edges


def points(text):
    """The ends of the pieces of a path, from its start."""
    at, found = None, []
    for command, numbers in re.findall(r"([MCV])([^MCV]*)", text):
        values = [float(one) for one in re.split(r"[ ,]+", numbers.strip())]
        at = (at[0], values[0]) if command == "V" else tuple(values[-2:])
        found.append(at)
    return found


def edges_of(plan):
    known = {layer.name: layer for layer in plan.layers}

    def source(name):
        return source(known[name].parents[0]) if known[name].inserted else name

    return sorted((source(parent), one.name) for one in plan.layers if not one.inserted for parent in one.parents)


def check_structure(plan):
    """Every layer once, every edge once, from the foot of its parent down to the head of its child; no boxes meet."""
    _, boxes, edges = drawn(plan)
    assert sorted(boxes) == sorted(layer.name for layer in plan.layers if not layer.inserted)
    assert sorted((start, end) for start, end, _ in edges) == edges_of(plan)
    for start, end, path in edges:
        assert path[0][1] == pytest.approx(boxes[start][3], abs=0.11)
        assert path[-1][1] == pytest.approx(boxes[end][1], abs=0.11)
        assert boxes[start][0] < path[0][0] < boxes[start][2]
        assert boxes[end][0] < path[-1][0] < boxes[end][2]
        assert all(upper[1] < lower[1] for upper, lower in pairwise(path))
        for one, (left, top, right, bottom) in boxes.items():
            crossed = any(left < x < right and top < y < bottom for x, y in path)
            assert not crossed or one in (start, end), f"{start} -> {end} passes through {one}"
    rows = {}
    for left, top, right, _ in boxes.values():
        rows.setdefault(top, []).append((left, right))
    for row in rows.values():
        row.sort()
        assert all(one[1] < other[0] for one, other in pairwise(row))
    tops = sorted(rows)
    height = next(iter(boxes.values()))[3] - next(iter(boxes.values()))[1]
    assert all(upper + height < lower for upper, lower in pairwise(tops))


def encoder(layers):
    def network(x):
        for _ in range(layers):
            x = zoo.TransformerEncoderLayer(16, 4, 32)(x)
        return x

    return network


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (lambda x: zoo.LeNet(10)(x), (1, 28, 28)),
        (lambda x: zoo.ResNet50(10)(x), (3, 64, 64)),
        (encoder(12), (6, 16)),
    ],
    ids=["LeNet", "ResNet50", "BERT"],
)
def test_every_layer_and_edge_is_there_and_nothing_overlaps(network, shape):
    check_structure(plan_of(network, shape))


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=30))
def test_any_graph_can_be_drawn(choices):
    layers = [descend.Input(data_field="x", name="x")]
    for i, (a, b) in enumerate(choices):
        parents = [layers[a % len(layers)], layers[b % len(layers)]]
        layers.append(descend.Sum(*parents, name=f"part{i % 3}_sum{i}"))
    model = descend.Model(objective_function=descend.L2Norm2(layers[-1], name="norm"), layers=layers)
    check_structure(check(model, {"x": (2,)}))


def test_blocks_stand_on_grounds_of_their_own():
    tree, _, _ = drawn(plan_of(lambda x: zoo.ResNet18(10, name="r", small_images=True)(x), (3, 32, 32)))
    names = {group.find(f"{SVG}text").text for group in tree.iter(f"{SVG}g") if group.get("class") == "group"}
    assert {f"r_stage{stage}_block{block}" for stage in (1, 2, 3, 4) for block in (1, 2)} <= names


def test_a_box_says_name_kind_and_shape_and_the_file_asks_for_nothing():
    text = picture(plan_of(lambda x: descend.Tanh(x, name="a<b"), (3, 4)))
    words = [one.text for one in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert "a<b" in words
    assert "Tanh  3×4" in words
    assert not re.search(r"href|url\(|@import|<script|<image|<style", text)
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]
    assert 'viewBox="0 0 ' in text


def test_what_cannot_be_read_is_refused():
    layer = descend.Input(data_field="x", name="x")
    for _ in range(MAX_LAYERS):
        layer = descend.Relu(layer)
    plan = check(descend.Model(objective_function=descend.L2Norm2(layer)), {"x": (2,)})
    with pytest.raises(Unsupported, match="has 5,002 layers, and a picture of more than 5,000 is not drawn"):
        picture(plan)


def test_the_command_draws_without_torch(tmp_path):
    code = """
import sys
from descend.__main__ import app
app(sys.argv[1:], standalone_mode=False)
sys.exit("torch" in sys.modules)
"""
    file = tmp_path / "net.svg"
    command = [sys.executable, "-c", code, "show", "examples/lenet_digits.prototext", "--picture", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"drawn in {file}" in done.stdout
    assert "conv2" in file.read_text()


def test_characters_that_a_terminal_or_xml_obeys_are_written_as_escapes():
    """A layer's name is whatever a file says; XML 1.0 forbids most control characters, escaped or not."""
    name = "a\x1b]0;b\x07\n\u202ec\ud800<script>"
    x = descend.Input(data_field="x", name=f"in{name}")
    model = descend.Model(objective_function=descend.L2Norm2(x, name=name), name=f"net{name}")
    svg = picture(check(model, {"x": (2,)}))
    assert all(one.isprintable() for one in svg.split("\n"))
    tree = ElementTree.fromstring(svg)
    texts = [one.text for one in tree.iter(f"{SVG}text")]
    assert r"a\x1b]0;b\x07\n\u202ec\ud800<script>" in texts
