"""Models that several tests use, and random ones."""

from hypothesis import strategies as st

import descend.graph as g

FIELDS = {"samples": (1, 28, 28), "labels": (10,)}


def lenet() -> g.Model:
    images = g.Input(data_field="samples", name="images")
    labels = g.Input(data_field="labels", name="labels")
    x = g.Convolution(images, num_dims=2, out_channels=6, kernel_size=5, name="conv1")
    x = g.Relu(x, name="relu1")
    x = g.Pooling(x, num_dims=2, pool_dims_i=2, pool_strides_i=2, pool_mode="max", name="pool1")
    x = g.FullyConnected(x, num_neurons=10, has_bias=True, name="fc")
    prediction = g.Softmax(x, name="prediction")
    loss = g.CrossEntropy([prediction, labels], name="loss")
    accuracy = g.CategoricalAccuracy([prediction, labels], name="accuracy")
    return g.Model(5, objective_function=loss, metrics=[g.Metric(accuracy, unit="%")])


numbers = st.floats(allow_nan=False, allow_infinity=False)
sizes = st.integers(-(2**63), 2**63 - 1)
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Z"]), min_size=1, max_size=5)
BY_TYPE = {int: st.integers(0, 2**32 - 1), float: numbers, bool: st.booleans(), str: st.text(max_size=5)}


def values_of(kind):
    """A strategy for the values of a field type."""
    if kind.base in BY_TYPE:
        one = BY_TYPE[kind.base]
    elif issubclass(kind.base, g.ops.Operator):
        one = operators
    else:
        one = st.sampled_from(list(kind.base))
    if kind.many:
        return st.lists(one, max_size=3).map(tuple)
    return st.none() | one if kind.optional else one


@st.composite
def described(draw, classes):
    """An object of one of these classes with random fields."""
    cls = draw(st.sampled_from(classes))
    kinds = g.fields.field_types(cls)
    return cls(**{name: draw(values_of(kind)) for name, kind in kinds.items() if draw(st.booleans())})


operators = described([getattr(g.ops, name) for name in g.ops.__all__ if name != "Operator"])
optimizers = described([g.SGD, g.Adam, g.AdaGrad, g.RMSprop, g.HypergradientAdam, g.NoOptimizer])
# values are float32 in a text, so they are no mirror of every float; values_d are
initializers = described(
    [
        g.ConstantInitializer,
        g.NumpyInitializer,
        g.UniformInitializer,
        g.NormalInitializer,
        g.GlorotNormalInitializer,
        g.GlorotUniformInitializer,
        g.HeNormalInitializer,
        g.HeUniformInitializer,
        g.LeCunNormalInitializer,
        g.LeCunUniformInitializer,
    ]
) | st.lists(numbers, max_size=3).map(lambda values: g.ValueInitializer(values_d=values))
KINDS = [cls for message, cls in sorted(g.CLASSES.items()) if message.startswith("Layer.")]


@st.composite
def models(draw):
    """A random graph: any kinds, any fields, any earlier layers as parents, whether or not they would fit."""
    layer_names = draw(st.lists(names, min_size=1, max_size=8, unique=True))
    weights = [
        g.Weights(
            name=name,
            initializer=draw(st.none() | initializers),
            optimizer=draw(st.none() | optimizers),
            datatype=draw(st.none() | st.sampled_from(g.DataType)),
            sharded=draw(st.none() | st.booleans()),
        )
        for name in draw(st.lists(names, max_size=3, unique=True))
    ]
    layers: list[g.Layer] = []
    for name in layer_names:
        kind = draw(st.sampled_from(KINDS))
        fields = {key: draw(values_of(one)) for key, one in kind.own_fields().items() if draw(st.booleans())}
        layers.append(
            kind(
                draw(st.lists(st.sampled_from(layers), max_size=3)) if layers else [],
                name=name,
                weights=draw(st.lists(st.sampled_from(weights), max_size=2)) if weights else [],
                device=draw(st.sampled_from([None, "CPU", "GPU"])),
                datatype=draw(st.none() | st.sampled_from(g.DataType)),
                grid_tag=draw(st.none() | st.integers(0, 3)),
                hint_layer=draw(st.none() | st.sampled_from(layers)) if layers else None,
                parallel_strategy=draw(st.none() | st.just({"height_groups": 2, "grid_tag": 0})),
                **fields,
            )
        )
    terms = draw(
        st.lists(
            st.sampled_from(layers).flatmap(lambda layer: numbers.map(lambda scale: g.LayerTerm(layer, scale))),
            max_size=2,
        )
    )
    rules = draw(st.lists(st.sampled_from(["bias", "norm", "dims<=1", "*.head.*"]), max_size=2))
    regularization = [g.L2WeightRegularization(weights, draw(numbers), rules)] if draw(st.booleans()) else []
    return g.Model(
        draw(st.integers(0, 9)),
        layers,
        weights=weights,
        objective_function=[*terms, *regularization] if draw(st.booleans()) else None,
        metrics=[
            g.Metric(layer, name=f"m{i}", unit="%")
            for i, layer in enumerate(draw(st.lists(st.sampled_from(layers), max_size=2)))
        ],
        name=draw(names),
        summary_dir=draw(st.sampled_from([None, "runs"])),
        amp=draw(st.none() | st.just({"enabled": True})),
    )
