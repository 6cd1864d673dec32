"""The parts of the check of a model: problems found, nodes of the graph, shapes, weights and the objective.

`descend.graph.check` runs them in this order; what each of them does is in the picture there.
"""
