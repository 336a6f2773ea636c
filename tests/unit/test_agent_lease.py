"""Leases: one writer per GPU, epochs that only grow, an end in time. Time is a number here."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.lease import SHARE, LeaseHeld, LeaseLost, Leases
from core.errors import BadRequest, Conflict

GPUS = ("a", "b", "c", "d")


def leases(longest_s: float = 5.0) -> Leases:
    return Leases(GPUS, longest_s, first_epoch=100)


def test_a_gpu_has_one_writer() -> None:
    held = leases()
    first = held.acquire(0.0, "one", ["a", "b"])
    with pytest.raises(LeaseHeld, match="'one' writes to b") as refused:
        held.acquire(1.0, "two", ["b", "c"])
    assert refused.value.retry_after_s == pytest.approx(3.5)
    other = held.acquire(1.0, "two", ["c"])
    assert other.epoch > first.epoch
    with pytest.raises(LeaseLost):
        held.check(1.0, other.epoch, ["a"])


def test_the_same_name_is_another_writer() -> None:
    held = leases()
    held.acquire(0.0, "gateway", ["a"])
    with pytest.raises(LeaseHeld):
        held.acquire(0.0, "gateway", ["a"])


def test_a_lease_ends_a_tenth_early_unless_renewed() -> None:
    held = leases()
    lease = held.acquire(0.0, "one", ["a"])
    assert held.expire(4.49) == frozenset()
    held.renew(4.49, lease.epoch)
    assert held.expire(4.49 + 4.49) == frozenset()
    assert held.expire(4.49 + 4.5) == {"a"}
    assert held.held == ()


def test_an_ended_lease_writes_and_renews_no_more_even_before_it_is_taken_out() -> None:
    held = leases()
    lease = held.acquire(0.0, "one", ["a"])
    assert held.allows(4.4, lease.epoch) and not held.allows(4.5, lease.epoch)
    for call in (lambda: held.check(4.5, lease.epoch, ["a"]), lambda: held.renew(4.5, lease.epoch)):
        with pytest.raises(LeaseLost):
            call()


def test_the_former_holder_is_fenced() -> None:
    held = leases()
    old = held.acquire(0.0, "one", ["a"])
    held.expire(10.0)
    new = held.acquire(10.0, "two", ["a"])
    assert new.epoch > old.epoch
    with pytest.raises(LeaseLost):
        held.check(10.0, old.epoch, ["a"])
    assert held.release(old.epoch) == frozenset()
    assert held.check(10.0, new.epoch, ["a"]) == new


def test_a_released_or_revoked_lease_names_what_to_undo() -> None:
    held = leases()
    one, two = held.acquire(0.0, "one", ["a", "b"]), held.acquire(0.0, "two", ["c"])
    assert held.release(one.epoch) == {"a", "b"}
    assert held.release(one.epoch) == frozenset()
    assert held.revoke() == {"c"}
    with pytest.raises(LeaseLost):
        held.renew(0.0, two.epoch)


@pytest.mark.parametrize(
    ("uuids", "lease_s"), [(["z"], None), ([], None), (["a"], 6.0), (["a"], 0.0), (["a"], -1.0), (["a"], float("nan"))]
)
def test_what_cannot_be_leased_is_bad_input(uuids: list[str], lease_s: float | None) -> None:
    with pytest.raises(BadRequest):
        leases().acquire(0.0, "one", uuids, lease_s)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "renew", "release", "expire", "write"]),
        st.integers(0, 3),
        st.sets(st.sampled_from(GPUS), min_size=1),
        st.floats(0.0, 3.0),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_no_story_gives_a_gpu_two_writers_or_lets_a_clock_outlive_its_lease(steps: list) -> None:
    """Three clients act on what they remember. `clocks` is who set a GPU's clock last, and it is undone as told."""
    held, now_s, clients, clocks, epochs = leases(2.0), 0.0, {}, {}, []
    renewed = {}

    def undo(uuids: frozenset[str]) -> None:
        for uuid in uuids:
            clocks.pop(uuid, None)

    for kind, client, uuids, pause_s in steps:
        now_s += pause_s
        undo(held.expire(now_s))
        epoch = clients.get(client, 0)
        try:
            if kind == "acquire":
                lease = held.acquire(now_s, str(client), uuids)
                assert not epochs or lease.epoch > max(epochs)
                epochs.append(lease.epoch)
                clients[client], renewed[lease.epoch] = lease.epoch, now_s
            elif kind == "renew":
                held.renew(now_s, epoch)
                renewed[epoch] = now_s
            elif kind == "release":
                undo(held.release(epoch))
            elif kind == "write":
                held.check(now_s, epoch, uuids)
                clocks.update(dict.fromkeys(uuids, epoch))
        except Conflict:
            pass
        owners = [uuid for lease in held.held for uuid in lease.uuids]
        assert len(owners) == len(set(owners))
        assert all(now_s - renewed[epoch] < 2.0 * SHARE for epoch in clocks.values())
