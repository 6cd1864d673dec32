"""The graph of a plan while it is made: nodes of layers, and the layers that are inserted between them."""

import descend.graph as g
from descend.graph.checking.nodes import NodeGraph
from descend.graph.checking.problems import ProblemList
from tests.graph.checked import scalar
from tests.graph.models import FIELDS


def graph_of(*layers, model=None):
    problems = ProblemList()
    graph = NodeGraph(layers, problems)
    graph.add_layers(layers)
    if model is not None:
        graph.add_readers(model)
    return graph, problems


def links(placed):
    """Each node's parents, and which output of each it reads."""
    return {
        node.layer.name: [(parent.layer.name, taken) for parent, taken in zip(node.parents, node.taken, strict=True)]
        for node in placed
    }


def test_nodes_are_linked_as_layers_are():
    x = g.Input(name="x")
    y = g.Relu(x, name="y")
    graph, problems = graph_of(x, y)
    assert links(graph.placed()) == {"x": [], "y": [("x", 0)], "y_dummy": [("y", 0)]}
    assert [node.layer.name for node in graph.inserted] == ["y_dummy"]
    assert list(graph.names) == ["y", "x", "y_dummy"]
    assert not problems


def test_a_split_hands_each_reader_an_output_of_its_own():
    x = g.Input(name="x")
    a, total = g.Relu(x, name="a"), g.Sum(x, x, name="total")
    graph, _ = graph_of(x, a, total)
    placed = links(graph.placed())
    assert list(placed)[:2] == ["x", "x_split"]
    assert placed["a"] == [("x_split", 0)]
    assert placed["total"] == [("x_split", 1), ("x_split", 2)]


def test_pieces_of_a_slice_go_to_the_children_in_their_order():
    cut = g.Slice(name="cut")
    late, early = g.Relu(name="late"), g.Relu(name="early")
    cut.add_child(early)
    cut.add_child(late)
    graph, _ = graph_of(cut, late, early)
    placed = links(graph.placed())
    assert placed["early"] == [("cut", 0)]
    assert placed["late"] == [("cut", 1)]
    assert "cut_split" not in placed


def test_a_child_that_stands_twice_takes_two_pieces():
    cut = g.Slice(name="cut")
    graph, _ = graph_of(cut, g.Sum(cut, cut, name="both"))
    assert links(graph.placed())["both"] == [("cut", 0), ("cut", 1)]


def test_an_inserted_split_is_shown_by_the_name_of_the_layer_before_it():
    x = g.Input(name="x")
    graph, _ = graph_of(x, g.Relu(x, name="a"), g.Relu(x, name="b"))
    split = next(node for node in graph.placed() if node.layer.name == "x_split")
    assert split.shown_name == "x"
    own = g.Split(g.Input(name="y"), name="own")
    graph, _ = graph_of(own.parents[0], own)
    assert next(node for node in graph.placed() if node.layer is own).shown_name == "own"


def test_parents_that_are_missing_are_left_out():
    lost = g.Sum(g.Input(name="elsewhere"), "nowhere", name="lost")
    graph, _ = graph_of(lost)
    assert links(graph.placed())["lost"] == []


def test_a_layer_that_takes_no_children_and_has_some_is_a_problem():
    end = g.Dummy(g.Input(name="x"), name="end")
    _, problems = graph_of(end.parents[0], end, g.Relu(end, name="behind"), g.Relu(end, name="more"))
    assert problems.found == ["layer 'end' (Dummy) takes no children and has 'behind', 'more'"]


def test_an_evaluation_knows_who_reads_it():
    x = g.Input(name="x")
    term, metric = g.LayerTerm(x, where="f:1:1"), g.Metric(x, "acc")
    graph, problems = graph_of(x, model=g.Model(1, x, objective_function=term, metrics=metric))
    first, second = graph.evaluation(term), graph.evaluation(metric)
    assert (first.layer.name, second.layer.name) == ("x_eval", "x_eval2")
    assert graph.read_by(first) == ("f:1:1", "an objective term")
    assert graph.read_by(second) == (None, "metric 'acc'")
    assert [node.layer.name for node in graph.placed()] == ["x", "x_split", "x_eval", "x_eval2"]
    assert not problems


def test_a_reader_of_a_layer_that_does_not_exist_is_a_problem_with_its_place():
    x = g.Input(name="loss")
    metric = g.Metric("los", "acc", where="f:3:1")
    graph, problems = graph_of(x, model=g.Model(1, x, metrics=metric))
    assert graph.evaluation(metric) is None
    assert problems.found == ["f:3:1: metric 'acc' names a layer 'los' that does not exist; did you mean 'loss'?"]


def test_a_reader_of_a_layer_on_a_cycle_has_no_node_and_no_problem_of_its_own():
    term = g.LayerTerm(g.Input(name="left_out"))
    graph, problems = graph_of(model=g.Model(1, objective_function=term))
    assert graph.evaluation(term) is None
    assert not problems


def test_notes_list_eight_names_and_count_the_rest():
    layers = [g.Input(name=f"x{i}") for i in range(10)]
    graph, _ = graph_of(*layers)
    graph.placed()
    names = ", ".join(f"'x{i}_dummy'" for i in range(8))
    assert graph.notes() == [f"inserted Dummy {names} and 2 more, after outputs without a child"]


def test_what_is_inserted_is_named_as_lbann_names_it_and_noted():
    x = g.Input(data_field="samples", name="x")
    unused = g.Relu(x, name="unused")
    g.Identity(x, name="loss_eval")  # takes the name that would be inserted
    loss = scalar(x)
    loss.name = "loss"
    plan = g.check(g.Model(1, unused, objective_function=loss), FIELDS)
    inserted = {layer.name: type(layer.layer).__name__ for layer in plan.layers if layer.inserted}
    assert inserted == {
        "x_split": "Split",
        "unused_dummy": "Dummy",
        "loss_eval_dummy": "Dummy",
        "loss_eval2": "Evaluation",
    }
    assert plan.notes == (
        "inserted Evaluation 'loss_eval2', to be read",
        "inserted Split 'x_split', behind outputs with several takers",
        "inserted Dummy 'loss_eval_dummy', 'unused_dummy', after outputs without a child",
    )


def test_evaluations_that_a_file_has_are_used_as_they_are():
    source = """
        layer { name: "x" input { data_field: "samples" } }
        layer { name: "y" parents: "x" parents: "x" mean_squared_error {} }
        layer { name: "e" parents: "y" evaluation {} }
        objective_function { layer_term { layer: "e" scale_factor: 0.5 } }
    """
    plan = g.check(g.from_text(source), FIELDS)
    assert plan.objective.terms == (g.PlannedTerm("e", 0.5, "e"),)
    assert [layer.name for layer in plan.layers] == ["x", "x_split", "y", "e"]


def test_a_layer_that_is_read_twice_has_two_evaluations():
    loss = scalar(g.Input(data_field="samples"))
    loss.name = "loss"
    plan = g.check(g.Model(1, objective_function=loss, metrics=g.Metric(loss)), FIELDS)
    assert (plan.objective.terms[0].evaluation, plan.metrics[0].evaluation) == ("loss_eval", "loss_eval2")


def test_a_split_of_a_file_gives_each_child_its_own_output():
    x = g.Split(g.Input(data_field="labels"), name="split")
    loss = g.MeanSquaredError(g.Relu(x, name="a"), g.Relu(x, name="b"))
    plan = g.check(g.Model(1, objective_function=loss), FIELDS)
    by_name = {layer.name: layer for layer in plan.layers}
    assert by_name["split"].output_shapes == ((10,), (10,))
    assert (by_name["a"].parent_outputs, by_name["b"].parent_outputs) == ((0,), (1,))
    assert "split_split" not in by_name
