"""Recovery step by step: one test for each known cause of a wrong end of a ledger."""

from __future__ import annotations

import random

import pytest

from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.core.recovery import ATTEMPTS_MAX, Phase, RecoveryCore
from ledger.core.recovery_events import (
    Action,
    AddEntry,
    Answered,
    BookieChosen,
    LedgerConflicted,
    LedgerStored,
    NoAnswer,
    ReadEntry,
    ReadLast,
    ReplaceBookie,
    StoreClosed,
)
from ledger.errors import MetadataConflict, RecoveryIncomplete, Status, Unauthorized
from tests.ledger.core.simulated_recovery import (
    DIGEST,
    LEDGER,
    Recoverer,
    SimulatedRecovery,
    make_body,
    make_metadata,
)


def start(metadata: LedgerMetadata | None = None, window: int = 1) -> RecoveryCore:
    return RecoveryCore(metadata or make_metadata(), DIGEST, window_entries=window)


def fence(core: RecoveryCore, answers: dict[str, bytes | Status | None]) -> list[Action]:
    """Answers the fencing reads in order; None stands for no response."""
    actions: list[Action] = []
    for action in core.start():
        assert isinstance(action, ReadLast)
        if core.finished or core.phase is not Phase.FENCING or action.bookie not in answers:
            continue
        actions += core.handle(answer(action, answers[action.bookie]))
    return actions


def answer(action: Action, what: bytes | Status | None) -> Answered | NoAnswer:
    assert isinstance(action, ReadLast | ReadEntry | AddEntry)
    if what is None:
        return NoAnswer(action, "no answer in 5 s")
    if isinstance(what, bytes):
        return Answered(action, Status.OK, what)
    return Answered(action, what)


def reads(actions: list[Action]) -> list[tuple[str, int]]:
    return [(a.bookie, a.entry_id) for a in actions if isinstance(a, ReadEntry)]


NO = Status.NO_SUCH_ENTRY
UNKNOWN = Status.UNKNOWN_LEDGER_STATE


class TestFencing:
    def test_all_bookies_of_the_last_ensemble_are_asked(self) -> None:
        fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(5, ("b0", "b1", "b3")))
        core = start(make_metadata(fragments=fragments))
        assert [a.bookie for a in core.start() if isinstance(a, ReadLast)] == ["b0", "b1", "b3"]

    def test_one_silent_of_three_is_enough_when_two_must_ack(self) -> None:
        core = start()
        actions = fence(core, {"b0": NO, "b1": NO})
        assert core.phase is Phase.READING
        assert reads(actions) == [("b0", 0)]

    @pytest.mark.parametrize(
        "doubt", [None, UNKNOWN, Status.IO_ERROR, Status.BAD_REQUEST, b"garbage"]
    )
    def test_two_unknown_answers_of_three_are_too_many(self, doubt: bytes | Status | None) -> None:
        core = start()
        fence(core, {"b0": NO, "b1": doubt, "b2": doubt})
        with pytest.raises(RecoveryIncomplete, match="1 of 3 answered") as caught:
            _ = core.result
        assert "stays in recovery" in str(caught.value)

    def test_a_wrong_key_is_a_clear_error(self) -> None:
        core = start()
        fence(core, dict.fromkeys(["b0", "b1", "b2"], Status.UNAUTHORIZED))
        with pytest.raises(Unauthorized):
            _ = core.result

    def test_striped_coverage_counts_neighbours(self) -> None:
        # With E=5, WQ=3 and AQ=2 two silent neighbours could confirm an entry alone.
        core = start(make_metadata(5, 3, 2))
        fence(core, {"b0": NO, "b1": NO, "b2": NO, "b3": None, "b4": None})
        assert core.finished
        core = start(make_metadata(5, 3, 2))
        fence(core, {"b0": NO, "b1": None, "b2": NO, "b3": NO})
        assert core.phase is Phase.FENCING  # b4 and b1 are two of the write set of entry 4
        core = start(make_metadata(5, 3, 2))
        fence(core, {"b0": NO, "b1": NO, "b2": NO, "b3": NO})
        assert core.phase is Phase.READING

    def test_reading_begins_after_the_greatest_lac_that_is_shown(self) -> None:
        core = start()
        (check,) = fence(core, {"b0": make_body(5, 3), "b1": make_body(6, 4)})
        # b1 claims entry 4 alone, so another bookie is asked for it.
        assert core.phase is Phase.CHECKING
        assert reads([check]) == [("b0", 4)]
        probes = core.handle(answer(check, make_body(4, 3)))
        assert {entry_id for _, entry_id in reads(probes)} <= {0, 1, 2, 3}
        assert len(probes) == 3  # at distances of 1, of 2 or 3, and of 4
        actions: list[Action] = []
        for probe in probes:
            assert isinstance(probe, ReadEntry)
            actions += core.handle(answer(probe, make_body(probe.entry_id, -1)))
        assert reads(actions) == [("b0", 5)]  # b2 has not answered yet, so it is read last

    def test_reading_never_begins_before_the_last_fragment(self) -> None:
        """Recovery must store no ensemble before the current fragment (BookKeeper issue 2615)."""
        fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(8, ("b0", "b1", "b3")))
        core = start(make_metadata(fragments=fragments))
        actions = fence(core, {"b0": make_body(7, 2), "b1": make_body(7, 2)})
        assert [entry_id for _, entry_id in reads(actions)] == [8]
        # b0 returns entry 8 but no longer accepts it: the new ensemble replaces fragment 8.
        actions = core.handle(answer(actions[0], make_body(8, 7)))
        adds = [a for a in actions if isinstance(a, AddEntry)]
        (to_b0,) = [a for a in adds if a.bookie == "b0"]
        actions = core.handle(answer(to_b0, Status.IO_ERROR))
        (replace,) = [a for a in actions if isinstance(a, ReplaceBookie)]
        core.handle(BookieChosen(replace, "b9"))
        assert core._adds.metadata.fragments == (
            Fragment(0, ("b0", "b1", "b2")),
            Fragment(8, ("b9", "b1", "b3")),
        )


class TestEnd:
    def test_reads_fence_too(self) -> None:
        """Fencing only the reads of the LAC lost an entry (BookKeeper issues 2614 and 2616)."""
        core = start()
        actions = fence(core, {"b0": NO, "b1": NO})
        assert all(a.is_fencing for a in actions if isinstance(a, ReadEntry))

    def test_a_lost_fence_message_loses_nothing(self) -> None:
        # Entry 0 is only at b1 and unconfirmed. b2 was not fenced by the LAC reads; the recovery
        # read fences it, so the writer's add to b2 is refused and entry 0 stays unconfirmed.
        world = SimulatedRecovery(random.Random(1), make_metadata(state=LedgerState.OPEN), spares=0)
        world.bookies["b1"].add(0, make_body(0, -1), is_recovery=False)
        world.writer.pushed, world.writer.acked = 0, {0: {"b1"}}
        recoverer = Recoverer(world, 1)
        core = recoverer.core
        assert core is not None
        world.under_way.clear()
        actions = [ReadLast(1, "b0"), ReadLast(1, "b1")]
        world.bookies["b1"].is_fenced = world.bookies["b0"].is_fenced = True
        core.handle(Answered(actions[0], NO))
        (read,) = core.handle(Answered(actions[1], Status.OK, make_body(0, -1)))
        assert isinstance(read, ReadEntry)
        rest = core.handle(Answered(read, NO))
        for action in rest:
            world._act(recoverer, action)
        assert world.bookies["b2"].is_fenced
        assert world.bookies["b2"].add(0, b"", is_recovery=False) is Status.FENCED

    def test_write_quorum_less_ack_quorum_plus_one_negatives_end_the_ledger(self) -> None:
        core = start()
        actions = fence(core, {"b0": NO, "b1": NO})
        actions = core.handle(answer(actions[0], NO))
        assert not [a for a in actions if isinstance(a, StoreClosed)]
        (store,) = core.handle(answer(actions[0], NO))
        assert isinstance(store, StoreClosed)
        assert (store.closed.last_entry_id, store.closed.length) == (-1, 0)
        core.handle(LedgerStored(store))
        assert core.result.is_closed

    @pytest.mark.parametrize("doubt", [None, UNKNOWN, Status.IO_ERROR, b"not an entry"])
    def test_an_unknown_state_is_never_a_negative(self, doubt: bytes | Status | None) -> None:
        """A corrupt log answered "no such entry" and truncated a ledger (BookKeeper issue 2908)."""
        core = start()
        (first,) = fence(core, {"b0": NO, "b1": NO})
        second, third = core.handle(answer(first, NO))
        core.handle(answer(second, doubt))
        core.handle(answer(third, doubt))
        with pytest.raises(RecoveryIncomplete, match="takes 2 explicit negatives") as caught:
            _ = core.result
        assert "there are 1" in str(caught.value)

    def test_one_good_copy_outweighs_unknown_and_negative_answers(self) -> None:
        core = start()
        (first,) = fence(core, {"b0": NO, "b1": NO})
        second, third = core.handle(answer(first, NO))
        core.handle(answer(second, UNKNOWN))
        actions = core.handle(answer(third, make_body(0, -1)))
        assert {a.bookie for a in actions if isinstance(a, AddEntry)} == {"b0", "b1", "b2"}

    def test_an_entry_that_a_shown_one_proves_confirmed_is_not_cut_off(self) -> None:
        """BP-46: bookies that lost entries deny them; later entries prove that they existed."""
        core = start(window=3)
        zero, one = fence(core, {"b0": NO, "b1": NO})
        # Entry 2 carries LAC 1, and entry 1 is there: so entry 0 was acknowledged.
        core.handle(answer(one, make_body(1, -1)))
        core._claims.note("b2", DIGEST.decode_entry(LEDGER, 2, make_body(2, 1)))
        denials = core.handle(answer(zero, NO))
        actions = [action for denial in denials for action in core.handle(answer(denial, NO))]
        (check,) = actions
        assert reads([check]) == [("b1", 1)]
        core.handle(answer(check, make_body(1, -1)))
        with pytest.raises(RecoveryIncomplete, match=r"entry 1 is claimed .*b1: holds it.* lost"):
            _ = core.result

    def test_a_claim_with_nothing_behind_it_is_set_aside(self) -> None:
        core = start(window=2)
        zero, one = fence(core, {"b0": NO, "b1": NO})
        core.handle(answer(one, make_body(1, 0)))
        second, third = core.handle(answer(zero, NO))
        assert not core.handle(answer(second, NO))  # two denials, but the third may hold it
        (store,) = core.handle(answer(third, NO))
        assert isinstance(store, StoreClosed)
        assert store.closed.last_entry_id == -1
        assert core.set_aside == {"b1": 0}

    def test_a_claimant_that_falls_silent_may_hold_the_entry(self) -> None:
        core = start(window=2)
        zero, one = fence(core, {"b0": NO, "b1": NO})
        core.handle(answer(one, make_body(1, 0)))
        for denial in core.handle(answer(zero, NO)):
            assert isinstance(denial, ReadEntry)
            core.handle(answer(denial, None if denial.bookie == "b1" else NO))
        with pytest.raises(RecoveryIncomplete, match="b1 claimed it to be confirmed"):
            _ = core.result

    def test_a_gap_ends_the_ledger_and_nothing_after_it_is_added(self) -> None:
        core = start(window=3)
        actions = fence(core, {"b0": NO, "b1": NO})
        after_gap = core.handle(answer(actions[1], make_body(1, -1)))
        assert not after_gap
        rest = core.handle(answer(actions[0], NO))
        (store,) = core.handle(answer(rest[0], NO))
        assert isinstance(store, StoreClosed)
        assert store.closed.last_entry_id == -1


class TestLength:
    def test_the_length_is_that_of_the_last_entry_added_again(self) -> None:
        core = start()
        (read,) = fence(core, {"b0": NO, "b1": NO})
        adds = core.handle(answer(read, make_body(0, -1)))
        core.handle(answer(adds[0], Status.OK))
        (read, *_) = core.handle(answer(adds[1], Status.OK))
        rest = core.handle(answer(read, NO))
        (store,) = core.handle(answer(rest[0], NO))
        assert isinstance(store, StoreClosed)
        assert (store.closed.last_entry_id, store.closed.length) == (0, 5)

    def test_the_length_is_read_from_the_lac_entry_when_none_follows(self) -> None:
        fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(3, ("b3", "b1", "b2")))
        core = start(make_metadata(fragments=fragments))
        (read,) = [a for a in fence(core, {"b3": NO, "b1": NO}) if isinstance(a, ReadEntry)]
        assert read.entry_id == 3
        rest = core.handle(answer(read, NO))
        (measure,) = core.handle(answer(rest[0], NO))
        assert core.phase is Phase.MEASURING
        assert isinstance(measure, ReadEntry)
        assert (measure.entry_id, measure.is_fencing) == (2, False)
        assert measure.bookie in ("b0", "b1", "b2")
        rest = core.handle(answer(measure, None))
        (store,) = core.handle(answer(rest[0], make_body(2, 1)))
        assert isinstance(store, StoreClosed)
        assert (store.closed.last_entry_id, store.closed.length) == (2, 15)

    def test_the_length_is_never_guessed(self) -> None:
        fragments = (Fragment(0, ("b0", "b1", "b2")), Fragment(3, ("b3", "b1", "b2")))
        core = start(make_metadata(fragments=fragments))
        (read,) = fence(core, {"b3": NO, "b1": NO})
        (measure,) = core.handle(answer(core.handle(answer(read, NO))[0], NO))
        for action in core.handle(answer(measure, None)):
            core.handle(answer(action, NO))
        with pytest.raises(RecoveryIncomplete, match="holds the ledger's length"):
            _ = core.result


class TestAddingAgain:
    def begin(self) -> tuple[RecoveryCore, list[AddEntry]]:
        core = start()
        (read,) = fence(core, {"b0": NO, "b1": NO})
        adds = core.handle(answer(read, make_body(0, -1)))
        return core, [a for a in adds if isinstance(a, AddEntry)]

    def test_bytes_stay_as_the_writer_wrote_them(self) -> None:
        _, adds = self.begin()
        assert [bytes(a.body) for a in adds] == [make_body(0, -1)] * 3

    def test_a_replaced_bookies_ack_does_not_count(self) -> None:
        core, adds = self.begin()
        core.handle(answer(adds[0], Status.OK))
        (replace,) = core.handle(answer(adds[1], None))
        assert isinstance(replace, ReplaceBookie)
        assert replace.excluded == ("b1",)
        (again,) = core.handle(BookieChosen(replace, "b7"))
        assert (again.bookie if isinstance(again, AddEntry) else None) == "b7"
        assert core.handle(answer(again, Status.OK))  # two acks in b0 b7 b2: recovery continues
        assert core._adds.confirmed == 0

    def test_acks_of_a_bookie_that_leaves_the_ensemble_are_forgotten(self) -> None:
        core = start(window=2)
        first, second = fence(core, {"b0": NO, "b1": NO})
        adds = core.handle(answer(first, make_body(0, -1)))
        adds += core.handle(answer(second, make_body(1, -1)))
        by = {(a.bookie, a.entry_id): a for a in adds if isinstance(a, AddEntry)}
        core.handle(answer(by["b0", 0], Status.OK))
        (replace,) = core.handle(answer(by["b0", 1], Status.IO_ERROR))
        assert isinstance(replace, ReplaceBookie)
        sent = core.handle(BookieChosen(replace, "b7"))
        assert {(a.bookie, a.entry_id) for a in sent if isinstance(a, AddEntry)} == {
            ("b7", 0),
            ("b7", 1),
        }
        core.handle(answer(by["b1", 0], Status.OK))
        assert core._adds.confirmed == -1  # b0's ack was one of another ensemble
        core.handle(answer(by["b2", 0], Status.OK))
        assert core._adds.confirmed == 0

    def test_without_a_replacement_an_ack_quorum_of_the_rest_is_enough(self) -> None:
        core, adds = self.begin()
        (replace,) = core.handle(answer(adds[0], Status.READ_ONLY))
        assert isinstance(replace, ReplaceBookie)
        core.handle(BookieChosen(replace, None))
        core.handle(answer(adds[1], Status.OK))
        core.handle(answer(adds[2], Status.OK))
        assert core._adds.confirmed == 0
        assert not core.finished

    def test_too_few_bookies_left_is_incomplete_with_the_numbers(self) -> None:
        core, adds = self.begin()
        for add in adds[:2]:
            (replace,) = core.handle(answer(add, Status.IO_ERROR))
            assert isinstance(replace, ReplaceBookie)
            core.handle(BookieChosen(replace, None))
        with pytest.raises(RecoveryIncomplete, match=r"2 acks needed, 2 of 3 bookies failed"):
            _ = core.result


class TestStoring:
    def closing(self) -> tuple[RecoveryCore, StoreClosed]:
        core = start()
        (read,) = fence(core, {"b0": NO, "b1": NO})
        (store,) = core.handle(answer(core.handle(answer(read, NO))[0], NO))
        assert isinstance(store, StoreClosed)
        return core, store

    def test_the_close_of_another_client_is_adopted(self) -> None:
        core, store = self.closing()
        theirs = make_metadata().closed(4, 25)
        core.handle(LedgerConflicted(store, theirs))
        assert core.result is theirs

    def test_a_change_by_another_client_restarts_recovery(self) -> None:
        core, store = self.closing()
        moved = make_metadata().with_ensemble(0, ("b0", "b5", "b2"))
        actions = core.handle(LedgerConflicted(store, moved))
        assert [a.bookie for a in actions if isinstance(a, ReadLast)] == ["b0", "b5", "b2"]
        assert core.handle(LedgerStored(store)) == []  # a response to the earlier attempt
        assert not core.finished

    def test_restarts_are_bounded(self) -> None:
        core, store = self.closing()
        for _ in range(ATTEMPTS_MAX - 1):
            begun = core.handle(LedgerConflicted(store, make_metadata()))
            for action in begun[:2]:
                actions = core.handle(answer(action, NO))
            actions = core.handle(answer(actions[0], NO))
            (last,) = core.handle(answer(actions[0], NO))
            assert isinstance(last, StoreClosed)
            store = last
        core.handle(LedgerConflicted(store, make_metadata()))
        with pytest.raises(MetadataConflict):
            _ = core.result
