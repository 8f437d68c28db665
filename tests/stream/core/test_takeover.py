"""Takeovers and rolls as scenarios: the actions of the state machine after each result."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.errors import MetadataConflict, NoSuchLedger
from stream.core.metadata.streams import SegmentEnd, StreamMetadata
from stream.core.takeover import (
    EndLedger,
    Event,
    LedgerEnded,
    LedgerGone,
    LedgerMade,
    MakeLedger,
    ReadStream,
    StoreConflicted,
    StoreStream,
    StoreUnknown,
    StreamRead,
    StreamStored,
    Takeover,
)
from stream.core.trash import tombstone
from stream.errors import EpochMismatch, NoSuchStream, TakenOver

NEW = StreamMetadata(name="s", created_ms=0)
OPEN = NEW.taken_over().begun(1, 70, 0)
TEN = SegmentEnd(4, 10, 1000, 1, 2)
NOTHING = SegmentEnd(-1, 0, 0)


def actions_of(machine: Takeover, *events: Event) -> list[object]:
    """Returns the actions of a machine that receives these events."""
    actions: list[object] = list(machine.start())
    for event in events:
        actions += machine.handle(event)
    return actions


def test_takeover_of_a_new_stream() -> None:
    machine = Takeover("s", 50)
    epoch_1 = NEW.taken_over()
    assert actions_of(
        machine, StreamRead(NEW, 0), StreamStored(1), LedgerMade(7), StreamStored(2)
    ) == [
        ReadStream(),
        StoreStream(epoch_1, 0),
        MakeLedger(None),
        StoreStream(epoch_1.begun(1, 7, 50), 1),
    ]
    assert (machine.result.epoch, machine.version) == (1, 2)


def test_takeover_moves_the_epoch_before_it_fences() -> None:
    """Otherwise the old writer, fenced, could still roll at its own epoch."""
    machine = Takeover("s", 50)
    epoch_2 = OPEN.taken_over()
    assert actions_of(
        machine,
        StreamRead(OPEN, 3),
        StreamStored(4),
        LedgerEnded(TEN),
        LedgerMade(71),
        StreamStored(5),
    ) == [
        ReadStream(),
        StoreStream(epoch_2, 3),
        EndLedger(70, 0, is_recovery=True),
        MakeLedger(None),
        StoreStream(epoch_2.sealed(2, TEN, 50).begun(2, 71, 50), 4),
    ]
    assert [s.number for s in machine.result.segments] == [1, 2]


def test_takeover_is_retried_when_another_writer_raised_the_epoch_first() -> None:
    machine = Takeover("s", 50)
    other = OPEN.taken_over()
    actions = actions_of(machine, StreamRead(OPEN, 3), StoreConflicted(), StreamRead(other, 4))
    assert actions[-1] == StoreStream(other.taken_over(), 4)
    assert machine.handle(StreamStored(5)) == (EndLedger(70, 0, is_recovery=True),)
    assert machine.epoch == 3


def test_the_slower_of_two_takeovers_fails() -> None:
    machine = Takeover("s", 50)
    actions_of(machine, StreamRead(OPEN, 3), StreamStored(4), LedgerEnded(TEN), LedgerMade(71))
    assert machine.handle(StoreConflicted()) == (ReadStream(),)
    assert machine.handle(StreamRead(OPEN.taken_over().taken_over(), 5)) == ()
    assert machine.finished
    with pytest.raises(TakenOver, match="epoch 3; this writer held epoch 2"):
        _ = machine.result


def test_a_change_by_the_janitor_in_between_is_kept() -> None:
    full = OPEN.sealed(1, TEN, 0).begun(1, 71, 0)
    machine = Takeover("s", 50, epoch=1, stream=full, version=3, is_recovery=False)
    actions_of(machine, LedgerEnded(TEN), LedgerMade(72), StoreConflicted())
    truncated = full.truncated(full.segments[0].end, 0)
    actions = machine.handle(StreamRead(truncated, 4))
    assert actions == (StoreStream(truncated.sealed(1, TEN, 50).begun(1, 72, 50), 4),)


def test_roll_takes_the_prepared_ledger() -> None:
    stream = OPEN.with_prepared(1, 71)
    machine = Takeover("s", 50, epoch=1, stream=stream, version=3, is_recovery=False)
    assert actions_of(machine, LedgerEnded(TEN), LedgerMade(71), StreamStored(4)) == [
        EndLedger(70, 0, is_recovery=False),
        MakeLedger(71),
        StoreStream(stream.sealed(1, TEN, 50).begun(1, 71, 50), 3),
    ]
    assert machine.result.prepared is None


def test_a_change_of_unknown_outcome_is_looked_up_and_not_repeated() -> None:
    machine = Takeover("s", 50, epoch=1, stream=OPEN, version=3)
    actions = actions_of(machine, LedgerEnded(TEN), LedgerMade(71), StoreUnknown())
    assert actions[-1] == ReadStream()
    store = actions[-2]
    assert isinstance(store, StoreStream)
    assert machine.handle(StreamRead(store.stream, 4)) == ()
    assert machine.result == store.stream


def test_a_change_of_unknown_outcome_that_was_not_stored_is_retried() -> None:
    machine = Takeover("s", 50, epoch=1, stream=OPEN, version=3)
    actions = actions_of(machine, LedgerEnded(NOTHING), LedgerMade(71), StoreUnknown())
    assert machine.handle(StreamRead(OPEN, 3)) == (actions[-2],)


def test_an_earlier_change_that_is_stored_late_is_built_upon() -> None:
    """A roll to ledger 71 stayed unknown; it is stored while ledger 72 is being made."""
    late = OPEN.sealed(1, TEN, 40).begun(1, 71, 40)
    machine = Takeover("s", 50, epoch=1, stream=OPEN, version=3)
    actions_of(machine, LedgerEnded(TEN), LedgerMade(72), StoreConflicted())
    assert machine.handle(StreamRead(late, 4)) == (EndLedger(71, 10, is_recovery=True),)
    assert machine.handle(LedgerEnded(NOTHING)) == (MakeLedger(None),)
    assert machine.handle(LedgerMade(72)) == (
        StoreStream(late.sealed(1, NOTHING, 50).begun(1, 72, 50), 4),
    )
    assert machine.handle(StreamStored(5)) == ()
    assert [s.ledger_id for s in machine.result.segments] == [70, 72]


def test_sealing_begins_no_segment() -> None:
    machine = Takeover("s", 50, epoch=1, stream=OPEN, version=3, begins_next=False)
    actions = actions_of(machine, LedgerEnded(TEN), StreamStored(4))
    assert actions[-1] == StoreStream(OPEN.sealed(1, TEN, 50), 3)
    assert machine.result.open_segment is None


def test_a_takeover_at_an_epoch_does_not_go_past_it() -> None:
    machine = Takeover("s", 50, if_epoch=1)
    janitor = OPEN.truncated(OPEN.sealed_end, 40)
    # A change by the janitor in between does not change the epoch.
    actions = actions_of(machine, StreamRead(OPEN, 3), StoreConflicted(), StreamRead(janitor, 4))
    assert actions[-1] == StoreStream(janitor.taken_over(), 4)
    assert machine.handle(StoreConflicted()) == (ReadStream(),)
    assert machine.handle(StreamRead(OPEN.taken_over(), 5)) == ()
    with pytest.raises(EpochMismatch, match="at epoch 2, it was to be taken over only at epoch 1"):
        _ = machine.result


def test_a_takeover_at_an_epoch_whose_outcome_is_unknown_is_not_taken_for_ours() -> None:
    """The change of another writer could look the same, and then two writers would continue."""
    machine = Takeover("s", 50, if_epoch=1)
    actions_of(machine, StreamRead(OPEN, 3), StoreUnknown())
    assert machine.handle(StreamRead(OPEN.taken_over(), 4)) == ()
    with pytest.raises(EpochMismatch):
        _ = machine.result


def test_a_deleted_stream_is_not_taken_over() -> None:
    machine = Takeover("s", 50)
    assert actions_of(machine, StreamRead(tombstone(OPEN, 0), 3)) == [ReadStream()]
    with pytest.raises(NoSuchStream):
        _ = machine.result


def test_an_unexpected_event_is_a_bug_with_a_transcript() -> None:
    machine = Takeover("s", 50)
    machine.start()
    with pytest.raises(AssertionError, match="ReadStream"):
        machine.handle(StreamStored(1))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=200), st.lists(st.integers(0, 2)))
def test_only_one_of_several_writers_writes_at_an_epoch(
    turns: list[int], unknown_outcomes: list[int]
) -> None:
    """Three state machines take turns with one store that sometimes does not respond.

    Segments stay contiguous, and each segment is begun by the holder of a new epoch.
    """
    stored, version, ledger = NEW, 0, 0
    begun_by: dict[int, int] = {}
    machines: dict[int, Takeover] = {}
    waiting: dict[int, tuple[object, ...]] = {}
    for turn in turns:
        if turn not in machines or machines[turn].finished:
            machines[turn] = Takeover("s", 0)
            waiting[turn] = machines[turn].start()
            continue
        machine, (action,) = machines[turn], waiting[turn]
        event: Event
        match action:
            case ReadStream():
                event = StreamRead(stored, version)
            case StoreStream(wanted, at):
                outcome_unknown = unknown_outcomes.pop() if unknown_outcomes else 0
                event = StoreConflicted()
                if at == version and outcome_unknown != 1:
                    before, stored, version = stored, wanted, version + 1
                    event = StreamStored(version)
                    if stored.open_segment not in (None, before.open_segment):
                        assert stored.epoch not in begun_by, "one takeover began two segments"
                        begun_by[stored.epoch] = turn
                if outcome_unknown:
                    event = StoreUnknown()
            case EndLedger(ended):
                event = LedgerEnded(TEN if ended % 2 else NOTHING)
            case MakeLedger():
                ledger += 1
                event = LedgerMade(ledger)
        try:
            waiting[turn] = machine.handle(event)
        except MetadataConflict:
            raise AssertionError(machine.history()) from None
        if machine.finished and machine.failure is None:
            assert machine.result.epoch == machine.epoch


def test_a_ledger_that_is_gone_means_another_took_over_if_the_epoch_says_so() -> None:
    """The other writer found it empty and deleted it. Seed 1035 of the simulator found this."""
    machine = Takeover("s", 50)
    actions_of(machine, StreamRead(OPEN, 3), StreamStored(4))
    assert machine.handle(LedgerGone(NoSuchLedger("ledger 70"))) == (ReadStream(),)
    assert machine.handle(StreamRead(OPEN.taken_over().taken_over(), 5)) == ()
    with pytest.raises(TakenOver):
        _ = machine.result


def test_a_ledger_that_is_gone_from_under_the_stream_is_an_error() -> None:
    machine = Takeover("s", 50)
    actions_of(machine, StreamRead(OPEN, 3), StreamStored(4))
    machine.handle(LedgerGone(NoSuchLedger("ledger 70")))
    assert machine.handle(StreamRead(OPEN.taken_over(), 4)) == ()
    with pytest.raises(NoSuchLedger, match="70"):
        _ = machine.result
