"""Ledger metadata has only valid values and only legal changes."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.core.entry import DigestType
from ledger.core.metadata import Fragment, LedgerMetadata, LedgerState
from ledger.errors import InvalidArgument, LedgerClosed, LedgerFenced, MetadataConflict

ABC = ("a:1", "b:1", "c:1")
ABD = ("a:1", "b:1", "d:1")


def metadata(**changes: object) -> LedgerMetadata:
    base = LedgerMetadata(
        ledger_id=5,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, ABC),),
        digest_type=DigestType.CRC32C,
        password=b"secret",
    )
    return replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"ledger_id": -1}, "ledger id -1 is negative"),
        ({"write_quorum": 4}, "must hold"),
        ({"ack_quorum": 0}, "must hold"),
        ({"fragments": ()}, "do not begin at entry 0"),
        ({"fragments": (Fragment(1, ABC),)}, "do not begin at entry 0"),
        ({"fragments": (Fragment(0, ABC), Fragment(0, ABD))}, "do not ascend"),
        (
            {"fragments": (Fragment(0, ABC), Fragment(9, ABD), Fragment(8, ABC))},
            "9 is followed by 8",
        ),
        ({"fragments": (Fragment(0, ABC[:2]),)}, "has 2 bookies, must have 3"),
        ({"fragments": (Fragment(0, ("a:1", "b:1", "a:1")),)}, "names a bookie twice"),
        ({"fragments": (Fragment(0, ("a:1", "b:1", "c 1")),)}, "bookie id 'c 1'"),
        ({"fragments": (Fragment(0, ("a:1", "b:1", "")),)}, "bookie id ''"),
        ({"last_entry_id": 4}, "is OPEN but has last entry 4"),
        ({"length": 1}, "is OPEN but has"),
        ({"state": LedgerState.CLOSED, "last_entry_id": -2}, "closed ledger 5 with last entry -2"),
        ({"state": LedgerState.CLOSED, "length": -1}, "length -1"),
        ({"format_version": 4}, "format version 4"),
        ({"format_version": 0}, "format version 0"),
    ],
)
def test_invalid_metadata_cannot_be_created(changes: dict[str, object], cause: str) -> None:
    with pytest.raises(InvalidArgument, match=cause):
        metadata(**changes)


def test_metadata_is_immutable() -> None:
    tags = {"owner": b"me"}
    kept = metadata(custom=tags)
    tags["owner"] = b"you"
    assert kept.custom == {"owner": b"me"}
    with pytest.raises(TypeError):
        kept.custom["owner"] = b"you"  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        kept.length = 3  # type: ignore[misc]


def test_equal_metadata_is_equal_and_hashes_alike() -> None:
    first, second = metadata(custom={"k": b"v"}), metadata(custom={"k": b"v"})
    assert first == second
    assert hash(first) == hash(second)
    assert first != metadata(custom={"k": b"w"})


def test_the_password_is_not_shown() -> None:
    assert "secret" not in repr(metadata())


@given(st.lists(st.integers(1, 50), unique=True, max_size=6), st.integers(0, 60))
def test_the_fragment_of_an_entry_is_the_last_that_begins_at_or_before_it(
    starts: list[int], entry_id: int
) -> None:
    fragments = tuple(Fragment(start, ABC) for start in (0, *sorted(starts)))
    found = metadata(fragments=fragments).fragment_of(entry_id)
    assert found == [f for f in fragments if f.first_entry_id <= entry_id][-1]


def test_no_fragment_holds_a_negative_entry() -> None:
    with pytest.raises(InvalidArgument, match="entry id -1 is negative"):
        metadata().fragment_of(-1)


def test_a_new_ensemble_is_appended() -> None:
    changed = metadata().with_ensemble(7, ABD)
    assert changed.fragments == (Fragment(0, ABC), Fragment(7, ABD))
    assert changed.last_fragment == Fragment(7, ABD)


def test_a_new_ensemble_from_the_same_entry_replaces() -> None:
    changed = metadata().with_ensemble(7, ABD).with_ensemble(7, ABC)
    assert changed.fragments == (Fragment(0, ABC), Fragment(7, ABC))
    assert metadata().with_ensemble(0, ABD).fragments == (Fragment(0, ABD),)


def test_an_ensemble_before_the_last_one_is_a_conflict() -> None:
    with pytest.raises(MetadataConflict, match="from entry 6, but another begins at 7"):
        metadata().with_ensemble(7, ABD).with_ensemble(6, ABC)


def test_an_ensemble_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="has 2 bookies"):
        metadata().with_ensemble(7, ABD[:2])


def test_recovery_may_change_ensembles_and_then_closes() -> None:
    recovered = metadata().in_recovery().with_ensemble(3, ABD).closed(4, 100)
    assert recovered.is_closed
    assert (recovered.last_entry_id, recovered.length) == (4, 100)
    assert len(recovered.fragments) == 2


def test_recovery_of_a_ledger_in_recovery_changes_nothing() -> None:
    once = metadata().in_recovery()
    assert once.state is LedgerState.IN_RECOVERY
    assert once.in_recovery() is once


def test_a_closed_ledger_does_not_change() -> None:
    closed = metadata().closed(9, 50)
    assert closed.closed(9, 50) is closed
    for last_entry_id, length in ((9, 51), (8, 50), (10, 50)):
        with pytest.raises(LedgerClosed, match="cannot close it at"):
            closed.closed(last_entry_id, length)
    with pytest.raises(LedgerClosed):
        closed.in_recovery()
    with pytest.raises(LedgerClosed):
        closed.with_ensemble(20, ABD)


def test_an_empty_ledger_can_be_closed() -> None:
    assert metadata().closed(-1, 0).last_entry_id == -1
    for last_entry_id, length in ((-2, 0), (3, -1)):
        with pytest.raises(InvalidArgument, match="cannot end"):
            metadata().closed(last_entry_id, length)


def test_a_writer_may_change_only_an_open_ledger() -> None:
    metadata().require_open()
    with pytest.raises(LedgerFenced, match="recovered by another client"):
        metadata().in_recovery().require_open()
    with pytest.raises(LedgerClosed, match="closed at entry 9"):
        metadata().closed(9, 50).require_open()
