"""Who keeps the optimizer's state of which weights."""

from hypothesis import given
from hypothesis import strategies as st

from descend.train.strategies.zero import partition_parameters


@given(sizes=st.lists(st.integers(0, 1000), max_size=30), ranks=st.integers(1, 8))
def test_every_weights_object_has_one_owner_and_no_rank_holds_much_more_than_another(sizes, ranks):
    named = {f"w{i}": size for i, size in enumerate(sizes)}
    found = partition_parameters(named, ranks)
    assert found.keys() == named.keys()
    held = [sum(named[name] for name, rank in found.items() if rank == r) for r in range(ranks)]
    assert max(held) - min(held) <= max(sizes, default=0)


def test_the_owners_do_not_depend_on_the_order_of_the_weights():
    sizes = {"a": 3, "b": 5, "c": 5, "d": 1}
    assert partition_parameters(sizes, 2) == partition_parameters(dict(reversed(sizes.items())), 2)
