"""The order in which replicas are read, the time of a hedge, and what the responses prove."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.metadata import Fragment
from ledger.core.reading import (
    FAILURE_MEMORY_S,
    FAILURES_MAX,
    Failed,
    HedgeDelayElapsed,
    LacRead,
    ReadReplica,
    ReplicaAnswered,
    ReplicaOrder,
    ReplicaRead,
    Wait,
    good_prefix,
    lac_of,
    span_end,
)
from ledger.errors import (
    BookieIoError,
    BookieUnavailable,
    DigestMismatch,
    LedgerError,
    NoSuchEntry,
    NoSuchLedger,
    NotEnoughBookies,
    UnknownLedgerState,
)
from tests.ledger.core.simulated_recovery import DIGEST, LEDGER, make_body, make_metadata

BOOKIES = ("b0", "b1", "b2")


def read(hedges_max: int = 2) -> ReplicaRead[int]:
    return ReplicaRead("entry 4 of ledger 7", BOOKIES, 0.5, hedges_max=hedges_max)


class TestReplicaRead:
    def test_one_replica_is_asked_first_with_a_timer(self) -> None:
        assert read().start() == [ReadReplica("b0"), Wait(0.5)]

    def test_a_failure_moves_to_the_next_replica_at_once(self) -> None:
        machine = read()
        machine.start()
        assert machine.handle(Failed("b0", BookieUnavailable("gone"))) == [ReadReplica("b1")]

    def test_a_slow_replica_adds_one_more_request(self) -> None:
        machine = read()
        machine.start()
        assert machine.handle(HedgeDelayElapsed()) == [ReadReplica("b1"), Wait(0.5)]
        assert machine.handle(HedgeDelayElapsed()) == [ReadReplica("b2")]
        machine.handle(ReplicaAnswered("b2", 1))
        assert machine.finished
        assert machine.result == ReplicaAnswered("b2", 1)
        assert machine.slow == ["b0", "b1"]

    def test_hedges_are_bounded(self) -> None:
        machine = read(hedges_max=1)
        machine.start()
        assert machine.handle(HedgeDelayElapsed()) == [ReadReplica("b1")]

    def test_a_failure_waits_for_a_hedge_in_flight(self) -> None:
        machine = read()
        machine.start()
        machine.handle(HedgeDelayElapsed())
        assert machine.handle(Failed("b0", BookieUnavailable("gone"))) == []
        assert machine.handle(Failed("b1", BookieUnavailable("gone"))) == [ReadReplica("b2")]

    def test_an_entry_is_absent_only_if_all_replicas_say_so(self) -> None:
        kinds: list[type[LedgerError]] = [
            NoSuchEntry,
            NoSuchLedger,
            UnknownLedgerState,
            BookieIoError,
            DigestMismatch,
        ]
        for errors in product(kinds, repeat=3):
            machine = read()
            machine.start()
            for bookie, error in zip(BOOKIES, errors, strict=True):
                assert not machine.finished
                machine.handle(Failed(bookie, error("said so")))
            with pytest.raises(LedgerError) as caught:
                _ = machine.result
            is_absent = all(e in (NoSuchEntry, NoSuchLedger) for e in errors)
            assert isinstance(caught.value, NoSuchEntry | NoSuchLedger) == is_absent
            if UnknownLedgerState in errors or BookieIoError in errors:
                assert caught.value.retry_is_safe

    @given(st.lists(st.sampled_from(["fail", "pass", "got"]), max_size=30))
    def test_every_replica_is_asked_once_before_it_gives_up(self, steps: list[str]) -> None:
        machine = read()
        asked: list[str] = []
        open_: list[str] = []
        clocks = 0

        def take(actions: list[ReadReplica | Wait]) -> None:
            nonlocal clocks
            for action in actions:
                if isinstance(action, ReadReplica):
                    asked.append(action.bookie)
                    open_.append(action.bookie)
                else:
                    clocks += 1

        take(machine.start())
        for step in [*steps, *["fail"] * 3]:
            if machine.finished:
                break
            if step == "pass" and clocks:
                clocks -= 1
                take(machine.handle(HedgeDelayElapsed()))
            elif step == "fail" and open_:
                take(machine.handle(Failed(open_.pop(0), BookieIoError("disk"))))
            elif step == "got" and open_:
                machine.handle(ReplicaAnswered(open_.pop(), 1))
            assert clocks <= 1
        assert machine.finished
        assert len(asked) == len(dict.fromkeys(asked))
        if "got" not in steps:
            assert asked == list(BOOKIES)


class TestOrder:
    def test_the_order_is_sticky_if_all_hold_everything(self) -> None:
        order = ReplicaOrder(1)
        metadata = make_metadata()
        assert {order.order(metadata, e, 0.0) for e in range(9)} == {("b1", "b2", "b0")}

    def test_the_order_spreads_readers(self) -> None:
        metadata = make_metadata()
        firsts = {ReplicaOrder(r).order(metadata, 0, 0.0)[0] for r in range(3)}
        assert firsts == {"b0", "b1", "b2"}

    def test_only_replicas_that_hold_the_entry_are_asked(self) -> None:
        metadata = make_metadata(5, 3, 2)
        for rotation, entry_id in product(range(4), range(7)):
            found = ReplicaOrder(rotation).order(metadata, entry_id, 0.0)
            assert set(found) == {f"b{(entry_id + w) % 5}" for w in range(3)}

    def test_failed_replicas_come_last_until_forgotten(self) -> None:
        order = ReplicaOrder(0)
        metadata = make_metadata()
        order.failed("b0", 10.0)
        order.failed("b1", 11.0)
        assert order.order(metadata, 0, 12.0) == ("b2", "b0", "b1")
        assert order.order(metadata, 0, 10.5 + FAILURE_MEMORY_S) == ("b0", "b2", "b1")
        order.served("b1")
        assert order.order(metadata, 0, 11.0) == ("b0", "b1", "b2")

    def test_memory_is_bounded(self) -> None:
        order = ReplicaOrder(0)
        for number in range(2 * FAILURES_MAX):
            order.failed(f"x{number}", 0.0)
        assert len(order._failed_s) == FAILURES_MAX


class TestLac:
    def test_the_lac_is_covered_by_two_of_three(self) -> None:
        machine = LacRead(make_metadata())
        assert machine.start() == [ReadReplica("b0"), ReadReplica("b1"), ReadReplica("b2")]
        machine.handle(ReplicaAnswered("b0", 4))
        with pytest.raises(NotEnoughBookies):
            _ = machine.result
        machine.handle(ReplicaAnswered("b2", 6))
        assert machine.finished
        assert machine.result == 6

    def test_holding_nothing_is_an_answer_and_an_unknown_state_is_not(self) -> None:
        machine = LacRead(make_metadata())
        machine.handle(Failed("b0", NoSuchLedger("never seen")))
        machine.handle(Failed("b1", UnknownLedgerState("limbo")))
        assert not machine.finished
        machine.handle(Failed("b2", NoSuchEntry("none")))
        assert machine.result == -1

    def test_the_lac_is_not_covered_if_too_many_are_silent(self) -> None:
        machine = LacRead(make_metadata())
        machine.handle(ReplicaAnswered("b0", 4))
        for bookie in ("b1", "b2"):
            machine.handle(Failed(bookie, BookieUnavailable("down")))
        assert machine.finished
        with pytest.raises(NotEnoughBookies, match="b1: down"):
            _ = machine.result

    def test_a_fragment_begins_after_the_confirmed_entries(self) -> None:
        fragments = (Fragment(0, BOOKIES), Fragment(9, ("b3", "b1", "b2")))
        machine = LacRead(make_metadata(fragments=fragments))
        machine.handle(Failed("b3", NoSuchLedger("new here")))
        machine.handle(ReplicaAnswered("b1", 3))
        assert machine.result == 8

    def test_the_lac_of_a_bookie_is_the_greater_of_explicit_and_carried(self) -> None:
        packet = DIGEST.encode_lac(LEDGER, 5)
        assert lac_of(DIGEST, LEDGER, packet, make_body(5, 4)) == (5, 5)
        assert lac_of(DIGEST, LEDGER, packet, make_body(9, 8)) == (8, 9)
        assert lac_of(DIGEST, LEDGER, None, None) == (-1, -1)
        with pytest.raises(DigestMismatch):
            lac_of(DIGEST, LEDGER, packet[:-1] + b"x", None)


class TestSpans:
    @given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 50))
    def test_spans_never_cross_a_fragment_and_always_advance(
        self, a: int, b: int, most: int
    ) -> None:
        fragments = tuple(Fragment(f, BOOKIES) for f in (0, 7, 8, 30))
        metadata = make_metadata(fragments=fragments)
        first, last = min(a, b), max(a, b)
        end = span_end(metadata, first, last, most)
        assert first <= end <= min(last, first + most - 1)
        assert metadata.fragment_of(first) == metadata.fragment_of(end)

    def test_striped_ledgers_have_spans_of_one(self) -> None:
        assert span_end(make_metadata(4, 2, 2), 3, 90, 50) == 3

    def test_the_good_part_of_a_batch_is_kept(self) -> None:
        bodies = [make_body(e, e - 1) for e in range(3, 8)]
        assert good_prefix(DIGEST, LEDGER, 3, bodies) == (5, None)
        bodies[2] = bodies[2][:-1] + b"x"
        count, error = good_prefix(DIGEST, LEDGER, 3, bodies)
        assert count == 2
        assert isinstance(error, DigestMismatch)
