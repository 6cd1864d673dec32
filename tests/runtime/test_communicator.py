"""One rank answers at once; of several, what they find out about each other is made here by a fake group."""

import pytest
import torch

from descend.errors import ConfigurationError, DataError, LostPeer, StorageError
from descend.runtime import Communicator
from descend.runtime.communicator import RankStatus, _hash


def test_a_single_rank_gets_back_what_it_gives():
    one, x = Communicator(), torch.arange(3.0)
    assert one.is_rank_zero
    assert one.all_reduce(x) is x
    assert one.all_gather_cat(x) is x
    assert one.all_gather_object({"a": 1}) == [{"a": 1}]
    one.broadcast(0, [x])
    assert x.tolist() == [0.0, 1.0, 2.0]
    found = one.synchronize("here", asks=True, values=torch.tensor([2.0], dtype=torch.float64))
    assert found.stop_requested
    assert found.sums.tolist() == [2.0]
    assert not one.synchronize("there").stop_requested
    one.require_equal({"a": 1}, "settings")


def test_an_array_becomes_a_tensor_in_the_same_memory():
    x = torch.zeros(2)
    given = Communicator().to_device({"array": x.numpy(), "tensor": x})
    assert given["array"].data_ptr() == x.data_ptr()
    assert given["tensor"] is x


def test_rank_zero_is_busy_while_it_acts_for_all():
    one = Communicator()
    assert one.on_rank_zero(lambda: one.status.is_busy) is True
    assert not one.status.is_busy
    with pytest.raises(KeyError):
        one.on_rank_zero(lambda: {}["a"])
    assert not one.status.is_busy


class Other(Communicator):
    """Rank `rank` of two, where the other one has sent `said`, by turns."""

    def __init__(self, rank, *said):
        super().__init__(rank, 2)
        object.__setattr__(self, "said", list(said))

    def all_gather_object(self, value):
        other = self.said.pop(0)
        return [value, other] if self.rank == 0 else [other, value]


def test_what_rank_zero_returns_reaches_the_others_which_do_not_act():
    assert Other(0, {}).on_rank_zero(lambda: 3) == 3
    assert Other(1, {"value": 3}).on_rank_zero(lambda: pytest.fail("called on rank 1")) == 3


def test_an_error_of_rank_zero_is_raised_on_all_ranks_by_its_class():
    def fail():
        raise StorageError(["a", "b"])

    with pytest.raises(StorageError, match="a"):
        Other(0, {}).on_rank_zero(fail)
    with pytest.raises(StorageError) as caught:
        Other(1, {"error": "StorageError", "problems": ["a", "b"]}).on_rank_zero(fail)
    assert list(caught.value.problems) == ["a", "b"]
    with pytest.raises(LostPeer, match="rank 0 failed: KeyError"):
        Other(1, {"error": "KeyError", "problems": ["KeyError('x')"]}).on_rank_zero(fail)


def test_values_that_differ_are_listed_by_rank():
    own, other = {"seed": 1, "lr": 0.1}, {"seed": "2", "lr": "0.1"}
    ranks = Other(0, -1, other)
    with pytest.raises(ConfigurationError) as caught:
        ranks.require_equal(own, "settings")
    first, *rows = caught.value.problems
    assert first == "settings differ between ranks; make them equal:"
    assert [row.strip() for row in rows] == ["seed: 1 on rank 0; 2 on rank 1"]


def test_of_many_values_that_differ_six_are_shown_and_the_rest_is_counted():
    own = {f"s{i}": i for i in range(9)}
    with pytest.raises(ConfigurationError) as caught:
        Other(0, -1, {}).require_equal(own, "settings")
    assert len(caught.value.problems) == 8
    assert "s0: 0 on rank 0; not there on rank 1" in caught.value.problems[1]
    assert "and 3 more" in caught.value.problems[-1]


def test_equal_hashes_are_enough():
    import json

    facts = {"seed": 1}
    own = json.dumps({"seed": "1"}, sort_keys=True)
    Other(0, _hash(own)).require_equal(facts, "settings")


class Summed(Other):
    """The other rank adds its numbers to an all-reduce."""

    def all_reduce(self, tensor):
        return tensor + self.said.pop(0)


def test_ranks_at_one_place_sum_their_values_and_share_a_clock_and_a_wish():
    sent = torch.tensor([7.0, _hash("step 3"), 1.0, 10.0, 20.0], dtype=torch.float64)
    rank = Summed(1, sent)
    found = rank.synchronize("step 3", values=torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert found.stop_requested
    assert found.sums.tolist() == [11.0, 22.0]
    assert rank.now() == rank.status.clock == 7.0
    assert rank.status.last_sync == "step 3"


def test_ranks_at_different_places_find_out():
    sent = torch.tensor([7.0, _hash("step 4"), 0.0, 0.0], dtype=torch.float64)
    with pytest.raises(DataError, match="different places: step 3 on rank 0; step 4 on rank 1"):
        Summed(0, sent, "step 4").synchronize("step 3", room=1)


def test_hashes_of_many_ranks_sum_exactly_in_float64():
    assert all(0 <= _hash(text) < 2**40 for text in ("", "a", "step 3"))
    assert 8192 * (2**40 - 1) <= 2**53


def test_a_wait_is_noted_and_an_error_of_torch_within_it_names_it():
    status = RankStatus()
    with status.wait("an all-reduce"):
        assert (status.waiting, status.waits) == ("an all-reduce", 1)
    assert status.waiting is None
    with (
        pytest.raises(LostPeer, match="ended while this one waited for a broadcast: Connection closed"),
        status.wait("a broadcast"),
    ):
        raise RuntimeError("Connection closed\nand a stack")
    assert (status.waiting, status.waits) == (None, 2)


def test_patience_and_being_busy_end_with_their_blocks():
    status = RankStatus()
    with status.waiting_patiently(), status.busy():
        with status.busy():
            pass
        assert (status.patient, status.is_busy) == (True, True)
    assert (status.patient, status.is_busy) == (False, False)


def test_collectives_of_a_real_group_of_one_rank(tmp_path):
    """With a world size of 1 in torch, which a launcher may make, nothing is sent."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        current = Communicator.current(torch.device("cpu"))
        assert (current.rank, current.world_size) == (0, 1)
        parts = current.all_gather(torch.tensor([[1.0], [2.0]]))
        assert [part.tolist() for part in parts] == [[[1.0], [2.0]]]
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("backends", "device"), [("cpu:gloo,cuda:nccl", "cpu"), ("cuda:nccl", "cuda:0")])
def test_agreements_stay_on_the_host_where_the_group_can(backends, device, monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda group: backends)
    assert Communicator(0, 2, torch.device("cuda:0")).agreements == torch.device(device)
    assert Communicator(0, 2).agreements == torch.device("cpu")


def test_a_group_of_two_backends_says_so(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert "cpu" in torch.distributed.get_backend_config(None)
    finally:
        torch.distributed.destroy_process_group()
